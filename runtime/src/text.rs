//! Text of an answer as it grows: characters are never split, stop strings never emitted.

use weir_tokenizer::{DecodeStream, Tokenizer};

/// Bytes that buffers of text begin with: a token's, and those of what may become a stop string.
const ROOM: usize = 1024;

/// Holds back text that may turn out to be part of a stop string.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    pending: String,
}

impl StopFilter {
    /// A filter for these strings, none of which is empty.
    pub fn new(stops: Vec<String>) -> StopFilter {
        let pending = String::with_capacity(if stops.is_empty() { 0 } else { ROOM });
        StopFilter { stops, pending }
    }

    /// Takes text, appends what is certain to `out`, and says which stop string has occurred, if one
    /// has; what follows it is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.pending.push_str(text);
        let places = self.stops.iter().map(|stop| self.pending.find(stop.as_str()));
        let first = places.enumerate().filter_map(|(stop, place)| Some((place?, stop))).min();
        if let Some((place, stop)) = first {
            out.push_str(&self.pending[..place]);
            self.pending.clear();
            return Some(stop);
        }
        let held = self.stops.iter().map(|stop| overlap(&self.pending, stop)).max().unwrap_or(0);
        let certain = self.pending.len() - held;
        out.push_str(&self.pending[..certain]);
        self.pending.drain(..certain);
        None
    }

    /// The answer ends: what was held back is text after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.pending);
        self.pending.clear();
    }
}

/// Bytes of the longest end of `text` that `stop` begins with.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|bytes| {
            text.is_char_boundary(text.len() - bytes)
                && stop.is_char_boundary(*bytes)
                && text.ends_with(&stop[..*bytes])
        })
        .unwrap_or(0)
}

/// Turns the tokens of one answer into text, in buffers that keep their room.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    decoder: DecodeStream,
    stops: StopFilter,
    shown: Vec<u32>,
    /// Room for what the decoder is certain of.
    certain: String,
}

impl TextStream {
    /// A stream that ends at stop strings and leaves out special tokens, but for those that are `shown`.
    pub fn new(tokenizer: &Tokenizer, stops: Vec<String>, shown: Vec<u32>) -> TextStream {
        TextStream {
            tokenizer: tokenizer.clone(),
            decoder: tokenizer.decode_stream(false),
            stops: StopFilter::new(stops),
            shown,
            certain: String::with_capacity(ROOM),
        }
    }

    /// The answer goes on with the text of this prompt, and is no turn of a chat, which has a beginning of
    /// its own. Tokenizers of the Llama 2 kind take the space from the beginning of a text; that of " is"
    /// behind "The capital of France" stays. A prompt of special tokens alone has no text to go on with.
    pub fn go_on_with(&mut self, prompt: &[u32]) {
        let tokenizer = &self.tokenizer;
        let has_text = |token: &u32| {
            !tokenizer.is_special(*token)
                && tokenizer.token_text(*token).is_some_and(|text| !text.is_empty())
        };
        if prompt.iter().rev().any(has_text) {
            self.decoder.go_on();
        }
    }

    /// Takes a token, appends the text that is certain to `out`, and says which stop string has
    /// occurred, if one has.
    pub fn push(&mut self, token: u32, out: &mut String) -> Option<usize> {
        if self.tokenizer.is_special(token) && !self.shown.contains(&token) {
            return None;
        }
        self.certain.clear();
        self.decoder.push(token, &mut self.certain);
        if self.certain.is_empty() {
            return None;
        }
        self.stops.push(&self.certain, out)
    }

    /// The answer ends. Says which stop string was in its last bytes, if one was.
    pub fn finish(&mut self, out: &mut String) -> Option<usize> {
        self.certain.clear();
        self.decoder.finish(&mut self.certain);
        let stopped = self.stops.push(&self.certain, out);
        if stopped.is_none() {
            self.stops.finish(out);
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut filter = StopFilter::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            if let Some(stop) = filter.push(piece, &mut out) {
                return (out, Some(stop));
            }
            assert!(!stops.iter().any(|stop| out.ends_with(&stop[..stop.len() - 1])), "{out:?}");
        }
        filter.finish(&mut out);
        (out, None)
    }

    #[test]
    fn stop_strings_across_pieces_are_not_emitted() {
        assert_eq!(run(&["###"], &["ab#", "#", "#cd"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["###"], &["ab", "##", "c", "#"]), ("ab##c#".into(), None));
        assert_eq!(run(&["xy", "abc"], &["1a", "b", "d", "x"]), ("1abdx".into(), None));
        assert_eq!(run(&["éa"], &["o", "é", "a!"]), ("o".into(), Some(0)));
    }

    #[test]
    fn the_earliest_stop_wins() {
        assert_eq!(run(&["later", "now"], &["do it now or later"]), ("do it ".into(), Some(1)));
        assert_eq!(run(&["now or", "now"], &["now or"]), (String::new(), Some(0)));
    }

    #[test]
    fn without_stops_text_passes_at_once() {
        let mut out = String::new();
        assert_eq!(StopFilter::default().push("a", &mut out), None);
        assert_eq!(out, "a");
    }

    /// A tokenizer that spells line feeds in byte tokens and strips a text's first space.
    fn sentence_pieces() -> Tokenizer {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/tokenizer/tests/data/mistral/tokenizer.json");
        Tokenizer::open(weir_tokenizer::pack(&std::fs::read(path).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn stop_strings_in_byte_tokens_are_seen_at_once() {
        let tokenizer = sentence_pieces();
        let feed = tokenizer.token_id("<0x0A>").unwrap();
        let word = tokenizer.token_id("a").unwrap();
        let mut stream = TextStream::new(&tokenizer, vec!["\n\n".to_owned()], Vec::new());
        let mut out = String::new();
        assert_eq!(stream.push(word, &mut out), None);
        assert_eq!(stream.push(feed, &mut out), None);
        assert_eq!(stream.push(feed, &mut out), Some(0), "no other token may ever come");
        assert_eq!(out, "a");
        let mut stream = TextStream::new(&tokenizer, Vec::new(), Vec::new());
        let mut out = String::new();
        stream.push(feed, &mut out);
        assert_eq!(out, "\n");
    }

    /// A decoder of whole texts replaces the complete characters in front of malformed bytes as well, and
    /// would find no stop string here.
    #[test]
    fn the_stop_string_is_told_where_bytes_are_no_text() {
        let tokenizer = sentence_pieces();
        let ids = ["<0x63>", "<0xFF>", "a"].map(|name| tokenizer.token_id(name).unwrap());
        let stops = vec!["b".to_owned(), "c\u{fffd}".to_owned()];
        let mut stream = TextStream::new(&tokenizer, stops, Vec::new());
        let mut out = String::new();
        let told = ids.iter().find_map(|id| stream.push(*id, &mut out));
        assert_eq!((told, out.as_str()), (Some(1), ""));
        assert!(!tokenizer.decode(&ids, true).contains('c'));
    }

    #[test]
    fn answers_that_go_on_keep_their_first_space() {
        let tokenizer = sentence_pieces();
        let answer = tokenizer.encode("is", false).unwrap();
        let begin = tokenizer.token_id("<s>").unwrap();
        let text = [vec![begin], tokenizer.encode("The capital", false).unwrap()].concat();
        let written = |prompt: Option<&[u32]>| {
            let mut stream = TextStream::new(&tokenizer, Vec::new(), Vec::new());
            prompt.into_iter().for_each(|prompt| stream.go_on_with(prompt));
            let mut out = String::new();
            for token in &answer {
                stream.push(*token, &mut out);
            }
            stream.finish(&mut out);
            out
        };
        assert_eq!(written(None), "is");
        assert_eq!(written(Some(&text)), " is");
        assert_eq!(written(Some(&[begin])), "is");
    }
}

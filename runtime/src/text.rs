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

    /// Takes text, appends what is certain to `out`, and says whether a stop string has occurred;
    /// what follows it is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stops.is_empty() {
            out.push_str(text);
            return false;
        }
        self.pending.push_str(text);
        let first = self.stops.iter().filter_map(|stop| self.pending.find(stop.as_str())).min();
        if let Some(first) = first {
            out.push_str(&self.pending[..first]);
            self.pending.clear();
            return true;
        }
        let held = self.stops.iter().map(|stop| overlap(&self.pending, stop)).max().unwrap_or(0);
        let certain = self.pending.len() - held;
        out.push_str(&self.pending[..certain]);
        self.pending.drain(..certain);
        false
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

    /// Takes a token, appends the text that is certain to `out`, and says whether a stop string has
    /// occurred.
    pub fn push(&mut self, token: u32, out: &mut String) -> bool {
        if self.tokenizer.is_special(token) && !self.shown.contains(&token) {
            return false;
        }
        self.certain.clear();
        self.decoder.push(token, &mut self.certain);
        !self.certain.is_empty() && self.stops.push(&self.certain, out)
    }

    /// The answer ends. `true` if a stop string was in its last bytes.
    pub fn finish(&mut self, out: &mut String) -> bool {
        self.certain.clear();
        self.decoder.finish(&mut self.certain);
        let stopped = self.stops.push(&self.certain, out);
        if !stopped {
            self.stops.finish(out);
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut filter = StopFilter::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            if filter.push(piece, &mut out) {
                return (out, true);
            }
            assert!(!stops.iter().any(|stop| out.ends_with(&stop[..stop.len() - 1])), "{out:?}");
        }
        filter.finish(&mut out);
        (out, false)
    }

    #[test]
    fn stop_strings_across_pieces_are_not_emitted() {
        assert_eq!(run(&["###"], &["ab#", "#", "#cd"]), ("ab".into(), true));
        assert_eq!(run(&["###"], &["ab", "##", "c", "#"]), ("ab##c#".into(), false));
        assert_eq!(run(&["xy", "abc"], &["1a", "b", "d", "x"]), ("1abdx".into(), false));
        assert_eq!(run(&["éa"], &["o", "é", "a!"]), ("o".into(), true));
    }

    #[test]
    fn the_earliest_stop_wins() {
        assert_eq!(run(&["later", "now"], &["do it now or later"]), ("do it ".into(), true));
    }

    #[test]
    fn without_stops_text_passes_at_once() {
        let mut out = String::new();
        assert!(!StopFilter::default().push("a", &mut out));
        assert_eq!(out, "a");
    }
}

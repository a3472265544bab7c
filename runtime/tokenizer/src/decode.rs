//! Ids back to text, one id at a time.
//!
//! Every decoder of the file becomes a stage that holds back only what a later token could still
//! change: an incomplete UTF-8 character, a run of byte tokens (the reference turns the whole run
//! into U+FFFD if any part of it is malformed), spaces that the end of the text would strip. So
//! the pieces handed out, joined, are exactly what decoding everything at once gives, and that is
//! how [`Tokenizer::decode`] is implemented.

use crate::Tokenizer;
use crate::component::{Decoder, Needle, PrependScheme};
use crate::normalize::letter_to_byte;
use crate::tokenizer::replaced;

/// Decodes a stream of ids. It owns a share of the tokenizer, so it can be kept per request.
#[derive(Clone, Debug)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    stages: Vec<Stage>,
    started: bool,
}

impl DecodeStream {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let mut fused = false;
        let stages = tokenizer
            .config()
            .decoders
            .iter()
            .map(|decoder| Stage::new(decoder, &mut fused))
            .collect();
        Self { tokenizer, skip_special, stages, started: false }
    }

    /// Takes the next id; gives the text that is now certain, if there is any.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let text = self.tokenizer.token_text(id)?;
        if self.skip_special && self.tokenizer.is_special(id) {
            return None;
        }
        self.started = true;
        let pieces = self.through(0, vec![text.to_owned()]);
        Some(pieces.concat()).filter(|text| !text.is_empty())
    }

    /// Gives the text that was held back. The stream may be dropped or reused for a new text.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        if self.started {
            for index in 0..self.stages.len() {
                let mut stage = std::mem::replace(&mut self.stages[index], Stage::Fuse);
                let pieces = stage.finish(&self.tokenizer);
                text.push_str(&self.through(index + 1, pieces).concat());
            }
        }
        *self = Self::new(self.tokenizer.clone(), self.skip_special);
        text
    }

    /// Sends pieces through the stages from `first` on.
    fn through(&mut self, first: usize, mut pieces: Vec<String>) -> Vec<String> {
        for stage in self.stages.iter_mut().skip(first) {
            let mut next = Vec::with_capacity(pieces.len());
            for piece in pieces {
                stage.push(&self.tokenizer, piece, &mut next);
            }
            pieces = next;
        }
        pieces
    }
}

/// One decoder and what it holds back. After a stage that fuses, all pieces are parts of one token.
#[derive(Clone, Debug)]
enum Stage {
    /// Byte letters to bytes; holds an incomplete character.
    ByteLevel { held: Vec<u8> },
    /// A run of byte tokens.
    ByteFallback { run: Vec<u8> },
    /// Passes pieces on; from here on they are parts of one token.
    Fuse,
    /// Works token by token.
    PerToken { decoder: Decoder, index: usize },
    /// Strips the ends of the one fused token; holds characters that may be its end.
    StripFused { content: char, start_left: u32, stop: u32, held: String },
    /// Puts `separator` for `suffix`, but nothing in the last token, which is held.
    Bpe { suffix: String, held: Option<String> },
    /// Works on the one fused token, which must be whole.
    Whole { decoder: Decoder, held: String },
}

impl Stage {
    fn new(decoder: &Decoder, fused: &mut bool) -> Self {
        let whole =
            |decoder: &Decoder| Self::Whole { decoder: decoder.clone(), held: String::new() };
        let was_fused = *fused;
        match decoder {
            Decoder::ByteLevel if was_fused => whole(decoder),
            Decoder::ByteLevel => {
                *fused = true;
                Self::ByteLevel { held: Vec::new() }
            }
            Decoder::ByteFallback if was_fused => whole(decoder),
            Decoder::ByteFallback => Self::ByteFallback { run: Vec::new() },
            Decoder::Fuse => {
                *fused = true;
                Self::Fuse
            }
            Decoder::Strip { content, start, stop } if was_fused => Self::StripFused {
                content: *content,
                start_left: *start,
                stop: *stop,
                held: String::new(),
            },
            Decoder::Bpe { suffix } if !was_fused => {
                Self::Bpe { suffix: suffix.clone(), held: None }
            }
            // One character cannot straddle two parts.
            Decoder::Replace { needle: Needle::Literal(text), .. }
                if was_fused && text.chars().count() > 1 =>
            {
                whole(decoder)
            }
            Decoder::Replace { needle: Needle::Program(_), .. } if was_fused => whole(decoder),
            // The first token is special to these; a fused text is all first token.
            Decoder::Metaspace { .. } | Decoder::WordPiece { .. } | Decoder::Bpe { .. }
                if was_fused =>
            {
                whole(decoder)
            }
            _ => Self::PerToken { decoder: decoder.clone(), index: 0 },
        }
    }

    fn push(&mut self, tokenizer: &Tokenizer, piece: String, out: &mut Vec<String>) {
        match self {
            Self::ByteLevel { held } => {
                push_bytes(&piece, held);
                out.push(take_complete(held));
            }
            Self::ByteFallback { run } => match byte_token_value(&piece) {
                Some(byte) => run.push(byte),
                None => {
                    flush_run(run, out);
                    out.push(piece);
                }
            },
            Self::Fuse => out.push(piece),
            Self::PerToken { decoder, index } => {
                out.push(per_token(tokenizer, decoder, *index == 0, false, piece));
                *index = 1;
            }
            Self::StripFused { content, start_left, stop, held } => {
                let mut ready = String::new();
                for character in piece.chars() {
                    if character == *content && *start_left > 0 {
                        *start_left -= 1;
                        continue;
                    }
                    *start_left = 0;
                    if character == *content && *stop > 0 {
                        held.push(character);
                    } else {
                        ready.push_str(held);
                        held.clear();
                        ready.push(character);
                    }
                }
                out.push(ready);
            }
            Self::Bpe { suffix, held } => {
                if let Some(token) = held.replace(piece) {
                    out.push(if suffix.is_empty() {
                        spaced(&token)
                    } else {
                        token.replace(suffix.as_str(), " ")
                    });
                }
            }
            Self::Whole { held, .. } => held.push_str(&piece),
        }
    }

    fn finish(&mut self, tokenizer: &Tokenizer) -> Vec<String> {
        let mut out = Vec::new();
        match self {
            Self::ByteLevel { held } => out.push(String::from_utf8_lossy(held).into_owned()),
            Self::ByteFallback { run } => flush_run(run, &mut out),
            Self::Fuse | Self::PerToken { .. } => {}
            Self::StripFused { stop, held, .. } => {
                let kept = held.chars().count().saturating_sub(*stop as usize);
                out.push(held.chars().take(kept).collect());
            }
            Self::Bpe { suffix, held } => {
                if let Some(token) = held.take() {
                    out.push(token.replace(suffix.as_str(), ""));
                }
            }
            Self::Whole { decoder, held } => {
                out.push(per_token(tokenizer, decoder, true, true, std::mem::take(held)));
            }
        }
        out
    }
}

/// `str::replace("", " ")`: a space at every character boundary.
fn spaced(token: &str) -> String {
    token.replace("", " ")
}

fn per_token(
    tokenizer: &Tokenizer,
    decoder: &Decoder,
    is_first: bool,
    is_last: bool,
    piece: String,
) -> String {
    match decoder {
        Decoder::Replace { needle, content } => {
            replaced(&piece, needle, content, tokenizer.programs())
        }
        Decoder::Strip { content, start, stop } => strip(&piece, *content, *start, *stop),
        Decoder::Metaspace { replacement, scheme } => {
            let drops = is_first && *scheme != PrependScheme::Never;
            piece.replace(*replacement, if drops { "" } else { " " })
        }
        Decoder::WordPiece { prefix, cleanup } => {
            let joined = match piece.strip_prefix(prefix.as_str()) {
                _ if is_first => piece,
                Some(tail) => tail.to_owned(),
                None => format!(" {piece}"),
            };
            if *cleanup { clean_up(&joined) } else { joined }
        }
        Decoder::JoinWithSpaces if is_first => piece,
        Decoder::JoinWithSpaces => format!(" {piece}"),
        Decoder::Bpe { suffix } => piece.replace(suffix.as_str(), if is_last { "" } else { " " }),
        Decoder::ByteLevel => {
            let mut bytes = Vec::new();
            push_bytes(&piece, &mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Decoder::ByteFallback => match byte_token_value(&piece) {
            Some(byte) => {
                let mut out = Vec::new();
                flush_run(&mut vec![byte], &mut out);
                out.concat()
            }
            None => piece,
        },
        Decoder::Fuse => piece,
    }
}

fn strip(piece: &str, content: char, start: u32, stop: u32) -> String {
    let chars: Vec<char> = piece.chars().collect();
    let is_content = |c: &&char| **c == content;
    let head = chars.iter().take(start as usize).take_while(is_content).count();
    let tail = chars.iter().rev().take(stop as usize).take_while(is_content).count();
    let end = (chars.len() - tail).max(head);
    chars[head..end].iter().collect()
}

/// The reference's tidying of English word pieces.
fn clean_up(text: &str) -> String {
    const RULES: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The byte of a token `<0xNN>`.
pub(crate) fn byte_token_value(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 { None } else { u8::from_str_radix(digits, 16).ok() }
}

/// A token's bytes: letters of the byte alphabet, or the text itself if it has others.
fn push_bytes(token: &str, bytes: &mut Vec<u8>) {
    let spelled: Option<Vec<u8>> = token.chars().map(letter_to_byte).collect();
    match spelled {
        Some(spelled) => bytes.extend(spelled),
        None => bytes.extend_from_slice(token.as_bytes()),
    }
}

/// Takes all that later bytes cannot change; malformed sequences become U+FFFD one by one, as
/// `String::from_utf8_lossy` has it.
fn take_complete(held: &mut Vec<u8>) -> String {
    let mut text = String::new();
    loop {
        match std::str::from_utf8(held) {
            Ok(valid) => {
                text.push_str(valid);
                held.clear();
                return text;
            }
            Err(error) => {
                let valid = error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&held[..valid]));
                match error.error_len() {
                    None => {
                        held.drain(..valid);
                        return text;
                    }
                    Some(len) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        held.drain(..valid + len);
                    }
                }
            }
        }
    }
}

fn flush_run(run: &mut Vec<u8>, out: &mut Vec<String>) {
    if run.is_empty() {
        return;
    }
    match std::str::from_utf8(run) {
        Ok(text) => out.push(text.to_owned()),
        // One token each, as later stages may look at tokens.
        Err(_) => out.extend(run.iter().map(|_| char::REPLACEMENT_CHARACTER.to_string())),
    }
    run.clear();
}

//! Ids back to text, one id at a time.
//!
//! Every decoder of the file becomes a stage that holds back only what a later token could still
//! change: an incomplete UTF-8 character, spaces that the end of the text would strip. So the pieces
//! handed out, joined, are exactly what decoding everything at once gives, and that is how
//! [`Tokenizer::decode`] is implemented.
//!
//! There is one exception. The reference turns a whole run of byte tokens into U+FFFD, one for each, if any
//! part of it is malformed, so that no character of a run is certain before the run has ended; a model that
//! repeats `<0x0A>` would never be seen to write a line feed, nor a stop string to be met. A stream
//! therefore hands out a run's characters as they become complete, as the reference's `DecodeStream` does,
//! and replaces what follows from the first malformed one on. [`Tokenizer::decode`] replaces those in front
//! of it too. All texts without malformed runs are alike.

mod pieces;

use crate::Tokenizer;
use crate::component::{Decoder, Needle, PrependScheme};
use crate::normalize::letter_to_byte;
use crate::tokenizer::replaced;
use pieces::{Pieces, ROOM, append_replaced};

/// Decodes a stream of ids. It owns a share of the tokenizer, so it can be kept per request. Its buffers
/// keep their room, so that a token costs no allocation, unless a decoder of the file goes by a pattern or
/// needs the whole text.
#[derive(Clone, Debug)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    bytes: Bytes,
    stages: Vec<Stage>,
    started: bool,
    /// Pieces in front of a stage, and room for those behind it.
    pieces: Pieces,
    next: Pieces,
}

impl DecodeStream {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special: bool, bytes: Bytes) -> Self {
        let stages = stages(&tokenizer, bytes);
        let (pieces, next) = (Pieces::new(), Pieces::new());
        Self { tokenizer, skip_special, bytes, stages, started: false, pieces, next }
    }

    /// The ids go on with a text rather than begin one: what decoders do to the first token of a text, such
    /// as taking the space in front of it, they do not do to these.
    pub fn go_on(&mut self) {
        for stage in &mut self.stages {
            match stage {
                Stage::PerToken { is_first, .. } => *is_first = false,
                Stage::StripFused { start_left, .. } => *start_left = 0,
                // These know no first token; a whole text is one.
                Stage::ByteLevel { .. }
                | Stage::ByteRun { .. }
                | Stage::ByteCharacters { .. }
                | Stage::Fuse
                | Stage::Bpe { .. }
                | Stage::Whole { .. } => {}
            }
        }
    }

    /// Takes the next id; appends the text that is now certain, if there is any.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let Some(text) = self.tokenizer.token_text(id) else { return };
        if self.skip_special && self.tokenizer.is_special(id) {
            return;
        }
        self.started = true;
        self.pieces.clear();
        self.pieces.push(text);
        self.through(0);
        out.push_str(self.pieces.joined());
    }

    /// Appends the text that was held back. The stream may be dropped or reused for a new text.
    pub fn finish(&mut self, out: &mut String) {
        if self.started {
            for index in 0..self.stages.len() {
                self.pieces.clear();
                self.stages[index].finish(&self.tokenizer, &mut self.pieces);
                self.through(index + 1);
                out.push_str(self.pieces.joined());
            }
        }
        self.started = false;
        self.stages = stages(&self.tokenizer, self.bytes);
    }

    /// Sends the pieces through the stages from `first` on.
    fn through(&mut self, first: usize) {
        let Self { tokenizer, stages, pieces, next, .. } = self;
        for stage in stages.iter_mut().skip(first) {
            next.clear();
            for piece in pieces.iter() {
                stage.push(tokenizer, piece, next);
            }
            std::mem::swap(pieces, next);
        }
    }
}

/// When characters that are spelt in byte tokens are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// When their run has ended, so that a malformed one is replaced as a whole.
    ByRun,
    /// When they are complete.
    ByCharacter,
}

/// The stages of a tokenizer's decoders, which hold nothing yet.
fn stages(tokenizer: &Tokenizer, bytes: Bytes) -> Vec<Stage> {
    let mut fused = false;
    let decoders = &tokenizer.config().decoders;
    let stage = |(index, decoder): (usize, &Decoder)| {
        // A run is one token to a decoder that works token by token, and must stay one.
        let divides = matches!(decoders.get(index + 1), None | Some(Decoder::Fuse));
        let bytes = if divides { bytes } else { Bytes::ByRun };
        Stage::new(decoder, bytes, &mut fused)
    };
    decoders.iter().enumerate().map(stage).collect()
}

/// One decoder and what it holds back. After a stage that fuses, all pieces are parts of one token.
#[derive(Clone, Debug)]
enum Stage {
    /// Byte letters to bytes; holds an incomplete character.
    ByteLevel { held: Vec<u8> },
    /// A run of byte tokens, held until it ends.
    ByteRun { run: Vec<u8> },
    /// A run of byte tokens, of which an incomplete character is held. From its first malformed byte to
    /// its end it `is_broken`.
    ByteCharacters { held: Vec<u8>, is_broken: bool },
    /// Passes pieces on; from here on they are parts of one token.
    Fuse,
    /// Works token by token.
    PerToken { decoder: Decoder, is_first: bool, room: Room },
    /// Strips the ends of the one fused token; holds characters that may be its end.
    StripFused { content: char, start_left: u32, stop: u32, held: String },
    /// Puts `separator` for `suffix`, but nothing in the last token, which is held.
    Bpe { suffix: String, holds: bool, held: String },
    /// Works on the one fused token, which must be whole.
    Whole { decoder: Decoder, held: String },
}

impl Stage {
    fn new(decoder: &Decoder, bytes: Bytes, fused: &mut bool) -> Self {
        let whole =
            |decoder: &Decoder| Self::Whole { decoder: decoder.clone(), held: String::new() };
        let was_fused = *fused;
        match decoder {
            Decoder::ByteLevel if was_fused => whole(decoder),
            Decoder::ByteLevel => {
                *fused = true;
                Self::ByteLevel { held: Vec::with_capacity(ROOM) }
            }
            Decoder::ByteFallback if was_fused => whole(decoder),
            Decoder::ByteFallback => match bytes {
                Bytes::ByRun => Self::ByteRun { run: Vec::with_capacity(ROOM) },
                Bytes::ByCharacter => {
                    Self::ByteCharacters { held: Vec::with_capacity(ROOM), is_broken: false }
                }
            },
            Decoder::Fuse => {
                *fused = true;
                Self::Fuse
            }
            Decoder::Strip { content, start, stop } if was_fused => Self::StripFused {
                content: *content,
                start_left: *start,
                stop: *stop,
                held: String::with_capacity(ROOM),
            },
            Decoder::Bpe { suffix } if !was_fused => {
                let held = String::with_capacity(ROOM);
                Self::Bpe { suffix: suffix.clone(), holds: false, held }
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
            _ => Self::PerToken { decoder: decoder.clone(), is_first: true, room: Room::default() },
        }
    }

    fn push(&mut self, tokenizer: &Tokenizer, piece: &str, out: &mut Pieces) {
        match self {
            Self::ByteLevel { held } => {
                push_bytes(piece, held);
                out.write(|text| take_complete(held, text));
            }
            Self::ByteRun { run } => match byte_token_value(piece) {
                Some(byte) => run.push(byte),
                None => {
                    flush_run(run, out);
                    out.push(piece);
                }
            },
            Self::ByteCharacters { held, is_broken } => match byte_token_value(piece) {
                Some(byte) => {
                    held.push(byte);
                    let error = std::str::from_utf8(held).err();
                    *is_broken |= error.is_some_and(|error| error.error_len().is_some());
                    match (*is_broken, error) {
                        (true, _) => replace_run(held, out),
                        (false, None) => flush_run(held, out),
                        (false, Some(_)) => {}
                    }
                }
                None => {
                    flush_run(held, out);
                    *is_broken = false;
                    out.push(piece);
                }
            },
            Self::Fuse => out.push(piece),
            Self::PerToken { decoder, is_first, room } => {
                let place = Place { is_first: *is_first, is_last: false };
                out.write(|text| per_token(tokenizer, decoder, place, piece, room, text));
                *is_first = false;
            }
            Self::StripFused { content, start_left, stop, held } => out.write(|ready| {
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
            }),
            Self::Bpe { suffix, holds, held } => {
                if *holds {
                    // An empty suffix stands at every boundary of characters.
                    out.write(|text| append_replaced(held, suffix, " ", text));
                }
                *holds = true;
                held.clear();
                held.push_str(piece);
            }
            Self::Whole { held, .. } => held.push_str(piece),
        }
    }

    /// Adds what was held back. The stage is not used again.
    fn finish(&mut self, tokenizer: &Tokenizer, out: &mut Pieces) {
        match self {
            Self::ByteLevel { held } => out.push(&String::from_utf8_lossy(held)),
            Self::ByteRun { run } | Self::ByteCharacters { held: run, .. } => flush_run(run, out),
            Self::Fuse | Self::PerToken { .. } => {}
            Self::StripFused { stop, held, .. } => {
                let kept = held.chars().count().saturating_sub(*stop as usize);
                out.write(|text| text.extend(held.chars().take(kept)));
            }
            Self::Bpe { suffix, holds, held } => {
                if *holds {
                    out.write(|text| append_replaced(held, suffix, "", text));
                }
            }
            Self::Whole { decoder, held } => {
                let place = Place { is_first: true, is_last: true };
                let mut room = Room::default();
                out.write(|text| per_token(tokenizer, decoder, place, held, &mut room, text));
            }
        }
    }
}

/// Where a token stands in its text.
#[derive(Clone, Copy)]
struct Place {
    is_first: bool,
    is_last: bool,
}

/// Room for a word that is rewritten several times.
type Room = [String; 2];

/// Appends what a decoder makes of one token.
fn per_token(
    tokenizer: &Tokenizer,
    decoder: &Decoder,
    place: Place,
    piece: &str,
    room: &mut Room,
    out: &mut String,
) {
    let Place { is_first, is_last } = place;
    match decoder {
        Decoder::Replace { needle: Needle::Literal(literal), content } => {
            append_replaced(piece, literal, content, out);
        }
        Decoder::Replace { needle, content } => {
            out.push_str(&replaced(piece, needle, content, tokenizer.programs()));
        }
        Decoder::Strip { content, start, stop } => strip(piece, *content, [*start, *stop], out),
        Decoder::Metaspace { replacement, scheme } => {
            let drops = is_first && *scheme != PrependScheme::Never;
            let spaced = piece.chars().filter(|c| !(drops && c == replacement));
            out.extend(spaced.map(|c| if c == *replacement { ' ' } else { c }));
        }
        Decoder::WordPiece { prefix, cleanup } => {
            let [word, rewritten] = room;
            word.clear();
            match piece.strip_prefix(prefix.as_str()) {
                _ if is_first => word.push_str(piece),
                Some(tail) => word.push_str(tail),
                None => word.extend([" ", piece]),
            }
            if *cleanup {
                clean_up(word, rewritten);
            }
            out.push_str(word);
        }
        Decoder::JoinWithSpaces if is_first => out.push_str(piece),
        Decoder::JoinWithSpaces => out.extend([" ", piece]),
        Decoder::Bpe { suffix } => {
            append_replaced(piece, suffix, if is_last { "" } else { " " }, out);
        }
        Decoder::ByteLevel => {
            let mut bytes = Vec::new();
            push_bytes(piece, &mut bytes);
            out.push_str(&String::from_utf8_lossy(&bytes));
        }
        Decoder::ByteFallback => match byte_token_value(piece) {
            Some(byte) if byte.is_ascii() => out.push(char::from(byte)),
            Some(_) => out.push(char::REPLACEMENT_CHARACTER),
            None => out.push_str(piece),
        },
        Decoder::Fuse => out.push_str(piece),
    }
}

/// Appends a piece without up to so many of a character at its start and at its end.
fn strip(piece: &str, content: char, [start, stop]: [u32; 2], out: &mut String) {
    let is_content = |c: &char| *c == content;
    let head = piece.chars().take(start as usize).take_while(is_content).count();
    let tail = piece.chars().rev().take(stop as usize).take_while(is_content).count();
    let end = piece.chars().count() - tail;
    out.extend(piece.chars().take(end).skip(head));
}

/// The reference's tidying of English word pieces. `room` is for the rewritten text.
fn clean_up(text: &mut String, room: &mut String) {
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
    for (from, to) in RULES {
        room.clear();
        append_replaced(text, from, to, room);
        std::mem::swap(text, room);
    }
}

/// The byte of a token `<0xNN>`.
pub(crate) fn byte_token_value(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 { None } else { u8::from_str_radix(digits, 16).ok() }
}

/// A token's bytes: letters of the byte alphabet, or the text itself if it has others.
fn push_bytes(token: &str, bytes: &mut Vec<u8>) {
    if token.chars().all(|letter| letter_to_byte(letter).is_some()) {
        bytes.extend(token.chars().filter_map(letter_to_byte));
    } else {
        bytes.extend_from_slice(token.as_bytes());
    }
}

/// Takes all that later bytes cannot change; malformed sequences become U+FFFD one by one, as
/// `String::from_utf8_lossy` has it.
fn take_complete(held: &mut Vec<u8>, text: &mut String) {
    loop {
        match std::str::from_utf8(held) {
            Ok(valid) => {
                text.push_str(valid);
                held.clear();
                return;
            }
            Err(error) => {
                let valid = error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&held[..valid]));
                match error.error_len() {
                    None => {
                        held.drain(..valid);
                        return;
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

fn flush_run(run: &mut Vec<u8>, out: &mut Pieces) {
    if run.is_empty() {
        return;
    }
    match std::str::from_utf8(run) {
        Ok(text) => {
            out.push(text);
            run.clear();
        }
        Err(_) => replace_run(run, out),
    }
}

/// One token for each byte, as later stages may look at tokens.
fn replace_run(run: &mut Vec<u8>, out: &mut Pieces) {
    run.drain(..).for_each(|_| out.write(|text| text.push(char::REPLACEMENT_CHARACTER)));
}

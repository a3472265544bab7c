//! The components a tokenizer is made of, and their records in the config section.
//!
//! Sequences of the file are flattened: every stage is a list. Patterns are indices into the
//! patterns section. Reading checks every index and tag, so the stages may rely on them.

use crate::TokenizerError;
use crate::table::Reader;
#[cfg(feature = "pack")]
use crate::table::Writer;

/// What a `Split` or `Replace` looks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Needle {
    /// This text (not empty).
    Literal(String),
    /// A program of the patterns section.
    Program(u32),
}

/// Changes a text before it is split.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Normalizer {
    Prepend(String),
    Replace { needle: Needle, content: String },
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    Strip { left: bool, right: bool },
    StripAccents,
    ByteLevel,
}

/// What happens to the delimiters of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

const BEHAVIOURS: [Behaviour; 5] = [
    Behaviour::Removed,
    Behaviour::Isolated,
    Behaviour::MergedWithPrevious,
    Behaviour::MergedWithNext,
    Behaviour::Contiguous,
];

/// When a metaspace is put before a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrependScheme {
    First,
    Never,
    Always,
}

const SCHEMES: [PrependScheme; 3] =
    [PrependScheme::First, PrependScheme::Never, PrependScheme::Always];

/// Cuts a text into the pieces that the model sees one by one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PreTokenizer {
    /// `pattern` is the GPT-2 pattern where the file asks for it.
    ByteLevel {
        add_prefix_space: bool,
        pattern: Option<u32>,
    },
    Split {
        needle: Needle,
        behaviour: Behaviour,
        invert: bool,
    },
    Metaspace {
        replacement: char,
        scheme: PrependScheme,
        split: bool,
    },
    Digits {
        individual: bool,
    },
    WhitespaceSplit,
}

/// One part of the sequence that is given to the language model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    /// The encoded text.
    Text,
    /// Ids put beside it, where special tokens are asked for.
    Ids(Vec<u32>),
}

/// One stage from token texts back to text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoder {
    ByteLevel,
    Replace {
        needle: Needle,
        content: String,
    },
    ByteFallback,
    Fuse,
    Strip {
        content: char,
        start: u32,
        stop: u32,
    },
    Metaspace {
        replacement: char,
        scheme: PrependScheme,
    },
    Bpe {
        suffix: String,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    /// Stands for "no decoder": texts are joined by spaces.
    JoinWithSpaces,
}

/// How a character outside the vocabulary is expressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// No unknown-token: it is dropped (byte-pair model) or an error (unigram model).
    None,
    /// The file names one that the vocabulary lacks: an error when it is needed.
    Missing,
    /// This id.
    Id(u32),
}

/// The model: how a piece becomes ids.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Model {
    Bpe {
        unknown: Unknown,
        fuse_unknown: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        prefix: String,
        suffix: String,
    },
    Unigram {
        unknown: Unknown,
        byte_fallback: bool,
        /// Score of a character outside the vocabulary.
        unknown_score: f64,
        /// Length in bytes of the longest piece.
        longest: u32,
    },
    /// A piece is a token or unknown.
    WordLevel { unknown: Unknown },
}

/// Everything in the config section.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) model: Model,
    pub(crate) normalizers: Vec<Normalizer>,
    pub(crate) pre_tokenizers: Vec<PreTokenizer>,
    pub(crate) template: Vec<TemplatePart>,
    pub(crate) decoders: Vec<Decoder>,
    /// Added tokens matched in the raw text; the rest are matched in the normalised text.
    pub(crate) raw_added: u32,
    /// The program for one word character (`\w`), for added tokens that must be single words.
    pub(crate) word_pattern: u32,
}

impl Config {
    /// Reads the section; `patterns` and `ids` bound what records may refer to.
    pub(crate) fn read(bytes: &[u8], patterns: u32, ids: u32) -> Result<Self, TokenizerError> {
        let mut r = ConfigReader { reader: Reader::new(bytes, "config"), patterns, ids };
        Ok(Self {
            model: r.model()?,
            normalizers: r.list(ConfigReader::normalizer)?,
            pre_tokenizers: r.list(ConfigReader::pre_tokenizer)?,
            template: r.list(ConfigReader::template_part)?,
            decoders: r.list(ConfigReader::decoder)?,
            raw_added: r.reader.word()?,
            word_pattern: r.pattern()?,
        })
    }
}

struct ConfigReader<'a> {
    reader: Reader<'a>,
    patterns: u32,
    ids: u32,
}

impl ConfigReader<'_> {
    fn list<T>(
        &mut self,
        item: fn(&mut Self) -> Result<T, TokenizerError>,
    ) -> Result<Vec<T>, TokenizerError> {
        let count = self.reader.count(1)?;
        (0..count).map(|_| item(self)).collect()
    }

    fn pattern(&mut self) -> Result<u32, TokenizerError> {
        let index = self.reader.word()?;
        if index >= self.patterns {
            return self.reader.fail("no such pattern");
        }
        Ok(index)
    }

    fn id(&mut self) -> Result<u32, TokenizerError> {
        let id = self.reader.word()?;
        if id >= self.ids {
            return self.reader.fail("no such id");
        }
        Ok(id)
    }

    fn needle(&mut self) -> Result<Needle, TokenizerError> {
        match self.reader.byte()? {
            0 => match self.reader.text()? {
                text if text.is_empty() => self.reader.fail("an empty search text"),
                text => Ok(Needle::Literal(text)),
            },
            1 => Ok(Needle::Program(self.pattern()?)),
            _ => self.reader.fail("unknown kind of search"),
        }
    }

    fn scheme(&mut self) -> Result<PrependScheme, TokenizerError> {
        let index = self.reader.byte()?;
        SCHEMES
            .get(usize::from(index))
            .map_or_else(|| self.reader.fail("unknown prepend scheme"), |&scheme| Ok(scheme))
    }

    fn unknown(&mut self) -> Result<Unknown, TokenizerError> {
        match self.reader.byte()? {
            0 => Ok(Unknown::None),
            1 => Ok(Unknown::Missing),
            2 => Ok(Unknown::Id(self.id()?)),
            _ => self.reader.fail("unknown kind of unknown-token"),
        }
    }

    fn model(&mut self) -> Result<Model, TokenizerError> {
        Ok(match self.reader.byte()? {
            0 => Model::Bpe {
                unknown: self.unknown()?,
                fuse_unknown: self.reader.flag()?,
                byte_fallback: self.reader.flag()?,
                ignore_merges: self.reader.flag()?,
                prefix: self.reader.text()?,
                suffix: self.reader.text()?,
            },
            1 => Model::Unigram {
                unknown: self.unknown()?,
                byte_fallback: self.reader.flag()?,
                unknown_score: {
                    let low = u64::from(self.reader.word()?);
                    f64::from_bits(u64::from(self.reader.word()?) << 32 | low)
                },
                longest: self.reader.word()?,
            },
            2 => Model::WordLevel { unknown: self.unknown()? },
            _ => return self.reader.fail("unknown model"),
        })
    }

    fn normalizer(&mut self) -> Result<Normalizer, TokenizerError> {
        Ok(match self.reader.byte()? {
            0 => Normalizer::Prepend(self.reader.text()?),
            1 => Normalizer::Replace { needle: self.needle()?, content: self.reader.text()? },
            2 => Normalizer::Nfc,
            3 => Normalizer::Nfd,
            4 => Normalizer::Nfkc,
            5 => Normalizer::Nfkd,
            6 => Normalizer::Lowercase,
            7 => Normalizer::Strip { left: self.reader.flag()?, right: self.reader.flag()? },
            8 => Normalizer::StripAccents,
            9 => Normalizer::ByteLevel,
            _ => return self.reader.fail("unknown normalizer"),
        })
    }

    fn pre_tokenizer(&mut self) -> Result<PreTokenizer, TokenizerError> {
        Ok(match self.reader.byte()? {
            0 => PreTokenizer::ByteLevel {
                add_prefix_space: self.reader.flag()?,
                pattern: if self.reader.flag()? { Some(self.pattern()?) } else { None },
            },
            1 => PreTokenizer::Split {
                needle: self.needle()?,
                behaviour: {
                    let index = usize::from(self.reader.byte()?);
                    match BEHAVIOURS.get(index) {
                        Some(&behaviour) => behaviour,
                        None => return self.reader.fail("unknown split behaviour"),
                    }
                },
                invert: self.reader.flag()?,
            },
            2 => PreTokenizer::Metaspace {
                replacement: self.reader.character()?,
                scheme: self.scheme()?,
                split: self.reader.flag()?,
            },
            3 => PreTokenizer::Digits { individual: self.reader.flag()? },
            4 => PreTokenizer::WhitespaceSplit,
            _ => return self.reader.fail("unknown pre-tokenizer"),
        })
    }

    fn template_part(&mut self) -> Result<TemplatePart, TokenizerError> {
        Ok(match self.reader.byte()? {
            0 => TemplatePart::Text,
            1 => {
                let count = self.reader.count(4)?;
                TemplatePart::Ids((0..count).map(|_| self.id()).collect::<Result<_, _>>()?)
            }
            _ => return self.reader.fail("unknown template part"),
        })
    }

    fn decoder(&mut self) -> Result<Decoder, TokenizerError> {
        Ok(match self.reader.byte()? {
            0 => Decoder::ByteLevel,
            1 => Decoder::Replace { needle: self.needle()?, content: self.reader.text()? },
            2 => Decoder::ByteFallback,
            3 => Decoder::Fuse,
            4 => Decoder::Strip {
                content: self.reader.character()?,
                start: self.reader.word()?,
                stop: self.reader.word()?,
            },
            5 => {
                Decoder::Metaspace { replacement: self.reader.character()?, scheme: self.scheme()? }
            }
            6 => Decoder::Bpe { suffix: self.reader.text()? },
            7 => Decoder::WordPiece { prefix: self.reader.text()?, cleanup: self.reader.flag()? },
            8 => Decoder::JoinWithSpaces,
            _ => return self.reader.fail("unknown decoder"),
        })
    }
}

#[cfg(feature = "pack")]
impl Config {
    /// The inverse of [`Config::read`].
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        write_model(&mut w, &self.model);
        w.count(self.normalizers.len());
        self.normalizers.iter().for_each(|item| write_normalizer(&mut w, item));
        w.count(self.pre_tokenizers.len());
        self.pre_tokenizers.iter().for_each(|item| write_pre_tokenizer(&mut w, item));
        w.count(self.template.len());
        for part in &self.template {
            match part {
                TemplatePart::Text => w.byte(0),
                TemplatePart::Ids(ids) => {
                    w.byte(1);
                    w.count(ids.len());
                    ids.iter().for_each(|&id| w.word(id));
                }
            }
        }
        w.count(self.decoders.len());
        self.decoders.iter().for_each(|item| write_decoder(&mut w, item));
        w.word(self.raw_added);
        w.word(self.word_pattern);
        w.0
    }
}

#[cfg(feature = "pack")]
fn write_needle(w: &mut Writer, needle: &Needle) {
    match needle {
        Needle::Literal(text) => {
            w.byte(0);
            w.text(text);
        }
        Needle::Program(index) => {
            w.byte(1);
            w.word(*index);
        }
    }
}

#[cfg(feature = "pack")]
fn write_scheme(w: &mut Writer, scheme: PrependScheme) {
    w.byte(SCHEMES.iter().position(|&known| known == scheme).unwrap_or(0) as u8);
}

#[cfg(feature = "pack")]
fn write_unknown(w: &mut Writer, unknown: Unknown) {
    match unknown {
        Unknown::None => w.byte(0),
        Unknown::Missing => w.byte(1),
        Unknown::Id(id) => {
            w.byte(2);
            w.word(id);
        }
    }
}

#[cfg(feature = "pack")]
fn write_model(w: &mut Writer, model: &Model) {
    match model {
        Model::Bpe { unknown, fuse_unknown, byte_fallback, ignore_merges, prefix, suffix } => {
            w.byte(0);
            write_unknown(w, *unknown);
            w.flag(*fuse_unknown);
            w.flag(*byte_fallback);
            w.flag(*ignore_merges);
            w.text(prefix);
            w.text(suffix);
        }
        Model::Unigram { unknown, byte_fallback, unknown_score, longest } => {
            w.byte(1);
            write_unknown(w, *unknown);
            w.flag(*byte_fallback);
            w.word(unknown_score.to_bits() as u32);
            w.word((unknown_score.to_bits() >> 32) as u32);
            w.word(*longest);
        }
        Model::WordLevel { unknown } => {
            w.byte(2);
            write_unknown(w, *unknown);
        }
    }
}

#[cfg(feature = "pack")]
fn write_normalizer(w: &mut Writer, normalizer: &Normalizer) {
    match normalizer {
        Normalizer::Prepend(text) => {
            w.byte(0);
            w.text(text);
        }
        Normalizer::Replace { needle, content } => {
            w.byte(1);
            write_needle(w, needle);
            w.text(content);
        }
        Normalizer::Nfc => w.byte(2),
        Normalizer::Nfd => w.byte(3),
        Normalizer::Nfkc => w.byte(4),
        Normalizer::Nfkd => w.byte(5),
        Normalizer::Lowercase => w.byte(6),
        Normalizer::Strip { left, right } => {
            w.byte(7);
            w.flag(*left);
            w.flag(*right);
        }
        Normalizer::StripAccents => w.byte(8),
        Normalizer::ByteLevel => w.byte(9),
    }
}

#[cfg(feature = "pack")]
fn write_pre_tokenizer(w: &mut Writer, pre_tokenizer: &PreTokenizer) {
    match pre_tokenizer {
        PreTokenizer::ByteLevel { add_prefix_space, pattern } => {
            w.byte(0);
            w.flag(*add_prefix_space);
            w.flag(pattern.is_some());
            if let Some(index) = pattern {
                w.word(*index);
            }
        }
        PreTokenizer::Split { needle, behaviour, invert } => {
            w.byte(1);
            write_needle(w, needle);
            w.byte(BEHAVIOURS.iter().position(|known| known == behaviour).unwrap_or(0) as u8);
            w.flag(*invert);
        }
        PreTokenizer::Metaspace { replacement, scheme, split } => {
            w.byte(2);
            w.word(u32::from(*replacement));
            write_scheme(w, *scheme);
            w.flag(*split);
        }
        PreTokenizer::Digits { individual } => {
            w.byte(3);
            w.flag(*individual);
        }
        PreTokenizer::WhitespaceSplit => w.byte(4),
    }
}

#[cfg(feature = "pack")]
fn write_decoder(w: &mut Writer, decoder: &Decoder) {
    match decoder {
        Decoder::ByteLevel => w.byte(0),
        Decoder::Replace { needle, content } => {
            w.byte(1);
            write_needle(w, needle);
            w.text(content);
        }
        Decoder::ByteFallback => w.byte(2),
        Decoder::Fuse => w.byte(3),
        Decoder::Strip { content, start, stop } => {
            w.byte(4);
            w.word(u32::from(*content));
            w.word(*start);
            w.word(*stop);
        }
        Decoder::Metaspace { replacement, scheme } => {
            w.byte(5);
            w.word(u32::from(*replacement));
            write_scheme(w, *scheme);
        }
        Decoder::Bpe { suffix } => {
            w.byte(6);
            w.text(suffix);
        }
        Decoder::WordPiece { prefix, cleanup } => {
            w.byte(7);
            w.text(prefix);
            w.flag(*cleanup);
        }
        Decoder::JoinWithSpaces => w.byte(8),
    }
}

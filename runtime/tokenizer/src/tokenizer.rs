//! An opened table, and the way from text to ids.

use std::sync::Arc;

use crate::TokenizerError;
use crate::added::{AddedSet, Part};
use crate::bpe::{BpeOptions, Scratch};
use crate::component::{Config, Decoder, Model, Needle, TemplatePart, Unknown};
use crate::decode::{Bytes, DecodeStream, byte_token_value};
use crate::normalize::{Span, find_all, letter_to_byte, normalize};
use crate::pattern::Program;
use crate::split::pre_tokenize;
use crate::table::{ADDED, MODEL, Reader, SPECIAL, Section, Table};
use crate::unigram::{self, UnigramOptions};

/// A tokenizer over a packed table. Clones share the table.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
    config: Config,
    programs: Vec<Program>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Opens a table, checks its structure and decodes its few components; the vocabulary stays
    /// where it is. Takes anything that owns or borrows bytes for good: a mapped file's
    /// `&'static [u8]`, a `Vec<u8>`, an `Arc<[u8]>`.
    pub fn open(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self, TokenizerError> {
        let table = Table::open(bytes.as_ref())?;
        let mut reader = Reader::new(table.section(Section::Patterns), "patterns");
        let count = reader.count(8)?;
        let programs: Vec<Program> =
            (0..count).map(|_| Program::read(&mut reader)).collect::<Result<_, _>>()?;
        let ids = u32::try_from(table.ids())
            .map_err(|_| TokenizerError::Table { section: "flags", reason: "too many ids" })?;
        let config = Config::read(table.section(Section::Config), count as u32, ids)?;
        Ok(Self { inner: Arc::new(Inner { bytes: Box::new(bytes), config, programs }) })
    }

    /// The table; empty sections in the impossible case that the owner's bytes changed.
    fn table(&self) -> Option<Table<'_>> {
        Table::open((*self.inner.bytes).as_ref()).ok()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn programs(&self) -> &[Program] {
        &self.inner.programs
    }

    /// Ids of `text`. Tokens written out in the text, special ones among them, are recognised.
    /// With `add_special` the file's template (say, a beginning-of-sequence token) is put around.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        // Positions inside pieces are 32 bits wide.
        if u32::try_from(text.len()).is_err() {
            return Err(TokenizerError::TooLarge { what: "the text" });
        }
        let ids = self.encode_plain(text)?;
        let mut whole = Vec::with_capacity(ids.len() + 2);
        for part in &self.inner.config.template {
            match part {
                TemplatePart::Text => whole.extend_from_slice(&ids),
                TemplatePart::Ids(special) if add_special => whole.extend_from_slice(special),
                TemplatePart::Ids(_) => {}
            }
        }
        Ok(whole)
    }

    /// As [`Tokenizer::encode`] with the template, but without `bos` where the template begins with it.
    /// The rest of the template stays: models that give embeddings pool the row of a token behind the text.
    pub fn encode_without_bos(
        &self,
        text: &str,
        bos: Option<u32>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text, true)?;
        // A text may spell the token itself: only the template's is taken away.
        if bos.is_some() && self.leading_ids().first() == bos.as_ref() {
            ids.drain(..ids.len().min(1));
        }
        Ok(ids)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        let Some(table) = self.table() else { return Ok(ids) };
        let Config { normalizers, pre_tokenizers, raw_added, word_pattern, .. } =
            &self.inner.config;
        let programs = &self.inner.programs;
        let word = programs.get(*word_pattern as usize);
        let raw = AddedSet::new(table, *raw_added, false);
        let normalised = AddedSet::new(table, *raw_added, true);
        let mut scratch = Scratch::default();
        for part in raw.cut(text, word) {
            let (start, end) = match part {
                Part::Token(id) => {
                    ids.push(id);
                    continue;
                }
                Part::Text { start, end } => (start, end),
            };
            let mut span = Span::of_input(text.get(start..end).unwrap_or(""), start);
            normalize(normalizers, &mut span, programs)?;
            for part in normalised.cut(&span.text, word) {
                match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text { start, end } => {
                        let piece = span.slice(start, end);
                        for piece in pre_tokenize(pre_tokenizers, piece, programs)? {
                            self.encode_piece(table, &piece.text, &mut scratch, &mut ids)?;
                        }
                    }
                }
            }
        }
        Ok(ids)
    }

    fn encode_piece(
        &self,
        table: Table<'_>,
        piece: &str,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match &self.inner.config.model {
            Model::Bpe { unknown, fuse_unknown, byte_fallback, ignore_merges, prefix, suffix } => {
                let options = BpeOptions {
                    unknown: *unknown,
                    fuse_unknown: *fuse_unknown,
                    byte_fallback: *byte_fallback,
                    ignore_merges: *ignore_merges,
                    prefix,
                    suffix,
                };
                scratch.encode(table, options, piece, ids)
            }
            Model::Unigram { unknown, byte_fallback, unknown_score, longest } => {
                let options = UnigramOptions {
                    unknown: *unknown,
                    byte_fallback: *byte_fallback,
                    unknown_score: *unknown_score,
                    longest: *longest,
                };
                unigram::encode(table, options, piece, ids)
            }
            Model::WordLevel { unknown } => {
                match (table.find(piece.as_bytes(), MODEL), unknown) {
                    (Some(id), _) | (None, &Unknown::Id(id)) => ids.push(id),
                    _ => {
                        let character = piece.chars().next().unwrap_or('\0');
                        return Err(TokenizerError::NoUnknownToken { character });
                    }
                }
                Ok(())
            }
        }
    }

    /// Text of `ids`; ids that do not exist are passed over, special ones too with `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = DecodeStream::new(self.clone(), skip_special, Bytes::ByRun);
        let mut text = String::new();
        for &id in ids {
            stream.push(id, &mut text);
        }
        stream.finish(&mut text);
        text
    }

    /// A decoder that takes one id at a time. What it gives is what [`Tokenizer::decode`] does, but where
    /// byte tokens are malformed: complete characters in front of them in their run are not replaced.
    pub fn decode_stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream::new(self.clone(), skip_special, Bytes::ByCharacter)
    }

    /// The id of a token as the file spells it.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.table()?.find(text.as_bytes(), MODEL | ADDED)
    }

    /// The token's text as the file spells it (`Ġhello`, `<0x0A>`); `None` for an unused id.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.table()?.text(id)
    }

    /// The bytes that the token contributes in the middle of a text.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let text = self.token_text(id)?;
        let decoders = &self.inner.config.decoders;
        if decoders.contains(&Decoder::ByteLevel) {
            let bytes: Option<Vec<u8>> = text.chars().map(letter_to_byte).collect();
            return Some(bytes.unwrap_or_else(|| text.as_bytes().to_vec()));
        }
        let mut text = text.to_owned();
        for decoder in decoders {
            match decoder {
                Decoder::ByteFallback => {
                    if let Some(byte) = byte_token_value(&text) {
                        return Some(vec![byte]);
                    }
                }
                Decoder::Replace { needle, content } => {
                    text = replaced(&text, needle, content, &self.inner.programs);
                }
                Decoder::Metaspace { replacement, .. } => text = text.replace(*replacement, " "),
                Decoder::Bpe { suffix } if !suffix.is_empty() => text = text.replace(suffix, " "),
                Decoder::WordPiece { prefix, .. } => {
                    text = match text.strip_prefix(prefix.as_str()) {
                        Some(tail) => tail.to_owned(),
                        None => format!(" {text}"),
                    };
                }
                _ => {}
            }
        }
        Some(text.into_bytes())
    }

    /// Whether decoding with `skip_special` passes over the id.
    pub fn is_special(&self, id: u32) -> bool {
        self.table().is_some_and(|table| table.flags(id) & SPECIAL != 0)
    }

    /// The largest id + 1. (A model's output may be wider: such ids have no text.)
    pub fn vocabulary(&self) -> u32 {
        self.table().map_or(0, |table| table.ids() as u32)
    }

    /// The ids that `encode` with `add_special` puts before the text, such as the
    /// beginning-of-sequence token.
    pub fn leading_ids(&self) -> Vec<u32> {
        let template = &self.inner.config.template;
        let before = template.iter().take_while(|part| **part != TemplatePart::Text);
        before
            .filter_map(|part| match part {
                TemplatePart::Ids(ids) => Some(ids.as_slice()),
                TemplatePart::Text => None,
            })
            .flatten()
            .copied()
            .collect()
    }
}

/// `text` with every match replaced. A pattern that proves too costly leaves the text as it is.
pub(crate) fn replaced(text: &str, needle: &Needle, content: &str, programs: &[Program]) -> String {
    let Ok(matches) = find_all(needle, text, programs) else { return text.to_owned() };
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (start, end) in matches {
        out.push_str(&text[copied..start]);
        out.push_str(content);
        copied = end;
    }
    out.push_str(&text[copied..]);
    out
}

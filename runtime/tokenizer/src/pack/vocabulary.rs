//! The vocabulary of tokenizer.json: the model's tokens, merges and scores, and the added tokens.

use std::collections::HashMap;

use crate::TokenizerError;
use crate::added::{SINGLE_WORD, STRIP_LEFT, STRIP_RIGHT};
use crate::component::{Model, Normalizer, Unknown};
use crate::normalize::{Span, normalize};
use crate::pack::json::Node;
use crate::pattern::Program;
use crate::table::{ADDED, MODEL, SPECIAL};

/// Ids above this are taken for a damaged file: the table has an entry for every id below.
const MAX_ID: u32 = 1 << 22;
/// What a unigram model subtracts from its lowest score for an unknown character.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Text and flags of every id.
#[derive(Default)]
pub(crate) struct Vocabulary<'a> {
    pub(crate) texts: Vec<&'a str>,
    pub(crate) flags: Vec<u8>,
    ids: HashMap<&'a str, u32>,
    model_tokens: u32,
}

/// A merge: left, right, joined id.
pub(crate) type Merge = [u32; 3];

/// One pattern of an added token.
pub(crate) struct AddedPattern {
    pub(crate) text: String,
    pub(crate) id: u32,
    pub(crate) flags: u32,
}

/// The added tokens, those matched in the raw text first; each group sorted, without duplicates.
pub(crate) struct AddedPatterns {
    pub(crate) raw: Vec<AddedPattern>,
    pub(crate) normalised: Vec<AddedPattern>,
}

impl<'a> Vocabulary<'a> {
    fn insert(
        &mut self,
        node: &Node<'_>,
        text: &'a str,
        id: u32,
        flag: u8,
    ) -> Result<(), TokenizerError> {
        if id >= MAX_ID {
            return node.malformed(format!("the id {id} of {text:?} is out of range"));
        }
        let index = id as usize;
        if index >= self.texts.len() {
            self.texts.resize(index + 1, "");
            self.flags.resize(index + 1, 0);
        }
        if self.flags[index] != 0 && self.texts[index] != text {
            let other = self.texts[index];
            return node.unsupported(format!("one id ({id}) for both {other:?} and {text:?}"));
        }
        self.texts[index] = text;
        self.flags[index] |= flag;
        self.ids.insert(text, id);
        Ok(())
    }

    /// The id of a token of the model.
    fn model_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    fn unknown(&self, model: &Node<'_>) -> Result<Unknown, TokenizerError> {
        let Some(token) = model.get("unk_token") else { return Ok(Unknown::None) };
        Ok(self.model_id(token.text()?).map_or(Unknown::Missing, Unknown::Id))
    }

    fn tokens(&mut self, vocab: &Node<'a>) -> Result<(), TokenizerError> {
        for (text, id) in vocab.object()? {
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                return vocab.malformed(format!("the id of {text:?} is not a number below 2^32"));
            };
            self.insert(vocab, text, id, MODEL)?;
            self.model_tokens += 1;
        }
        Ok(())
    }

    /// Reads the model: its options, merges and scores.
    pub(crate) fn read_model(
        &mut self,
        model: &Node<'a>,
    ) -> Result<(Model, Vec<Merge>, Vec<f64>), TokenizerError> {
        // Files from before the tag existed are told apart by what they hold, as in the reference.
        let kind = match model.get("type") {
            Some(kind) => kind.text()?,
            None if model.get("merges").is_some() => "BPE",
            None => return model.unsupported("a model without `type`"),
        };
        match kind {
            "BPE" => {
                let (options, merges) = self.read_bpe(model)?;
                Ok((options, merges, Vec::new()))
            }
            "Unigram" => {
                let (options, scores) = self.read_unigram(model)?;
                Ok((options, Vec::new(), scores))
            }
            "WordLevel" => {
                self.tokens(&model.need("vocab")?)?;
                Ok((Model::WordLevel { unknown: self.unknown(model)? }, Vec::new(), Vec::new()))
            }
            other => model.unsupported(format!("the model {other}")),
        }
    }

    fn read_bpe(&mut self, model: &Node<'a>) -> Result<(Model, Vec<Merge>), TokenizerError> {
        if let Some(dropout) = model.get("dropout")
            && dropout.number()? != 0.0
        {
            return dropout.unsupported("dropout");
        }
        self.tokens(&model.need("vocab")?)?;
        let text = |key: &str| match model.get(key) {
            Some(node) => Ok(node.text()?.to_owned()),
            None => Ok(String::new()),
        };
        let prefix: String = text("continuing_subword_prefix")?;
        let suffix = text("end_of_word_suffix")?;
        let merges = self.read_merges(&model.need("merges")?, &prefix)?;
        let options = Model::Bpe {
            unknown: self.unknown(model)?,
            fuse_unknown: model.flag_or("fuse_unk", false)?,
            byte_fallback: model.flag_or("byte_fallback", false)?,
            ignore_merges: model.flag_or("ignore_merges", false)?,
            prefix,
            suffix,
        };
        Ok((options, merges))
    }

    /// Merges are pairs, or texts `left right` in older files.
    fn read_merges(&self, list: &Node<'a>, prefix: &str) -> Result<Vec<Merge>, TokenizerError> {
        let mut merges = Vec::new();
        let mut joined = String::new();
        for node in list.items()? {
            let (left, right) = match node.value.as_str() {
                Some(line) if line.starts_with("#version") => continue,
                Some(line) => match line.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => (left, right),
                    _ => return node.malformed("not two tokens with one space between them"),
                },
                None => match node.items()?.as_slice() {
                    [left, right] => (left.text()?, right.text()?),
                    _ => return node.malformed("not a pair"),
                },
            };
            let Some(tail) = right.get(prefix.len()..) else {
                return node.malformed("the right token is shorter than the subword prefix");
            };
            joined.clear();
            joined.extend([left, tail]);
            let id = |text: &str| match self.model_id(text) {
                Some(id) => Ok(id),
                None => node.malformed(format!("{text:?} is not in the vocabulary")),
            };
            merges.push([id(left)?, id(right)?, id(&joined)?]);
        }
        Ok(merges)
    }

    fn read_unigram(&mut self, model: &Node<'a>) -> Result<(Model, Vec<f64>), TokenizerError> {
        let vocab = model.need("vocab")?;
        let mut scores = Vec::new();
        let mut longest = 0;
        for (id, node) in vocab.items()?.iter().enumerate() {
            let [token, score] =
                node.items()?.try_into().or_else(|_| node.malformed("not a pair"))?;
            let text = token.text()?;
            if self.model_id(text).is_some() {
                return node.unsupported("a token that occurs twice");
            }
            self.insert(node, text, u32::try_from(id).unwrap_or(u32::MAX), MODEL)?;
            scores.push(score.number()?);
            longest = longest.max(text.len());
        }
        self.model_tokens = scores.len() as u32;
        let unknown = match model.get("unk_id") {
            None => Unknown::None,
            Some(id) if id.word()? < self.model_tokens => Unknown::Id(id.word()?),
            Some(id) => return id.malformed("not an id of the vocabulary"),
        };
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let options = Model::Unigram {
            unknown,
            byte_fallback: model.flag_or("byte_fallback", false)?,
            unknown_score: lowest - UNKNOWN_PENALTY,
            longest: u32::try_from(longest).unwrap_or(u32::MAX),
        };
        Ok((options, scores))
    }

    /// Reads the added tokens. A token that the vocabulary knows keeps its id there; others get
    /// the next free ids in order, whatever the file says, as in the reference.
    pub(crate) fn read_added(
        &mut self,
        root: &Node<'a>,
        normalizers: &[Normalizer],
        programs: &[Program],
    ) -> Result<AddedPatterns, TokenizerError> {
        let mut groups = [Vec::new(), Vec::new()];
        let items = root.get("added_tokens").map_or(Ok(Vec::new()), |list| list.items())?;
        let mut next = self.model_tokens;
        // Special ones come first where two normalise to the same pattern.
        let mut tokens = Vec::with_capacity(items.len());
        for node in &items {
            let content = node.need("content")?.text()?;
            if content.is_empty() {
                continue;
            }
            let id = self.model_id(content).unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            let special = node.need_flag("special")?;
            self.insert(node, content, id, if special { ADDED | SPECIAL } else { ADDED })?;
            tokens.push((!special, node, content, id));
        }
        tokens.sort_by_key(|&(ordinary, ..)| ordinary);
        for (_, node, content, id) in tokens {
            let mut flags = 0;
            for (key, flag) in
                [("single_word", SINGLE_WORD), ("lstrip", STRIP_LEFT), ("rstrip", STRIP_RIGHT)]
            {
                if node.need_flag(key)? {
                    flags |= flag;
                }
            }
            let is_normalised = node.need_flag("normalized")?;
            let mut span = Span::of_input(content, 0);
            if is_normalised {
                normalize(normalizers, &mut span, programs)?;
            }
            if span.text.is_empty() {
                return node.unsupported("an added token that normalises to nothing");
            }
            groups[usize::from(is_normalised)].push(AddedPattern { text: span.text, id, flags });
        }
        let [mut raw, mut normalised] = groups;
        for group in [&mut raw, &mut normalised] {
            // Stable: of equal patterns the first stays.
            group.sort_by(|a, b| a.text.as_bytes().cmp(b.text.as_bytes()));
            group.dedup_by(|later, first| later.text == first.text);
        }
        Ok(AddedPatterns { raw, normalised })
    }
}

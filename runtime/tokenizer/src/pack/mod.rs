//! From `tokenizer.json` to the packed table. The same file gives the same bytes.

mod components;
mod json;
mod vocabulary;

use crate::TokenizerError;
use crate::component::{Config, TemplatePart};
use crate::pack::components::Patterns;
use crate::pack::json::Node;
use crate::pack::vocabulary::{AddedPatterns, Merge, Vocabulary};
use crate::table::{
    HEADER_LEN, MAGIC, SECTION_ALIGN, SECTIONS, Section, VERSION, Writer, hash_pair, hash_text,
};

/// Packs a Hugging Face `tokenizer.json`.
pub fn pack(json: &[u8]) -> Result<Vec<u8>, TokenizerError> {
    let value = serde_json::from_slice(json)
        .map_err(|error| TokenizerError::Json { message: error.to_string() })?;
    let root = Node::root(&value);
    root.object()?;
    if let Some(version) = root.get("version")
        && version.text()? != "1.0"
    {
        return version.unsupported(format!("version {}", version.text()?));
    }
    let mut patterns = Patterns::default();
    let normalizers = components::normalizers(&root, &mut patterns)?;
    let pre_tokenizers = components::pre_tokenizers(&root, &mut patterns)?;
    let template = components::template(&root)?;
    let decoders = components::decoders(&root, &mut patterns)?;
    let word_pattern = patterns.regex(&root, r"\w")?;
    let mut vocabulary = Vocabulary::default();
    let (model, merges, mut scores) = vocabulary.read_model(&root.need("model")?)?;
    let added = vocabulary.read_added(&root, &normalizers, &patterns.programs)?;
    let ids = vocabulary.texts.len();
    let known = |id: &u32| (*id as usize) < ids && vocabulary.flags[*id as usize] != 0;
    for part in &template {
        if let TemplatePart::Ids(special) = part
            && let Some(id) = special.iter().find(|id| !known(id))
        {
            let post_processor = root.need("post_processor")?;
            return post_processor.malformed(format!("the id {id} has no token"));
        }
    }
    if !scores.is_empty() {
        scores.resize(ids, f64::NEG_INFINITY);
    }
    let raw_added = count(added.raw.len(), "the list of added tokens")?;
    let config =
        Config { model, normalizers, pre_tokenizers, template, decoders, raw_added, word_pattern };
    assemble(&config, &patterns, &vocabulary, &merges, &added, &scores)
}

fn count(len: usize, what: &'static str) -> Result<u32, TokenizerError> {
    u32::try_from(len).map_err(|_| TokenizerError::TooLarge { what })
}

fn assemble(
    config: &Config,
    patterns: &Patterns,
    vocabulary: &Vocabulary<'_>,
    merges: &[Merge],
    added: &AddedPatterns,
    scores: &[f64],
) -> Result<Vec<u8>, TokenizerError> {
    let mut programs = Writer::default();
    programs.count(patterns.programs.len());
    patterns.programs.iter().for_each(|program| program.write(&mut programs));

    let mut offsets = Writer::default();
    let mut texts = Vec::new();
    offsets.word(0);
    for text in &vocabulary.texts {
        texts.extend_from_slice(text.as_bytes());
        offsets.word(count(texts.len(), "the vocabulary")?);
    }
    let used = vocabulary.texts.iter().zip(&vocabulary.flags).enumerate();
    let text_hashes: Vec<(u64, u32)> = used
        .filter(|(_, (_, flags))| **flags != 0)
        .map(|(id, (text, _))| (hash_text(text.as_bytes()), id as u32))
        .collect();

    let mut merge_records = Writer::default();
    merges.iter().flatten().for_each(|&id| merge_records.word(id));
    // Of equal pairs the last one counts, so later ones are met first.
    let merge_hashes: Vec<(u64, u32)> = merges
        .iter()
        .enumerate()
        .rev()
        .map(|(rank, &[left, right, _])| (hash_pair(left, right), rank as u32))
        .collect();

    let mut added_records = Writer::default();
    let mut added_texts = Vec::new();
    for pattern in added.raw.iter().chain(&added.normalised) {
        added_records.word(count(added_texts.len(), "the list of added tokens")?);
        added_records.count(pattern.text.len());
        added_records.word(pattern.id);
        added_records.word(pattern.flags);
        added_texts.extend_from_slice(pattern.text.as_bytes());
    }

    join([
        (Section::Config, config.write()),
        (Section::Patterns, programs.0),
        (Section::TextOffsets, offsets.0),
        (Section::Texts, texts),
        (Section::Flags, vocabulary.flags.clone()),
        (Section::VocabSlots, slots(&text_hashes)),
        (Section::Merges, merge_records.0),
        (Section::MergeSlots, slots(&merge_hashes)),
        (Section::Added, added_records.0),
        (Section::AddedTexts, added_texts),
        (Section::Scores, scores.iter().flat_map(|score| score.to_le_bytes()).collect()),
    ])
}

/// Open addressing, at most two thirds full: each index + 1 at its hash's slot or the next free.
fn slots(hashes: &[(u64, u32)]) -> Vec<u8> {
    let len = (hashes.len() + hashes.len() / 2 + 1).next_power_of_two();
    let mut slots = vec![0u32; len];
    for &(hash, index) in hashes {
        let mut slot = hash as usize & (len - 1);
        while slots[slot] != 0 {
            slot = (slot + 1) & (len - 1);
        }
        slots[slot] = index + 1;
    }
    slots.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn join(sections: [(Section, Vec<u8>); SECTIONS.len()]) -> Result<Vec<u8>, TokenizerError> {
    let mut directory = Writer::default();
    let mut body: Vec<u8> = Vec::new();
    let first = HEADER_LEN.next_multiple_of(SECTION_ALIGN);
    for (index, (section, bytes)) in sections.into_iter().enumerate() {
        debug_assert_eq!(section as usize, index, "sections are written in their order");
        body.resize(body.len().next_multiple_of(SECTION_ALIGN), 0);
        directory.word(count(first + body.len(), "the table")?);
        directory.word(count(bytes.len(), "the table")?);
        body.extend_from_slice(&bytes);
    }
    let mut table = Writer(MAGIC.to_vec());
    table.word(VERSION);
    table.word(count(first + body.len(), "the table")?);
    table.0.extend_from_slice(&directory.0);
    table.0.resize(first, 0);
    table.0.extend_from_slice(&body);
    Ok(table.0)
}

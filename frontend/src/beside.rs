//! What the files beside a model say: limits, special tokens, sampling defaults, tokenizer and
//! chat template.
//!
//! Sources: `genai_config.json` (onnxruntime-genai), `config.json` and `generation_config.json`
//! (Transformers), `tokenizer_config.json`, `chat_template.jinja`, `tokenizer.json`. All are
//! optional. Where several speak, the one made for generation counts first.

use std::path::PathBuf;

use crate::error::{Place, Problem};
use crate::json::Json;
use crate::onnx::roles::RoleHints;
use crate::source::ModelFiles;

/// What the artefact needs to turn text into ids and back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextAssets {
    /// `tokenizer.json` as it is; without it the model speaks ids only.
    pub tokenizer: Option<Vec<u8>>,
    /// The chat template (Jinja).
    pub chat_template: Option<String>,
    /// Text of the begin-of-sequence token, which templates write.
    pub bos_token: Option<String>,
    /// Text of the end-of-sequence token.
    pub eos_token: Option<String>,
    /// Text of the padding token.
    pub pad_token: Option<String>,
    /// Text of the token for unknown text.
    pub unk_token: Option<String>,
    /// Whether a begin-of-sequence token is put before text, where the files say.
    pub add_bos: Option<bool>,
}

/// What a model is, beyond its graph.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelFacts {
    /// Positions that the model was trained for.
    pub context_limit: Option<u32>,
    /// Rows of the rotary tables in the file, which no sequence can exceed; `None` where the
    /// graph computes its angles.
    pub table_rows: Option<u32>,
    /// Columns of the result: logits of a row, or values of a hidden one.
    pub columns: u32,
    /// Layers with a cache.
    pub layers: u32,
    /// Begin-of-sequence token.
    pub bos: Option<u32>,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// How tokens are chosen where the user does not say.
    pub sampling: SamplingDefaults,
}

/// Sampling settings that a model's files recommend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Whether to sample at all.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Candidates.
    pub top_k: Option<u32>,
    /// Least probability in parts of the greatest.
    pub min_p: Option<f32>,
    /// Penalty for tokens that occurred.
    pub repetition_penalty: Option<f32>,
}

/// Everything that the files say.
#[derive(Debug, Default)]
pub struct Beside {
    /// For the tokenizer.
    pub text: TextAssets,
    /// Without what only the graph knows.
    pub facts: ModelFacts,
    /// For the roles of inputs.
    pub hints: RoleHints,
}

/// Reads all files beside a model; problems of several files are reported together.
pub fn read(files: &ModelFiles) -> Result<Beside, Vec<Problem>> {
    let mut beside = Beside::default();
    let mut problems = Vec::new();
    let [generation, genai, config, tokenizer] =
        ["generation_config.json", "genai_config.json", "config.json", "tokenizer_config.json"]
            .map(|name| {
                Json::beside(files, name).unwrap_or_else(|problem| {
                    problems.push(problem);
                    None
                })
            });
    let mut note = |result: Result<(), Problem>| problems.extend(result.err());
    if let Some(generation) = &generation {
        note(tokens_and_sampling(generation, generation, &mut beside.facts));
    }
    if let Some(genai) = &genai {
        note(read_genai(genai, &mut beside));
    }
    if let Some(config) = &config {
        note(read_config(config, &mut beside));
    }
    if let Some(tokenizer) = &tokenizer {
        note(read_tokenizer_config(tokenizer, &mut beside.text));
    }
    note(read_text(files, &mut beside.text));
    if problems.is_empty() { Ok(beside) } else { Err(problems) }
}

/// Fills what is still empty.
fn fill<T>(slot: &mut Option<T>, found: Option<T>) {
    if slot.is_none() {
        *slot = found;
    }
}

fn tokens_and_sampling(
    tokens: &Json,
    search: &Json,
    facts: &mut ModelFacts,
) -> Result<(), Problem> {
    fill(&mut facts.bos, tokens.id("bos_token_id")?);
    fill(&mut facts.pad, tokens.id("pad_token_id")?);
    if facts.eos.is_empty() {
        facts.eos = tokens.ids("eos_token_id")?.unwrap_or_default();
    }
    let sampling = &mut facts.sampling;
    fill(&mut sampling.do_sample, search.bool("do_sample")?);
    fill(&mut sampling.temperature, search.f32("temperature")?);
    fill(&mut sampling.top_p, search.f32("top_p")?);
    fill(&mut sampling.top_k, search.u32("top_k")?);
    fill(&mut sampling.min_p, search.f32("min_p")?);
    fill(&mut sampling.repetition_penalty, search.f32("repetition_penalty")?);
    Ok(())
}

fn read_genai(genai: &Json, beside: &mut Beside) -> Result<(), Problem> {
    let Some(model) = genai.object("model")? else { return Ok(()) };
    fill(&mut beside.facts.context_limit, model.u32("context_length")?);
    let search = genai.object("search")?;
    tokens_and_sampling(&model, search.as_ref().unwrap_or(&model), &mut beside.facts)?;
    let Some(decoder) = model.object("decoder")? else { return Ok(()) };
    let hints = &mut beside.hints;
    let size = |name: &str| Ok(decoder.u32(name)?.map(|size| size as usize));
    hints.head_size = size("head_size")?;
    hints.kv_heads = size("num_key_value_heads")?;
    if let Some(inputs) = decoder.object("inputs")? {
        hints.tokens = inputs.string("input_ids")?;
        hints.attention_mask = inputs.string("attention_mask")?;
        hints.positions = inputs.string("position_ids")?;
        hints.past_key = inputs.string("past_key_names")?;
        hints.past_value = inputs.string("past_value_names")?;
    }
    if let Some(outputs) = decoder.object("outputs")? {
        hints.present_key = outputs.string("present_key_names")?;
        hints.present_value = outputs.string("present_value_names")?;
    }
    Ok(())
}

fn read_config(config: &Json, beside: &mut Beside) -> Result<(), Problem> {
    // Models with several parts keep the language model's settings apart.
    let inner = config.object("text_config")?;
    for part in inner.iter().chain([config]) {
        fill(&mut beside.facts.context_limit, part.u32("max_position_embeddings")?);
        fill(&mut beside.hints.head_size, part.u32("head_dim")?.map(|size| size as usize));
        let heads = part.u32("num_key_value_heads")?.map(|heads| heads as usize);
        fill(&mut beside.hints.kv_heads, heads);
        tokens_and_sampling(part, part, &mut beside.facts)?;
    }
    Ok(())
}

fn read_tokenizer_config(config: &Json, text: &mut TextAssets) -> Result<(), Problem> {
    text.bos_token = config.token("bos_token")?;
    text.eos_token = config.token("eos_token")?;
    text.pad_token = config.token("pad_token")?;
    text.unk_token = config.token("unk_token")?;
    text.add_bos = config.bool("add_bos_token")?;
    // One template, or several with names, of which "default" is for chat.
    text.chat_template = match config.named_strings("chat_template", "name", "template")? {
        Some(templates) => {
            let default = templates.iter().find(|(name, _)| name == "default");
            default.or(templates.first()).map(|(_, template)| template.clone())
        }
        None => config.string("chat_template")?,
    };
    Ok(())
}

fn read_text(files: &ModelFiles, text: &mut TextAssets) -> Result<(), Problem> {
    let path = |name: &str| -> PathBuf { files.directory().join(name) };
    if let Some(bytes) = files.beside("chat_template.jinja")? {
        let template = String::from_utf8(bytes).map_err(|_| {
            Problem::malformed(Place::File(path("chat_template.jinja")), "is not UTF-8")
        })?;
        text.chat_template = Some(template);
    }
    if let Some(bytes) = files.beside("tokenizer.json")? {
        Json::parse(path("tokenizer.json"), &bytes)?;
        text.tokenizer = Some(bytes);
    }
    Ok(())
}

//! Facts of a model that are not code: names, special tokens, sampling defaults, how it was built.
//!
//! The compiler serialises [`Facts`] as JSON into the tables region and the runtime reads it back;
//! this file is the only description of that JSON. Every field has a default, so that older files
//! and models without such files beside them open.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is known of a model besides its tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Name of the model, as its directory or configuration says.
    pub name: String,
    /// Token that begins a sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// Token that fills unused places of a batch in other runtimes; never produced here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<u32>,
    /// Whether a plain prompt begins with the first token. Absent: what the tokenizer's own
    /// post-processing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_bos: Option<bool>,
    /// Sampling defaults (`generation_config.json`).
    pub sampling: SamplingFacts,
    /// Special tokens by role (`bos_token`, `eos_token`, …) for the chat template.
    pub special: BTreeMap<String, String>,
    /// How the file was made.
    pub build: BuildFacts,
    /// Number formats of the weights.
    pub weights: Vec<WeightFacts>,
    /// What the compiler's passes did, in their order.
    pub passes: Vec<PassFacts>,
    /// What a step must read and compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkFacts>,
}

/// What steps of a model must read and compute, segment by segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkFacts {
    /// Token ids to hidden rows.
    pub embed: SegmentFacts,
    /// Per layer kind.
    pub kinds: Vec<SegmentFacts>,
    /// Hidden rows to logits.
    pub head: SegmentFacts,
}

/// The kernels of a segment, in the order in which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentFacts {
    /// Name.
    pub name: String,
    /// Kernels.
    pub kernels: Vec<KernelFacts>,
}

/// What a kernel must read and compute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelFacts {
    /// What it is.
    pub name: String,
    /// Weight bytes read by a call.
    pub call_bytes: u64,
    /// Table bytes read by a row.
    pub row_bytes: u64,
    /// Bytes of a row of the cache that it reads, outside of a block with a number format of its own: the
    /// tables have those of its rows. 0 if it reads none.
    pub cached_row_bytes: u64,
    /// Operations on integers per row.
    pub integer_operations: u64,
    /// Of these, what AMX does in tiles of bf16 in a call of [`weir_abi::TILE_ROWS`] rows or more.
    pub tile_operations: u64,
    /// Operations on floats per row.
    pub float_operations: u64,
    /// Of these, products of bf16 with bf16.
    pub bf16_operations: u64,
    /// Operations on integers, per row and cache row that it attends to.
    pub attended_integer_operations: u64,
    /// Operations on floats, per row and cache row that it attends to.
    pub attended_float_operations: u64,
    /// Of these, products of bf16 with bf16.
    pub attended_bf16_operations: u64,
}

/// Weights of one part of a model that have one format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WeightFacts {
    /// Which part: embedding, head, layers, or the small things.
    pub part: String,
    /// Number format.
    pub format: String,
    /// How many tensors.
    pub tensors: u64,
    /// Their bytes in this format.
    pub bytes: u64,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PassFacts {
    /// Name.
    pub name: String,
    /// Places that it changed.
    pub changes: usize,
    /// Nodes of the graph before it.
    pub nodes_before: usize,
    /// Nodes of the graph after it.
    pub nodes_after: usize,
    /// What it has to say about places that it changed or left alone.
    pub notes: Vec<String>,
}

impl std::fmt::Display for PassFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changed = match self.changes {
            0 => "no match".to_owned(),
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        };
        let PassFacts { name, nodes_before, nodes_after, .. } = self;
        write!(f, "{name:22} {changed}, {nodes_before} nodes to {nodes_after}")?;
        self.notes.iter().try_for_each(|note| write!(f, "\n{:22}   {note}", ""))
    }
}

/// Sampling defaults that the model's authors give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingFacts {
    /// Whether to sample at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Mass of the most probable tokens that stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Number of tokens that stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Share of the best token's probability that a token needs to stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that have occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
}

/// How a file was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildFacts {
    /// Version of the compiler.
    pub weir: String,
    /// Arithmetic of the matrix products.
    pub compute: String,
    /// Cache policy with its options, as on the command line.
    pub kv: String,
    /// Number format of the cache.
    pub kv_dtype: String,
    /// What the model was read from.
    pub source: String,
}

impl Facts {
    /// Reads the JSON of a compiled model; an empty text is a model without facts.
    pub fn parse(json: &str) -> Result<Facts, serde_json::Error> {
        if json.is_empty() { Ok(Facts::default()) } else { serde_json::from_str(json) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_have_defaults_and_unknown_ones_are_ignored() {
        let facts = Facts::parse(r#"{"name": "m", "eos_token_ids": [2], "later": 1}"#).unwrap();
        assert_eq!(facts.name, "m");
        assert_eq!(facts.eos_token_ids, [2]);
        assert_eq!(facts.sampling, SamplingFacts::default());
        assert_eq!(Facts::parse("").unwrap(), Facts::default());
    }

    #[test]
    fn written_facts_are_read_back() {
        let mut facts = Facts { name: "m".into(), bos_token_id: Some(1), ..Facts::default() };
        facts.special.insert("bos_token".into(), "<s>".into());
        facts.sampling.top_k = Some(40);
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(Facts::parse(&json).unwrap(), facts);
    }
}

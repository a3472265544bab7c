//! The memory ceiling: what a running model can use at most, known before it starts.

use serde::Serialize;

use crate::cache::{LayerShape, SlotCache, SlotCount};
use crate::forward::{ModelShape, layer_shapes, prefill_bytes};
use crate::{CompiledModel, RuntimeError, RuntimeOptions, cores};

/// Allowance for the process besides what is counted below: its own code and data (2.2 MiB resident
/// with nothing but the help text printed; static, x86-64), the allocator's reserves, the template
/// engine, and text of the requests on its way in and out.
const PROCESS_BYTES: u64 = 8 << 20;

/// Allowance for the stack of a compute thread. Model code keeps its data in the arena, so a thread
/// touches pages of call frames only.
const THREAD_BYTES: u64 = 64 << 10;

/// Parts of the ceiling, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryCeiling {
    /// Weights, mapped from the file; the system may drop and reread these pages.
    pub weights: u64,
    /// Code and tables (tokenizer and template are part of them), mapped from the file.
    pub code_and_tables: u64,
    /// Key and value rows of all slots.
    pub cache: u64,
    /// Buffers of a step: arena and hidden rows.
    pub step: u64,
    /// Scratch for the longest prompt; 0 if no layer can drop rows.
    pub prefill: u64,
    /// Logits, and room for choosing from them.
    pub logits: u64,
    /// What the tokenizer builds in memory when it is opened, at most.
    pub tokenizer: u64,
    /// Allowance for the rest of the process and its threads.
    pub process: u64,
    /// Connections, bodies and texts of a server; 0 without one.
    pub server: u64,
}

/// Bytes of the cache for a slot by itself, and for one more beside it that has no block of its own.
pub(crate) fn slot_bytes(model: &CompiledModel) -> Result<[u64; 2], RuntimeError> {
    let layers = layer_shapes(model, model.layouts());
    let bytes =
        |slots| SlotCache::bytes(&layers, SlotCount { slots, blocks: 1 }).ok_or_else(exceeds);
    let one = bytes(1)?;
    if layers.iter().any(|layer| !layer.by_head.is_empty()) {
        // Every slot has a block.
        return Ok([one, one]);
    }
    // Where two formats meet, the first slot may be padded beside others.
    Ok([one, bytes(3)? - bytes(2)?])
}

fn exceeds() -> RuntimeError {
    RuntimeError::Tables("the cache exceeds 64 bits".into())
}

/// The product of what tables and options say. Saturating: what overflows cannot be allocated anyway.
pub(crate) fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// The sum, likewise.
pub(crate) fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

impl MemoryCeiling {
    /// The ceiling of a model under these options.
    pub fn new(
        model: &CompiledModel,
        options: &RuntimeOptions,
    ) -> Result<MemoryCeiling, RuntimeError> {
        let shape = ModelShape::new(model, options)?;
        shape.check_draft(options.draft)?;
        Self::of_shape(model, options, &shape, &layer_shapes(model, model.layouts()))
    }

    /// The same for a shape that may differ from the model's own, and its layers.
    pub(crate) fn of_shape(
        model: &CompiledModel,
        options: &RuntimeOptions,
        shape: &ModelShape,
        layers: &[LayerShape],
    ) -> Result<MemoryCeiling, RuntimeError> {
        let header = model.header();
        let prefill = prefill_bytes(shape, layers);
        let (slots, vocabulary) = (u64::from(shape.slots), u64::from(shape.vocabulary));
        let threads = options.threads.unwrap_or_else(cores::default_threads) as u64;
        let cache = SlotCache::bytes(layers, shape.slot_count()).ok_or_else(exceeds)?;
        let hidden = product([4, shape.max_rows.into(), shape.hidden_width.into()]);
        let logit_rows = product([slots, 1 + u64::from(options.draft)]).min(shape.max_rows.into());
        // Tokens of prompts, of the queue and of answers.
        let tokens = product([4 * 3, slots, shape.context.into()]);
        Ok(MemoryCeiling {
            weights: header.weights_bytes,
            code_and_tables: sum([header.code_bytes, header.tables_bytes]),
            cache,
            step: sum([header.arena_bytes, hidden]),
            prefill: sum([prefill.hidden, prefill.rows, prefill.scores]),
            // Per slot what the head gives for a row and for each guess, as far as a step has rows; with penalties,
            // a count and a mark; candidates once.
            logits: sum([
                product([shape.head_width.into(), 4 * logit_rows]),
                product([vocabulary, 5 * slots + 8]),
            ]),
            // The packed form is used where it lies; an allowance of its size for what opening it
            // and encoding a prompt build besides.
            tokenizer: model.tokenizer().len() as u64,
            process: sum([PROCESS_BYTES, product([threads, THREAD_BYTES]), tokens]),
            server: 0,
        })
    }

    /// The ceiling.
    pub fn total(&self) -> u64 {
        sum(self.parts().map(|(_, bytes)| bytes))
    }

    /// All parts with their names.
    fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("weights", self.weights),
            ("code and tables", self.code_and_tables),
            ("cache", self.cache),
            ("step", self.step),
            ("prefill", self.prefill),
            ("logits", self.logits),
            ("tokenizer", self.tokenizer),
            ("process", self.process),
            ("server", self.server),
        ]
    }
}

impl std::fmt::Display for MemoryCeiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory ceiling {}:", Mebibytes(self.total()))?;
        let mut separator = " ";
        for (name, bytes) in self.parts().into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{separator}{name} {}", Mebibytes(bytes))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Bytes, printed in KiB, MiB or GiB.
pub struct Mebibytes(pub u64);

impl std::fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mebibytes = self.0 as f64 / f64::from(1 << 20);
        f.pad(&if mebibytes >= 10_240.0 {
            format!("{:.1} GiB", mebibytes / 1_024.0)
        } else if mebibytes < 0.05 {
            format!("{:.1} KiB", self.0 as f64 / 1_024.0)
        } else {
            format!("{mebibytes:.1} MiB")
        })
    }
}

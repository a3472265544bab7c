//! Models with the shapes of real ones and random weights: what speed is measured with where nothing
//! may be downloaded.
//!
//! The same shape and seed give the same bytes. Weights are normal with standard deviation 0.02 (as
//! untrained Llamas are), norms are one, everything is bf16. The graph is one that an exporter could
//! have written, so that such a model takes the path of every other. Nothing here is as large as a
//! weight: weights are made piece by piece, where they are written.

mod graph;
mod normal;
mod text;

use std::io::Write;

use half::bf16;
use prost::Message;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use normal::Normal;

/// Standard deviation of weights.
const DEVIATION: f64 = 0.02;

/// Epsilon of all norms.
const EPSILON: f64 = 1e-5;

/// Llama 3's scaling of rotary frequencies: wavelengths above `ORIGINAL_CONTEXT / LOW_FREQUENCY` are
/// stretched by the factor, those below `ORIGINAL_CONTEXT / HIGH_FREQUENCY` are not, the ones between
/// in proportion.
const LOW_FREQUENCY: f64 = 1.0;
const HIGH_FREQUENCY: f64 = 4.0;
const ORIGINAL_CONTEXT: f64 = 8192.0;

/// Numbers that are made at once: enough for all threads, little next to a weight.
const PIECE: usize = 4 << 20;

/// Numbers that one thread makes at a time.
const SHARE: usize = 64 << 10;

/// Sizes of a Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// Width of a hidden row.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head, even.
    pub head_width: usize,
    /// Width between gate and down projection.
    pub inner: usize,
    /// Tokens, at least 259.
    pub vocabulary: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Whether embedding and head are one table.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Factor of Llama 3's scaling.
    pub rope_factor: Option<f64>,
}

/// The shapes that have names: those of Llama 3 and of a common size below it, of SmolLM2 and TinyLlama.
pub const SHAPES: [Shape; 7] = [
    Shape {
        name: "llama-110m",
        hidden: 768,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        head_width: 64,
        inner: 2048,
        vocabulary: 32_000,
        context: 32_768,
        tied: true,
        rope_base: 10_000.0,
        rope_factor: None,
    },
    Shape {
        name: "smollm2-135m",
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_width: 64,
        inner: 1536,
        vocabulary: 49_152,
        context: 8192,
        tied: true,
        rope_base: 100_000.0,
        rope_factor: None,
    },
    Shape {
        name: "smollm2-360m",
        hidden: 960,
        layers: 32,
        heads: 15,
        kv_heads: 5,
        head_width: 64,
        inner: 2560,
        vocabulary: 49_152,
        context: 8192,
        tied: true,
        rope_base: 100_000.0,
        rope_factor: None,
    },
    Shape {
        name: "tinyllama-1b",
        hidden: 2048,
        layers: 22,
        heads: 32,
        kv_heads: 4,
        head_width: 64,
        inner: 5632,
        vocabulary: 32_000,
        context: 2048,
        tied: false,
        rope_base: 10_000.0,
        rope_factor: None,
    },
    Shape {
        name: "llama-1b",
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_width: 64,
        inner: 8192,
        vocabulary: 128_256,
        context: 131_072,
        tied: true,
        rope_base: 500_000.0,
        rope_factor: Some(32.0),
    },
    Shape {
        name: "llama-3b",
        hidden: 3072,
        layers: 28,
        heads: 24,
        kv_heads: 8,
        head_width: 128,
        inner: 8192,
        vocabulary: 128_256,
        context: 131_072,
        tied: true,
        rope_base: 500_000.0,
        rope_factor: Some(32.0),
    },
    Shape {
        name: "llama-8b",
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_width: 128,
        inner: 14_336,
        vocabulary: 128_256,
        context: 131_072,
        tied: false,
        rope_base: 500_000.0,
        rope_factor: Some(8.0),
    },
];

/// What a tensor's numbers are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TensorKind {
    /// Normal, mean 0.
    Normal,
    /// Ones.
    Ones,
    /// Cosines of the rotary angles, by position.
    Cosines,
    /// Their sines.
    Sines,
}

/// A tensor of bf16 numbers.
struct Tensor {
    name: String,
    dims: Vec<usize>,
    kind: TensorKind,
}

impl Tensor {
    fn count(&self) -> usize {
        self.dims.iter().product()
    }

    fn bytes(&self) -> u64 {
        2 * self.count() as u64
    }
}

impl Shape {
    /// The shape of this name.
    pub fn named(name: &str) -> Option<Shape> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// Files of a model besides its weights: names and contents.
    pub fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let json = |value: serde_json::Value| format!("{value:#}\n").into_bytes();
        vec![
            ("model.onnx", graph::model(self).encode_to_vec()),
            ("tokenizer.json", json(self.tokenizer())),
            ("tokenizer_config.json", json(self.tokenizer_config())),
            ("config.json", json(self.config())),
            ("generation_config.json", json(self.generation_config())),
        ]
    }

    /// Name of the file that holds the weights.
    pub fn weights_file(&self) -> &'static str {
        graph::DATA_FILE
    }

    /// Bytes of the file that holds the weights.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Writes the weights and tells after every piece how many bytes there are.
    pub fn write_weights(
        &self,
        seed: u64,
        out: &mut impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> std::io::Result<()> {
        let mut numbers = vec![[0_u8; 2]; PIECE];
        let mut written = 0;
        let frequencies = self.frequencies();
        for (index, tensor) in (0..).zip(self.tensors()) {
            let normal = Normal::new(seed, index, DEVIATION);
            let angle = |index: usize| {
                (index / frequencies.len()) as f64 * frequencies[index % frequencies.len()]
            };
            let at = |index: usize| match tensor.kind {
                TensorKind::Normal => normal.at(index as u64),
                TensorKind::Ones => 1.0,
                TensorKind::Cosines => angle(index).cos() as f32,
                TensorKind::Sines => angle(index).sin() as f32,
            };
            for first in (0..tensor.count()).step_by(PIECE) {
                let piece = &mut numbers[..PIECE.min(tensor.count() - first)];
                piece.par_chunks_mut(SHARE).enumerate().for_each(|(share, numbers)| {
                    for (index, number) in (first + share * SHARE..).zip(numbers) {
                        *number = bf16::from_f32(at(index)).to_le_bytes();
                    }
                });
                out.write_all(piece.as_flattened())?;
                written += 2 * piece.len() as u64;
                progress(written);
            }
        }
        out.flush()
    }

    /// All tensors. What a weight's numbers are depends on its place in this list.
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        let mut add = |name: String, dims: &[usize], kind: TensorKind| {
            tensors.push(Tensor { name, dims: dims.to_vec(), kind });
        };
        let (hidden, inner) = (self.hidden, self.inner);
        let query = self.heads * self.head_width;
        let packed = query + 2 * self.kv_heads * self.head_width;
        if !self.tied {
            let name = "model.embed_tokens.weight".to_owned();
            add(name, &[self.vocabulary, hidden], TensorKind::Normal);
        }
        let rotary = [self.context, self.head_width / 2];
        add("cos_cache".to_owned(), &rotary, TensorKind::Cosines);
        add("sin_cache".to_owned(), &rotary, TensorKind::Sines);
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            add(name("input_layernorm"), &[hidden], TensorKind::Ones);
            add(name("attn.qkv_proj.MatMul"), &[hidden, packed], TensorKind::Normal);
            add(name("attn.o_proj.MatMul"), &[query, hidden], TensorKind::Normal);
            add(name("post_attention_layernorm"), &[hidden], TensorKind::Ones);
            add(name("mlp.gate_proj.MatMul"), &[hidden, inner], TensorKind::Normal);
            add(name("mlp.up_proj.MatMul"), &[hidden, inner], TensorKind::Normal);
            add(name("mlp.down_proj.MatMul"), &[inner, hidden], TensorKind::Normal);
        }
        let last = format!("model.layers.{}.final_norm_layernorm.weight", self.layers);
        add(last, &[hidden], TensorKind::Ones);
        add("lm_head.MatMul.weight".to_owned(), &[hidden, self.vocabulary], TensorKind::Normal);
        tensors
    }

    /// Rotary frequencies, a pair of values each.
    fn frequencies(&self) -> Vec<f64> {
        let pairs = self.head_width / 2;
        let plain = (0..pairs).map(|pair| self.rope_base.powf(-(pair as f64) / pairs as f64));
        let Some(factor) = self.rope_factor else { return plain.collect() };
        let stretch = |frequency: f64| {
            let waves = ORIGINAL_CONTEXT * frequency / std::f64::consts::TAU;
            let share = (waves - LOW_FREQUENCY) / (HIGH_FREQUENCY - LOW_FREQUENCY);
            let share = share.clamp(0.0, 1.0);
            frequency * ((1.0 - share) / factor + share)
        };
        plain.map(stretch).collect()
    }
}

//! What each input and output of a model's graph is.
//!
//! Roles come from names (a genai configuration's patterns first, then the words that all
//! exporters use) and, for the token ids, from the structure: the integer input that an embedding
//! table is gathered with. The role, not the file's symbolic dimensions, gives the shape in
//! `batch`, `past` and `sequence`, since exporters name equal sizes differently; it also gives the
//! content of masks, write indices and lengths, for Weir has no padding rows.

use std::collections::{BTreeMap, BTreeSet};

use weir_ir::ops::Known;
use weir_ir::{Constant, DType, Dim, InputRole, OutputRole, Symbol, TensorType};

use super::import::dtype;
use super::model::{Dimension, Graph, ValueInfo};
use super::tensor::Element;
use crate::error::{Place, Problem};

/// What files beside the model say about its inputs.
#[derive(Debug, Clone, Default)]
pub struct RoleHints {
    /// Name of the token ids.
    pub tokens: Option<String>,
    /// Name of the attention mask.
    pub attention_mask: Option<String>,
    /// Name of the position ids.
    pub positions: Option<String>,
    /// Patterns with `%d` for the layer.
    pub past_key: Option<String>,
    /// Patterns with `%d` for the layer.
    pub past_value: Option<String>,
    /// Patterns with `%d` for the layer.
    pub present_key: Option<String>,
    /// Patterns with `%d` for the layer.
    pub present_value: Option<String>,
    /// Width of a head.
    pub head_size: Option<usize>,
    /// Key and value heads.
    pub kv_heads: Option<usize>,
}

/// The inputs and outputs of a graph with their roles, in the file's order.
#[derive(Debug)]
pub struct InputPlan {
    /// One per input.
    pub inputs: Vec<Binding>,
    /// One per output.
    pub outputs: Vec<OutputRole>,
}

/// What an input of the file becomes.
#[derive(Debug, Clone)]
pub enum Binding {
    /// A parameter.
    Param {
        /// Its role.
        role: InputRole,
        /// Its type.
        ty: TensorType,
        /// Its content where the role tells it.
        known: Option<Known>,
    },
    /// A constant, because the caller fixed the content.
    Constant(Constant),
    /// A cache whose type may need an operator's help.
    Cache(CacheInput),
}

/// A cache input as far as the file describes it.
#[derive(Debug, Clone)]
pub struct CacheInput {
    /// Which layer, key or value.
    pub role: InputRole,
    /// Element type.
    pub dtype: DType,
    /// The batch size.
    pub batch: Dim,
    /// Heads, if the file says.
    pub heads: Option<usize>,
    /// Rows, if the file fixes them: then new rows are written over old ones, not appended.
    pub length: Option<usize>,
    /// Width of a head, if the file or its configuration says.
    pub width: Option<usize>,
}

impl CacheInput {
    /// The type, with what an operator implies where the file is silent.
    pub fn ty(&self, heads: Option<&Dim>, width: Option<&Dim>) -> Option<TensorType> {
        let heads = self.heads.map(Dim::from).or_else(|| heads.cloned())?;
        let width = self.width.map(Dim::from).or_else(|| width.cloned())?;
        let past = Dim::symbol(Symbol::Past);
        Some(TensorType::new(self.dtype, vec![self.batch.clone(), heads, past, width]))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Key,
    Value,
}

/// Gives roles to the inputs and outputs of a language model.
pub fn plan(graph: &Graph, hints: &RoleHints) -> Result<InputPlan, Vec<Problem>> {
    let mut problems = Vec::new();
    let tokens = tokens_name(graph, hints);
    let batch = match tokens.and_then(|name| batch_size(graph, name)) {
        Some(Ok(batch)) => batch,
        Some(Err(problem)) => return Err(vec![problem]),
        None => Dim::symbol(Symbol::Batch),
    };
    // Without a cache all rows of a sequence are new ones.
    let (key, value) = (hints.past_key.as_deref(), hints.past_value.as_deref());
    let is_cache = |input: &ValueInfo| cache_name(&input.name, key, value, "past").is_some();
    let total = match graph.inputs.iter().any(is_cache) {
        true => Dim::total(),
        false => Dim::symbol(Symbol::Sequence),
    };
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        match bind(input, tokens, hints, [&batch, &total]) {
            Ok(binding) => inputs.push(binding),
            Err(problem) => problems.push(problem),
        }
    }
    if tokens.is_none() {
        let place = Place::Graph(graph.name.clone());
        problems.push(Problem::unsupported(place, "no input holds token ids"));
    }
    let mut outputs: Vec<_> =
        graph.outputs.iter().map(|output| output_role(output, hints)).collect();
    let count = |role| outputs.iter().filter(|other| **other == role).count();
    match (count(OutputRole::Logits), count(OutputRole::Hidden)) {
        (0, 1) | (1, 0) => {}
        // Rows beside logits, which nothing asks for.
        (1, _) => {
            for role in outputs.iter_mut().filter(|role| **role == OutputRole::Hidden) {
                *role = OutputRole::Other;
            }
        }
        (logits, hidden) => {
            let place = Place::Graph(graph.name.clone());
            let message = match hidden {
                0 => format!("{logits} outputs hold logits, a language model has one"),
                _ => format!(
                    "{logits} outputs hold logits and {hidden} hidden rows; one does, of either"
                ),
            };
            problems.push(Problem::unsupported(place, message));
        }
    }
    for (what, past, present) in cache_names(&inputs, &outputs) {
        if past != present {
            let place = Place::Graph(graph.name.clone());
            let message =
                format!("cached {what} come in for layers {past:?}, go out for {present:?}");
            problems.push(Problem::unsupported(place, message));
        }
    }
    if problems.is_empty() { Ok(InputPlan { inputs, outputs }) } else { Err(problems) }
}

type Layers = BTreeSet<u32>;

fn cache_names(inputs: &[Binding], outputs: &[OutputRole]) -> [(&'static str, Layers, Layers); 2] {
    let mut found =
        [("keys", Layers::new(), Layers::new()), ("values", Layers::new(), Layers::new())];
    for binding in inputs {
        match binding {
            Binding::Cache(CacheInput { role: InputRole::PastKey(layer), .. }) => {
                found[0].1.insert(*layer);
            }
            Binding::Cache(CacheInput { role: InputRole::PastValue(layer), .. }) => {
                found[1].1.insert(*layer);
            }
            _ => {}
        }
    }
    for role in outputs {
        match role {
            OutputRole::PresentKey(layer) => {
                found[0].2.insert(*layer);
            }
            OutputRole::PresentValue(layer) => {
                found[1].2.insert(*layer);
            }
            _ => {}
        }
    }
    found
}

/// Inputs of a graph that is not a language model: sizes as declared, contents as given.
pub fn plan_operators(
    graph: &Graph,
    contents: &BTreeMap<String, Constant>,
) -> Result<InputPlan, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        if let Some(constant) = contents.get(&input.name) {
            inputs.push(Binding::Constant(constant.clone()));
            continue;
        }
        let place = Place::Input(input.name.clone());
        let shape: Option<Vec<Dim>> = input.dims.as_ref().and_then(|dims| {
            let size = |dim: &Dimension| match dim {
                Dimension::Fixed(size) => Some(Dim::from(*size)),
                _ => None,
            };
            dims.iter().map(size).collect()
        });
        let Some(shape) = shape else {
            problems.push(Problem::unsupported(place, "its shape is not fixed"));
            continue;
        };
        let Some(dtype) = input.element.and_then(dtype) else {
            problems.push(Problem::unsupported(place, "4-bit input"));
            continue;
        };
        let ty = TensorType::new(dtype, shape);
        inputs.push(Binding::Param { role: InputRole::Other, ty, known: None });
    }
    let outputs = vec![OutputRole::Other; graph.outputs.len()];
    if problems.is_empty() { Ok(InputPlan { inputs, outputs }) } else { Err(problems) }
}

/// The name of the token ids.
fn tokens_name<'g>(graph: &'g Graph, hints: &RoleHints) -> Option<&'g str> {
    let named = |wanted: &str| graph.inputs.iter().find(|input| input.name == wanted);
    if let Some(input) = hints.tokens.as_deref().and_then(named).or_else(|| named("input_ids")) {
        return Some(&input.name);
    }
    // The integer input that an embedding table is gathered with.
    graph.nodes.iter().find_map(|node| {
        let is_gather = matches!(node.place.op.as_str(), "Gather" | "GatherBlockQuantized");
        let table = graph.initializers.get(node.inputs.first()?)?;
        let input = graph.inputs.iter().find(|input| Some(&input.name) == node.inputs.get(1))?;
        let is_table = is_gather && table.dims.len() == 2;
        (is_table && is_integer(input) && !is_positions(&input.name)).then_some(&*input.name)
    })
}

fn is_integer(input: &ValueInfo) -> bool {
    matches!(input.element, Some(Element::Int64 | Element::Int32))
}

fn is_positions(name: &str) -> bool {
    words(name).iter().any(|word| word.starts_with("position"))
}

/// The batch dimension: a symbol, or 1 where the file fixes it.
fn batch_size(graph: &Graph, tokens: &str) -> Option<Result<Dim, Problem>> {
    let input = graph.inputs.iter().find(|input| input.name == tokens)?;
    match input.dims.as_ref()?.first()? {
        Dimension::Fixed(1) => Some(Ok(Dim::number(1))),
        Dimension::Fixed(size) => {
            let message = format!("its batch size is fixed at {size}");
            Some(Err(Problem::unsupported(Place::Input(tokens.to_owned()), message)))
        }
        _ => None,
    }
}

fn bind(
    input: &ValueInfo,
    tokens: Option<&str>,
    hints: &RoleHints,
    [batch, total]: [&Dim; 2],
) -> Result<Binding, Problem> {
    let unsupported =
        |message: &str| Problem::unsupported(Place::Input(input.name.clone()), message.to_owned());
    let element = input.element.and_then(dtype);
    let dtype = element.ok_or_else(|| unsupported("4-bit input"))?;
    let rank = input.dims.as_ref().map(Vec::len);
    let sequence = Dim::symbol(Symbol::Sequence);
    let demand = |wanted: usize| {
        if rank.is_none_or(|rank| rank == wanted) {
            Ok(())
        } else {
            Err(unsupported(&format!("its rank is not {wanted}")))
        }
    };
    let name = input.name.as_str();
    let param =
        |role, shape, known| Ok(Binding::Param { role, ty: TensorType::new(dtype, shape), known });
    if tokens == Some(name) {
        demand(2)?;
        if !is_integer(input) {
            return Err(unsupported("token ids that are no integers"));
        }
        if matches!(input.dims.as_deref(), Some([_, Dimension::Fixed(_)])) {
            return Err(unsupported("its sequence length is fixed, new tokens must be symbolic"));
        }
        return param(InputRole::Tokens, vec![batch.clone(), sequence], None);
    }
    let half = cache_name(name, hints.past_key.as_deref(), hints.past_value.as_deref(), "past");
    if let Some((layer, half)) = half {
        demand(4)?;
        if !dtype.is_float() {
            return Err(unsupported(&format!("cache of {dtype}")));
        }
        let fixed = |axis: usize| match input.dims.as_ref().and_then(|dims| dims.get(axis)) {
            Some(Dimension::Fixed(size)) => Some(*size),
            _ => None,
        };
        let role = match half {
            Half::Key => InputRole::PastKey(layer),
            Half::Value => InputRole::PastValue(layer),
        };
        return Ok(Binding::Cache(CacheInput {
            role,
            dtype,
            batch: batch.clone(),
            heads: fixed(1).or(hints.kv_heads),
            length: fixed(2),
            width: fixed(3).or(hints.head_size),
        }));
    }
    let words = words(name);
    let has = |word: &str| words.iter().any(|found| found == word);
    if hints.attention_mask.as_deref() == Some(name) || has("mask") && has("attention") {
        demand(2)?;
        let known = (!dtype.is_float()).then(|| Known::Fill(Dim::number(1)));
        return param(InputRole::AttentionMask, vec![batch.clone(), total.clone()], known);
    }
    if hints.positions.as_deref() == Some(name) || is_positions(name) {
        demand(2)?;
        if !is_integer(input) {
            return Err(unsupported("positions that are no integers"));
        }
        return param(InputRole::Positions, vec![batch.clone(), sequence], None);
    }
    let known = match name {
        "write_indices" => Some(Dim::symbol(Symbol::Past)),
        "nonpad_kv_seqlen" => Some(total.clone()),
        // The merged file of an older exporter has one graph with a cache and one without; the
        // one with a cache serves an empty cache too.
        "use_cache_branch" => Some(Dim::number(1)),
        _ => None,
    };
    let Some(known) = known else {
        return Err(unsupported("what this input holds is not known"));
    };
    if dtype.is_float() {
        return Err(unsupported("its elements are floats"));
    }
    let shape = match rank {
        Some(0) => Vec::new(),
        // A flag has one element whatever its name for the dimension; others have one a sequence.
        Some(1) if name == "use_cache_branch" => vec![Dim::number(1)],
        Some(1) | None => vec![batch.clone()],
        Some(_) => return Err(unsupported("its rank is not 1")),
    };
    param(InputRole::Known, shape, Some(Known::Fill(known)))
}

fn output_role(output: &ValueInfo, hints: &RoleHints) -> OutputRole {
    let (key, value) = (hints.present_key.as_deref(), hints.present_value.as_deref());
    match cache_name(&output.name, key, value, "present") {
        Some((layer, Half::Key)) => OutputRole::PresentKey(layer),
        Some((layer, Half::Value)) => OutputRole::PresentValue(layer),
        None if words(&output.name).iter().any(|word| word == "logits") => OutputRole::Logits,
        None if HIDDEN.contains(&output.name.as_str()) => OutputRole::Hidden,
        None => OutputRole::Other,
    }
}

/// How exporters call the rows behind the last norm: optimum and others, sentence-transformers,
/// onnxruntime-genai where it leaves the head away.
const HIDDEN: [&str; 3] = ["last_hidden_state", "token_embeddings", "hidden_states"];

/// Lower-case runs of letters and of digits.
fn words(name: &str) -> Vec<String> {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect()
}

/// The layer, and key or value, that a cache's name says: by the pattern, or by its words, of
/// which `time` (past or present) must be one, one a number, and the last of key and value counts.
fn cache_name(
    name: &str,
    key: Option<&str>,
    value: Option<&str>,
    time: &str,
) -> Option<(u32, Half)> {
    for (pattern, half) in [(key, Half::Key), (value, Half::Value)] {
        if let Some((before, after)) = pattern.and_then(|pattern| pattern.split_once("%d"))
            && let Some(rest) = name.strip_prefix(before)
            && let Some(number) = rest.strip_suffix(after)
            && let Ok(layer) = number.parse()
        {
            return Some((layer, half));
        }
    }
    let words = words(name);
    if words.first().map(String::as_str) != Some(time) || words.iter().any(|w| w == "encoder") {
        return None;
    }
    let mut numbers = words.iter().filter_map(|word| word.parse::<u32>().ok());
    let (Some(layer), None) = (numbers.next(), numbers.next()) else { return None };
    let half = words.iter().rev().find_map(|word| match word.as_str() {
        "key" | "keys" | "k" => Some(Half::Key),
        "value" | "values" | "v" => Some(Half::Value),
        _ => None,
    })?;
    Some((layer, half))
}

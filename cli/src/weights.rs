//! Which number formats the weights of a model have, part by part.
//!
//! Counted on a graph at stage `Fixed`: each constant once, however many layers share it, and each
//! tensor of the model's files that a pass has stacked with others by itself. Bytes are those of the
//! format, without the padding of the packed file.

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_ir::{
    Body, Const, ConstData, Constant, Element, Graph, Op, TensorType, Value, ZeroPoints,
};
use weir_passes::weights::format_name;
use weir_runtime::facts::WeightFacts;

/// Parts in the order in which they are told.
const PARTS: [&str; 5] =
    ["embedding", "embedding and head", "head", "layers", "norms, biases, tables"];

/// What a constant is used for; a constant can have several uses.
#[derive(Clone, Copy, Default)]
struct Uses {
    embedding: bool,
    head: bool,
    layers: bool,
}

impl Uses {
    fn part(self) -> usize {
        match (self.embedding, self.head, self.layers) {
            (true, true, _) => 1,
            (true, false, _) => 0,
            (false, true, _) => 2,
            (false, false, true) => 3,
            (false, false, false) => 4,
        }
    }
}

/// The weights of a model by part and format.
pub fn weight_facts(graph: &Graph) -> Vec<WeightFacts> {
    let uses = uses(graph);
    let mut groups: BTreeMap<(usize, String), WeightFacts> = BTreeMap::new();
    for (key, constant) in graph.constants.iter() {
        let Some(uses) = uses.get(&key) else { continue };
        let part = uses.part();
        let format = format_name(constant.ty.element);
        let group = groups.entry((part, format.clone())).or_insert_with(|| WeightFacts {
            part: PARTS[part].to_owned(),
            format,
            ..WeightFacts::default()
        });
        group.tensors += tensors(constant);
        group.bytes += bytes(&constant.ty);
    }
    groups.into_values().collect()
}

/// What the live nodes use constants for.
fn uses(graph: &Graph) -> HashMap<Const, Uses> {
    let mut uses: HashMap<Const, Uses> = HashMap::new();
    let mut values = HashMap::new();
    for (_, node) in graph.main.live() {
        match &node.op {
            Op::ReadConstant(read) => {
                values.insert(node.results[0], read.constant);
                uses.entry(read.constant).or_default();
            }
            Op::Layer(layer) => {
                let kind = &graph.kinds[layer.kind];
                let matrices = matrices(&kind.body);
                let first = kind.body.params.len() - kind.weights;
                for (constant, param) in layer.weights.iter().zip(&kind.body.params[first..]) {
                    uses.entry(*constant).or_default().layers |= matrices.contains(&param.value);
                }
            }
            op => {
                let constant = node.operands.get(1).and_then(|weight| values.get(weight));
                let Some(uses) = constant.and_then(|constant| uses.get_mut(constant)) else {
                    continue;
                };
                uses.embedding |= matches!(op, Op::Embed(_));
                uses.head |= matches!(op, Op::Linear(_));
            }
        }
    }
    uses
}

/// Weights of the products of a body.
fn matrices(body: &Body) -> HashSet<Value> {
    let products = body.live().filter(|(_, node)| matches!(node.op, Op::Linear(_)));
    products.filter_map(|(_, node)| node.operands.get(1).copied()).collect()
}

fn tensors(constant: &Constant) -> u64 {
    match &constant.data {
        ConstData::Stacked(parts) => parts.iter().map(tensors).sum(),
        ConstData::Rounded(source) => tensors(source),
        ConstData::Dense { .. } | ConstData::Quantised(_) => 1,
    }
}

/// Bytes of the elements, with scales and zero points.
fn bytes(ty: &TensorType) -> u64 {
    let sizes = ty.sizes().unwrap_or_default();
    let count: u64 = sizes.iter().map(|size| *size as u64).product();
    match ty.element {
        Element::Plain(dtype) => count * dtype.bytes() as u64,
        Element::Quant(format) => {
            let rows = sizes.first().map_or(0, |rows| *rows as u64);
            let columns = sizes.last().map_or(0, |columns| *columns as u64);
            let blocks = rows * columns.div_ceil(u64::from(format.block));
            let codes = |count: u64| (count * u64::from(format.bits)).div_ceil(8);
            let scales = blocks * format.scale.bytes() as u64;
            codes(count)
                + scales
                + match format.zero {
                    ZeroPoints::Fixed(_) => 0,
                    ZeroPoints::Codes => codes(blocks),
                    ZeroPoints::Float => scales,
                }
        }
    }
}

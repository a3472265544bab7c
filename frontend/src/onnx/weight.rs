//! What copies of messages take: nodes, and bytes of memory.
//!
//! An estimate that no copy exceeds by much: structures by their size, texts and numbers by their
//! length, and payloads that copies share too, for whoever reads a copy walks them again.

use bytes::Bytes;

use super::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, StringStringEntryProto, TensorProto,
    ValueInfoProto,
};

/// Nodes and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// Nodes, those of inner graphs included.
    pub nodes: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Weight {
    /// Bytes alone.
    pub fn bytes(bytes: usize) -> Self {
        Weight { nodes: 0, bytes }
    }

    /// A node without its lists.
    pub fn node() -> Self {
        Weight { nodes: 1, bytes: size_of::<NodeProto>() }
    }

    fn plus(self, other: Weight) -> Self {
        Weight {
            nodes: self.nodes.saturating_add(other.nodes),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

fn sum(weights: impl Iterator<Item = Weight>) -> Weight {
    weights.fold(Weight::default(), Weight::plus)
}

/// A text in a list.
pub fn text(text: &str) -> Weight {
    Weight::bytes(size_of::<String>().saturating_add(text.len()))
}

fn texts(list: &[Bytes]) -> Weight {
    sum(list.iter().map(|bytes| Weight::bytes(size_of::<Bytes>().saturating_add(bytes.len()))))
}

/// A node with all that it holds.
fn node(node: &NodeProto) -> Weight {
    let names = node.input.iter().chain(&node.output);
    let names = names.chain([&node.name, &node.op_type, &node.domain, &node.overload]);
    Weight::node()
        .plus(sum(names.map(|name| text(name))))
        .plus(sum(node.attribute.iter().map(attribute)))
}

/// An attribute with all that it holds.
pub fn attribute(attribute: &AttributeProto) -> Weight {
    attribute_itself(attribute).plus(sum(attribute.g.iter().map(graph)))
}

/// An attribute without its inner graph.
pub fn attribute_itself(attribute: &AttributeProto) -> Weight {
    let texts_alone = [attribute.name.len(), attribute.ref_attr_name.len()];
    let numbers = [size_of_val(&*attribute.floats), size_of_val(&*attribute.ints)];
    let own = texts_alone.into_iter().chain(numbers).chain(attribute.s.as_ref().map(Bytes::len));
    Weight::bytes(size_of::<AttributeProto>())
        .plus(sum(own.map(Weight::bytes)))
        .plus(texts(&attribute.strings))
        .plus(sum(attribute.t.iter().chain(&attribute.tensors).map(tensor)))
        .plus(sum(attribute.graphs.iter().map(graph)))
}

/// A tensor with its payload.
pub fn tensor(tensor: &TensorProto) -> Weight {
    let entry = |entry: &StringStringEntryProto| text(&entry.key).plus(text(&entry.value));
    let own = [
        size_of::<TensorProto>(),
        tensor.name.len(),
        size_of_val(&*tensor.dims),
        size_of_val(&*tensor.float_data),
        size_of_val(&*tensor.int32_data),
        size_of_val(&*tensor.int64_data),
        size_of_val(&*tensor.double_data),
        size_of_val(&*tensor.uint64_data),
        tensor.raw_data.as_ref().map_or(0, Bytes::len),
    ];
    sum(own.into_iter().map(Weight::bytes))
        .plus(texts(&tensor.string_data))
        .plus(sum(tensor.external_data.iter().map(entry)))
}

/// An input or output with its type.
pub fn value_info(info: &ValueInfoProto) -> Weight {
    let shape = info.kind.iter().filter_map(|kind| kind.tensor_type.as_ref()?.shape.as_ref());
    let dims = shape.flat_map(|shape| &shape.dim);
    let names = |dim: &DimensionProto| dim.dim_param.as_ref().map_or(0, String::len);
    let dims =
        dims.map(|dim| Weight::bytes(size_of::<DimensionProto>().saturating_add(names(dim))));
    text(&info.name).plus(Weight::bytes(size_of::<ValueInfoProto>())).plus(sum(dims))
}

/// A graph without its nodes.
pub fn graph_itself(graph: &GraphProto) -> Weight {
    let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    text(&graph.name).plus(sum(graph.initializer.iter().chain(sparse).map(tensor))).plus(sum(graph
        .input
        .iter()
        .chain(&graph.output)
        .map(value_info)))
}

fn graph(graph: &GraphProto) -> Weight {
    graph_itself(graph).plus(sum(graph.node.iter().map(node)))
}

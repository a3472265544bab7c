//! Model-local functions are written out where they are called.
//!
//! A call becomes the function's nodes: formal inputs and outputs take the caller's names, inner
//! names get the call's name in front, attributes that refer to the function's take the caller's
//! value, or the function's default, or are left out. Functions may call functions; depth and the
//! number of nodes are bounded, for a few kilobytes could ask for billions
//! (<https://github.com/onnx/onnx/blob/v1.22.0/docs/IR.md#model-functions>).

use std::collections::BTreeMap;

use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
};
use crate::error::{Place, Problem, printable};

/// Calls inside calls.
const DEEPEST: usize = 32;
/// Nodes of all written-out functions together; models of 100 layers have some 20000 nodes.
const MOST_NODES: usize = 1 << 20;

type Key = (String, String, String);

/// Writes out every call of a model-local function. Problems name the function.
pub fn inline(model: &mut ModelProto) -> Result<(), Vec<Problem>> {
    if model.functions.is_empty() {
        return Ok(());
    }
    let functions = std::mem::take(&mut model.functions);
    let mut problems = Vec::new();
    let mut by_key: BTreeMap<Key, &FunctionProto> = BTreeMap::new();
    for function in &functions {
        let key = key(&function.domain, &function.name, &function.overload);
        if by_key.insert(key, function).is_some() {
            problems.push(Problem::malformed(place(function), "is defined twice"));
        }
        import_opsets(&mut model.opset_import, function, &mut problems);
    }
    if let Some(graph) = &mut model.graph {
        let mut inliner = Inliner { functions: &by_key, nodes: 0, calls: 0, problems };
        inliner.graph(graph, 0);
        problems = inliner.problems;
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn key(domain: &str, name: &str, overload: &str) -> Key {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    (domain.to_owned(), name.to_owned(), overload.to_owned())
}

fn place(function: &FunctionProto) -> Place {
    Place::Function(format!("{}::{}", function.domain, function.name))
}

/// A function's nodes mean the versions that it imports; they must be the model's.
fn import_opsets(
    imports: &mut Vec<OperatorSetIdProto>,
    function: &FunctionProto,
    problems: &mut Vec<Problem>,
) {
    for import in &function.opset_import {
        let same = |domain: &str| key(domain, "", "") == key(&import.domain, "", "");
        match imports.iter().find(|ours| same(&ours.domain)) {
            None => imports.push(import.clone()),
            Some(ours) if ours.version == import.version => {}
            Some(ours) => {
                let message = format!(
                    "imports opset {} of domain \"{}\", the model {}",
                    import.version,
                    printable(&import.domain),
                    ours.version
                );
                problems.push(Problem::unsupported(place(function), message));
            }
        }
    }
}

struct Inliner<'f> {
    functions: &'f BTreeMap<Key, &'f FunctionProto>,
    nodes: usize,
    calls: usize,
    problems: Vec<Problem>,
}

impl Inliner<'_> {
    fn graph(&mut self, graph: &mut GraphProto, depth: usize) {
        let nodes = std::mem::take(&mut graph.node);
        for (index, node) in nodes.into_iter().enumerate() {
            self.node(node, index, depth, &mut graph.node);
        }
    }

    fn node(&mut self, mut node: NodeProto, index: usize, depth: usize, out: &mut Vec<NodeProto>) {
        for attribute in &mut node.attribute {
            if let Some(graph) = &mut attribute.g {
                self.graph(graph, depth);
            }
        }
        let Some(&function) = self.functions.get(&key(&node.domain, &node.op_type, &node.overload))
        else {
            out.push(node);
            return;
        };
        self.nodes = self.nodes.saturating_add(function.node.len().max(1));
        if depth >= DEEPEST || self.nodes > MOST_NODES {
            // Once is enough: what follows is of the same kind.
            if self.problems.is_empty() {
                let message = "calls functions too deep or too often; does it call itself?";
                self.problems.push(Problem::malformed(place(function), message));
            }
            return;
        }
        if !self.problems.is_empty() {
            return;
        }
        let label = if node.name.is_empty() { format!("#{index}") } else { node.name.clone() };
        // The number keeps calls apart whose nodes have one name, or none.
        let call = Call::new(function, &node, format!("{label}/{}/", self.calls));
        self.calls += 1;
        for (index, inner) in function.node.iter().enumerate() {
            let inner = call.node(inner);
            self.node(inner, index, depth + 1, out);
        }
        // A formal output that is a formal input too has no node that makes it.
        for (formal, actual) in function.output.iter().zip(&node.output) {
            if function.input.contains(formal) && !actual.is_empty() {
                out.push(NodeProto {
                    op_type: "Identity".to_owned(),
                    name: format!("{}{formal}", call.prefix),
                    input: vec![call.name(formal)],
                    output: vec![actual.clone()],
                    ..NodeProto::default()
                });
            }
        }
    }
}

/// One call: what the names and attributes of the function stand for.
struct Call<'c> {
    prefix: String,
    names: BTreeMap<&'c str, &'c str>,
    attributes: BTreeMap<&'c str, &'c AttributeProto>,
}

impl<'c> Call<'c> {
    fn new(function: &'c FunctionProto, node: &'c NodeProto, prefix: String) -> Self {
        let mut names = BTreeMap::new();
        for (formal, actual) in function.output.iter().zip(&node.output) {
            // An output that nobody wants keeps an inner name.
            if !actual.is_empty() {
                names.insert(formal.as_str(), actual.as_str());
            }
        }
        for (index, formal) in function.input.iter().enumerate() {
            names.insert(formal.as_str(), node.input.get(index).map_or("", String::as_str));
        }
        let defaults = function.attribute_proto.iter();
        let given = node.attribute.iter();
        let attributes =
            defaults.chain(given).map(|attribute| (attribute.name.as_str(), attribute)).collect();
        Call { prefix, names, attributes }
    }

    fn name(&self, inner: &str) -> String {
        match self.names.get(inner) {
            Some(outer) => (*outer).to_owned(),
            None if inner.is_empty() => String::new(),
            None => format!("{}{inner}", self.prefix),
        }
    }

    fn node(&self, node: &NodeProto) -> NodeProto {
        let renamed = |list: &[String]| list.iter().map(|name| self.name(name)).collect();
        NodeProto {
            input: renamed(&node.input),
            output: renamed(&node.output),
            name: format!("{}{}", self.prefix, node.name),
            op_type: node.op_type.clone(),
            attribute: node.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            domain: node.domain.clone(),
            overload: node.overload.clone(),
        }
    }

    fn attribute(&self, attribute: &AttributeProto) -> Option<AttributeProto> {
        if !attribute.ref_attr_name.is_empty() {
            let given = *self.attributes.get(attribute.ref_attr_name.as_str())?;
            return Some(AttributeProto { name: attribute.name.clone(), ..given.clone() });
        }
        let mut copy = attribute.clone();
        if let Some(graph) = &mut copy.g {
            *graph = self.graph(graph);
        }
        Some(copy)
    }

    /// An inner graph: every name of the function's, and of the graph's own, gets the prefix.
    fn graph(&self, graph: &GraphProto) -> GraphProto {
        let mut copy = graph.clone();
        copy.node = graph.node.iter().map(|node| self.node(node)).collect();
        for tensor in &mut copy.initializer {
            tensor.name = self.name(&tensor.name);
        }
        for value in copy.input.iter_mut().chain(&mut copy.output) {
            value.name = self.name(&value.name);
        }
        copy
    }
}

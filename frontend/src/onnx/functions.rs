//! Model-local functions are written out where they are called.
//!
//! A call becomes the function's nodes: formal inputs and outputs take the caller's names, inner
//! names get the call's name in front, attributes that refer to the function's take the caller's
//! value, or the function's default, or are left out. Functions may call functions; how deep they
//! do, and how much all calls make, is bounded, for a few kilobytes could ask for billions of nodes
//! (<https://github.com/onnx/onnx/blob/v1.22.0/docs/IR.md#model-functions>).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
};
use super::weight::{self, Weight};
use crate::error::{Place, Problem, printable};

/// Calls inside calls and graphs inside graphs, together. Exporters nest a few; whoever reads the
/// result recurses into inner graphs, of which a file without functions nests as many at most.
const DEEPEST: usize = 32;
/// Nodes that all calls make together. Models of 100 layers have some 20000 nodes, and exports that
/// call a function for each of their operators some thousands of calls of a dozen nodes.
const MOST_NODES: usize = 1 << 18;
/// Bytes that all calls make together, beyond as many as the file has: one for weights that lie in a
/// function, which a call shares, the other for names and attributes. A node takes about 1 KiB, so that
/// exports have some 100 MiB.
const MOST_BYTES: usize = 512 << 20;

type Key = (String, String, String);

/// Writes out every call of a model-local function of a file of so many bytes. Problems name the
/// function.
pub fn inline(model: &mut ModelProto, file_bytes: usize) -> Result<(), Vec<Problem>> {
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
    }
    import_opsets(&mut model.opset_import, &functions, &mut problems);
    if let Some(graph) = &mut model.graph {
        let budget = Budget {
            nodes: Cell::new(MOST_NODES),
            bytes: Cell::new(MOST_BYTES.saturating_add(file_bytes)),
            spent: Cell::new(false),
        };
        let mut inliner = Inliner { functions: &by_key, budget: &budget, calls: 0, problems };
        inliner.graph(graph, 0);
        problems = inliner.problems;
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// What calls may still make.
#[derive(Debug)]
struct Budget {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
    spent: Cell<bool>,
}

impl Budget {
    /// Takes what a copy weighs; false if the rest, or what there was before, did not suffice.
    fn take(&self, weight: Weight) -> bool {
        let nodes = self.nodes.get().checked_sub(weight.nodes);
        let bytes = self.bytes.get().checked_sub(weight.bytes);
        match nodes.zip(bytes) {
            Some((nodes, bytes)) if !self.spent.get() => {
                self.nodes.set(nodes);
                self.bytes.set(bytes);
                true
            }
            _ => {
                self.spent.set(true);
                false
            }
        }
    }
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
    functions: &[FunctionProto],
    problems: &mut Vec<Problem>,
) {
    let domain = |import: &OperatorSetIdProto| key(&import.domain, "", "").0;
    let mut versions = BTreeMap::new();
    for import in imports.iter() {
        versions.entry(domain(import)).or_insert(import.version);
    }
    for function in functions {
        for import in &function.opset_import {
            match versions.get(&domain(import)) {
                None => {
                    versions.insert(domain(import), import.version);
                    imports.push(import.clone());
                }
                Some(ours) if import.version == *ours => {}
                Some(ours) => {
                    let message = format!(
                        "imports opset {} of domain \"{}\", the model {ours}",
                        import.version,
                        printable(&import.domain),
                    );
                    problems.push(Problem::unsupported(place(function), message));
                }
            }
        }
    }
}

struct Inliner<'f> {
    functions: &'f BTreeMap<Key, &'f FunctionProto>,
    budget: &'f Budget,
    calls: usize,
    problems: Vec<Problem>,
}

impl Inliner<'_> {
    fn graph(&mut self, graph: &mut GraphProto, depth: usize) {
        if depth > DEEPEST {
            let message = format!("more than {DEEPEST} calls inside calls or graphs inside graphs");
            self.refuse(Problem::unsupported(Place::Graph(graph.name.clone()), message));
            return;
        }
        let nodes = std::mem::take(&mut graph.node);
        for (index, node) in nodes.into_iter().enumerate() {
            self.node(node, index, depth, &mut graph.node);
        }
    }

    /// Once is enough: what follows is of the same kind.
    fn refuse(&mut self, problem: Problem) {
        if self.problems.is_empty() {
            self.problems.push(problem);
        }
    }

    fn refuse_size(&mut self, function: &FunctionProto) {
        let message = format!(
            "calls of functions make more than {MOST_NODES} nodes or {} MiB, besides the file's",
            MOST_BYTES >> 20
        );
        self.refuse(Problem::unsupported(place(function), message));
    }

    fn node(&mut self, mut node: NodeProto, index: usize, depth: usize, out: &mut Vec<NodeProto>) {
        for attribute in &mut node.attribute {
            if let Some(graph) = &mut attribute.g {
                self.graph(graph, depth + 1);
            }
        }
        let Some(&function) = self.functions.get(&key(&node.domain, &node.op_type, &node.overload))
        else {
            out.push(node);
            return;
        };
        if depth >= DEEPEST {
            let message = format!("is called more than {DEEPEST} deep; does it call itself?");
            self.refuse(Problem::malformed(place(function), message));
        }
        // The call counts as a node, for the work of one that makes none.
        let parameters =
            [&function.input, &function.output].map(Vec::len).into_iter().sum::<usize>();
        let parameters = parameters
            .saturating_add(function.attribute_proto.len())
            .saturating_mul(size_of::<(&str, &str)>());
        if !self.budget.take(Weight { nodes: 1, bytes: parameters }) {
            self.refuse_size(function);
        }
        if !self.problems.is_empty() {
            return;
        }
        let label = if node.name.is_empty() { format!("#{index}") } else { node.name.clone() };
        // The number keeps calls apart whose nodes have one name, or none.
        let prefix = format!("{label}/{}/", self.calls);
        let call = Call::new(function, &node, prefix, self.budget);
        self.calls += 1;
        for (index, inner) in function.node.iter().enumerate() {
            let inner = call.node(inner);
            if self.budget.spent.get() {
                return self.refuse_size(function);
            }
            self.node(inner, index, depth + 1, out);
        }
        // A formal output that is a formal input too has no node that makes it.
        let inputs: BTreeSet<_> = function.input.iter().collect();
        for (formal, actual) in function.output.iter().zip(&node.output) {
            if inputs.contains(formal) && !actual.is_empty() {
                let input = vec![formal.clone()];
                let op_type = "Identity".to_owned();
                let name = formal.clone();
                let identity = NodeProto { op_type, name, input, ..NodeProto::default() };
                out.push(NodeProto { output: vec![actual.clone()], ..call.node(&identity) });
            }
        }
        if self.budget.spent.get() {
            self.refuse_size(function);
        }
    }
}

/// One call: what the names and attributes of the function stand for. Where the budget is spent
/// copies are empty, and the call is refused.
struct Call<'c> {
    prefix: String,
    names: BTreeMap<&'c str, &'c str>,
    attributes: BTreeMap<&'c str, &'c AttributeProto>,
    budget: &'c Budget,
}

impl<'c> Call<'c> {
    fn new(
        function: &'c FunctionProto,
        node: &'c NodeProto,
        prefix: String,
        budget: &'c Budget,
    ) -> Self {
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
        Call { prefix, names, attributes, budget }
    }

    fn name(&self, inner: &str) -> String {
        let (prefix, name) = match self.names.get(inner) {
            Some(outer) => ("", *outer),
            None if inner.is_empty() => ("", ""),
            None => (self.prefix.as_str(), inner),
        };
        self.joined(prefix, name)
    }

    fn joined(&self, prefix: &str, name: &str) -> String {
        let bytes = Weight::bytes(prefix.len());
        let taken = self.budget.take(bytes) && self.budget.take(weight::text(name));
        if taken { format!("{prefix}{name}") } else { String::new() }
    }

    fn node(&self, node: &NodeProto) -> NodeProto {
        if !self.budget.take(Weight::node()) {
            return NodeProto::default();
        }
        let renamed = |list: &[String]| list.iter().map(|name| self.name(name)).collect();
        NodeProto {
            input: renamed(&node.input),
            output: renamed(&node.output),
            name: self.joined(&self.prefix, &node.name),
            op_type: self.joined("", &node.op_type),
            attribute: node.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            domain: self.joined("", &node.domain),
            overload: self.joined("", &node.overload),
        }
    }

    fn attribute(&self, attribute: &AttributeProto) -> Option<AttributeProto> {
        let name = self.joined("", &attribute.name);
        if self.budget.spent.get() {
            return None;
        }
        if !attribute.ref_attr_name.is_empty() {
            let given = *self.attributes.get(attribute.ref_attr_name.as_str())?;
            let taken = self.budget.take(weight::attribute(given));
            return taken.then(|| AttributeProto { name, ..given.clone() });
        }
        if !self.budget.take(weight::attribute_itself(attribute)) {
            return None;
        }
        // Field by field: a copy of the whole would copy the inner graph before it is renamed.
        Some(AttributeProto {
            name,
            f: attribute.f,
            i: attribute.i,
            s: attribute.s.clone(),
            t: attribute.t.clone(),
            g: attribute.g.as_ref().map(|graph| self.graph(graph)),
            floats: attribute.floats.clone(),
            ints: attribute.ints.clone(),
            strings: attribute.strings.clone(),
            tensors: attribute.tensors.clone(),
            graphs: attribute.graphs.clone(),
            kind: attribute.kind,
            ref_attr_name: String::new(),
        })
    }

    /// An inner graph: every name of the function's, and of the graph's own, gets the prefix.
    fn graph(&self, graph: &GraphProto) -> GraphProto {
        if !self.budget.take(weight::graph_itself(graph)) {
            return GraphProto::default();
        }
        let mut copy = GraphProto {
            node: graph.node.iter().map(|node| self.node(node)).collect(),
            name: graph.name.clone(),
            initializer: graph.initializer.clone(),
            input: graph.input.clone(),
            output: graph.output.clone(),
            sparse_initializer: graph.sparse_initializer.clone(),
        };
        for tensor in &mut copy.initializer {
            tensor.name = self.name(&tensor.name);
        }
        for value in copy.input.iter_mut().chain(&mut copy.output) {
            value.name = self.name(&value.name);
        }
        copy
    }
}

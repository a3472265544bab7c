//! `ModelProto` to a checked model.
//!
//! What holds afterwards: every name is defined once, before its uses, in the graph or around it;
//! tensors agree with their shapes; each node carries the opset version that its domain was
//! imported at; attributes are typed and unique; initialisers among the inputs (IR 3 demanded
//! them) are initialisers only. Everything that breaks this is collected; see [`read`].
//!
//! Rules: <https://github.com/onnx/onnx/blob/v1.22.0/docs/IR.md>.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;

use super::attributes::{Attribute, Value};
use super::functions;
use super::order;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, attribute_kind,
};
use super::tensor::{Element, MAX_RANK, Tensor, TensorReader, rank_message};
use crate::error::{NodePlace, Place, Problem, printable};
use crate::source::ModelFiles;

/// IR versions that we know; 3 is the first with opset imports, 14 the newest published.
const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=14;

/// A checked model.
#[derive(Debug)]
pub struct Model {
    /// Version of each imported domain.
    pub opsets: BTreeMap<String, i64>,
    /// The main graph.
    pub graph: Graph,
}

/// A checked graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// The name in the file.
    pub name: String,
    /// Nodes, each after those that it reads from.
    pub nodes: Vec<Node>,
    /// Inputs that are no initialisers.
    pub inputs: Vec<ValueInfo>,
    /// Outputs.
    pub outputs: Vec<ValueInfo>,
    /// Constants by name.
    pub initializers: BTreeMap<String, Tensor>,
}

/// A checked node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name, operator, domain, version.
    pub place: NodePlace,
    /// Names of the inputs, empty where an optional one is left out.
    pub inputs: Vec<String>,
    /// Names of the outputs, empty where one is not wanted.
    pub outputs: Vec<String>,
    /// The attributes.
    pub attributes: Vec<Attribute>,
}

/// A graph input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// Its element type; outputs of inner graphs may leave it out.
    pub element: Option<Element>,
    /// Its shape where the file gives one.
    pub dims: Option<Vec<Dimension>>,
}

/// A dimension as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dimension {
    /// A number.
    Fixed(usize),
    /// A name. Equal names promise equal sizes; different names promise nothing.
    Named(String),
    /// Nothing is said.
    Unknown,
}

/// Decodes and checks a model.
pub fn read(files: &mut ModelFiles) -> Result<Model, Vec<Problem>> {
    let bytes = files.model();
    let path = files.model_path().to_path_buf();
    let file_bytes = bytes.len();
    let mut proto = decode(bytes)
        .map_err(|message| vec![Problem::malformed(Place::File(path.clone()), message)])?;
    functions::inline(&mut proto, file_bytes)?;
    let mut problems = Vec::new();
    let mut file_problem = |message: String| {
        problems.push(Problem::malformed(Place::File(path.clone()), message));
    };
    if proto.ir_version < *IR_VERSIONS.start() {
        file_problem(format!("IR version {}", proto.ir_version));
    }
    let mut opsets = BTreeMap::new();
    for import in &proto.opset_import {
        let domain = domain_name(&import.domain);
        if import.version < 1 {
            let domain = printable(&domain);
            file_problem(format!("opset version {} of domain {domain}", import.version));
        } else if let Some(earlier) = opsets.insert(domain.clone(), import.version)
            && earlier != import.version
        {
            let domain = printable(&domain);
            let versions = format!("{earlier} and {}", import.version);
            file_problem(format!("opset versions {versions} of domain {domain}"));
        }
    }
    if opsets.is_empty() {
        file_problem("no opset is imported".to_owned());
    }
    let Some(graph) = &proto.graph else {
        file_problem("no graph".to_owned());
        return Err(problems);
    };
    let place = || Place::File(path.clone());
    if proto.ir_version > *IR_VERSIONS.end() {
        let message = format!("IR version {}", proto.ir_version);
        problems.push(Problem::unsupported(place(), message));
    }
    if !proto.training_info.is_empty() {
        problems.push(Problem::unsupported(place(), "training information"));
    }
    let mut reader =
        GraphReader { opsets: &opsets, tensors: TensorReader::new(files), problems: &mut problems };
    let graph = reader.graph(graph, None);
    let overlaps = reader.tensors.overlaps();
    problems.extend(overlaps);
    if problems.is_empty() { Ok(Model { opsets, graph }) } else { Err(problems) }
}

/// Decodes the bytes of a model; tensor payloads stay where they are.
pub fn decode(bytes: Bytes) -> Result<ModelProto, String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err("is a Git LFS pointer; fetch the file itself".to_owned());
    }
    ModelProto::decode(bytes).map_err(|error| format!("is not an ONNX model: {error}"))
}

/// The name of a domain; the empty one and `ai.onnx` are the same.
fn domain_name(domain: &str) -> String {
    if domain.is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() }
}

struct GraphReader<'a> {
    opsets: &'a BTreeMap<String, i64>,
    tensors: TensorReader<'a>,
    problems: &'a mut Vec<Problem>,
}

/// The names that a graph defines, and around it those of the graph that it is inside of. Inner graphs
/// look outwards, as copies of what is around each would take the product of both numbers.
struct Scope<'p> {
    names: BTreeSet<&'p str>,
    around: Option<&'p Scope<'p>>,
}

impl<'p> Scope<'p> {
    fn contains(&self, name: &str) -> bool {
        self.names.contains(name) || self.around.is_some_and(|around| around.contains(name))
    }

    /// False if the name is defined already, here or around.
    fn define(&mut self, name: &'p str) -> bool {
        !self.contains(name) && self.names.insert(name)
    }
}

impl GraphReader<'_> {
    /// Checks a graph inside of another, or none.
    fn graph(&mut self, proto: &GraphProto, around: Option<&Scope<'_>>) -> Graph {
        let mut graph = Graph { name: proto.name.clone(), ..Graph::default() };
        let mut defined = Scope { names: BTreeSet::new(), around };
        for tensor in &proto.initializer {
            if tensor.name.is_empty() {
                let place = Place::Graph(proto.name.clone());
                self.problems.push(Problem::malformed(place, "an initialiser without a name"));
                continue;
            }
            if !defined.define(&tensor.name) {
                let place = Place::Tensor(tensor.name.clone());
                self.problems.push(Problem::malformed(place, "is defined twice"));
                continue;
            }
            match self.tensors.read(tensor, &tensor.name) {
                Ok(Some(read)) => {
                    graph.initializers.insert(tensor.name.clone(), read);
                }
                Ok(None) => {}
                Err(problem) => self.problems.push(problem),
            }
        }
        for sparse in &proto.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| &values.name);
            let place = Place::Tensor(name.to_owned());
            self.problems.push(Problem::unsupported(place, "sparse initialiser"));
            defined.define(name);
        }
        let initializers: BTreeSet<_> =
            proto.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut seen_inputs = BTreeSet::new();
        for input in &proto.input {
            let place = Place::Input(input.name.clone());
            if input.name.is_empty() {
                self.problems.push(Problem::malformed(place, "an input without a name"));
            } else if !seen_inputs.insert(&input.name) {
                self.problems.push(Problem::malformed(place, "is defined twice"));
            } else if !initializers.contains(input.name.as_str()) {
                if !defined.define(&input.name) {
                    self.problems.push(Problem::malformed(place, "is defined twice"));
                } else if let Some(info) = self.value_info(input, place, true) {
                    graph.inputs.push(info);
                }
            }
        }
        let order = self.order(proto, &mut defined);
        for &index in &order {
            let node = self.node(&proto.node[index], index, &defined);
            graph.nodes.push(node);
        }
        let mut seen_outputs = BTreeSet::new();
        for output in &proto.output {
            let place = Place::Output(output.name.clone());
            if !defined.contains(&output.name) {
                self.problems.push(Problem::malformed(place, "no node produces it"));
            } else if !seen_outputs.insert(&output.name) {
                self.problems.push(Problem::malformed(place, "is listed twice"));
            } else if let Some(info) = self.value_info(output, place, false) {
                graph.outputs.push(info);
            }
        }
        if proto.output.is_empty() {
            let place = Place::Graph(proto.name.clone());
            self.problems.push(Problem::malformed(place, "no outputs"));
        }
        graph
    }

    /// Checks names across nodes and finds an order in which each name is defined before its use.
    fn order<'p>(&mut self, proto: &'p GraphProto, defined: &mut Scope<'p>) -> Vec<usize> {
        let mut producers = BTreeMap::new();
        for (index, node) in proto.node.iter().enumerate() {
            for output in node.output.iter().filter(|output| !output.is_empty()) {
                if defined.define(output) {
                    producers.insert(output.as_str(), index);
                } else {
                    let message = format!("defines \"{}\" a second time", printable(output));
                    let place = Place::Node(self.place(node, index));
                    self.problems.push(Problem::malformed(place, message));
                }
            }
        }
        let mut needs = Vec::with_capacity(proto.node.len());
        for (index, node) in proto.node.iter().enumerate() {
            let mut before = Vec::new();
            for name in order::names_read(node) {
                if let Some(&producer) = producers.get(name) {
                    before.push(producer);
                } else if !defined.contains(name) {
                    let message = format!("reads \"{}\", which nothing defines", printable(name));
                    let place = Place::Node(self.place(node, index));
                    self.problems.push(Problem::malformed(place, message));
                }
            }
            needs.push(before);
        }
        match order::topological(&needs) {
            Ok(order) => order,
            Err(cycle) => {
                const SHOWN: usize = 12;
                let mut names: Vec<_> = cycle
                    .iter()
                    .take(SHOWN)
                    .map(|&index| printable(&self.place(&proto.node[index], index).name))
                    .collect();
                if cycle.len() > SHOWN {
                    names.push(format!("{} more", cycle.len() - SHOWN));
                }
                let message = format!("nodes form a cycle: {}", names.join(" -> "));
                let place = Place::Graph(proto.name.clone());
                self.problems.push(Problem::malformed(place, message));
                (0..proto.node.len()).collect()
            }
        }
    }

    fn place(&self, proto: &NodeProto, index: usize) -> NodePlace {
        let domain = domain_name(&proto.domain);
        let opset = self.opsets.get(&domain).copied();
        let name = if proto.name.is_empty() { format!("#{index}") } else { proto.name.clone() };
        NodePlace { name, op: proto.op_type.clone(), domain, opset }
    }

    fn node(&mut self, proto: &NodeProto, index: usize, defined: &Scope<'_>) -> Node {
        let place = self.place(proto, index);
        let at = || Place::Node(place.clone());
        if proto.op_type.is_empty() {
            self.problems.push(Problem::malformed(at(), "no operator"));
        }
        if place.opset.is_none() && !self.opsets.is_empty() {
            let message = "the model imports no opset of this domain";
            self.problems.push(Problem::malformed(at(), message));
        }
        if !proto.overload.is_empty() {
            let message = format!("overload \"{}\"", printable(&proto.overload));
            self.problems.push(Problem::unsupported(at(), message));
        }
        let mut attributes: Vec<Attribute> = Vec::with_capacity(proto.attribute.len());
        let mut seen = BTreeSet::new();
        for attribute in &proto.attribute {
            if seen.contains(attribute.name.as_str()) {
                let message = format!("attribute {} is given twice", printable(&attribute.name));
                self.problems.push(Problem::malformed(at(), message));
                continue;
            }
            match self.attribute(attribute, &place, defined) {
                Ok(Some(value)) => {
                    seen.insert(attribute.name.as_str());
                    attributes.push(Attribute { name: attribute.name.clone(), value });
                }
                Ok(None) => {}
                Err(problem) => self.problems.push(problem),
            }
        }
        Node { place, inputs: proto.input.clone(), outputs: proto.output.clone(), attributes }
    }

    fn attribute(
        &mut self,
        proto: &AttributeProto,
        node: &NodePlace,
        defined: &Scope<'_>,
    ) -> Result<Option<Value>, Problem> {
        let name = printable(&proto.name);
        let malformed = |message: String| Problem::malformed(Place::Node(node.clone()), message);
        let unsupported = |what: &str| {
            Problem::unsupported(Place::Node(node.clone()), format!("attribute {name}: {what}"))
        };
        let missing = |what: &str| malformed(format!("attribute {name} has no {what}"));
        if proto.name.is_empty() {
            return Err(malformed("an attribute without a name".to_owned()));
        }
        if !proto.ref_attr_name.is_empty() {
            let message = format!("attribute {name} refers to a function's, outside a function");
            return Err(malformed(message));
        }
        let text = |bytes: &Bytes| {
            String::from_utf8(bytes.to_vec())
                .map_err(|_| malformed(format!("attribute {name} is not UTF-8")))
        };
        // Absent scalars are the protobuf default, which some writers leave out.
        Ok(Some(match proto.kind {
            attribute_kind::FLOAT => Value::Float(proto.f.unwrap_or(0.0)),
            attribute_kind::INT => Value::Int(proto.i.unwrap_or(0)),
            attribute_kind::STRING => Value::String(match &proto.s {
                Some(bytes) => text(bytes)?,
                None => String::new(),
            }),
            attribute_kind::TENSOR => {
                let tensor = proto.t.as_ref().ok_or_else(|| missing("tensor"))?;
                let label = format!("{}.{name}", node.name);
                match self.tensors.read(tensor, &label)? {
                    Some(tensor) => Value::Tensor(tensor),
                    None => return Ok(None),
                }
            }
            attribute_kind::GRAPH => {
                let graph = proto.g.as_ref().ok_or_else(|| missing("graph"))?;
                Value::Graph(self.graph(graph, Some(defined)))
            }
            attribute_kind::FLOATS => Value::Floats(proto.floats.clone()),
            attribute_kind::INTS => Value::Ints(proto.ints.clone()),
            attribute_kind::STRINGS => {
                Value::Strings(proto.strings.iter().map(text).collect::<Result<_, _>>()?)
            }
            attribute_kind::UNDEFINED => {
                return Err(malformed(format!("attribute {name} has no type")));
            }
            9 => return Err(unsupported("list of tensors")),
            10 => return Err(unsupported("list of graphs")),
            11 | 12 => return Err(unsupported("sparse tensor")),
            13 | 14 => return Err(unsupported("type")),
            other => return Err(malformed(format!("attribute {name} has unknown type {other}"))),
        }))
    }

    fn value_info(
        &mut self,
        proto: &ValueInfoProto,
        place: Place,
        needs_type: bool,
    ) -> Option<ValueInfo> {
        let name = proto.name.clone();
        let untyped = ValueInfo { name: name.clone(), element: None, dims: None };
        let Some(kind) = &proto.kind else {
            if needs_type {
                self.problems.push(Problem::malformed(place, "no type"));
                return None;
            }
            return Some(untyped);
        };
        let Some(tensor) = &kind.tensor_type else {
            let other = [
                (kind.sequence_type.is_some(), "sequence"),
                (kind.map_type.is_some(), "map"),
                (kind.sparse_tensor_type.is_some(), "sparse tensor"),
                (kind.optional_type.is_some(), "optional"),
            ];
            match other.iter().find(|(present, _)| *present) {
                Some((_, what)) => {
                    self.problems.push(Problem::unsupported(place, format!("its type is {what}")));
                }
                None if needs_type => self.problems.push(Problem::malformed(place, "no type")),
                None => return Some(untyped),
            }
            return None;
        };
        let element = match Element::from_wire(tensor.elem_type) {
            Ok(element) => Some(element),
            Err(_) if tensor.elem_type == 0 && !needs_type => None,
            Err(error) => {
                self.problems.push(error.at(place));
                return None;
            }
        };
        let mut dims = Vec::new();
        let Some(shape) = &tensor.shape else {
            return Some(ValueInfo { name, element, dims: None });
        };
        if shape.dim.len() > MAX_RANK {
            let message = rank_message(shape.dim.len());
            self.problems.push(Problem::unsupported(place, message));
            return None;
        }
        for dim in &shape.dim {
            dims.push(match (dim.dim_value, &dim.dim_param) {
                (Some(size), _) => match usize::try_from(size) {
                    Ok(size) => Dimension::Fixed(size),
                    Err(_) => {
                        let message = format!("negative dimension {size}");
                        self.problems.push(Problem::malformed(place, message));
                        return None;
                    }
                },
                (None, Some(name)) if !name.is_empty() => Dimension::Named(name.clone()),
                (None, _) => Dimension::Unknown,
            });
        }
        Some(ValueInfo { name, element, dims: Some(dims) })
    }
}

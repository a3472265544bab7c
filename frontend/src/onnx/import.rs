//! A checked model to a graph of core ops.
//!
//! Walks the nodes in order and calls each operator's importer from the table in `ops`. A node
//! that fails poisons its results: nodes that read them are passed over, but an operator that we
//! do not know is reported all the same, so that one run lists everything a model needs. After
//! this file nothing is looked up by string.

use std::collections::BTreeMap;

use weir_ir::graph::BodyResult;
use weir_ir::{Constant, DType, Dim, Graph, TensorType, Value};

use super::allowance::{self, Allowance, MOST_MADE};
use super::attributes::{Attributes, Value as AttributeValue};
use super::context::Cx;
use super::model::{self, Node};
use super::once::Once;
use super::ops::{Lookup, lookup};
use super::roles::{self, Binding, InputPlan};
use super::tensor::{Element, Tensor};
use crate::error::{Place, Problem, printable};

/// Builds the graph of a model whose inputs have been given roles.
pub fn build(model: &model::Model, plan: &InputPlan) -> Result<Graph, Vec<Problem>> {
    let mut importer = Importer { scopes: vec![BTreeMap::new()], ..Importer::default() };
    for (name, tensor) in &model.graph.initializers {
        importer.scopes[0].insert(name.clone(), Bound::Tensor(tensor, None));
    }
    for (input, binding) in model.graph.inputs.iter().zip(&plan.inputs) {
        let bound = importer.bind_input(&input.name, binding);
        importer.scopes[0].insert(input.name.clone(), bound);
    }
    importer.nodes(&model.graph.nodes);
    if importer.problems.is_empty() {
        importer.results(&model.graph, plan);
    }
    if importer.problems.is_empty() { Ok(importer.graph) } else { Err(importer.problems) }
}

/// The operators of a model that no table knows, for a model whose graph cannot be built anyway.
pub fn unknown_operators(model: &model::Model) -> Vec<Problem> {
    let mut importer = Importer::default();
    for node in &model.graph.nodes {
        if let Lookup::Missing(message) = lookup(&node.place) {
            let place = Place::Node(node.place.clone());
            importer.problems.push(Problem::unsupported(place, message));
        }
        importer.unknown_inside(node);
    }
    importer.problems
}

/// What a name stands for while the graph is built.
#[derive(Debug, Clone)]
pub(super) enum Bound<'m> {
    Value(Value),
    /// An initialiser, made a value when somebody reads it as one.
    Tensor(&'m Tensor, Option<Value>),
    /// A cache whose head size the file does not say; an attention operator knows it.
    Cache(roles::CacheInput),
    /// A result of `DynamicQuantizeLinear`, or what follows from one, and the activations that it rounds.
    Rounded(Rounded, Value),
    /// A result that our importer does not make.
    NotMade(String),
    /// The result of a node that failed.
    Failed,
}

/// What `DynamicQuantizeLinear` gives, and what its readers make of it. How far activations are rounded
/// inside of a product is our choice, as with every other weight, and never by what all rows of a step have
/// in common: products of codes read the activations themselves, whose scale then is 1. As that holds
/// where a product meets the scale of its own activations and nowhere else, neither is a value before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounded {
    /// Whole numbers of eight bits.
    Codes,
    /// What a code of one more is worth.
    Scale,
    /// The code of 0.
    Zero,
    /// The scale times these constants, a weight's scales.
    Scales(Value),
    /// A product of the codes that is still to be scaled: with the scale it is this value.
    Product(Value),
}

impl Rounded {
    fn name(self) -> &'static str {
        match self {
            Rounded::Codes => "codes",
            Rounded::Scale | Rounded::Scales(_) => "scale",
            Rounded::Zero => "zero point",
            Rounded::Product(_) => "unscaled product",
        }
    }
}

/// The state of one import.
#[derive(Debug, Default)]
pub struct Importer<'m> {
    pub(super) graph: Graph,
    pub(super) scopes: Vec<BTreeMap<String, Bound<'m>>>,
    pub(super) problems: Vec<Problem>,
    allowance: Allowance,
    /// Caches of fixed length that have been made values, with that length: their rows are written over
    /// all the same.
    pub(super) fixed: BTreeMap<Value, usize>,
    /// Its quantised constants.
    pub(super) once: Once,
}

impl<'m> Importer<'m> {
    /// Takes bytes that the file does not hold from what an import may make.
    pub(super) fn make_room(&mut self, bytes: usize, place: &Place) -> Result<(), Problem> {
        self.allowance.take(bytes).ok_or_else(|| {
            let most = MOST_MADE >> 20;
            let message = format!("what nodes make of shapes and numbers exceeds {most} MiB");
            Problem::unsupported(place.clone(), message)
        })
    }

    fn bind_input(&mut self, name: &str, binding: &Binding) -> Bound<'m> {
        match binding {
            Binding::Param { role, ty, known } => {
                let (role, ty, known) = (role.clone(), ty.clone(), known.clone());
                Bound::Value(self.graph.main.param(role, ty, known, Some(name.to_owned())))
            }
            Binding::Constant(constant) => Bound::Value(self.graph.constant(constant.clone())),
            Binding::Cache(cache) => Bound::Cache(cache.clone()),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<&Bound<'m>> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    fn rebind(&mut self, name: &str, bound: Bound<'m>) {
        if let Some(entry) = self.scopes.iter_mut().rev().find_map(|scope| scope.get_mut(name)) {
            *entry = bound;
        }
    }

    fn define(&mut self, name: &str, bound: Bound<'m>) {
        if !name.is_empty()
            && let Some(scope) = self.scopes.last_mut()
        {
            scope.insert(name.to_owned(), bound);
        }
    }

    pub(super) fn nodes(&mut self, nodes: &'m [Node]) {
        for node in nodes {
            // What follows would say no more than the node that went too far.
            if self.allowance.is_spent() {
                return;
            }
            self.node(node);
        }
    }

    fn node(&mut self, node: &'m Node) {
        let fail = |importer: &mut Self| {
            for output in &node.outputs {
                importer.define(output, Bound::Failed);
            }
        };
        let import = match lookup(&node.place) {
            Lookup::Found(import) => import,
            Lookup::Missing(message) => {
                let place = Place::Node(node.place.clone());
                self.problems.push(Problem::unsupported(place, message));
                self.unknown_inside(node);
                return fail(self);
            }
        };
        let poisoned = node
            .inputs
            .iter()
            .any(|name| !name.is_empty() && matches!(self.find(name), Some(Bound::Failed) | None));
        if poisoned {
            self.unknown_inside(node);
            return fail(self);
        }
        let before = self.problems.len();
        let attributes = Attributes::new(node);
        let mut cx = Cx { importer: self, node, attributes, rounds: Vec::new() };
        match import(&mut cx) {
            Err(problem) => {
                self.problems.push(problem);
                fail(self);
            }
            Ok(results) => {
                let (unread, rounds) = (cx.attributes.unread(), cx.rounds);
                self.problems.extend(unread);
                if self.problems.len() > before {
                    return fail(self);
                }
                for (index, name) in node.outputs.iter().enumerate() {
                    let bound = match results.get(index) {
                        _ if let Some(&(part, activations)) = rounds.get(index) => {
                            Bound::Rounded(part, activations)
                        }
                        Some(&value) => {
                            if !name.is_empty() {
                                let label = &mut self.graph.main.values[value].name;
                                label.get_or_insert_with(|| name.clone());
                            }
                            Bound::Value(value)
                        }
                        None => Bound::NotMade(format!("result {index} of {}", node.place)),
                    };
                    self.define(name, bound);
                }
            }
        }
    }

    /// Reports unknown operators in the inner graphs of a node that is not imported itself.
    fn unknown_inside(&mut self, node: &Node) {
        for attribute in &node.attributes {
            if let AttributeValue::Graph(graph) = &attribute.value {
                for inner in &graph.nodes {
                    if let Lookup::Missing(message) = lookup(&inner.place) {
                        let place = Place::Node(inner.place.clone());
                        self.problems.push(Problem::unsupported(place, message));
                    }
                    self.unknown_inside(inner);
                }
            }
        }
    }

    /// The value of a name, made on demand.
    pub(super) fn value(&mut self, name: &str, place: &Place) -> Result<Value, Problem> {
        match self.find(name).cloned() {
            Some(Bound::Value(value) | Bound::Tensor(_, Some(value))) => Ok(value),
            Some(Bound::Tensor(tensor, None)) => {
                let value = self.constant(tensor, name, place)?;
                self.rebind(name, Bound::Tensor(tensor, Some(value)));
                Ok(value)
            }
            Some(Bound::Cache(cache)) => {
                let message = format!(
                    "reads the cache \"{}\", whose head size neither the file nor a \
                     configuration beside it says",
                    printable(name)
                );
                let Some(ty) = cache.ty(None, None) else {
                    return Err(Problem::unsupported(place.clone(), message));
                };
                Ok(self.cache(name, &cache, ty))
            }
            Some(Bound::Rounded(part, _)) => {
                let message = format!("reads the {} of rounded activations", part.name());
                Err(Problem::unsupported(place.clone(), message))
            }
            Some(Bound::NotMade(what)) => {
                Err(Problem::unsupported(place.clone(), format!("reads {what}")))
            }
            Some(Bound::Failed) | None => {
                let message = format!("reads \"{}\", which nothing defines", printable(name));
                Err(Problem::malformed(place.clone(), message))
            }
        }
    }

    pub(super) fn cache(&mut self, name: &str, cache: &roles::CacheInput, ty: TensorType) -> Value {
        let role = cache.role.clone();
        let value = self.graph.main.param(role, ty, None, Some(name.to_owned()));
        if let Some(length) = cache.length {
            self.fixed.insert(value, length);
        }
        self.rebind(name, Bound::Value(value));
        value
    }

    pub(super) fn constant(
        &mut self,
        tensor: &Tensor,
        name: &str,
        place: &Place,
    ) -> Result<Value, Problem> {
        let constant =
            dense(tensor, name).map_err(|message| Problem::unsupported(place.clone(), message))?;
        let value = self.graph.constant(constant);
        let listed = allowance::known(self.graph.main.operand(value).known);
        self.make_room(listed, place)?;
        Ok(value)
    }

    /// Gives the graph's outputs their roles.
    fn results(&mut self, graph: &model::Graph, plan: &InputPlan) {
        for (output, role) in graph.outputs.iter().zip(&plan.outputs) {
            match self.value(&output.name, &Place::Output(output.name.clone())) {
                Ok(value) => {
                    let role = role.clone();
                    self.graph.main.results.push(BodyResult { value, role });
                }
                Err(problem) => self.problems.push(problem),
            }
        }
    }
}

/// The core type of a plain element.
pub fn dtype(element: Element) -> Option<DType> {
    Some(match element {
        Element::Float32 => DType::F32,
        Element::Float16 => DType::F16,
        Element::Bfloat16 => DType::BF16,
        Element::Float64 => DType::F64,
        Element::Int64 => DType::I64,
        Element::Int32 => DType::I32,
        Element::Int16 => DType::I16,
        Element::Int8 => DType::I8,
        Element::Uint64 => DType::U64,
        Element::Uint32 => DType::U32,
        Element::Uint16 => DType::U16,
        Element::Uint8 => DType::U8,
        Element::Bool => DType::Bool,
        Element::Int4 | Element::Uint4 => return None,
    })
}

/// The constant of a tensor; 4-bit elements, which have no plain type, become bytes.
fn dense(tensor: &Tensor, name: &str) -> Result<Constant, String> {
    let shape = tensor.dims.iter().map(|&size| Dim::from(size)).collect();
    if let Some(dtype) = dtype(tensor.element) {
        return Ok(Constant::dense(name, TensorType::new(dtype, shape), tensor.bytes.clone()));
    }
    let signed = tensor.element == Element::Int4;
    let codes = (0..tensor.count()).map(|index| {
        let code = tensor.bytes[index / 2] >> (4 * (index % 2)) & 15;
        if signed { (((code << 4) as i8) >> 4) as u8 } else { code }
    });
    let codes: Vec<u8> = codes.collect();
    let dtype = if signed { DType::I8 } else { DType::U8 };
    Ok(Constant::dense(name, TensorType::new(dtype, shape), codes.into()))
}

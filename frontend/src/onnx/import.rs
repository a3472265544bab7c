//! A checked model to a graph of core ops.
//!
//! Walks the nodes in order and calls each operator's importer from the table in `ops`. A node
//! that fails poisons its results: nodes that read them are passed over, but an operator that we
//! do not know is reported all the same, so that one run lists everything a model needs. After
//! this file nothing is looked up by string.

use std::collections::BTreeMap;

use bytes::Bytes;
use weir_ir::graph::BodyResult;
use weir_ir::ops::{self, Known};
use weir_ir::{ConstData, Constant, DType, Dim, Graph, Op, TensorType, Value};

use super::attributes::{Attributes, Value as AttributeValue};
use super::model::{self, Node};
use super::ops::{Lookup, lookup};
use super::roles::{self, Binding, InputPlan};
use super::tensor::{Element, Tensor};
use crate::error::{Place, Problem, printable};

/// Elements of constant integers that an importer reads as numbers, at most.
const MAX_READ: usize = 1 << 16;

/// Nodes between a constant and its reader that are looked through, at most: files have a few, and
/// the search is recursive.
pub const MAX_CHAIN: usize = 32;

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
enum Bound<'m> {
    Value(Value),
    /// An initialiser, made a value when somebody reads it as one.
    Tensor(&'m Tensor, Option<Value>),
    /// A cache whose head size the file does not say; an attention operator knows it.
    Cache(roles::CacheInput),
    /// A result that our importer does not make.
    NotMade(String),
    /// The result of a node that failed.
    Failed,
}

/// The state of one import.
#[derive(Debug, Default)]
pub struct Importer<'m> {
    graph: Graph,
    scopes: Vec<BTreeMap<String, Bound<'m>>>,
    problems: Vec<Problem>,
}

impl<'m> Importer<'m> {
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

    fn find(&self, name: &str) -> Option<&Bound<'m>> {
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

    fn nodes(&mut self, nodes: &'m [Node]) {
        for node in nodes {
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
        let mut cx = Cx { importer: self, node, attributes: Attributes::new(node) };
        match import(&mut cx) {
            Err(problem) => {
                self.problems.push(problem);
                fail(self);
            }
            Ok(results) => {
                let unread = cx.attributes.unread();
                self.problems.extend(unread);
                if self.problems.len() > before {
                    return fail(self);
                }
                for (index, name) in node.outputs.iter().enumerate() {
                    let bound = match results.get(index) {
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
    fn value(&mut self, name: &str, place: &Place) -> Result<Value, Problem> {
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
            Some(Bound::NotMade(what)) => {
                Err(Problem::unsupported(place.clone(), format!("reads {what}")))
            }
            Some(Bound::Failed) | None => {
                let message = format!("reads \"{}\", which nothing defines", printable(name));
                Err(Problem::malformed(place.clone(), message))
            }
        }
    }

    fn cache(&mut self, name: &str, cache: &roles::CacheInput, ty: TensorType) -> Value {
        let role = cache.role.clone();
        let value = self.graph.main.param(role, ty, None, Some(name.to_owned()));
        self.rebind(name, Bound::Value(value));
        value
    }

    fn constant(&mut self, tensor: &Tensor, name: &str, place: &Place) -> Result<Value, Problem> {
        let constant =
            dense(tensor, name).map_err(|message| Problem::unsupported(place.clone(), message))?;
        Ok(self.graph.constant(constant))
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

/// A constant as an importer of quantised weights reads it: elements at strides in bytes that may
/// be a part of a larger tensor.
#[derive(Debug, Clone)]
pub struct ConstantView {
    /// The element type, 4-bit ones included.
    pub element: Element,
    /// Sizes.
    pub dims: Vec<usize>,
    /// From the first element on.
    pub bytes: Bytes,
    /// In elements.
    pub strides: Vec<usize>,
}

impl ConstantView {
    /// Whether the elements lie in row-major order without gaps.
    pub fn is_dense(&self) -> bool {
        let row_major = weir_ir::constant::row_major(&self.dims);
        let mut pairs = self.dims.iter().zip(self.strides.iter().zip(&row_major));
        pairs.all(|(&size, (stride, dense))| size <= 1 || stride == dense)
    }
}

/// What an operator's importer works with: one node and the graph so far.
#[derive(Debug)]
pub struct Cx<'i, 'm> {
    importer: &'i mut Importer<'m>,
    /// The node.
    pub node: &'m Node,
    /// Its attributes.
    pub attributes: Attributes<'m>,
}

impl<'m> Cx<'_, 'm> {
    /// The place of the node.
    pub fn place(&self) -> Place {
        Place::Node(self.node.place.clone())
    }

    /// A form that we do not import.
    pub fn unsupported(&self, message: impl Into<String>) -> Problem {
        Problem::unsupported(self.place(), message)
    }

    /// A break of the operator's rules.
    pub fn malformed(&self, message: impl Into<String>) -> Problem {
        Problem::malformed(self.place(), message)
    }

    /// The opset version of the node's domain.
    pub fn opset(&self) -> i64 {
        self.node.place.opset.unwrap_or(0)
    }

    /// Number of inputs, trailing empty ones left out.
    pub fn inputs(&self) -> usize {
        self.node.inputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)
    }

    /// Whether the node has this input.
    pub fn has(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Whether somebody wants this output (a name that nothing reads counts as wanted).
    pub fn wants(&self, index: usize) -> bool {
        self.node.outputs.get(index).is_some_and(|name| !name.is_empty())
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Fails if the node has more inputs than its operator, as far as we know it.
    pub fn at_most_inputs(&self, most: usize) -> Result<(), Problem> {
        if self.inputs() > most {
            return Err(self.unsupported(format!("input {most}")));
        }
        Ok(())
    }

    /// A required input.
    pub fn value(&mut self, index: usize) -> Result<Value, Problem> {
        match self.optional(index)? {
            Some(value) => Ok(value),
            None => Err(self.malformed(format!("input {index} is missing"))),
        }
    }

    /// An optional input.
    pub fn optional(&mut self, index: usize) -> Result<Option<Value>, Problem> {
        if !self.has(index) {
            return Ok(None);
        }
        let place = self.place();
        self.importer.value(&self.node.inputs[index], &place).map(Some)
    }

    /// A cache input, given the head count and head size that the operator implies.
    pub fn cache(
        &mut self,
        index: usize,
        heads: &Dim,
        width: &Dim,
    ) -> Result<Option<Value>, Problem> {
        if self.has(index)
            && let name = &self.node.inputs[index]
            && let Some(Bound::Cache(cache)) = self.importer.find(name).cloned()
            && let Some(ty) = cache.ty(Some(heads), Some(width))
        {
            return Ok(Some(self.importer.cache(name, &cache, ty)));
        }
        self.optional(index)
    }

    /// An input that is a constant, read without making it a value.
    pub fn constant(&mut self, index: usize) -> Result<Option<ConstantView>, Problem> {
        if !self.has(index) {
            return Ok(None);
        }
        if let Some(Bound::Tensor(tensor, _)) = self.importer.find(&self.node.inputs[index]) {
            return Ok(Some(ConstantView {
                element: tensor.element,
                dims: tensor.dims.clone(),
                bytes: tensor.bytes.clone(),
                strides: weir_ir::constant::row_major(&tensor.dims),
            }));
        }
        let value = self.value(index)?;
        Ok(self.constant_of(value))
    }

    /// The constant behind a value, through reshapes, slices and transpositions.
    pub fn constant_of(&self, value: Value) -> Option<ConstantView> {
        self.constant_within(value, MAX_CHAIN)
    }

    fn constant_within(&self, value: Value, steps: usize) -> Option<ConstantView> {
        let steps = steps.checked_sub(1)?;
        let maker = self.importer.graph.main.maker(value)?;
        match &maker.op {
            Op::ReadConstant(ops::ReadConstant { constant }) => {
                let constant = &self.importer.graph.constants[*constant];
                let ConstData::Dense { bytes, strides } = &constant.data else { return None };
                let element = element(constant.ty.dtype()?);
                let (bytes, strides) = (bytes.clone(), strides.clone());
                Some(ConstantView { element, dims: constant.ty.sizes()?, bytes, strides })
            }
            Op::Reshape(ops::Reshape { shape }) => {
                let view = self.constant_within(maker.operands[0], steps)?;
                let dims: Vec<usize> = shape.iter().map(Dim::as_size).collect::<Option<_>>()?;
                let strides = weir_ir::constant::row_major(&dims);
                view.is_dense().then_some(ConstantView { dims, strides, ..view })
            }
            Op::Transpose(ops::Transpose { order }) => {
                let view = self.constant_within(maker.operands[0], steps)?;
                let dims = order.iter().map(|&index| view.dims[index]).collect();
                let strides = order.iter().map(|&index| view.strides[index]).collect();
                Some(ConstantView { dims, strides, ..view })
            }
            Op::Slice(ops::Slice { axis, start, step, length }) => {
                let mut view = self.constant_within(maker.operands[0], steps)?;
                let (start, step) = (start.as_size()?, usize::try_from(*step).ok()?);
                view.dims[*axis] = length.as_size()?;
                let bits = view.element.bits() as usize;
                let first = start.checked_mul(view.strides[*axis])?.checked_mul(bits)?;
                if first % 8 != 0 || first / 8 > view.bytes.len() {
                    return None;
                }
                view.bytes = view.bytes.slice(first / 8..);
                view.strides[*axis] = view.strides[*axis].checked_mul(step)?;
                Some(view)
            }
            _ => None,
        }
    }

    /// The op that makes a value, with its operands.
    pub fn maker(&self, value: Value) -> Option<(&Op, &[Value])> {
        let maker = self.importer.graph.main.maker(value)?;
        Some((&maker.op, &maker.operands))
    }

    /// The role of a value that is an input of the model.
    pub fn role(&self, value: Value) -> Option<&weir_ir::InputRole> {
        let params = &self.importer.graph.main.params;
        params.iter().find(|param| param.value == value).map(|param| &param.role)
    }

    /// Sizes of a value.
    pub fn shape(&self, value: Value) -> Vec<Dim> {
        self.importer.graph.main.shape(value).to_vec()
    }

    /// Number of dimensions of a value.
    pub fn rank(&self, value: Value) -> usize {
        self.importer.graph.main.shape(value).len()
    }

    /// Element type of a value.
    pub fn dtype(&self, value: Value) -> Result<DType, Problem> {
        let ty = self.importer.graph.main.ty(value);
        ty.dtype().ok_or_else(|| self.unsupported(format!("quantised operand {ty}")))
    }

    /// Appends a node.
    pub fn push(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, Problem> {
        let origin = Some(self.node.place.to_string());
        let place = self.place();
        self.importer
            .graph
            .main
            .push1(op.into(), operands.to_vec(), origin)
            .map_err(|error| Problem::malformed(place, error.to_string()))
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, constant: Constant) -> Value {
        self.importer.graph.constant(constant)
    }

    /// A scalar of the given type.
    pub fn scalar(&mut self, number: f64, dtype: DType) -> Result<Value, Problem> {
        let bytes: Vec<u8> = match dtype {
            DType::F32 => (number as f32).to_le_bytes().to_vec(),
            DType::F64 => number.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(number).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(number).to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(number != 0.0)],
            integer => (number as i64).to_le_bytes()[..integer.bytes()].to_vec(),
        };
        let ty = TensorType::new(dtype, Vec::new());
        Ok(self.add_constant(Constant::dense(format!("{number}"), ty, bytes.into())))
    }

    /// Content of an integer or boolean value where it follows from shapes: its elements.
    pub fn elements_of(&self, value: Value) -> Option<Vec<Dim>> {
        let operand = self.importer.graph.main.operand(value);
        match operand.known {
            Some(Known::Elements(elements)) => Some(elements.clone()),
            Some(Known::Fill(fill)) => {
                let count = operand.ty.element_count().filter(|&count| count <= MAX_READ)?;
                Some(vec![fill.clone(); count])
            }
            None => {
                let view = self.constant_of(value).filter(ConstantView::is_dense)?;
                let shape = view.dims.iter().map(|&size| Dim::from(size)).collect();
                let dtype = dtype(view.element)?;
                let count = view.dims.iter().product::<usize>();
                let bytes = view.bytes.slice(..count.checked_mul(dtype.bytes())?);
                let constant = Constant::dense("", TensorType::new(dtype, shape), bytes);
                let integers = constant.small_integers(MAX_READ)?;
                Some(integers.into_iter().map(Dim::number).collect())
            }
        }
    }

    /// The one value that all elements have, where it follows from shapes.
    pub fn fill_of(&self, value: Value) -> Option<Dim> {
        match self.importer.graph.main.operand(value).known? {
            Known::Fill(fill) => Some(fill.clone()),
            Known::Elements(elements) => {
                let first = elements.first()?;
                elements.iter().all(|element| element == first).then(|| first.clone())
            }
        }
    }

    /// An input whose elements must be known in terms of sizes.
    pub fn sizes(&mut self, index: usize, what: &str) -> Result<Vec<Dim>, Problem> {
        let value = self.value(index)?;
        self.elements_of(value)
            .ok_or_else(|| self.unsupported(format!("{what} (input {index}) depends on data")))
    }

    /// An input whose elements must be numbers.
    pub fn integers(&mut self, index: usize, what: &str) -> Result<Vec<i64>, Problem> {
        let sizes = self.sizes(index, what)?;
        sizes.iter().map(Dim::as_number).collect::<Option<_>>().ok_or_else(|| {
            self.unsupported(format!("{what} (input {index}) depends on symbolic sizes"))
        })
    }

    /// A scalar float constant.
    pub fn float_of(&self, value: Value) -> Option<f64> {
        let view = self.constant_of(value)?;
        if view.dims.iter().product::<usize>() != 1 {
            return None;
        }
        let bytes = &view.bytes;
        Some(match view.element {
            Element::Float32 => f64::from(f32::from_le_bytes(bytes.get(..4)?.try_into().ok()?)),
            Element::Float64 => f64::from_le_bytes(bytes.get(..8)?.try_into().ok()?),
            Element::Float16 => half::f16::from_le_bytes(bytes.get(..2)?.try_into().ok()?).to_f64(),
            Element::Bfloat16 => {
                half::bf16::from_le_bytes(bytes.get(..2)?.try_into().ok()?).to_f64()
            }
            _ => return None,
        })
    }

    /// An axis, negative ones counted from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, Problem> {
        let signed = rank as i64;
        let resolved = if axis < 0 { axis.saturating_add(signed) } else { axis };
        usize::try_from(resolved)
            .ok()
            .filter(|&axis| axis < rank)
            .ok_or_else(|| self.malformed(format!("axis {axis} of a tensor of rank {rank}")))
    }

    /// Imports an inner graph, whose values see the names around it, and returns its outputs.
    pub fn inline(&mut self, graph: &'m model::Graph) -> Option<Vec<Value>> {
        let before = self.importer.problems.len();
        let tensors = graph.initializers.iter();
        let scope = tensors.map(|(name, tensor)| (name.clone(), Bound::Tensor(tensor, None)));
        let scope = scope.collect();
        self.importer.scopes.push(scope);
        self.importer.nodes(&graph.nodes);
        let mut results = Vec::new();
        for output in &graph.outputs {
            let place = Place::Output(output.name.clone());
            if self.importer.problems.len() > before {
                break;
            }
            match self.importer.value(&output.name, &place) {
                Ok(value) => results.push(value),
                Err(problem) => self.importer.problems.push(problem),
            }
        }
        self.importer.scopes.pop();
        (self.importer.problems.len() == before).then_some(results)
    }

    /// Makes a tensor of an attribute a value.
    pub fn tensor_value(&mut self, tensor: &Tensor) -> Result<Value, Problem> {
        let place = self.place();
        let name = self.node.outputs.first().map_or("", String::as_str);
        self.importer.constant(tensor, name, &place)
    }
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::Float32,
        DType::F16 => Element::Float16,
        DType::BF16 => Element::Bfloat16,
        DType::F64 => Element::Float64,
        DType::I64 => Element::Int64,
        DType::I32 => Element::Int32,
        DType::I16 => Element::Int16,
        DType::I8 => Element::Int8,
        DType::U64 => Element::Uint64,
        DType::U32 => Element::Uint32,
        DType::U16 => Element::Uint16,
        DType::U8 => Element::Uint8,
        DType::Bool => Element::Bool,
    }
}

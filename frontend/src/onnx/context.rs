//! What an operator's importer works with: one node, its inputs as values or constants, and the
//! graph so far.
//!
//! Importers read integer inputs (shapes, axes, bounds) through the contents that the graph knows
//! in terms of its symbols, and quantised weights through [`ConstantView`], which looks through the
//! reshapes and slices that exporters put around shared tables.

use bytes::Bytes;
use weir_ir::ops::{self, Known};
use weir_ir::{ConstData, Constant, DType, Dim, Op, Symbol, TensorType, Value};

use super::allowance;
use super::attributes::Attributes;
use super::import::{Bound, Importer, Rounded, dtype};
use super::model::{self, Node};
use super::tensor::{Element, MAX_RANK, Tensor, rank_message};
use crate::error::{Place, Problem, printable};

/// Elements of constant integers that an importer reads as numbers, at most.
const MAX_READ: usize = 1 << 16;

/// Nodes between a constant and its reader that are looked through, at most: files have a few, and
/// the search is recursive.
pub const MAX_CHAIN: usize = 32;

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
    pub(super) importer: &'i mut Importer<'m>,
    /// The node.
    pub node: &'m Node,
    /// Its attributes.
    pub attributes: Attributes<'m>,
    /// What the node's results are of which rounded activations, where they are no values.
    pub rounds: Vec<(Rounded, Value)>,
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

    /// What an input is of rounded activations, and these.
    pub fn rounding(&self, index: usize) -> Option<(Rounded, Value)> {
        match self.importer.find(self.node.inputs.get(index)?)? {
            Bound::Rounded(part, activations) => Some((*part, *activations)),
            _ => None,
        }
    }

    /// The activations of which an input is this part.
    pub fn rounded(&self, index: usize, wanted: Rounded) -> Option<Value> {
        let (part, activations) = self.rounding(index)?;
        (part == wanted).then_some(activations)
    }

    /// Fails if new rows would follow, along this dimension, those of a cache of fixed length: they are
    /// written over, not appended to.
    pub fn may_append(&self, value: Value, axis: usize) -> Result<(), Problem> {
        let along_rows = |size: &Dim| size.mentions(Symbol::Past);
        match self.fixed_cache(value, MAX_CHAIN) {
            Some((cache, length)) if self.shape(value).get(axis).is_some_and(along_rows) => {
                let name = self.name_of(cache).unwrap_or_default();
                Err(self.appends(&name, length))
            }
            _ => Ok(()),
        }
    }

    /// The sizes that a part of a value's shape has in the file, where they are not those of the graph: a
    /// cache of fixed length has its rows in use here and all of them there. Of what is made of such a cache
    /// nobody says which sizes are the file's, so that its length is refused.
    pub fn sizes_in_file(
        &self,
        value: Value,
        range: std::ops::Range<usize>,
    ) -> Result<Option<Vec<Dim>>, Problem> {
        let mut sizes = self.shape(value).get(range).unwrap_or_default().to_vec();
        if !sizes.iter().any(|size| size.mentions(Symbol::Past)) {
            return Ok(None);
        }
        let Some((cache, length)) = self.fixed_cache(value, MAX_CHAIN) else { return Ok(None) };
        let past = Dim::symbol(Symbol::Past);
        if cache != value || self.role(cache).is_none() {
            let name = self.name_of(cache).unwrap_or_default();
            return Err(self.unsupported(format!(
                "asks for the length of what is made of the cache \"{}\", which is fixed at {length}",
                printable(&name)
            )));
        }
        sizes.iter_mut().filter(|size| **size == past).for_each(|size| *size = Dim::from(length));
        Ok(Some(sizes))
    }

    /// States that a value is what has become of a cache, if that has a fixed length.
    pub fn stays_fixed(&mut self, cache: Value, written: Value) {
        if let Some(&length) = self.importer.fixed.get(&cache) {
            self.importer.fixed.insert(written, length);
        }
    }

    fn appends(&self, name: &str, length: usize) -> Problem {
        let name = printable(name);
        self.malformed(format!(
            "appends to the cache \"{name}\", whose length is fixed at {length}"
        ))
    }

    /// The cache of fixed length, and that length, that a value is or shows a part of.
    fn fixed_cache(&self, value: Value, steps: usize) -> Option<(Value, usize)> {
        let steps = steps.checked_sub(1)?;
        if let Some(&length) = self.importer.fixed.get(&value) {
            return Some((value, length));
        }
        let (op, operands) = self.maker(value)?;
        match op {
            Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Slice(_)
            | Op::Expand(_)
            | Op::Cast(_)
            | Op::Gather(_) => self.fixed_cache(*operands.first()?, steps),
            _ => None,
        }
    }

    /// A cache input that the operator appends to, given the head count and head size that it
    /// implies.
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
            if let Some(length) = cache.length {
                return Err(self.appends(name, length));
            }
            return Ok(Some(self.importer.cache(name, &cache, ty)));
        }
        // Constants and results of nodes have whatever rank the file gives them.
        let value = self.optional(index)?;
        if let Some(value) = value
            && self.rank(value) != 4
        {
            let shape = self.shape(value);
            return Err(self.malformed(format!(
                "a cache {shape:?} (input {index}), not [batch, heads, rows, width]"
            )));
        }
        value.map_or(Ok(()), |value| self.may_append(value, 2))?;
        Ok(value)
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

    /// The quantised constant that a value is.
    pub fn quantised(&self, value: Value) -> Option<&Constant> {
        let Op::ReadConstant(read) = self.maker(value)?.0 else { return None };
        let constant = &self.importer.graph.constants[read.constant];
        matches!(constant.data, ConstData::Quantised(_)).then_some(constant)
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

    /// Name of a value in the file.
    pub fn name_of(&self, value: Value) -> Option<String> {
        self.importer.graph.main.values[value].name.clone()
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
        let value = self
            .importer
            .graph
            .main
            .push1(op.into(), operands.to_vec(), origin)
            .map_err(|error| Problem::malformed(place, error.to_string()))?;
        let rank = self.rank(value);
        if rank > MAX_RANK {
            return Err(self.unsupported(rank_message(rank)));
        }
        let listed = allowance::known(self.importer.graph.main.operand(value).known);
        self.make_room(listed)?;
        Ok(value)
    }

    /// Takes bytes that the file does not hold, and that the node makes, from what an import may make.
    pub fn make_room(&mut self, bytes: usize) -> Result<(), Problem> {
        let place = self.place();
        self.importer.make_room(bytes, &place)
    }

    /// Adds a constant, whose bytes must hold it. A quantised tensor that several nodes read (a table that
    /// is also the head's weight) is one constant.
    pub fn add_constant(&mut self, constant: Constant) -> Result<Value, Problem> {
        constant.check().map_err(|error| self.malformed(error.to_string()))?;
        let Importer { graph, once, .. } = &mut *self.importer;
        let constant = once.add(&mut graph.constants, constant);
        let value = graph.read_constant(constant);
        let listed = allowance::known(graph.main.operand(value).known);
        self.make_room(listed)?;
        Ok(value)
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
        self.add_constant(Constant::dense(format!("{number}"), ty, bytes.into()))
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

    /// An input whose elements must be known in terms of sizes. They count as made: attributes of ops,
    /// and messages, repeat them.
    pub fn sizes(&mut self, index: usize, what: &str) -> Result<Vec<Dim>, Problem> {
        let value = self.value(index)?;
        let elements = self
            .elements_of(value)
            .ok_or_else(|| self.unsupported(format!("{what} (input {index}) depends on data")))?;
        self.make_room(allowance::list(&elements))?;
        Ok(elements)
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

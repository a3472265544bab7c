//! From the nodes of a segment to kernels over views.
//!
//! The segment's result grows in place in its root (hidden rows, the head's answer): the residual of a product
//! and the operand of an elementwise node lie where the node's result lies, if nothing reads them
//! afterwards.

mod products;

use std::collections::{HashMap, HashSet};

use weir_ir::graph::{CacheDecl, NodeData};
use weir_ir::{Body, DType, Dim, Node, Op, TensorType, Value};

use super::{Angles, Kernel, Root, SegmentPlan, View, heads, place, verify};
use crate::error::CodegenError;
use crate::kernels::attention::{AttendSpec, CacheShape, CacheType, ScoreSpec};
use crate::kernels::map::MapOp;
use crate::kernels::matmul::{Activation, Compute};
use crate::kernels::norm::NormKind;
use crate::kernels::reduce::ReduceSpec;
use crate::kernels::rotary::Rotation;
use crate::kernels::rounding::Source;
use crate::pack::PackedLayout;
use crate::weights::{self, WeightForm, WeightSlot, WeightSource};

/// Floats of a cache line. Row strides of buffers are an odd number of them: rows that lie a power of two
/// apart crowd into few sets of the cache, and a product of many rows writes one column of all of them.
const LINE: usize = 16;

/// What is compiled to one segment.
pub struct SegmentSource<'a> {
    /// Name, for messages and symbols.
    pub name: String,
    /// The body that the nodes belong to.
    pub body: &'a Body,
    /// Nodes in order, without constants.
    pub nodes: Vec<Node>,
    /// Hidden rows that come in.
    pub input: Option<Value>,
    /// The result.
    pub output: Value,
    /// Memory of the result: hidden rows, or what the head gives.
    pub target: Root,
    /// Values that are weights.
    pub weights: HashMap<Value, WeightSource>,
    /// The layer's cache.
    pub cache: Option<&'a CacheDecl>,
    /// The most rows that such a cache has in any layer of the kind.
    pub cache_rows: u32,
    /// Whether heads of such a cache have different numbers of rows in any layer of the kind.
    pub by_head: bool,
    /// Seed of the lots for reservoirs, if such a cache has one in any layer of the kind.
    pub reservoir: Option<u32>,
    /// The user's choice of arithmetic.
    pub compute: Option<Compute>,
    /// Layout of an embedding table that is also the head's weight.
    pub tied: HashMap<WeightSource, PackedLayout>,
    /// Whether kernels for AMX are emitted, whose rounded rows are the longest.
    pub has_tiles: bool,
    /// Most rows of a call.
    pub max_rows: usize,
    /// Values of a hidden row.
    pub hidden_width: usize,
    /// Whether the rows are those of the head.
    pub head: bool,
}

/// Lowers, places and verifies a segment.
pub fn lower_segment(source: &SegmentSource<'_>) -> Result<SegmentPlan, CodegenError> {
    let mut lowering = Lowering {
        cx: source,
        kernels: Vec::new(),
        buffers: Vec::new(),
        slots: Vec::new(),
        views: HashMap::new(),
        quantised: HashMap::new(),
        fused: HashMap::new(),
        rotated_late: HashMap::new(),
        in_place: in_place(source),
        node: None,
    };
    if let Some(input) = source.input {
        let hidden = View::dense(Root::Hidden, source.hidden_width, vec![source.hidden_width]);
        if source.head {
            let output = lowering.buffer(vec![source.hidden_width], None);
            let hidden_width = source.hidden_width;
            lowering.kernels.push(Kernel::TakeRows { output: output.clone(), hidden_width });
            lowering.views.insert(input, output);
        } else {
            lowering.views.insert(input, hidden);
        }
    }
    for node in &source.nodes {
        lowering.node = Some(*node);
        lowering.lower(&source.body.nodes[*node])?;
    }
    lowering.node = None;
    let result = lowering.view(source.output)?;
    if result.root != source.target {
        let output = View::dense(source.target, result.width(), vec![result.width()]);
        let flat = lowering.flat(result)?;
        lowering.kernels.push(Kernel::Map { op: MapOp::Copy, inputs: vec![flat], output });
    }
    let Lowering { mut kernels, mut buffers, slots, .. } = lowering;
    heads::round_in_attention(&mut kernels, &mut buffers);
    heads::rotate_in_place(&mut kernels, &mut buffers);
    let apart = heads::lay_apart(&mut kernels, source.max_rows);
    let steps = place::phases(kernels);
    let (buffers, arena_bytes) = place::buffers(&steps, &buffers, &apart, source.max_rows);
    let plan = SegmentPlan {
        name: source.name.clone(),
        steps,
        buffers,
        weights: slots,
        arena_bytes,
        max_rows: source.max_rows,
        head: source.head,
    };
    verify(&plan)?;
    Ok(plan)
}

/// The operand that a node may overwrite with its result.
fn overwritten(source: &SegmentSource<'_>, node: &NodeData) -> Option<Value> {
    let result = source.body.ty(*node.results.first()?);
    let same = |value: &&Value| {
        !source.weights.contains_key(value) && source.body.ty(**value).shape == result.shape
    };
    match &node.op {
        Op::Linear(op) if op.residual => node.operands.last().copied(),
        Op::Binary(_) | Op::Gated(_) | Op::Unary(_) => node.operands.iter().find(same).copied(),
        _ => None,
    }
}

/// Whether a node has a value as one operand only: what it writes over one, others must not read.
fn reads_once(body: &Body, node: &NodeData, value: Value) -> bool {
    let value = behind_views(body, value);
    node.operands.iter().filter(|operand| behind_views(body, **operand) == value).count() == 1
}

/// The value whose memory another one shows.
fn behind_views(body: &Body, mut value: Value) -> Value {
    while let Some(maker) = body.maker(value)
        && is_view(&maker.op)
        && let Some(shown) = maker.operands.first()
    {
        value = *shown;
    }
    value
}

/// Whether results lie where the operand does.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Slice(_) | Op::Cast(_))
}

/// Values that lie in the segment's target.
fn in_place(source: &SegmentSource<'_>) -> HashSet<Value> {
    let body = source.body;
    // Number of the last node that reads a value, through views of it too.
    let mut last: HashMap<Value, usize> = HashMap::from([(source.output, usize::MAX)]);
    let mut maker: HashMap<Value, usize> = HashMap::new();
    for (number, node) in source.nodes.iter().enumerate().rev() {
        let node = &body.nodes[*node];
        let mut read = number;
        if is_view(&node.op) {
            read = node.results.iter().filter_map(|v| last.get(v)).max().map_or(read, |l| *l);
        }
        for operand in &node.operands {
            let last = last.entry(*operand).or_insert(read);
            *last = read.max(*last);
        }
        maker.extend(node.results.iter().map(|value| (*value, number)));
    }
    let hidden = source.input.filter(|_| !source.head);
    let mut chain = Vec::new();
    let mut value = source.output;
    while let Some(number) = maker.get(&value) {
        let node = &body.nodes[source.nodes[*number]];
        // Views and appends have no memory of their own to choose.
        if is_view(&node.op) {
            break;
        }
        chain.push((value, *number));
        match overwritten(source, node) {
            Some(before) if last.get(&before) == Some(number) && reads_once(body, node, before) => {
                value = before;
            }
            _ => break,
        }
    }
    if hidden != Some(value) {
        // The incoming rows must be dead before the first of the chain is written.
        let dead = hidden.and_then(|hidden| last.get(&hidden)).copied();
        while chain.last().is_some_and(|(_, number)| dead.is_some_and(|dead| dead >= *number)) {
            chain.pop();
        }
    }
    chain.into_iter().map(|(value, _)| value).collect()
}

struct Lowering<'a> {
    cx: &'a SegmentSource<'a>,
    kernels: Vec<Kernel>,
    /// Bytes of a row.
    buffers: Vec<usize>,
    slots: Vec<WeightSlot>,
    views: HashMap<Value, View>,
    quantised: HashMap<(Value, Activation), usize>,
    /// Values that exist only in the rounded form: from row to row of what they are made of.
    fused: HashMap<Value, usize>,
    /// Keys that are rotated when they are appended; their views are what they are before.
    rotated_late: HashMap<Value, Angles>,
    in_place: HashSet<Value>,
    node: Option<Node>,
}

impl Lowering<'_> {
    fn place(&self) -> String {
        let Some(node) = self.node else { return self.cx.name.clone() };
        let data = &self.cx.body.nodes[node];
        let origin = data.origin.as_ref().map_or(String::new(), |origin| format!(" ({origin})"));
        format!("{} {node} {}{origin}", self.cx.name, data.op)
    }

    fn wrong(&self, message: impl Into<String>) -> CodegenError {
        CodegenError::Graph { place: self.place(), message: message.into() }
    }

    fn unsupported(&self, message: impl Into<String>) -> CodegenError {
        CodegenError::Unsupported { place: self.place(), message: message.into() }
    }

    fn slot(&mut self, source: WeightSource, form: WeightForm) -> usize {
        let slot = WeightSlot { source, form };
        let known = self.slots.iter().position(|other| *other == slot);
        known.unwrap_or_else(|| {
            self.slots.push(slot);
            self.slots.len() - 1
        })
    }

    fn weight(&self, value: Value) -> Result<WeightSource, CodegenError> {
        let source = self.cx.weights.get(&value).copied();
        source.ok_or_else(|| self.wrong(format!("{value} is not a weight")))
    }

    fn view(&mut self, value: Value) -> Result<View, CodegenError> {
        if let Some(source) = self.cx.weights.get(&value).copied() {
            let sizes = self.cx.body.ty(value).sizes();
            let sizes = sizes.ok_or_else(|| self.wrong(format!("{value} has no numeric sizes")))?;
            let slot = self.slot(source, WeightForm::Plain);
            return Ok(View::dense(Root::Weight(slot), 0, sizes));
        }
        let view = self.views.get(&value).cloned();
        view.ok_or_else(|| self.wrong(format!("{value} is not computed in this segment")))
    }

    /// Sizes without the rows.
    fn dims(&self, ty: &TensorType) -> Result<Vec<usize>, CodegenError> {
        let dims: Option<Vec<usize>> = ty.shape.iter().skip(1).map(Dim::as_size).collect();
        match dims {
            Some(dims) if !ty.shape.is_empty() && dims.iter().all(|size| *size > 0) => Ok(dims),
            _ => Err(self.wrong(format!("{ty} is not rows of a known size"))),
        }
    }

    /// A new buffer for values of these sizes.
    fn buffer(&mut self, dims: Vec<usize>, row_stride: Option<usize>) -> View {
        let width: usize = dims.iter().product();
        let row_stride = row_stride.unwrap_or(width.next_multiple_of(LINE) | LINE);
        self.buffers.push(row_stride * 4);
        View::dense(Root::Buffer(self.buffers.len() - 1), row_stride, dims)
    }

    /// Memory for a result: the target if it lies there, else a buffer.
    fn output(&mut self, value: Value, row_stride: Option<usize>) -> Result<View, CodegenError> {
        let dims = self.dims(self.cx.body.ty(value))?;
        let width = dims.iter().product();
        let view = if self.in_place.contains(&value) {
            View::dense(self.cx.target, width, dims)
        } else {
            self.buffer(dims, row_stride)
        };
        self.views.insert(value, view.clone());
        Ok(view)
    }

    fn copied(&mut self, view: View) -> View {
        let output = self.buffer(view.dims.clone(), None);
        self.kernels.push(Kernel::Map {
            op: MapOp::Copy,
            inputs: vec![view],
            output: output.clone(),
        });
        output
    }

    /// The row as one dense run.
    fn flat(&mut self, view: View) -> Result<View, CodegenError> {
        let width = view.width();
        let dense = if view.is_dense() { view } else { self.copied(view) };
        dense.reshaped(vec![width]).ok_or_else(|| self.wrong("a dense row has no flat view"))
    }

    /// The row as equally spaced runs of the last axis.
    fn runs(&mut self, view: View) -> (View, usize, usize, usize) {
        let view = if view.groups().is_some() { view } else { self.copied(view) };
        let (groups, stride, width) = view.groups().unwrap_or((1, view.width(), view.width()));
        (view, groups, stride, width)
    }

    fn lower(&mut self, node: &NodeData) -> Result<(), CodegenError> {
        let body = self.cx.body;
        let operands = node.operands.as_slice();
        match &node.op {
            Op::Embed(_) => {
                let source = self.weight(operands[1])?;
                let layout = self.cx.tied.get(&source).copied();
                let layout = layout.or_else(|| weights::stored(body.ty(operands[1])));
                let layout = layout
                    .ok_or_else(|| self.unsupported(format!("a table {}", body.ty(operands[1]))))?;
                let table = self.slot(source, WeightForm::Packed(layout));
                let output = self.output(node.results[0], None)?;
                self.kernels.push(Kernel::Embed { table, layout, output });
            }
            Op::TableRows(_) => {
                let table = self.view(operands[1])?;
                let output = self.output(node.results[0], None)?;
                self.kernels.push(Kernel::TableRows { table, output });
            }
            Op::Linear(op) => self.linear(node, op.bias, op.residual)?,
            Op::RmsNorm(op) => self.norm(node, NormKind::Rms, op.epsilon, false)?,
            Op::LayerNorm(op) => self.norm(node, NormKind::Layer, op.epsilon, op.bias)?,
            Op::RotaryRows(op) => {
                let x = self.view(operands[0])?;
                let (x, ..) = self.runs(x);
                let (cos, sin) = (self.view(operands[2])?, self.view(operands[3])?);
                let rotation = Rotation { width: op.width as usize, interleaved: op.interleaved };
                let angles = Angles { rotation, cos, sin };
                let is_turned = self.cx.cache.is_some_and(CacheDecl::turns_keys);
                let is_late = !is_turned && self.is_only_appended(node.results[0]);
                if is_late && x.root != self.cx.target {
                    self.views.insert(node.results[0], x);
                    self.rotated_late.insert(node.results[0], angles);
                } else {
                    let y = self.output(node.results[0], None)?;
                    self.kernels.push(Kernel::Rotary { x, y, angles });
                }
            }
            Op::Unary(op) => self.map(node, MapOp::Unary(op.op))?,
            Op::Binary(op) => self.map(node, MapOp::Binary(op.op))?,
            Op::Gated(op) => {
                if !self.gate_for_products(node, op.activation)? {
                    self.map(node, MapOp::Gated(op.activation))?;
                }
            }
            Op::Select(_) => self.map(node, MapOp::Select)?,
            Op::Cast(op) => {
                // Truth values are floats in rows; other types differ by what they hold.
                let from = body.ty(operands[0]).dtype();
                if from != Some(DType::Bool) || !op.to.is_float() {
                    return Err(self.unsupported(format!("op {} in a compiled segment", node.op)));
                }
                let view = self.view(operands[0])?;
                self.views.insert(node.results[0], view);
            }
            Op::Reshape(_) => {
                let dims = self.dims(body.ty(node.results[0]))?;
                let view = self.view(operands[0])?;
                let view = match view.reshaped(dims.clone()) {
                    Some(view) => view,
                    None => {
                        let copy = self.copied(view);
                        copy.reshaped(dims).ok_or_else(|| self.wrong("sizes do not fit"))?
                    }
                };
                self.views.insert(node.results[0], view);
            }
            Op::Slice(op) => {
                let (Some(start), Some(length)) = (op.start.as_size(), op.length.as_size()) else {
                    return Err(self.wrong("a slice without numbers"));
                };
                let view = self.view(operands[0])?;
                let axis = op.axis.checked_sub(1).filter(|axis| *axis < view.dims.len());
                let axis = axis.ok_or_else(|| self.unsupported("a slice of the rows"))?;
                if op.step != 1 || start + length > view.dims[axis] || length == 0 {
                    return Err(self.unsupported("a slice with steps or beyond its operand"));
                }
                self.views.insert(node.results[0], view.sliced(axis, start, length));
            }
            Op::Concat(op) => {
                let axis = op.axis.checked_sub(1);
                let axis = axis.ok_or_else(|| self.unsupported("a concatenation of rows"))?;
                let output = self.output(node.results[0], None)?;
                let mut start = 0;
                for operand in operands {
                    let view = self.view(*operand)?;
                    let part = output.sliced(axis, start, view.dims[axis]);
                    start += view.dims[axis];
                    self.kernels.push(Kernel::Map {
                        op: MapOp::Copy,
                        inputs: vec![view],
                        output: part,
                    });
                }
            }
            Op::Reduce(op) => {
                let view = self.view(operands[0])?;
                if op.axes.as_slice() != [view.dims.len()] {
                    return Err(self.unsupported("a reduction of other axes than the last"));
                }
                let (x, groups, stride, width) = self.runs(view);
                let y = self.output(node.results[0], None)?;
                let spec = ReduceSpec {
                    op: op.op,
                    groups,
                    width,
                    x: (x.row_stride, stride),
                    y_row: y.row_stride,
                };
                self.kernels.push(Kernel::Reduce { spec, x, y });
            }
            Op::CacheAppend(_) => {
                let (key, value) = (self.view(operands[0])?, self.view(operands[1])?);
                let key = self.turned(key)?;
                let ((key, ..), (value, ..)) = (self.runs(key), self.runs(value));
                let cache = self.cache_shape()?;
                let angles = self.rotated_late.get(&operands[0]).cloned();
                let reservoir = self.cx.reservoir;
                self.kernels.push(Kernel::Append { cache, key, value, angles, reservoir });
            }
            Op::CacheAttend(op) => {
                let query = self.view(operands[0])?;
                let query = self.turned(query)?;
                let (query, heads, stride, width) = self.runs(query);
                let sinks = op.sinks.then(|| self.view(operands[1])).transpose()?;
                let output = self.output(node.results[0], None)?;
                let cache = self.cache_shape()?;
                let heads = if query.dims.len() == 2 { query.dims[0] } else { heads };
                if cache.kv_heads == 0 || heads % cache.kv_heads != 0 || width != cache.key_width {
                    return Err(self.wrong("query heads do not fit the cache"));
                }
                let spec = AttendSpec {
                    cache,
                    score: ScoreSpec { heads, scale: op.scale, softcap: op.softcap },
                    sinks: op.sinks,
                    query: (query.row_stride, stride),
                    output_row: output.row_stride,
                    rounded: None,
                    shared_chunks: AttendSpec::chunks(self.cx.cache_rows as usize),
                    max_rows: self.cx.max_rows,
                };
                // The memory that threads share does not grow with the rows of a call.
                let row_bytes = spec.shared_bytes().div_ceil(self.cx.max_rows);
                self.buffers.push(row_bytes.next_multiple_of(4));
                let shared = Root::Buffer(self.buffers.len() - 1);
                self.kernels.push(Kernel::Attend { spec, query, sinks, output, shared });
            }
            other => return Err(self.unsupported(format!("op {other} in a compiled segment"))),
        }
        Ok(())
    }

    /// Whether a value is read as a key on its way into the cache, and nowhere else.
    fn is_only_appended(&self, value: Value) -> bool {
        let body = self.cx.body;
        let mut readers = self.cx.nodes.iter().map(|node| &body.nodes[*node]);
        value != self.cx.output
            && readers.all(|node| match &node.op {
                Op::CacheAppend(_) => node.operands[1] != value,
                _ => !node.operands.contains(&value),
            })
    }

    /// Heads of keys or queries as the cache compares them.
    fn turned(&mut self, heads: View) -> Result<View, CodegenError> {
        let Some(cache) = self.cx.cache.filter(|cache| cache.turns_keys()) else {
            return Ok(heads);
        };
        let (x, _, _, width) = self.runs(heads);
        if width != cache.key_width as usize {
            return Err(self.wrong("heads do not fit the cache"));
        }
        let y = self.buffer(x.dims.clone(), None);
        self.kernels.push(Kernel::Turn { x, y: y.clone() });
        Ok(y)
    }

    /// The layer's cache as kernels see it.
    fn cache_shape(&self) -> Result<CacheShape, CodegenError> {
        let cache = self.cx.cache.ok_or_else(|| self.wrong("no cache"))?;
        let formats = cache.row_formats();
        Ok(CacheShape {
            kv_heads: cache.kv_heads as usize,
            key_width: cache.key_width as usize,
            value_width: cache.value_width as usize,
            number: CacheType::of(formats.ring),
            block: formats.block.map(CacheType::of),
            by_head: self.cx.by_head,
        })
    }

    fn norm(
        &mut self,
        node: &NodeData,
        kind: NormKind,
        epsilon: f32,
        bias: bool,
    ) -> Result<(), CodegenError> {
        let x = self.view(node.operands[0])?;
        let (x, ..) = self.runs(x);
        let weight = self.view(node.operands[1])?;
        if kind == NormKind::Rms && x.groups().is_some_and(|(groups, ..)| groups == 1) {
            let source = Source::RmsNorm { epsilon };
            if self.round_for_products(node.results[0], source, &x, &weight) {
                return Ok(());
            }
        }
        let bias = bias.then(|| self.view(node.operands[2])).transpose()?;
        let y = self.output(node.results[0], None)?;
        self.kernels.push(Kernel::Norm { kind, epsilon, x, weight, bias, y });
        Ok(())
    }

    fn map(&mut self, node: &NodeData, op: MapOp) -> Result<(), CodegenError> {
        if !op.is_supported() {
            return Err(self.unsupported(format!("{op:?}")));
        }
        let inputs = node.operands.iter().map(|value| self.view(*value));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let output = self.output(node.results[0], None)?;
        let inputs = inputs
            .into_iter()
            .map(|view| broadcast(view, &output.dims))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.wrong("operands do not broadcast"))?;
        self.kernels.push(Kernel::Map { op, inputs, output });
        Ok(())
    }
}

/// A view with the sizes of a result, numpy-wise: repeated dimensions have stride 0.
fn broadcast(mut view: View, dims: &[usize]) -> Option<View> {
    while view.dims.len() > dims.len() && view.dims[0] == 1 {
        view.dims.remove(0);
        view.strides.remove(0);
    }
    let missing = dims.len().checked_sub(view.dims.len())?;
    if missing > 0 && view.row_stride != 0 {
        return None;
    }
    let mut strides = vec![0; missing];
    for (index, (size, stride)) in view.dims.iter().zip(&view.strides).enumerate() {
        let wanted = dims[missing + index];
        strides.push(match *size {
            size if size == wanted => *stride,
            1 => 0,
            _ => return None,
        });
    }
    Some(View { dims: dims.to_vec(), strides, ..view })
}

//! Runs a text's windows through a graph node by node, all windows together, twice side by side:
//! with the weights of the file, and with those that calibration has chosen so far.
//!
//! So a product's weight is chosen when its inputs are there, by what the rounded layers before it
//! really give it, and every node runs once. A tensor goes after its last reader: what is held at a
//! time are the values that live across one node, of all windows, and two matrices of inputs by
//! inputs (four while one is made). Products are those of [`products`]; all other nodes are run by
//! the interpreter, window by window in parallel.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use rayon::prelude::*;
use weir_ir::graph::{InputRole, Param};
use weir_ir::interpret::{Bindings, EvalError, EvalFault, Interpreter, Tensor};
use weir_ir::ops::binary::BinaryOp;
use weir_ir::{Body, Const, ConstData, Constant, DType, Element, Graph, Node, Op, Value};

use super::curvature::Curvature;
use super::feedback::{Calibrated, Lost, Rounding, calibrate};
use super::{CalibrationError, Stage, Watch, products};
use crate::error::PassError;

/// A value in all windows, with the file's weights and with the chosen ones.
#[derive(Clone)]
struct Pair {
    exact: Vec<Tensor>,
    rounded: Vec<Tensor>,
}

/// A weight that codes are chosen for.
#[derive(Debug)]
pub struct Choice {
    /// Which.
    pub constant: Const,
    /// Squared error of its products on the text.
    pub error: f64,
    /// The same, rounded to nearest.
    pub plain_error: f64,
}

/// A product whose weight's codes may still move.
pub struct Movable {
    /// The product.
    pub node: Node,
    /// Its weight.
    pub constant: Const,
    /// The weight's rows.
    pub rounding: Rounding,
    /// Its inputs.
    pub inputs: Rc<Inputs>,
}

/// What is chosen for a text.
pub struct Chosen {
    /// Weights in codes.
    pub weights: BTreeMap<Const, Constant>,
    /// How well they do, in the order in which they were chosen.
    pub choices: Vec<Choice>,
    /// The products whose weights no other node reads, if choosing is to go on.
    pub movable: Vec<Movable>,
}

/// Inputs of products, shared by all weights that read them.
pub struct Inputs {
    /// How errors of weights count.
    pub curvature: Curvature,
    /// `Σ x̂ (x - x̂)ᵀ`.
    lost: Vec<f64>,
}

/// A walk through `main`.
struct Walk<'g> {
    graph: &'g Graph,
    windows: &'g [Vec<u32>],
    /// Nodes to run, in order.
    needed: Vec<Node>,
    /// Whether rounded weights go on to bend what later nodes see.
    is_bent: bool,
    /// How many nodes that are still to run read a value.
    readers: HashMap<Value, usize>,
    values: HashMap<Value, Pair>,
    inputs: HashMap<Value, Rc<Inputs>>,
    chosen: BTreeMap<Const, Constant>,
    /// Filled if choosing is to go on.
    movable: Option<Vec<Movable>>,
}

/// Weights of products that are rounded to codes, in the order of the nodes.
pub fn rounded_products(body: &Body, graph: &Graph) -> Vec<(Node, Const)> {
    let read = |(node, data): (Node, &weir_ir::graph::NodeData)| {
        if !matches!(data.op, Op::Linear(_)) {
            return None;
        }
        let constant = constant_of(body, data.operands[1])?;
        let weight = &graph.constants[constant];
        let is_rounded = matches!(weight.data, ConstData::Rounded(_))
            && matches!(weight.ty.element, Element::Quant(_));
        let is_empty = weight.matrix().is_none_or(|[outputs, inputs]| outputs * inputs == 0);
        (is_rounded && !is_empty).then_some((node, constant))
    };
    body.live().filter_map(read).collect()
}

pub(super) fn constant_of(body: &Body, value: Value) -> Option<Const> {
    match body.maker(value).map(|maker| &maker.op) {
        Some(Op::ReadConstant(read)) => Some(read.constant),
        _ => None,
    }
}

/// Chooses codes for the weights of the given products.
///
/// A table of embeddings that is the head's weight too comes first, by what the file's own weights
/// give the head: so the layers see the embeddings that they will have. `goes_on`: other weights' rows
/// are kept, so that [`super::refine`] can move their codes.
pub fn choose_codes(
    graph: &Graph,
    products: &[(Node, Const)],
    windows: &[Vec<u32>],
    goes_on: bool,
    watch: &Watch,
) -> Result<Chosen, PassError> {
    let tables: HashSet<Const> = graph
        .main
        .live()
        .filter(|(_, node)| matches!(node.op, Op::Embed(_)))
        .filter_map(|(_, node)| constant_of(&graph.main, node.operands[1]))
        .collect();
    let (tied, others): (Vec<_>, Vec<_>) =
        products.iter().partition(|(_, constant)| tables.contains(constant));
    let all = products.len();
    let mut chosen = BTreeMap::new();
    let mut choices: Vec<Choice> = Vec::new();
    let mut movable = Vec::new();
    for (products, is_bent) in [(tied, false), (others, true)] {
        let products: HashMap<Node, Const> = products.into_iter().collect();
        let ends = products.keys().copied().collect();
        let mut walk = Walk::new(graph, ends, windows, chosen, is_bent)?;
        walk.movable = (goes_on && is_bent).then(Vec::new);
        for node in std::mem::take(&mut walk.needed) {
            if let Some(constant) = products.get(&node)
                && !walk.chosen.contains_key(constant)
            {
                choices.push(walk.choose(node, *constant)?);
                watch.at(Stage::Choosing, choices.len(), all);
            }
            walk.step(node)?;
        }
        chosen = walk.chosen;
        movable.extend(walk.movable.into_iter().flatten());
    }
    Ok(Chosen { weights: chosen, choices, movable })
}

/// Gives rows of each of the values, of all windows, with the weights as they are in the file.
pub fn values_of(
    graph: &Graph,
    values: &HashSet<Value>,
    windows: &[Vec<u32>],
    mut see: impl FnMut(Value, &[Tensor]) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let makes = |node: &Node| graph.main.nodes[*node].results.iter().any(|v| values.contains(v));
    let ends: HashSet<Node> = graph.main.order.iter().copied().filter(makes).collect();
    let mut walk = Walk::new(graph, ends, windows, BTreeMap::new(), false)?;
    for value in values {
        *walk.readers.entry(*value).or_default() += 1;
    }
    for node in std::mem::take(&mut walk.needed) {
        walk.step(node)?;
        for value in graph.main.nodes[node].results.iter().filter(|v| values.contains(v)) {
            see(*value, &walk.pair(*value)?.exact)?;
            walk.release(*value);
        }
    }
    Ok(())
}

impl<'g> Walk<'g> {
    fn new(
        graph: &'g Graph,
        ends: HashSet<Node>,
        windows: &'g [Vec<u32>],
        chosen: BTreeMap<Const, Constant>,
        is_bent: bool,
    ) -> Result<Walk<'g>, PassError> {
        let body = &graph.main;
        let needed = needed(body, ends);
        let mut readers: HashMap<Value, usize> = HashMap::new();
        for operand in needed.iter().flat_map(|node| &body.nodes[*node].operands) {
            *readers.entry(*operand).or_default() += 1;
        }
        let mut walk = Walk {
            graph,
            windows,
            needed,
            is_bent,
            readers,
            values: HashMap::new(),
            inputs: HashMap::new(),
            chosen,
            movable: None,
        };
        for param in &body.params {
            if walk.readers.contains_key(&param.value) {
                let tensors = parameter(graph, windows, param)?;
                let pair = Pair { exact: tensors.clone(), rounded: tensors };
                walk.values.insert(param.value, pair);
            }
        }
        Ok(walk)
    }

    /// Chooses the codes of a product's weight.
    fn choose(&mut self, node: Node, constant: Const) -> Result<Choice, PassError> {
        let graph = self.graph;
        let data = &graph.main.nodes[node];
        let weight = &graph.constants[constant];
        let (ConstData::Rounded(source), Element::Quant(format)) =
            (&weight.data, weight.ty.element)
        else {
            return Err(PassError::internal(format!("{constant} is not rounded")));
        };
        let x = data.operands[0];
        let inputs = self.inputs(x, &weight.name)?;
        let stream = self.stream(node)?;
        let outputs = weight.matrix().map_or(0, |[outputs, _]| outputs);
        let lost_stream = match stream {
            Some(stream) => {
                let (pair, stream) = (self.pair(x)?, self.pair(stream)?);
                let differences = differences(stream)?;
                Some(moments(&pair.rounded, &differences, [inputs.curvature.size(), outputs])?)
            }
            None => None,
        };
        let lost = Lost { inputs: &inputs.lost, stream: lost_stream.as_deref() };
        let found = calibrate(source, &format, &inputs.curvature, &lost, self.movable.is_some());
        // Packing would refuse it as well; but what reads its products would be no number until then.
        let found = found.ok_or_else(|| CalibrationError::NoCodes(weight.name.clone()))?;
        let Calibrated { constant: codes, error, plain_error, rounding } = found;
        if let (Some(movable), Some(rounding)) = (&mut self.movable, rounding) {
            movable.push(Movable { node, constant, rounding, inputs });
        }
        self.chosen.insert(constant, codes);
        Ok(Choice { constant, error, plain_error })
    }

    /// Curvature of the inputs of a product, made once for all weights that read them.
    fn inputs(&mut self, x: Value, name: &str) -> Result<Rc<Inputs>, PassError> {
        if let Some(inputs) = self.inputs.get(&x) {
            return Ok(Rc::clone(inputs));
        }
        let pair = self.pair(x)?;
        let width = pair.rounded[0].sizes().last().copied().unwrap_or(0);
        let own: Vec<_> = floats(&pair.rounded)?;
        let sums = moments(&pair.rounded, &own, [width, width])?;
        let lost = moments(&pair.rounded, &differences(pair)?, [width, width])?;
        let not_finite = || CalibrationError::NotFinite(name.to_owned());
        if !lost.iter().all(|sum| sum.is_finite()) {
            return Err(not_finite().into());
        }
        let curvature = Curvature::new(sums, width).ok_or_else(not_finite)?;
        let inputs = Rc::new(Inputs { curvature, lost });
        self.inputs.insert(x, Rc::clone(&inputs));
        Ok(inputs)
    }

    /// The rows that a product's results are added to and nothing else is done with, if they are
    /// there already: the residual stream.
    fn stream(&self, node: Node) -> Result<Option<Value>, PassError> {
        let body = &self.graph.main;
        let result = body.nodes[node].results[0];
        let mut users = body.live().filter(|(_, data)| data.operands.contains(&result));
        let (Some((_, user)), None) = (users.next(), users.next()) else { return Ok(None) };
        let is_sum = matches!(&user.op, Op::Binary(binary) if binary.op == BinaryOp::Add);
        let other = user.operands.iter().copied().find(|operand| *operand != result);
        Ok(other.filter(|other| {
            is_sum && body.ty(*other) == body.ty(result) && self.values.contains_key(other)
        }))
    }

    /// Runs a node in both ways.
    fn step(&mut self, node: Node) -> Result<(), PassError> {
        let body = &self.graph.main;
        let data = &body.nodes[node];
        let is_read = data.results.iter().any(|value| self.readers.contains_key(value));
        let results: Vec<Pair> = match &data.op {
            _ if !is_read => Vec::new(),
            Op::ReadConstant(read) => {
                let weight = &self.graph.constants[read.constant];
                // Weights are read by the nodes below, row by row.
                let readers =
                    body.live().filter(|(_, user)| user.operands.contains(&data.results[0]));
                if readers.into_iter().all(|(_, user)| is_weight_of(user, data.results[0])) {
                    Vec::new()
                } else {
                    let tensor = weight.tensor()?;
                    let tensors = vec![tensor; self.windows.len()];
                    vec![Pair { exact: tensors.clone(), rounded: tensors }]
                }
            }
            Op::Linear(_) | Op::Embed(_) => {
                let constant = constant_of(body, data.operands[1])
                    .ok_or_else(|| PassError::internal("a weight is computed".to_owned()))?;
                let weight = &self.graph.constants[constant];
                let exact = match &weight.data {
                    ConstData::Rounded(source) => source,
                    _ => weight,
                };
                let rounded = self.chosen.get(&constant).unwrap_or(weight);
                let operands = self.operands(node, &[1])?;
                let apply = |weight: &Constant, tensors: Vec<&Vec<Tensor>>| match &data.op {
                    Op::Embed(_) => embedded(weight, tensors[0]),
                    _ => multiplied(weight, &tensors),
                };
                let exact = apply(exact, operands.iter().map(|pair| &pair.exact).collect())?;
                let rounded = match self.is_bent {
                    true => apply(rounded, operands.iter().map(|pair| &pair.rounded).collect())?,
                    false => exact.clone(),
                };
                vec![Pair { exact, rounded }]
            }
            op => {
                let operands = self.operands(node, &[])?;
                let run = |tensors: Vec<&Vec<Tensor>>| self.interpreted(op, node, tensors);
                let exact = run(operands.iter().map(|pair| &pair.exact).collect())?;
                let rounded = match self.is_bent {
                    true => run(operands.iter().map(|pair| &pair.rounded).collect())?,
                    false => exact.clone(),
                };
                let pairs = exact.into_iter().zip(rounded);
                pairs.map(|(exact, rounded)| Pair { exact, rounded }).collect()
            }
        };
        for (value, pair) in data.results.iter().zip(results) {
            if self.readers.contains_key(value) {
                self.values.insert(*value, pair);
            }
        }
        for operand in &data.operands {
            self.release(*operand);
        }
        Ok(())
    }

    /// A value has been read once.
    fn release(&mut self, value: Value) {
        if let Some(count) = self.readers.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.readers.remove(&value);
                self.values.remove(&value);
                self.inputs.remove(&value);
            }
        }
    }

    fn pair(&self, value: Value) -> Result<&Pair, PassError> {
        self.values.get(&value).ok_or_else(|| PassError::internal(format!("{value} is not there")))
    }

    /// Operands of a node but for those at some places.
    fn operands(&self, node: Node, without: &[usize]) -> Result<Vec<&Pair>, PassError> {
        let operands = self.graph.main.nodes[node].operands.iter().enumerate();
        let operands = operands.filter(|(index, _)| !without.contains(index));
        operands.map(|(_, value)| self.pair(*value)).collect()
    }

    /// Runs an op in every window; results by result, then by window.
    fn interpreted(
        &self,
        op: &Op,
        node: Node,
        operands: Vec<&Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, PassError> {
        let graph = self.graph;
        let of_window = |(index, window): (usize, &Vec<u32>)| {
            let operands: Vec<Tensor> =
                operands.iter().map(|tensors| tensors[index].clone()).collect();
            let bindings = Bindings::one_sequence(0, window.len());
            Interpreter::new(graph)
                .apply(op, &operands, &bindings)
                .map_err(|fault| EvalError { place: node.to_string(), fault })
        };
        let windows: Vec<Vec<Tensor>> =
            self.windows.par_iter().enumerate().map(of_window).collect::<Result<_, _>>()?;
        let count = windows.first().map_or(0, Vec::len);
        let mut results = vec![Vec::with_capacity(windows.len()); count];
        for window in windows {
            for (result, tensor) in results.iter_mut().zip(window) {
                result.push(tensor);
            }
        }
        Ok(results)
    }
}

/// A parameter of `main` for windows that begin a sequence.
pub(super) fn parameter(
    graph: &Graph,
    windows: &[Vec<u32>],
    param: &Param,
) -> Result<Vec<Tensor>, PassError> {
    let data = &graph.main.values[param.value];
    let of_window = |window: &Vec<u32>| -> Result<Tensor, PassError> {
        let bindings = Bindings::one_sequence(0, window.len());
        let ty = bindings.ty(&data.ty)?;
        let (Some(sizes), Some(dtype)) = (ty.sizes(), ty.dtype()) else {
            return Err(PassError::internal(format!("a parameter is {ty}")));
        };
        match param.role {
            InputRole::Tokens => {
                let ids = window.iter().map(|id| i64::from(*id)).collect();
                Ok(Tensor::from_i64(dtype, sizes, ids))
            }
            InputRole::Positions => {
                Ok(Tensor::from_i64(dtype, sizes, (0..window.len() as i64).collect()))
            }
            InputRole::PastKey(_) | InputRole::PastValue(_) => Ok(Tensor::filled(dtype, sizes, 0)?),
            _ => Err(PassError::internal(format!("a parameter is {:?}", param.role))),
        }
    };
    windows.iter().map(of_window).collect()
}

/// Some nodes and all that they depend on, in order.
pub(super) fn needed(body: &Body, mut nodes: HashSet<Node>) -> Vec<Node> {
    let mut values: HashSet<Value> = HashSet::new();
    for node in body.order.iter().rev() {
        let data = &body.nodes[*node];
        if nodes.contains(node) || data.results.iter().any(|value| values.contains(value)) {
            nodes.insert(*node);
            values.extend(&data.operands);
        }
    }
    body.order.iter().copied().filter(|node| nodes.contains(node)).collect()
}

/// Whether a node reads a value as a product's weight or as a table of embeddings, and not otherwise.
pub(super) fn is_weight_of(user: &weir_ir::graph::NodeData, value: Value) -> bool {
    let places = user.operands.iter().enumerate().filter(|(_, operand)| **operand == value);
    matches!(user.op, Op::Linear(_) | Op::Embed(_))
        && places.into_iter().all(|(index, _)| index == 1)
}

/// The floats of a tensor's rows.
pub(super) type Floats = std::sync::Arc<Vec<f32>>;

pub(super) fn floats(tensors: &[Tensor]) -> Result<Vec<Floats>, EvalFault> {
    tensors.iter().map(Tensor::f32s).collect()
}

/// Exact less rounded rows.
fn differences(pair: &Pair) -> Result<Vec<Floats>, EvalFault> {
    let pairs = pair.exact.iter().zip(&pair.rounded);
    pairs
        .map(|(exact, rounded)| {
            let (exact, rounded) = (exact.f32s()?, rounded.f32s()?);
            Ok(exact.iter().zip(&*rounded).map(|(a, b)| a - b).collect::<Vec<f32>>().into())
        })
        .collect()
}

/// `Σ x yᵀ` over all rows.
fn moments(x: &[Tensor], y: &[Floats], widths: [usize; 2]) -> Result<Vec<f64>, EvalFault> {
    let x = floats(x)?;
    let windows: Vec<(&[f32], &[f32])> =
        x.iter().zip(y).map(|(x, y)| (x.as_slice(), y.as_slice())).collect();
    Ok(products::moments(&windows, widths))
}

/// A product with a weight: rows, then bias and residual as they are there.
pub(super) fn multiplied(
    weight: &Constant,
    operands: &[&Vec<Tensor>],
) -> Result<Vec<Tensor>, PassError> {
    let lost = || PassError::internal(format!("{:?} is no weight of floats", weight.name));
    let sizes = weight.matrix().filter(|[outputs, inputs]| outputs * inputs > 0);
    let [outputs, inputs] = sizes.ok_or_else(lost)?;
    let mut rows = vec![0.0; outputs * inputs];
    if !weight.rows_f32(0, &mut rows) {
        return Err(lost());
    }
    let x = floats(operands[0])?;
    let x: Vec<&[f32]> = x.iter().map(|x| x.as_slice()).collect();
    let mut results = products::product(&x, &rows, [outputs, inputs]);
    for more in &operands[1..] {
        for (result, more) in results.iter_mut().zip(more.iter()) {
            // A bias is one row for all.
            let more = more.f32s()?;
            for result in result.chunks_exact_mut(more.len().max(1)) {
                result.iter_mut().zip(more.iter()).for_each(|(y, more)| *y += more);
            }
        }
    }
    let pairs = results.into_iter().zip(operands[0]);
    Ok(pairs
        .map(|(values, x)| Tensor::from_f32(x.dtype(), sized(x.sizes(), outputs), values))
        .collect())
}

/// Rows of a table by number.
pub(super) fn embedded(table: &Constant, ids: &[Tensor]) -> Result<Vec<Tensor>, PassError> {
    let width = table.matrix().map_or(0, |[_, width]| width);
    let ids_of: Vec<_> = ids.iter().map(Tensor::i64s).collect::<Result<_, _>>()?;
    let used: BTreeSet<i64> = ids_of.iter().flat_map(|ids| ids.iter().copied()).collect();
    let mut rows: HashMap<i64, Vec<f32>> = HashMap::new();
    for id in used {
        let mut row = vec![0.0; width];
        if !usize::try_from(id).is_ok_and(|id| table.row_f32(id, &mut row)) {
            return Err(CalibrationError::NoEmbedding(id).into());
        }
        rows.insert(id, row);
    }
    let tensors = ids.iter().zip(&ids_of).map(|(tensor, ids)| {
        let values = ids.iter().flat_map(|id| rows[id].iter().copied()).collect();
        let mut sizes = tensor.sizes().to_vec();
        sizes.push(width);
        Tensor::from_f32(DType::F32, sizes, values)
    });
    Ok(tensors.collect())
}

/// Sizes with another last one.
fn sized(sizes: &[usize], last: usize) -> Vec<usize> {
    let mut sizes = sizes.to_vec();
    if let Some(size) = sizes.last_mut() {
        *size = last;
    }
    sizes
}

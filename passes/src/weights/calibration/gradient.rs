//! A text's windows through `main`, and back: how a function of the logits changes with the results of
//! products.
//!
//! Forwards every value is kept. Backwards each node turns the gradient of its results into those of its
//! operands, as far as a product stands behind them ([`Differentiable`] says which nodes can). Windows
//! are worked on in parallel, sums over them have one written order.

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;
use weir_ir::graph::{NodeData, OutputRole};
use weir_ir::interpret::{Bindings, EvalError, Interpreter, Tensor};
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Binary, CausalAttention, RmsNorm};
use weir_ir::{Const, ConstData, Constant, DType, Element, Graph, Node, Op, Value};

use super::attention::{self, Operands, Shape};
use super::products;
use super::walk::{constant_of, embedded, is_weight_of, multiplied, needed, parameter};
use crate::error::PassError;

/// Step of the difference that stands for a derivative, in double precision.
const STEP: f64 = 1e-4;

/// A graph whose logits have gradients here.
pub struct Differentiable<'g> {
    graph: &'g Graph,
    /// The logits.
    logits: Value,
    /// What leads to them, in order.
    nodes: Vec<Node>,
    /// Values behind which a product stands.
    bearing: HashSet<Value>,
}

/// Values of windows, by window.
pub type Values = HashMap<Value, Vec<Tensor>>;

/// The gradient of a value in all windows.
pub type Slope = Vec<Vec<f32>>;

/// The weights of a graph as they are at some time.
pub struct Weights<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Those in place of the graph's; without them all are those of the file.
    pub chosen: Option<&'a BTreeMap<Const, Constant>>,
}

impl Weights<'_> {
    fn of(&self, constant: Const) -> &Constant {
        let weight = &self.graph.constants[constant];
        match (self.chosen, &weight.data) {
            (Some(chosen), _) => chosen.get(&constant).unwrap_or(weight),
            (None, ConstData::Rounded(source)) => source,
            (None, _) => weight,
        }
    }
}

impl<'g> Differentiable<'g> {
    /// `None` if the graph gives no logits, or something between a product and them has no gradient here.
    pub fn new(graph: &'g Graph) -> Option<Differentiable<'g>> {
        let body = &graph.main;
        let logits = body.results.iter().find(|result| result.role == OutputRole::Logits)?.value;
        let ends = HashSet::from([*body
            .order
            .iter()
            .find(|node| body.nodes[**node].results.contains(&logits))?]);
        let nodes = needed(body, ends);
        let mut bearing = HashSet::new();
        for node in &nodes {
            let data = &body.nodes[*node];
            let bears: Vec<bool> =
                data.operands.iter().map(|operand| bearing.contains(operand)).collect();
            if bears.contains(&true) && !has_gradient(graph, data, &bears) {
                return None;
            }
            if bears.contains(&true) || matches!(data.op, Op::Linear(_)) {
                bearing.extend(data.results.first().copied());
            }
        }
        bearing.contains(&logits).then_some(Differentiable { graph, logits, nodes, bearing })
    }

    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// The logits.
    pub fn logits(&self) -> Value {
        self.logits
    }

    /// Numbers of all values of a token: what a pass keeps.
    pub fn numbers(&self) -> Result<usize, PassError> {
        let body = &self.graph.main;
        let bindings = Bindings::one_sequence(0, 1);
        let computed = |node: &&Node| !matches!(body.nodes[**node].op, Op::ReadConstant(_));
        self.nodes.iter().filter(computed).try_fold(0usize, |sum, node| {
            let Some(result) = body.nodes[*node].results.first() else { return Ok(sum) };
            let numbers = bindings.ty(body.ty(*result))?.element_count().unwrap_or(usize::MAX);
            Ok(sum.saturating_add(numbers))
        })
    }

    /// Numbers of a token's logits.
    pub fn tokens(&self) -> Result<usize, PassError> {
        let ty = Bindings::one_sequence(0, 1).ty(self.graph.main.ty(self.logits))?;
        Ok(ty.element_count().unwrap_or(usize::MAX))
    }

    /// The rows that the last product reads: what comes behind them follows from them.
    pub fn last_rows(&self) -> Option<Value> {
        let body = &self.graph.main;
        let is_product = |node: &&Node| matches!(body.nodes[**node].op, Op::Linear(_));
        self.nodes.iter().rev().find(is_product).map(|node| body.nodes[*node].operands[0])
    }

    /// All values of windows; what `given` has is not computed again.
    pub fn forwards(
        &self,
        weights: &Weights<'_>,
        windows: &[Vec<u32>],
        given: Values,
    ) -> Result<Values, PassError> {
        let body = &self.graph.main;
        let mut values = given;
        // Backwards through the nodes: those whose results are asked for and not there.
        let mut asked = HashSet::from([self.logits]);
        let mut nodes = Vec::new();
        for node in self.nodes.iter().rev() {
            let data = &body.nodes[*node];
            let is_asked = |value: &Value| asked.contains(value) && !values.contains_key(value);
            if data.results.iter().any(is_asked) {
                nodes.push(*node);
                asked.extend(&data.operands);
            }
        }
        for param in body.params.iter().filter(|param| asked.contains(&param.value)) {
            values.insert(param.value, parameter(self.graph, windows, param)?);
        }
        for node in nodes.into_iter().rev() {
            let results = self.run(node, weights, windows, &values)?;
            values.extend(body.nodes[node].results.iter().copied().zip(results));
        }
        Ok(values)
    }

    /// A node's results.
    fn run(
        &self,
        node: Node,
        weights: &Weights<'_>,
        windows: &[Vec<u32>],
        values: &Values,
    ) -> Result<Vec<Vec<Tensor>>, PassError> {
        let body = &self.graph.main;
        let data = &body.nodes[node];
        let operand = |index: usize| at(values, data.operands[index]);
        match &data.op {
            Op::ReadConstant(read) => {
                let mut users =
                    body.live().filter(|(_, user)| user.operands.contains(&data.results[0]));
                if users.all(|(_, user)| is_weight_of(user, data.results[0])) {
                    return Ok(Vec::new());
                }
                let tensor = self.graph.constants[read.constant].tensor()?;
                Ok(vec![vec![tensor; windows.len()]])
            }
            Op::Linear(_) => {
                let others = (0..data.operands.len()).filter(|index| *index != 1);
                let operands = others.map(operand).collect::<Result<Vec<_>, _>>()?;
                Ok(vec![multiplied(weights.of(self.weight(data)?), &operands)?])
            }
            Op::Embed(_) => Ok(vec![embedded(weights.of(self.weight(data)?), operand(0)?)?]),
            Op::CausalAttention(op) if has_no_past(op, data) => {
                let attended = |window: usize| -> Result<Tensor, PassError> {
                    let given = Attended::of(data, values, window)?;
                    let shape = given.shape;
                    let result = attention::attend(op, shape, &given.operands());
                    let sizes = vec![shape.rows, shape.heads, shape.value_width];
                    Ok(Tensor::from_f32(DType::F32, sizes, result))
                };
                let windows = (0..windows.len()).into_par_iter();
                Ok(vec![windows.map(attended).collect::<Result<_, _>>()?])
            }
            _ => {
                let operands =
                    (0..data.operands.len()).map(operand).collect::<Result<Vec<_>, _>>()?;
                let of_window = |window: usize| {
                    let operands: Vec<Tensor> =
                        operands.iter().map(|tensors| tensors[window].clone()).collect();
                    self.apply(node, windows[window].len(), &operands)
                };
                let results: Vec<Vec<Tensor>> =
                    (0..windows.len()).into_par_iter().map(of_window).collect::<Result<_, _>>()?;
                Ok((0..data.results.len())
                    .map(|index| results.iter().map(|results| results[index].clone()).collect())
                    .collect())
            }
        }
    }

    /// Runs a node's op for a window of so many tokens, which begins a sequence.
    fn apply(
        &self,
        node: Node,
        tokens: usize,
        operands: &[Tensor],
    ) -> Result<Vec<Tensor>, PassError> {
        let op = &self.graph.main.nodes[node].op;
        let bindings = Bindings::one_sequence(0, tokens);
        let run = Interpreter::new(self.graph).apply(op, operands, &bindings);
        Ok(run.map_err(|fault| EvalError { place: node.to_string(), fault })?)
    }

    fn weight(&self, data: &NodeData) -> Result<Const, PassError> {
        constant_of(&self.graph.main, data.operands[1])
            .ok_or_else(|| PassError::internal("a weight is computed".to_owned()))
    }

    /// Goes from the gradient of the logits back to the first products. `see` is told of each product, of
    /// its inputs and of the gradient of its results, both by window.
    pub fn backwards(
        &self,
        weights: &Weights<'_>,
        values: &Values,
        of_logits: Slope,
        mut see: impl FnMut(Node, &[Tensor], &Slope) -> Result<(), PassError>,
    ) -> Result<(), PassError> {
        let body = &self.graph.main;
        let mut slopes = HashMap::from([(self.logits, of_logits)]);
        for node in self.nodes.iter().rev() {
            let data = &body.nodes[*node];
            let Some(slope) = data.results.first().and_then(|result| slopes.remove(result)) else {
                continue;
            };
            if let Op::Linear(_) = data.op {
                see(*node, at(values, data.operands[0])?, &slope)?;
            }
            for (operand, slope) in self.of_operands(*node, weights, values, slope)? {
                if !self.bearing.contains(&operand) {
                    continue;
                }
                match slopes.get_mut(&operand) {
                    Some(sum) => sum.par_iter_mut().zip(&slope).for_each(|(sum, more)| {
                        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                    }),
                    None => drop(slopes.insert(operand, slope)),
                }
            }
        }
        Ok(())
    }

    /// The gradients of a node's operands by that of its first result; of those that can bear products.
    fn of_operands(
        &self,
        node: Node,
        weights: &Weights<'_>,
        values: &Values,
        slope: Slope,
    ) -> Result<Vec<(Value, Slope)>, PassError> {
        let data = &self.graph.main.nodes[node];
        let operand = |index: usize| at(values, data.operands[index]);
        let bears = |index: usize| self.bearing.contains(&data.operands[index]);
        let mut found = Vec::new();
        match &data.op {
            Op::Linear(op) => {
                if bears(0) {
                    let weight = weights.of(self.weight(data)?);
                    found.push((data.operands[0], through_weight(weight, &slope)?));
                }
                if op.residual {
                    found.push((data.operands[data.operands.len() - 1], slope));
                }
            }
            Op::RmsNorm(op) => {
                let (x, weight) = (operand(0)?, operand(1)?);
                let of_window = |(slope, (x, weight)): (&Vec<f32>, (&Tensor, &Tensor))| {
                    Ok(through_norm(op, &x.f32s()?, &weight.f32s()?, slope))
                };
                let pairs = x.par_iter().zip(weight);
                let through: Result<Slope, PassError> =
                    slope.par_iter().zip(pairs).map(of_window).collect();
                found.push((data.operands[0], through?));
            }
            Op::RotaryRows(_) => {
                // Back by the same angles.
                let of_window = |(window, slope): (usize, Vec<f32>)| {
                    let sin = operand(3)?[window].f32s()?;
                    let sizes = operand(3)?[window].sizes().to_vec();
                    let back: Vec<f32> = sin.iter().map(|sin| -sin).collect();
                    let shape = operand(0)?[window].sizes().to_vec();
                    let tokens = shape.first().copied().unwrap_or(0);
                    let given = [
                        Tensor::from_f32(DType::F32, shape, slope),
                        operand(1)?[window].clone(),
                        operand(2)?[window].clone(),
                        Tensor::from_f32(DType::F32, sizes, back),
                    ];
                    Ok(self.apply(node, tokens, &given)?.remove(0).f32s()?.to_vec())
                };
                let through: Result<Slope, PassError> =
                    slope.into_par_iter().enumerate().map(of_window).collect();
                found.push((data.operands[0], through?));
            }
            Op::CausalAttention(op) => {
                let result = at(values, data.results[0])?;
                let of_window = |(window, slope): (usize, &Vec<f32>)| {
                    let given = Attended::of(data, values, window)?;
                    let result = result[window].f32s()?;
                    let both = [result.as_slice(), slope.as_slice()];
                    Ok(attention::attend_back(op, given.shape, &given.operands(), both))
                };
                let through: Result<Vec<_>, PassError> =
                    slope.par_iter().enumerate().map(of_window).collect();
                let mut by_operand = [Vec::new(), Vec::new(), Vec::new()];
                for of in through? {
                    let [query, key, value] = &mut by_operand;
                    query.push(of.query);
                    key.push(of.key);
                    value.push(of.value);
                }
                found.extend(data.operands.iter().copied().zip(by_operand));
            }
            Op::Binary(Binary { op }) => {
                for index in 0..2 {
                    if !bears(index) {
                        continue;
                    }
                    let through = match op {
                        BinaryOp::Mul => {
                            let result = at(values, data.results[0])?;
                            self.through_factor(node, result, operand(1 - index)?, &slope)?
                        }
                        BinaryOp::Sub if index == 1 => {
                            let mut slope = slope.clone();
                            slope.iter_mut().flatten().for_each(|slope| *slope = -*slope);
                            slope
                        }
                        _ => slope.clone(),
                    };
                    found.push((data.operands[index], through));
                }
            }
            Op::Unary(op) => {
                let of_window = |(slope, x): (Vec<f32>, &Tensor)| {
                    let x = x.f32s()?;
                    let pairs = slope.into_iter().zip(x.iter());
                    let each =
                        |(slope, x): (f32, &f32)| (steepness(op.op, *x) * f64::from(slope)) as f32;
                    Ok(pairs.map(each).collect())
                };
                let through: Result<Slope, PassError> =
                    slope.into_par_iter().zip(operand(0)?).map(of_window).collect();
                found.push((data.operands[0], through?));
            }
            Op::Gated(op) => {
                let (gate, up) = (operand(0)?, operand(1)?);
                let of_window = |(slope, (gate, up)): (Vec<f32>, (&Tensor, &Tensor))| {
                    let (gate, up) = (gate.f32s()?, up.f32s()?);
                    let each = slope.into_iter().zip(gate.iter().zip(up.iter()));
                    let both = each.map(|(slope, (gate, up))| {
                        let (slope, x) = (f64::from(slope), f64::from(*gate));
                        let of_gate = slope * f64::from(*up) * steepness(op.activation, *gate);
                        (of_gate as f32, (slope * op.activation.of(x)) as f32)
                    });
                    Ok(both.unzip())
                };
                let pairs = gate.par_iter().zip(up);
                let through: Result<(Slope, Slope), PassError> =
                    slope.into_par_iter().zip(pairs).map(of_window).collect();
                let (of_gate, of_up) = through?;
                found.extend([(data.operands[0], of_gate), (data.operands[1], of_up)]);
            }
            Op::Slice(op) => {
                // Nothing of the columns beside these.
                let from = op.start.as_size().unwrap_or(0);
                let of_window = |(slope, (x, result)): (&Vec<f32>, (&Tensor, &Tensor))| {
                    let [width, taken] = [x, result]
                        .map(|tensor| tensor.sizes().last().copied().unwrap_or(0).max(1));
                    let mut through = vec![0.0; x.count()];
                    let rows = through.chunks_exact_mut(width).zip(slope.chunks_exact(taken));
                    rows.for_each(|(row, slope)| row[from..from + taken].copy_from_slice(slope));
                    through
                };
                let pairs = operand(0)?.par_iter().zip(at(values, data.results[0])?);
                let through = slope.par_iter().zip(pairs).map(of_window).collect();
                found.push((data.operands[0], through));
            }
            Op::Reshape(_) => found.push((data.operands[0], slope)),
            op => {
                return Err(PassError::internal(format!("{op:?} has no gradient")));
            }
        }
        Ok(found)
    }

    /// A product of two tensors: the other one times the gradient.
    fn through_factor(
        &self,
        node: Node,
        result: &[Tensor],
        other: &[Tensor],
        slope: &Slope,
    ) -> Result<Slope, PassError> {
        let of_window = |(slope, (result, other)): (&Vec<f32>, (&Tensor, &Tensor))| {
            let sizes = result.sizes().to_vec();
            let tokens = sizes.first().copied().unwrap_or(0);
            let slope = Tensor::from_f32(DType::F32, sizes, slope.clone());
            Ok(self.apply(node, tokens, &[slope, other.clone()])?.remove(0).f32s()?.to_vec())
        };
        slope.par_iter().zip(result.par_iter().zip(other)).map(of_window).collect()
    }
}

/// A value of all windows.
pub fn at(values: &Values, value: Value) -> Result<&Vec<Tensor>, PassError> {
    values.get(&value).ok_or_else(|| PassError::internal(format!("{value} is not there")))
}

/// Whether a node with these operands behind products turns its result's gradient into theirs.
fn has_gradient(graph: &Graph, data: &NodeData, bears: &[bool]) -> bool {
    let body = &graph.main;
    let only = |places: &[usize]| {
        bears.iter().enumerate().all(|(index, bears)| !bears || places.contains(&index))
    };
    let float = |value: &Value| body.ty(*value).element == Element::Plain(DType::F32);
    // What is as large as the result is not spread over it.
    let has_size_of_result = |index: usize| {
        let result = data.results.first().map(|result| &body.ty(*result).shape);
        !bears[index] || result == Some(&body.ty(data.operands[index]).shape)
    };
    let fits = match &data.op {
        Op::Linear(op) if op.residual => only(&[0, data.operands.len() - 1]),
        Op::Linear(_) => only(&[0]),
        Op::RmsNorm(_) | Op::RotaryRows(_) | Op::Reshape(_) => only(&[0]),
        Op::Slice(op) => {
            let last = body.ty(data.operands[0]).shape.len().checked_sub(1);
            Some(op.axis) == last && op.step == 1 && op.start.as_size().is_some()
        }
        Op::CausalAttention(op) => only(&[0, 1, 2]) && has_no_past(op, data),
        Op::Binary(Binary { op }) => {
            matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul)
                && (0..2).all(has_size_of_result)
        }
        Op::Unary(op) => is_smooth(op.op),
        Op::Gated(op) => is_smooth(op.activation),
        _ => false,
    };
    fits && data.results.iter().take(1).chain(&data.operands[..1]).all(float)
}

/// Whether scores are plain products. What was before a window is nothing.
fn has_no_past(op: &CausalAttention, data: &NodeData) -> bool {
    op.softcap == 0.0 && data.operands.len() == 5 + usize::from(op.sinks)
}

/// Whether a function has a derivative where activations lie.
fn is_smooth(op: UnaryOp) -> bool {
    use UnaryOp::{Cos, Erf, Exp, Gelu, GeluQuick, GeluTanh, Neg, Relu, Sigmoid, Silu, Sin, Tanh};
    matches!(
        op,
        Cos | Erf | Exp | Gelu | GeluQuick | GeluTanh | Neg | Relu | Sigmoid | Silu | Sin | Tanh
    )
}

/// The derivative of a function, by a difference.
fn steepness(op: UnaryOp, x: f32) -> f64 {
    let x = f64::from(x);
    (op.of(x + STEP) - op.of(x - STEP)) / (2.0 * STEP)
}

/// Queries, keys and values of a window, and sinks.
struct Attended {
    shape: Shape,
    tensors: Vec<std::sync::Arc<Vec<f32>>>,
    sinks: Option<std::sync::Arc<Vec<f32>>>,
}

impl Attended {
    fn of(data: &NodeData, values: &Values, window: usize) -> Result<Attended, PassError> {
        let tensor = |index: usize| Ok::<_, PassError>(&at(values, data.operands[index])?[window]);
        let sizes = |index: usize| -> Result<[usize; 3], PassError> {
            let three = <[usize; 3]>::try_from(tensor(index)?.sizes());
            three.map_err(|_| PassError::internal("attention in other than three sizes".to_owned()))
        };
        let [rows, heads, key_width] = sizes(0)?;
        let [_, kv_heads, value_width] = sizes(2)?;
        let tensors = (0..3).map(|index| Ok(tensor(index)?.f32s()?));
        Ok(Attended {
            shape: Shape { rows, heads, kv_heads, key_width, value_width },
            tensors: tensors.collect::<Result<_, PassError>>()?,
            sinks: match data.operands.len() {
                6 => Some(tensor(5)?.f32s()?),
                _ => None,
            },
        })
    }

    fn operands(&self) -> Operands<'_> {
        Operands {
            query: &self.tensors[0],
            key: &self.tensors[1],
            value: &self.tensors[2],
            sinks: self.sinks.as_ref().map(|sinks| sinks.as_slice()),
        }
    }
}

/// Of x in x Wᵀ.
fn through_weight(weight: &Constant, slope: &Slope) -> Result<Slope, PassError> {
    let lost = || PassError::internal(format!("{:?} is no weight of floats", weight.name));
    let [outputs, inputs] = weight.matrix().ok_or_else(lost)?;
    let mut rows = vec![0.0; outputs * inputs];
    if !weight.rows_f32(0, &mut rows) {
        return Err(lost());
    }
    let mut turned = vec![0.0; outputs * inputs];
    for (n, row) in rows.chunks_exact(inputs).enumerate() {
        for (k, x) in row.iter().enumerate() {
            turned[k * outputs + n] = *x;
        }
    }
    let slope: Vec<&[f32]> = slope.iter().map(Vec::as_slice).collect();
    Ok(products::product(&slope, &turned, [inputs, outputs]))
}

/// Of x in x / r · w with r = √(mean x² + ε): w g / r - x · (Σ x w g) / (width r³).
fn through_norm(op: &RmsNorm, x: &[f32], weight: &[f32], slope: &[f32]) -> Vec<f32> {
    let width = weight.len().max(1);
    let mut through = vec![0.0; slope.len()];
    let rows = x.chunks_exact(width).zip(slope.chunks_exact(width));
    for ((x, slope), through) in rows.zip(through.chunks_exact_mut(width)) {
        let squares = x.iter().fold(0.0, |sum, x| sum + x * x);
        let root = (squares / width as f32 + op.epsilon).sqrt();
        let terms = x.iter().zip(weight).zip(slope);
        let along = terms.fold(0.0, |sum, ((x, w), g)| sum + x * w * g);
        let back = along / (width as f32 * root * root * root);
        for (((through, x), w), g) in through.iter_mut().zip(x).zip(weight).zip(slope) {
            *through = w * g / root - x * back;
        }
    }
    through
}

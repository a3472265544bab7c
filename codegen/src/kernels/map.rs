//! Elementwise functions of up to three operands, broadcast by strides; also copies.
//!
//! Truth values are 1 and 0 as floats: comparisons give them, `and`, `or`, `xor`, `not` and the choice
//! take them. A comparison with something that is no number does not hold.
//!
//! The error of a function is that of the vocabulary's elementary functions. The output may be an
//! operand (in place): an element is read before it is written, by one thread.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;

use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FloatCC, FuncId, InstBuilder, Lanes, POINTER, Type, Value,
    signature,
};

/// A function of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapOp {
    /// The element itself.
    Copy,
    /// A function of one element.
    Unary(UnaryOp),
    /// A function of two elements.
    Binary(BinaryOp),
    /// activation(gate) · up.
    Gated(UnaryOp),
    /// The second element where the first is not 0, else the third.
    Select,
}

impl MapOp {
    pub(super) fn name(self) -> String {
        match self {
            MapOp::Copy => "copy".to_owned(),
            MapOp::Unary(op) => op.name().to_owned(),
            MapOp::Binary(op) => op.name().to_owned(),
            MapOp::Gated(op) => format!("gated_{}", op.name()),
            MapOp::Select => "select".to_owned(),
        }
    }

    /// Whether there is a kernel. There is none for remainders: f32 cannot hold the quotient of far
    /// operands, and no model asks for them on rows.
    pub fn is_supported(self) -> bool {
        !matches!(self, MapOp::Binary(BinaryOp::Mod | BinaryOp::Fmod))
    }
}

/// Shapes of an elementwise function; strides count floats.
#[derive(Clone, Debug)]
pub struct MapSpec {
    /// The function.
    pub op: MapOp,
    /// Sizes of a row.
    pub dims: Vec<usize>,
    /// Per operand, then for the output: from row to row, and per dimension (0 repeats).
    pub strides: Vec<(usize, Vec<usize>)>,
}

/// Emits (first operand, second and third operand or null, output, first row, row behind the last).
///
/// # Panics
///
/// If the function is not [supported](MapOp::is_supported).
pub fn emit_map(assembly: &mut Assembly, spec: &MapSpec) -> Result<FuncId, EmitError> {
    let spec = merged(spec);
    let mut symbol = format!("{}-{:?}", spec.op.name(), spec.dims).replace(", ", "x");
    for (row, inner) in &spec.strides {
        symbol.push_str(&format!("-{row}.{inner:?}").replace(", ", "."));
    }
    symbol.retain(|letter| !"[]".contains(letter));
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 6], &[]))?;
    assembly.define(id, |b| {
        let [first, second, third, output, begin, end] = b.params();
        let mut bases = vec![first, second, third];
        bases.truncate(spec.strides.len() - 1);
        bases.push(output);
        b.for_range(begin, end, 1, |b, row| {
            let bases: Vec<Value> = bases
                .iter()
                .zip(&spec.strides)
                .map(|(base, (stride, _))| b.element(*base, row, *stride as i64 * 4))
                .collect();
            map_dims(b, &spec, 0, &bases);
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Neighbouring dimensions joined wherever all strides permit; at least one is left.
fn merged(spec: &MapSpec) -> MapSpec {
    let mut spec = spec.clone();
    let keep: Vec<usize> = (0..spec.dims.len()).filter(|index| spec.dims[*index] != 1).collect();
    spec.dims = keep.iter().map(|index| spec.dims[*index]).collect();
    for (_, inner) in &mut spec.strides {
        *inner = keep.iter().map(|index| inner[*index]).collect();
    }
    if spec.dims.is_empty() {
        spec.dims.push(1);
        spec.strides.iter_mut().for_each(|(_, inner)| inner.push(1));
    }
    for index in (1..spec.dims.len()).rev() {
        let size = spec.dims[index];
        if spec.strides.iter().all(|(_, inner)| inner[index - 1] == inner[index] * size) {
            spec.dims[index - 1] *= spec.dims.remove(index);
            for (_, inner) in &mut spec.strides {
                inner.remove(index - 1);
            }
        }
    }
    spec
}

fn map_dims(b: &mut Body<'_>, spec: &MapSpec, dim: usize, bases: &[Value]) {
    let size = spec.dims[dim] as i64;
    let step = |b: &mut Body<'_>, index: Value| -> Vec<Value> {
        bases
            .iter()
            .zip(&spec.strides)
            .map(|(base, (_, inner))| match inner[dim] {
                0 => *base,
                stride => b.element(*base, index, stride as i64 * 4),
            })
            .collect()
    };
    if dim + 1 < spec.dims.len() {
        b.for_count(size, 1, |b, index| {
            let bases = step(b, index);
            map_dims(b, spec, dim + 1, &bases);
        });
        return;
    }
    let element = |b: &mut Body<'_>, index: Value, lanes: Lanes| {
        let places = step(b, index);
        let (to, from) = places.split_last().expect("an output");
        let values: Vec<Value> = from
            .iter()
            .zip(&spec.strides)
            .map(|(place, (_, inner))| {
                if inner[dim] == 0 {
                    let value = b.load(FLOAT, *place, 0);
                    b.spread(lanes, value)
                } else {
                    b.load(lanes.float(), *place, 0)
                }
            })
            .collect();
        let result = apply(b, spec.op, &values);
        b.store(result, *to, 0);
    };
    let output_stride = spec.strides.last().map(|(_, inner)| inner[dim]);
    if spec.strides.iter().all(|(_, inner)| inner[dim] <= 1) && output_stride == Some(1) {
        b.for_count_lanes(size, element);
    } else {
        b.for_count(size, 1, |b, index| element(b, index, Lanes::One));
    }
}

fn apply(b: &mut Body<'_>, op: MapOp, values: &[Value]) -> Value {
    match op {
        MapOp::Copy => values[0],
        MapOp::Unary(op) => unary(b, op, values[0]),
        MapOp::Gated(op) => {
            let gate = unary(b, op, values[0]);
            b.fmul(gate, values[1])
        }
        MapOp::Binary(op) => binary(b, op, values[0], values[1]),
        MapOp::Select => {
            let ty = b.type_of(values[0]);
            let zero = b.constant(ty, 0.0);
            let chosen = b.fcompare(FloatCC::NotEqual, values[0], zero);
            b.select(chosen, values[1], values[2])
        }
    }
}

/// A condition as 1 or 0.
fn truth(b: &mut Body<'_>, ty: Type, condition: Value) -> Value {
    let one = b.constant(ty, 1.0);
    let zero = b.constant(ty, 0.0);
    b.select(condition, one, zero)
}

fn binary(b: &mut Body<'_>, op: BinaryOp, x: Value, y: Value) -> Value {
    let ty = b.type_of(x);
    let holds = |b: &mut Body<'_>, condition: FloatCC| {
        let condition = b.fcompare(condition, x, y);
        truth(b, ty, condition)
    };
    match op {
        BinaryOp::Add => b.fadd(x, y),
        BinaryOp::Sub => b.fsub(x, y),
        BinaryOp::Mul | BinaryOp::And => b.fmul(x, y),
        BinaryOp::Div => b.fdiv(x, y),
        BinaryOp::Min => b.fmin(x, y),
        BinaryOp::Max | BinaryOp::Or => b.fmax(x, y),
        BinaryOp::Pow => b.pow(x, y),
        BinaryOp::Xor => holds(b, FloatCC::NotEqual),
        BinaryOp::Equal => holds(b, FloatCC::Equal),
        BinaryOp::Less => holds(b, FloatCC::LessThan),
        BinaryOp::LessOrEqual => holds(b, FloatCC::LessThanOrEqual),
        BinaryOp::Greater => holds(b, FloatCC::GreaterThan),
        BinaryOp::GreaterOrEqual => holds(b, FloatCC::GreaterThanOrEqual),
        BinaryOp::Mod | BinaryOp::Fmod => unreachable!("lowering refuses these functions"),
    }
}

pub(super) fn unary(b: &mut Body<'_>, op: UnaryOp, x: Value) -> Value {
    let ty = b.type_of(x);
    let one = |b: &mut Body<'_>| b.constant(ty, 1.0);
    match op {
        UnaryOp::Neg => b.fneg(x),
        UnaryOp::Abs => b.fabs(x),
        UnaryOp::Exp => b.exp(x),
        UnaryOp::Log => b.ln(x),
        UnaryOp::Sqrt => b.sqrt(x),
        UnaryOp::Rsqrt => {
            let root = b.sqrt(x);
            let one = one(b);
            b.fdiv(one, root)
        }
        UnaryOp::Reciprocal => {
            let one = one(b);
            b.fdiv(one, x)
        }
        UnaryOp::Tanh => b.tanh(x),
        UnaryOp::Erf => b.erf(x),
        UnaryOp::Sigmoid => b.sigmoid(x),
        UnaryOp::Relu => {
            let zero = b.constant(ty, 0.0);
            b.fmax(x, zero)
        }
        UnaryOp::Silu => {
            let gate = b.sigmoid(x);
            b.fmul(x, gate)
        }
        UnaryOp::Gelu => {
            let root = b.constant(ty, std::f32::consts::FRAC_1_SQRT_2);
            let scaled = b.fmul(x, root);
            let erf = b.erf(scaled);
            half_of_one_plus(b, x, erf)
        }
        UnaryOp::GeluTanh => {
            let square = b.fmul(x, x);
            let inner = b.polynomial(square, &[1.0, 0.044_715]);
            let root = b.constant(ty, 0.797_884_6);
            let scaled = b.fmul(x, root);
            let inner = b.fmul(scaled, inner);
            let tanh = b.tanh(inner);
            half_of_one_plus(b, x, tanh)
        }
        UnaryOp::GeluQuick => {
            let factor = b.constant(ty, 1.702);
            let scaled = b.fmul(x, factor);
            let gate = b.sigmoid(scaled);
            b.fmul(x, gate)
        }
        UnaryOp::Floor => b.ins().floor(x),
        UnaryOp::Ceil => b.ins().ceil(x),
        UnaryOp::Round => b.round(x),
        UnaryOp::Sign => {
            let zero = b.constant(ty, 0.0);
            let one = one(b);
            let minus = b.constant(ty, -1.0);
            let above = b.fcompare(FloatCC::GreaterThan, x, zero);
            let below = b.fcompare(FloatCC::LessThan, x, zero);
            let rest = b.select(below, minus, x);
            b.select(above, one, rest)
        }
        UnaryOp::Sin => b.sin(x),
        UnaryOp::Cos => b.cos(x),
        UnaryOp::Not => {
            let one = one(b);
            b.fsub(one, x)
        }
        UnaryOp::IsNan => {
            let condition = b.fcompare(FloatCC::Unordered, x, x);
            truth(b, ty, condition)
        }
        UnaryOp::IsInf => {
            let magnitude = b.fabs(x);
            let infinity = b.constant(ty, f32::INFINITY);
            let condition = b.fcompare(FloatCC::Equal, magnitude, infinity);
            truth(b, ty, condition)
        }
    }
}

/// x · (1 + y) / 2
fn half_of_one_plus(b: &mut Body<'_>, x: Value, y: Value) -> Value {
    let ty = b.type_of(x);
    let one = b.constant(ty, 1.0);
    let half = b.constant(ty, 0.5);
    let sum = b.fadd(y, one);
    let scaled = b.fmul(x, half);
    b.fmul(scaled, sum)
}

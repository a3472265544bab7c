//! RMS norm and layer norm over runs of a row.
//!
//! RMS: y = x / sqrt(mean(x²) + ε) · weight. Layer: y = (x - mean) / sqrt(variance + ε) · weight
//! (+ bias). A run of width ≥ 16 is summed in sixteen fixed lanes, the rest one by one, so the
//! result depends on the run alone.

use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, LANES, Lanes, POINTER, Value, signature,
};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// Shapes of a norm; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct NormSpec {
    /// Which norm.
    pub kind: NormKind,
    /// Added to the mean square or the variance.
    pub epsilon: f32,
    /// Whether a bias is added.
    pub bias: bool,
    /// Runs of a row.
    pub groups: usize,
    /// Length of a run.
    pub width: usize,
    /// From row to row of x, from run to run.
    pub x: (usize, usize),
    /// From row to row of y, from run to run.
    pub y: (usize, usize),
}

/// Emits (x, weight, bias, y, first row, row behind the last).
pub fn emit_norm(assembly: &mut Assembly, spec: &NormSpec) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "{}-{}x{}-e{:08x}-x{}.{}-y{}.{}{}",
        if spec.kind == NormKind::Rms { "rms_norm" } else { "layer_norm" },
        spec.groups,
        spec.width,
        spec.epsilon.to_bits(),
        spec.x.0,
        spec.x.1,
        spec.y.0,
        spec.y.1,
        if spec.bias { "-bias" } else { "" }
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 6], &[]))?;
    assembly.define(id, |b| {
        let [x, weight, bias, y, begin, end] = b.params();
        b.for_range(begin, end, 1, |b, row| {
            let x = b.element(x, row, spec.x.0 as i64 * 4);
            let y = b.element(y, row, spec.y.0 as i64 * 4);
            b.for_count(spec.groups as i64, 1, |b, group| {
                let x = b.element(x, group, spec.x.1 as i64 * 4);
                let y = b.element(y, group, spec.y.1 as i64 * 4);
                norm_run(b, spec, x, weight, bias, y);
            });
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

fn norm_run(b: &mut Body<'_>, spec: &NormSpec, x: Value, weight: Value, bias: Value, y: Value) {
    let load = |b: &mut Body<'_>, base: Value, index: Value, lanes: Lanes| {
        let at = b.element(base, index, 4);
        b.load(lanes.float(), at, 0)
    };
    let mean = match spec.kind {
        NormKind::Rms => None,
        NormKind::Layer => {
            let count = b.float(spec.width as f32);
            let sum = sum_run(b, spec.width, |b, index, lanes| load(b, x, index, lanes));
            Some(b.fdiv(sum, count))
        }
    };
    let centred = |b: &mut Body<'_>, index: Value, lanes: Lanes| {
        let value = load(b, x, index, lanes);
        match mean {
            None => value,
            Some(mean) => {
                let mean = b.spread(lanes, mean);
                b.fsub(value, mean)
            }
        }
    };
    let squares = sum_run(b, spec.width, |b, index, lanes| {
        let value = centred(b, index, lanes);
        b.fmul(value, value)
    });
    let factor = factor_of(b, squares, spec.width, spec.epsilon);
    b.for_count_lanes(spec.width as i64, |b, index, lanes| {
        let value = centred(b, index, lanes);
        let factor = b.spread(lanes, factor);
        let value = b.fmul(value, factor);
        let scale = load(b, weight, index, lanes);
        let mut value = b.fmul(value, scale);
        if spec.bias {
            let bias = load(b, bias, index, lanes);
            value = b.fadd(value, bias);
        }
        let to = b.element(y, index, 4);
        b.store(value, to, 0);
    });
}

/// 1 / sqrt(squares / width + ε)
fn factor_of(b: &mut Body<'_>, squares: Value, width: usize, epsilon: f32) -> Value {
    let count = b.float(width as f32);
    let square = b.fdiv(squares, count);
    let epsilon = b.float(epsilon);
    let square = b.fadd(square, epsilon);
    let root = b.sqrt(square);
    let one = b.float(1.0);
    b.fdiv(one, root)
}

/// The factor of an RMS norm over a dense run.
pub(super) fn rms_factor(b: &mut Body<'_>, width: usize, epsilon: f32, x: Value) -> Value {
    let squares = sum_run(b, width, |b, index, lanes| {
        let at = b.element(x, index, 4);
        let value = b.load(lanes.float(), at, 0);
        b.fmul(value, value)
    });
    factor_of(b, squares, width, epsilon)
}

/// Σ of `element(index)` for `count` indices: sixteen lanes, then the rest one by one.
pub(super) fn sum_run(
    b: &mut Body<'_>,
    count: usize,
    mut element: impl FnMut(&mut Body<'_>, Value, Lanes) -> Value,
) -> Value {
    let whole = count & !15;
    let mut sum = b.constant(FLOAT, 0.0);
    if whole > 0 {
        let zero = b.constant(LANES, 0.0);
        let sums = b.fold_count(whole as i64, 16, &[zero; 4], |b, index, sums| {
            sums.iter()
                .enumerate()
                .map(|(lane, sum)| {
                    let index = b.add_const(index, 4 * lane as i64);
                    let value = element(b, index, Lanes::Four);
                    b.fadd(*sum, value)
                })
                .collect()
        });
        let even = b.fadd(sums[0], sums[2]);
        let odd = b.fadd(sums[1], sums[3]);
        let all = b.fadd(even, odd);
        sum = b.sum_lanes(all);
    }
    for rest in whole..count {
        let index = b.int(rest as i64);
        let value = element(b, index, Lanes::One);
        sum = b.fadd(sum, value);
    }
    sum
}

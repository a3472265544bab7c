//! Reduces the last axis of a row to one value, in the order of `norm`'s sums (sum, mean, sum of
//! squares) or from the first element to the last (largest, smallest, product).

use weir_ir::ops::reduce::ReduceOp;

use super::norm::sum_run;
use crate::emit::{Assembly, EmitError, FLOAT, FuncId, POINTER, signature};

/// Shapes of a reduction; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct ReduceSpec {
    /// How elements are joined.
    pub op: ReduceOp,
    /// Runs of a row.
    pub groups: usize,
    /// Length of a run.
    pub width: usize,
    /// From row to row of x, from run to run.
    pub x: (usize, usize),
    /// From row to row of y.
    pub y_row: usize,
}

/// Emits (x, y, first row, row behind the last).
pub fn emit_reduce(assembly: &mut Assembly, spec: &ReduceSpec) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "reduce-{}-{}x{}-x{}.{}-y{}",
        spec.op.name(),
        spec.groups,
        spec.width,
        spec.x.0,
        spec.x.1,
        spec.y_row
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 4], &[]))?;
    assembly.define(id, |b| {
        let [x, y, begin, end] = b.params();
        b.for_range(begin, end, 1, |b, row| {
            let x = b.element(x, row, spec.x.0 as i64 * 4);
            let y = b.element(y, row, spec.y_row as i64 * 4);
            b.for_count(spec.groups as i64, 1, |b, group| {
                let x = b.element(x, group, spec.x.1 as i64 * 4);
                let y = b.element(y, group, 4);
                let square = spec.op == ReduceOp::SumSquare;
                let result = match spec.op {
                    ReduceOp::Sum | ReduceOp::Mean | ReduceOp::SumSquare => {
                        let sum = sum_run(b, spec.width, |b, index, lanes| {
                            let at = b.element(x, index, 4);
                            let value = b.load(lanes.float(), at, 0);
                            if square { b.fmul(value, value) } else { value }
                        });
                        if spec.op == ReduceOp::Mean {
                            let count = b.float(spec.width as f32);
                            b.fdiv(sum, count)
                        } else {
                            sum
                        }
                    }
                    ReduceOp::Max | ReduceOp::Min | ReduceOp::Product => {
                        let first = b.load(FLOAT, x, 0);
                        let begin = b.int(1);
                        let end = b.int(spec.width as i64);
                        b.fold_range(begin, end, 1, &[first], |b, index, carried| {
                            let at = b.element(x, index, 4);
                            let value = b.load(FLOAT, at, 0);
                            vec![match spec.op {
                                ReduceOp::Max => b.fmax(carried[0], value),
                                ReduceOp::Min => b.fmin(carried[0], value),
                                _ => b.fmul(carried[0], value),
                            }]
                        })[0]
                    }
                };
                b.store(result, y, 0);
            });
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

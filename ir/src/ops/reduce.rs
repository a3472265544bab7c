//! Reduces dimensions to one value each.
//!
//! Operand: a plain tensor. Result: the dimensions in `axes` have size 1, or are gone.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, axis_in, exceeds, listed, operands, plain, product, single_known, strided};
use crate::attribute::{attributes, named_enum};
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::interpret::Data;
use crate::constant::row_major;
use crate::types::DType;
use crate::dim::Dim;

named_enum!(
    /// How elements are joined, in index order.
    ReduceOp {
        /// sum
        Sum = "sum",
        /// sum divided by the count
        Mean = "mean",
        /// largest
        Max = "max",
        /// smallest
        Min = "min",
        /// product
        Product = "product",
        /// sum of squares
        SumSquare = "sum_square",
    }
);

attributes!(
    /// Joins elements along dimensions.
    Reduce {
        /// How.
        op: ReduceOp,
        /// The dimensions, ascending.
        axes: Vec<usize>,
        /// Whether they stay with size 1.
        keep: bool,
    }
);

impl CoreOp for Reduce {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        if dtype == DType::Bool && !matches!(self.op, ReduceOp::Max | ReduceOp::Min) {
            return Err(format!("{} of booleans", self.op.name()));
        }
        let from = &operand.ty.shape;
        let mut shape = Vec::new();
        for (index, size) in from.iter().enumerate() {
            if !self.axes.contains(&index) {
                shape.push(size.clone());
            } else if self.keep {
                shape.push(Dim::number(1));
            }
        }
        if !self.axes.is_sorted_by(|a, b| a < b) {
            return Err(format!("axes {:?} are not ascending", self.axes));
        }
        for axis in &self.axes {
            axis_in(*axis, from)?;
        }
        let known = self.known(operand);
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let operand = &given[0];
        let ((view_sizes, view_strides), joined) = self.lanes(operand.sizes());
        let sizes = cx.sizes(0);
        let lanes = move_elements!(operand, view_sizes.clone(), |values| {
            strided(values, 0, &view_strides, &view_sizes)
        });
        let count: usize = sizes.iter().product();
        Ok(vec![match lanes.data() {
            Data::I64(values) => {
                let values = (0..count).map(|lane| self.of_integers(&values[lane * joined..][..joined]));
                Tensor::from_i64(operand.dtype(), sizes, values.collect::<Result<_, _>>()?)
            }
            Data::Bool(values) => {
                let any = self.op == ReduceOp::Max;
                let lane = |lane: usize| {
                    let values = &values[lane * joined..][..joined];
                    if any { values.contains(&true) } else { !values.contains(&false) }
                };
                Tensor::from_bool(sizes, (0..count).map(lane).collect())
            }
            Data::F64(values) => {
                let lane = |lane: usize| self.of_floats(&values[lane * joined..][..joined]);
                Tensor::from_f64(DType::F64, sizes, (0..count).map(lane).collect())
            }
            Data::F32(values) => {
                // Sums are single precision, in index order.
                let lane = |lane: usize| self.of_singles(&values[lane * joined..][..joined]);
                Tensor::from_f32(operand.dtype(), sizes, (0..count).map(lane).collect())
            }
        }])
    }
}

macro_rules! float_lanes {
    ($name:ident, $type:ty) => {
        fn $name(&self, lane: &[$type]) -> $type {
            let sum = |values: &[$type]| values.iter().fold(0.0, |sum, value| sum + value);
            // A NaN anywhere is the result, unlike with `max` of the language.
            let extreme = |better: fn($type, $type) -> bool, start: $type| {
                lane.iter().fold(start, |best, value| {
                    if best.is_nan() || (!value.is_nan() && !better(*value, best)) {
                        best
                    } else {
                        *value
                    }
                })
            };
            match self.op {
                ReduceOp::Sum => sum(lane),
                ReduceOp::Mean => sum(lane) / lane.len() as $type,
                ReduceOp::SumSquare => lane.iter().fold(0.0, |sum, value| sum + value * value),
                ReduceOp::Product => lane.iter().fold(1.0, |product, value| product * value),
                ReduceOp::Max => extreme(|a, b| a > b, <$type>::NEG_INFINITY),
                ReduceOp::Min => extreme(|a, b| a < b, <$type>::INFINITY),
            }
        }
    };
}

impl Reduce {
    float_lanes!(of_singles, f32);
    float_lanes!(of_floats, f64);

    fn of_integers(&self, lane: &[i64]) -> Result<i64, EvalFault> {
        let sum = || lane.iter().fold(0i64, |sum, value| sum.wrapping_add(*value));
        let empty = || EvalFault::Operand(format!("{} of no elements", self.op.name()));
        Ok(match self.op {
            ReduceOp::Sum => sum(),
            ReduceOp::Mean => sum().checked_div(lane.len() as i64).ok_or_else(empty)?,
            ReduceOp::SumSquare => {
                lane.iter().fold(0i64, |sum, v| sum.wrapping_add(v.wrapping_mul(*v)))
            }
            ReduceOp::Product => lane.iter().fold(1i64, |product, v| product.wrapping_mul(*v)),
            ReduceOp::Max => lane.iter().copied().max().ok_or_else(empty)?,
            ReduceOp::Min => lane.iter().copied().min().ok_or_else(empty)?,
        })
    }
}

impl Reduce {
    fn known(&self, operand: Operand<'_>) -> Option<Known> {
        let shape = &operand.ty.shape;
        if let Known::Fill(value) = operand.known? {
            let joined: Vec<Dim> = self.axes.iter().map(|axis| shape[*axis].clone()).collect();
            let count = product(&joined)?;
            return self.fill(value, &count).map(Known::Fill);
        }
        let sizes = operand.ty.sizes()?;
        let (order, joined) = self.lanes(&sizes);
        let lanes = strided(&listed(operand)?, 0, &order.1, &order.0);
        if joined == 0 {
            return None;
        }
        lanes.chunks(joined).map(|lane| self.join(lane)).collect::<Option<_>>().map(Known::Elements)
    }

    /// The reduction of `count` equal values, where it is certain.
    fn fill(&self, value: &Dim, count: &Dim) -> Option<Dim> {
        match self.op {
            ReduceOp::Sum => value.times(count),
            ReduceOp::SumSquare => value.times(value)?.times(count),
            // An empty mean, minimum or product has a value of its own.
            _ if !count.is_at_least(1) => None,
            ReduceOp::Mean | ReduceOp::Max | ReduceOp::Min => Some(value.clone()),
            ReduceOp::Product => match (value.as_number(), count.as_number()) {
                (Some(0 | 1), _) => Some(value.clone()),
                (_, Some(1)) => Some(value.clone()),
                (Some(number), Some(count)) => {
                    number.checked_pow(u32::try_from(count).ok()?).map(Dim::number)
                }
                _ => None,
            },
        }
    }

    fn join(&self, lane: &[Dim]) -> Option<Dim> {
        let (first, rest) = lane.split_first()?;
        let greater = |a: &Dim, b: &Dim| {
            if exceeds(a, b, 0) {
                Some(true)
            } else {
                exceeds(b, a, 0).then_some(false)
            }
        };
        match self.op {
            ReduceOp::Sum => rest.iter().try_fold(first.clone(), |sum, next| sum.plus(next)),
            ReduceOp::Mean => {
                let sum = rest.iter().try_fold(first.clone(), |sum, next| sum.plus(next))?;
                sum.divided_exactly(&Dim::from(lane.len()))
            }
            ReduceOp::SumSquare => lane
                .iter()
                .try_fold(Dim::number(0), |sum, next| sum.plus(&next.times(next)?)),
            ReduceOp::Product => {
                rest.iter().try_fold(first.clone(), |product, next| product.times(next))
            }
            ReduceOp::Max => rest.iter().try_fold(first.clone(), |best, next| {
                Some(if greater(&best, next)? { best } else { next.clone() })
            }),
            ReduceOp::Min => rest.iter().try_fold(first.clone(), |best, next| {
                Some(if greater(&best, next)? { next.clone() } else { best })
            }),
        }
    }

    /// Sizes and strides that put the joined dimensions last, and the elements joined to one.
    fn lanes(&self, sizes: &[usize]) -> ((Vec<usize>, Vec<isize>), usize) {
        let strides = row_major(sizes);
        let kept = (0..sizes.len()).filter(|index| !self.axes.contains(index));
        let order: Vec<usize> = kept.chain(self.axes.iter().copied()).collect();
        let joined = self.axes.iter().map(|axis| sizes[*axis]).product();
        let view_sizes = order.iter().map(|index| sizes[*index]).collect();
        let view_strides = order.iter().map(|index| strides[*index] as isize).collect();
        ((view_sizes, view_strides), joined)
    }
}

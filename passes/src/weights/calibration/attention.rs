//! Causal attention over a window, and what its result's gradient asks of queries, keys and values.
//!
//! For weights `p = softmax(s)` of a row's scores `s_j = scale · q · k_j`, its result `o = Σ p_j v_j` and
//! the result's gradient `g`,
//!
//! `dv_j = p_j g`, `ds_j = p_j (g · v_j - g · o)`, `dq = scale Σ ds_j k_j`, `dk_j = scale ds_j q`.
//!
//! A sink's logit is one more term of the softmax without a value, so it changes nothing of this. Keys
//! and values of a head are turned, number by number, so that a row's keys stand beside each other, and
//! each sum has one written order without fused steps, as in [`super::products`].

use std::f32::consts::LOG2_E;

use multiversion::multiversion;
use weir_ir::ops::CausalAttention;

/// Rows and widths of a window's attention.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a query and a key.
    pub key_width: usize,
    /// Numbers of a value.
    pub value_width: usize,
}

/// Queries, keys and values of a window, each `[rows, heads, width]`, and a logit per head.
pub struct Operands<'a> {
    /// Queries.
    pub query: &'a [f32],
    /// Keys.
    pub key: &'a [f32],
    /// Values.
    pub value: &'a [f32],
    /// Sinks' logits.
    pub sinks: Option<&'a [f32]>,
}

/// Gradients, laid out as what they belong to.
pub struct Gradients {
    /// Of the queries.
    pub query: Vec<f32>,
    /// Of the keys.
    pub key: Vec<f32>,
    /// Of the values.
    pub value: Vec<f32>,
}

/// `out[j] += factor * x[j]`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += factor * x;
    }
}

/// Sums that a long one is made of.
const LANES: usize = 16;

/// `Σ x[j] y[j]`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let rest = x_rest.iter().zip(y_rest).fold(0.0, |sum, (x, y)| sum + x * y);
    sums.iter().sum::<f32>() + rest
}

/// Adding and subtracting it rounds to the nearest whole number, which its lowest bits then hold.
const ROUND: f32 = 12_582_912.0;
/// Terms of the exponential series of `2^f`, the highest first.
const SERIES: [f32; 7] =
    [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, 6.931_472e-1, 1.0];

/// `e^y` for `y = x - greatest` in place of each x, none of which is greater: within (3 + |y|) · 10⁻⁷ of
/// itself, or 2⁻¹²⁶. In whole vectors, where a call of the library's takes most of a softmax's time.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn exponentials(x: &mut [f32], greatest: f32) {
    for x in x {
        let power = ((*x - greatest) * LOG2_E).max(-126.0);
        let shifted = power + ROUND;
        let part = power - (shifted - ROUND);
        let of_part = SERIES.iter().fold(0.0, |sum, term| sum * part + term);
        let whole = shifted.to_bits().wrapping_sub(ROUND.to_bits());
        *x = f32::from_bits(of_part.to_bits().wrapping_add(whole << 23));
    }
}

/// Scores become weights, with a sink's logit in the denominator.
fn weigh(scores: &mut [f32], sink: Option<f32>) {
    let mut last = [sink.unwrap_or(f32::NEG_INFINITY)];
    let greatest = scores.iter().copied().fold(last[0], f32::max);
    exponentials(scores, greatest);
    exponentials(&mut last, greatest);
    let sum = scores.iter().sum::<f32>() + if sink.is_some() { last[0] } else { 0.0 };
    scores.iter_mut().for_each(|weight| *weight /= sum);
}

/// Number d of every row of a head, from `[rows, heads, width]`.
fn turned(x: &[f32], head: usize, [rows, heads, width]: [usize; 3]) -> Vec<f32> {
    let mut turned = vec![0.0; width * rows];
    for row in 0..rows {
        let numbers = &x[(row * heads + head) * width..][..width];
        for (place, number) in turned.chunks_exact_mut(rows.max(1)).zip(numbers) {
            place[row] = *number;
        }
    }
    turned
}

/// Adds what [`turned`] took, back to its rows.
fn add_turned(turned: &[f32], x: &mut [f32], head: usize, [rows, heads, width]: [usize; 3]) {
    for row in 0..rows {
        let numbers = &mut x[(row * heads + head) * width..][..width];
        for (number, place) in numbers.iter_mut().zip(turned.chunks_exact(rows.max(1))) {
            *number += place[row];
        }
    }
}

/// `Σ_d x[d] · of[d][first..=last]`.
fn combined(x: &[f32], of: &[f32], rows: usize, [first, last]: [usize; 2], out: &mut Vec<f32>) {
    out.clear();
    out.resize(last + 1 - first, 0.0);
    for (factor, numbers) in x.iter().zip(of.chunks_exact(rows.max(1))) {
        add_scaled(out, *factor, &numbers[first..=last]);
    }
}

/// A head's keys or values in rows, and turned.
struct Head<'a> {
    op: &'a CausalAttention,
    shape: Shape,
    keys: Vec<f32>,
    values: Vec<f32>,
    sink: Option<f32>,
}

impl<'a> Head<'a> {
    fn new(op: &'a CausalAttention, shape: Shape, given: &Operands<'_>, head: usize) -> Head<'a> {
        let Shape { rows, heads, kv_heads, key_width, value_width } = shape;
        let kv = head / (heads / kv_heads).max(1);
        Head {
            op,
            shape,
            keys: turned(given.key, kv, [rows, kv_heads, key_width]),
            values: turned(given.value, kv, [rows, kv_heads, value_width]),
            sink: given.sinks.map(|sinks| sinks[head]),
        }
    }

    /// The first key that a row reads.
    fn first(&self, row: usize) -> usize {
        match self.op.window as usize {
            0 => 0,
            window => (row + 1).saturating_sub(window),
        }
    }

    /// Weights of the keys that a row reads.
    fn weights(&self, query: &[f32], row: usize, weights: &mut Vec<f32>) {
        let span = [self.first(row), row];
        combined(query, &self.keys, self.shape.rows, span, weights);
        weights.iter_mut().for_each(|score| *score *= self.op.scale);
        weigh(weights, self.sink);
    }
}

/// The result, `[rows, heads, value_width]`.
pub fn attend(op: &CausalAttention, shape: Shape, given: &Operands<'_>) -> Vec<f32> {
    let Shape { rows, heads, key_width, value_width, .. } = shape;
    let mut result = vec![0.0; rows * heads * value_width];
    let mut weights = Vec::new();
    for head in 0..heads {
        let of_head = Head::new(op, shape, given, head);
        for row in 0..rows {
            let at = row * heads + head;
            of_head.weights(&given.query[at * key_width..][..key_width], row, &mut weights);
            let out = &mut result[at * value_width..][..value_width];
            for (out, numbers) in out.iter_mut().zip(of_head.values.chunks_exact(rows)) {
                *out = dot(&weights, &numbers[of_head.first(row)..=row]);
            }
        }
    }
    result
}

/// Gradients of queries, keys and values by that of the result.
pub fn attend_back(
    op: &CausalAttention,
    shape: Shape,
    given: &Operands<'_>,
    [result, slope]: [&[f32]; 2],
) -> Gradients {
    let Shape { rows, heads, kv_heads, key_width, value_width } = shape;
    let mut of = Gradients {
        query: vec![0.0; given.query.len()],
        key: vec![0.0; given.key.len()],
        value: vec![0.0; given.value.len()],
    };
    let (mut weights, mut slopes) = (Vec::new(), Vec::new());
    for head in 0..heads {
        let of_head = Head::new(op, shape, given, head);
        let kv = head / (heads / kv_heads).max(1);
        let mut keys = vec![0.0; key_width * rows];
        let mut values = vec![0.0; value_width * rows];
        for row in 0..rows {
            let at = row * heads + head;
            let (query, first) = (&given.query[at * key_width..][..key_width], of_head.first(row));
            let place = at * value_width..(at + 1) * value_width;
            let (slope, result) = (&slope[place.clone()], &result[place]);
            of_head.weights(query, row, &mut weights);
            combined(slope, &of_head.values, rows, [first, row], &mut slopes);
            let own = slope.iter().zip(result).fold(0.0, |sum, (g, o)| sum + g * o);
            for (slope, weight) in slopes.iter_mut().zip(&weights) {
                *slope = op.scale * weight * (*slope - own);
            }
            let out = &mut of.query[at * key_width..][..key_width];
            for (out, numbers) in out.iter_mut().zip(of_head.keys.chunks_exact(rows)) {
                *out = dot(&slopes, &numbers[first..=row]);
            }
            for (number, of_keys) in query.iter().zip(keys.chunks_exact_mut(rows)) {
                add_scaled(&mut of_keys[first..=row], *number, &slopes);
            }
            for (number, of_values) in slope.iter().zip(values.chunks_exact_mut(rows)) {
                add_scaled(&mut of_values[first..=row], *number, &weights);
            }
        }
        add_turned(&keys, &mut of.key, kv, [rows, kv_heads, key_width]);
        add_turned(&values, &mut of.value, kv, [rows, kv_heads, value_width]);
    }
    of
}

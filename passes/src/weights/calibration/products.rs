//! Products over the rows of a text: of rows and weights, and of rows with rows.
//!
//! A strip of results is kept in sums while the rows that make it up run by; that is all the art
//! here, for the same bits on every machine matter more than its last speed. Sums over a window are
//! single precision, sums over windows double.

use rayon::prelude::*;

/// Results that are summed together.
const STRIP: usize = 64;

/// Terms that are added in one go.
const TERMS: usize = 4;

/// `out[j] = Σ_k a(k) b[k * stride + j]` over `depth` terms; at most [`STRIP`] results.
fn combine(depth: usize, a: impl Fn(usize) -> f32, b: &[f32], stride: usize, out: &mut [f32]) {
    let width = out.len();
    let mut sums = [0.0f32; STRIP];
    let sums = &mut sums[..width];
    let row = |k: usize| &b[k * stride..][..width];
    let whole = depth / TERMS * TERMS;
    for k in (0..whole).step_by(TERMS) {
        let factors = [a(k), a(k + 1), a(k + 2), a(k + 3)];
        let rows = [row(k), row(k + 1), row(k + 2), row(k + 3)];
        for (j, sum) in sums.iter_mut().enumerate() {
            let (one, two) = (factors[0] * rows[0][j], factors[1] * rows[1][j]);
            let (three, four) = (factors[2] * rows[2][j], factors[3] * rows[3][j]);
            *sum += (one + two) + (three + four);
        }
    }
    for k in whole..depth {
        let factor = a(k);
        for (sum, b) in sums.iter_mut().zip(row(k)) {
            *sum += factor * b;
        }
    }
    out.copy_from_slice(sums);
}

/// `x Wᵀ` for rows x of several windows; the weight `[outputs, inputs]` row-major.
pub fn product(windows: &[&[f32]], weight: &[f32], [outputs, inputs]: [usize; 2]) -> Vec<Vec<f32>> {
    let mut results: Vec<Vec<f32>> =
        windows.iter().map(|x| vec![0.0; x.len() / inputs.max(1) * outputs]).collect();
    // Columns of the weight beside each other, a strip of outputs at a time.
    let mut strip = vec![0.0; inputs * STRIP];
    for first in (0..outputs).step_by(STRIP) {
        let width = STRIP.min(outputs - first);
        for (k, place) in strip.chunks_exact_mut(STRIP).enumerate() {
            for (n, place) in place[..width].iter_mut().enumerate() {
                *place = weight[(first + n) * inputs + k];
            }
        }
        results.par_iter_mut().zip(windows).for_each(|(result, x)| {
            for (y, x) in result.chunks_exact_mut(outputs).zip(x.chunks_exact(inputs)) {
                combine(inputs, |k| x[k], &strip, STRIP, &mut y[first..first + width]);
            }
        });
    }
    results
}

/// `Σ x yᵀ` over the rows of all windows, `[width of x, width of y]`.
pub fn moments(windows: &[(&[f32], &[f32])], [across, along]: [usize; 2]) -> Vec<f64> {
    let mut sums = vec![0.0f64; across * along];
    sums.par_chunks_mut(along.max(1)).enumerate().for_each(|(i, sums)| {
        let mut part = [0.0f32; STRIP];
        for (x, y) in windows {
            for first in (0..along).step_by(STRIP) {
                let part = &mut part[..STRIP.min(along - first)];
                combine(x.len() / across, |t| x[t * across + i], &y[first..], along, part);
                for (sum, part) in sums[first..].iter_mut().zip(&*part) {
                    *sum += f64::from(*part);
                }
            }
        }
    });
    sums
}

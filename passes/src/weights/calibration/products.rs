//! Products over the rows of a text: of rows and weights, and of rows with rows.
//!
//! A strip of results is kept in sums while the terms that make it up run by, for two rows of results
//! beside each other. A sum has one written order, four terms at a time, and no fused steps, so its bits
//! do not depend on the machine, its vectors or its threads. Sums over a window are single precision,
//! sums over windows double.

use multiversion::multiversion;
use rayon::prelude::*;

/// Results that are summed together.
const STRIP: usize = 64;

/// Terms that are added in one go.
const TERMS: usize = 4;

/// Rows of results that share the strips of what is multiplied.
const ROWS: usize = 2;

/// A strip of results.
type Strip = [f32; STRIP];

/// `out[r][j] = Σ_k a[r][k] b[k][j]`, k ascending.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn combine(a: [&[f32]; ROWS], b: &[Strip], out: &mut [Strip; ROWS]) {
    *out = [[0.0; STRIP]; ROWS];
    let (quads, rest) = b.as_chunks::<TERMS>();
    let of_quads = a.map(|a| a.as_chunks::<TERMS>().0);
    for (k, rows) in quads.iter().enumerate() {
        for (out, factors) in out.iter_mut().zip(of_quads.map(|a| &a[k])) {
            for (j, sum) in out.iter_mut().enumerate() {
                let (one, two) = (factors[0] * rows[0][j], factors[1] * rows[1][j]);
                let (three, four) = (factors[2] * rows[2][j], factors[3] * rows[3][j]);
                *sum += (one + two) + (three + four);
            }
        }
    }
    for (k, row) in (quads.len() * TERMS..).zip(rest) {
        for (out, a) in out.iter_mut().zip(a) {
            for (sum, b) in out.iter_mut().zip(row) {
                *sum += a[k] * b;
            }
        }
    }
}

/// Calls `store` with every row of results and its number: `Σ_k a[r][k] b[k][j]`, where rows of `a` are
/// `depth` long.
fn combine_rows(a: &[f32], depth: usize, b: &[Strip], mut store: impl FnMut(usize, &Strip)) {
    let row = |r: usize| &a[r * depth..][..depth];
    let rows = a.len().checked_div(depth).unwrap_or(0);
    let mut out = [[0.0; STRIP]; ROWS];
    for first in (0..rows).step_by(ROWS) {
        // The last row stands for one that is not there.
        combine([row(first), row((first + 1).min(rows - 1))], b, &mut out);
        for (r, out) in (first..rows).zip(&out) {
            store(r, out);
        }
    }
}

/// `x Wᵀ` for rows x of several windows; the weight `[outputs, inputs]` row-major.
pub fn product(windows: &[&[f32]], weight: &[f32], [outputs, inputs]: [usize; 2]) -> Vec<Vec<f32>> {
    let mut results: Vec<Vec<f32>> =
        windows.iter().map(|x| vec![0.0; x.len() / inputs.max(1) * outputs]).collect();
    // Columns of the weight beside each other, a strip of outputs at a time.
    let mut strip = vec![[0.0; STRIP]; inputs];
    for first in (0..outputs).step_by(STRIP) {
        let width = STRIP.min(outputs - first);
        for (k, place) in strip.iter_mut().enumerate() {
            for (n, place) in place[..width].iter_mut().enumerate() {
                *place = weight[(first + n) * inputs + k];
            }
        }
        results.par_iter_mut().zip(windows).for_each(|(result, x)| {
            combine_rows(x, inputs, &strip, |r, sums| {
                result[r * outputs + first..][..width].copy_from_slice(&sums[..width]);
            });
        });
    }
    results
}

/// `Σ x yᵀ` over the rows of all windows, `[width of x, width of y]`.
pub fn moments(windows: &[(&[f32], &[f32])], [across, along]: [usize; 2]) -> Vec<f64> {
    let mut sums = vec![0.0f64; across * along];
    // Each thread has some columns of x.
    let columns = across.div_ceil(rayon::current_num_threads()).next_multiple_of(ROWS);
    sums.par_chunks_mut(columns * along.max(1)).enumerate().for_each(|(chunk, sums)| {
        let first_column = chunk * columns;
        let columns = sums.len() / along;
        let (mut turned, mut strip) = (Vec::new(), Vec::new());
        for (x, y) in windows {
            let rows = x.len() / across;
            turned.clear();
            for i in first_column..first_column + columns {
                turned.extend((0..rows).map(|t| x[t * across + i]));
            }
            for first in (0..along).step_by(STRIP) {
                let width = STRIP.min(along - first);
                strip.clear();
                strip.resize(rows, [0.0; STRIP]);
                for (place, y) in strip.iter_mut().zip(y.chunks_exact(along)) {
                    place[..width].copy_from_slice(&y[first..first + width]);
                }
                combine_rows(&turned, rows, &strip, |i, part| {
                    let sums = &mut sums[i * along + first..][..width];
                    for (sum, part) in sums.iter_mut().zip(part) {
                        *sum += f64::from(*part);
                    }
                });
            }
        }
    });
    sums
}

//! What calibration knows of a product's inputs: how the squared error of its results grows with an
//! error of its weights.
//!
//! For a row e of errors of a weight and inputs x, `Σ (e · x)² = e H eᵀ` with `H = Σ x xᵀ`. A small
//! multiple of the identity is added (inputs that the text never showed must not be free), which is
//! also the price of leaving the file's weights. H is factored as `U D Uᵀ`, U unit upper triangular,
//! from the last column to the first:
//!
//! `e H eᵀ = Σ_k D_k (e_k + Σ_{j<k} e_j U_jk)²`,
//!
//! so that, going through the columns in order, an error that is made already asks column k to move
//! by `Σ e_j U_jk`, and `D_k` is what missing that costs. This is the error feedback of Frantar et
//! al., *GPTQ*, in the form of Chee et al., *QuIP* (LDLQ), which needs no inverse.
//!
//! Rows of a weight are independent of each other and worked on [`LANES`] at a time, so that each row
//! of H is read once for all of them. Every sum has one written order.

use rayon::prelude::*;

/// Rows of a weight that are worked on together.
pub const LANES: usize = 8;

/// A number for each of those rows.
pub type Lanes = [f64; LANES];

/// Added to the diagonal, in parts of its mean.
pub const DAMPING: f64 = 0.05;

/// Rows of a matrix that a thread takes at least, where a row is little work.
const GRAIN: usize = 32;

/// The inputs of a product, as far as its weights are concerned.
pub struct Curvature {
    size: usize,
    /// H, symmetric, row-major.
    moments: Vec<f64>,
    /// U, row-major; what is not above the diagonal is zero.
    factor: Vec<f64>,
    /// D.
    pivots: Vec<f64>,
}

impl Curvature {
    /// Factors sums of products of inputs, `size` by `size`. `None` if one is not finite.
    pub fn new(mut moments: Vec<f64>, size: usize) -> Option<Curvature> {
        debug_assert_eq!(moments.len(), size * size);
        let mean = (0..size).map(|k| moments[k * size + k]).sum::<f64>() / size.max(1) as f64;
        // Inputs that are all zero ask for nothing: any positive number gives rounding to nearest.
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        if !mean.is_finite() {
            return None;
        }
        for k in 0..size {
            moments[k * size + k] += damping;
        }
        let (factor, pivots) = factored(&moments, size)?;
        Some(Curvature { size, moments, factor, pivots })
    }

    /// Number of inputs.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What missing the wanted value costs, per column.
    pub fn pivots(&self) -> &[f64] {
        &self.pivots
    }

    /// Row k of H.
    pub fn moments(&self, k: usize) -> &[f64] {
        &self.moments[k * self.size..][..self.size]
    }

    /// Goes through the columns in order. `choose` gets a column and by how much the errors of the
    /// columns before it ask each column from this one on to move; it returns the error that this
    /// column then has. The sum of all costs is returned.
    pub fn follow(&self, mut choose: impl FnMut(usize, &[Lanes]) -> Lanes) -> Lanes {
        let mut asked = vec![[0.0; LANES]; self.size];
        let mut cost = [0.0; LANES];
        for k in 0..self.size {
            let error = choose(k, &asked[k..]);
            for lane in 0..LANES {
                let missed = error[lane] + asked[k][lane];
                cost[lane] += self.pivots[k] * missed * missed;
            }
            let row = &self.factor[k * self.size..][..self.size];
            for (asked, factor) in asked[k + 1..].iter_mut().zip(&row[k + 1..]) {
                add_scaled(asked, *factor, &error);
            }
        }
        cost
    }

    /// Replaces y by the solution x of `H x = y`.
    pub fn solve(&self, y: &mut [Lanes]) {
        let row = |k: usize| &self.factor[k * self.size..][..self.size];
        for k in (0..self.size).rev() {
            let mut sum = y[k];
            for (factor, later) in row(k)[k + 1..].iter().zip(&y[k + 1..]) {
                add_scaled(&mut sum, -factor, later);
            }
            y[k] = sum;
        }
        for (y, pivot) in y.iter_mut().zip(&self.pivots) {
            y.iter_mut().for_each(|y| *y /= pivot);
        }
        for k in 0..self.size {
            let known = y[k];
            for (factor, later) in row(k)[k + 1..].iter().zip(&mut y[k + 1..]) {
                add_scaled(later, -factor, &known);
            }
        }
    }
}

/// `sum += factor * x` in every lane.
pub fn add_scaled(sum: &mut Lanes, factor: f64, x: &Lanes) {
    for lane in 0..LANES {
        sum[lane] += factor * x[lane];
    }
}

/// U and D of a symmetric matrix; `None` if it is not positive, or holds what is not finite.
fn factored(moments: &[f64], size: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let mut rest = moments.to_vec();
    let mut pivots = vec![0.0; size];
    for k in (0..size).rev() {
        let (above, below) = rest.split_at_mut(k * size);
        let pivot = below[k];
        if !(pivot.is_finite() && pivot > 0.0) {
            return None;
        }
        pivots[k] = pivot;
        below[..k].iter_mut().for_each(|x| *x /= pivot);
        let column = &below[..k];
        // The lower triangle of what is left; a column of U lies in a row of it.
        above.par_chunks_mut(size).with_min_len(GRAIN).enumerate().for_each(|(i, row)| {
            let factor = pivot * column[i];
            for (x, u) in row[..=i].iter_mut().zip(column) {
                *x -= factor * u;
            }
        });
    }
    let mut factor = vec![0.0; size * size];
    factor.par_chunks_mut(size.max(1)).enumerate().for_each(|(i, row)| {
        for (j, u) in row.iter_mut().enumerate().skip(i + 1) {
            *u = rest[j * size + i];
        }
    });
    Some((factor, pivots))
}

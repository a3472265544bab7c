//! How results are judged.

use anyhow::{Result, bail};

use crate::golden::Rows;

/// Float32 arithmetic on any file: `|x - y| <= FLOAT + FLOAT |y|`. Two independent float32 systems
/// were measured 1e-5 to 3e-5 apart on the fixtures (logits have a standard deviation near 3); a
/// wrong mask, rotation, head map or scale moves logits by 1 or more.
pub const FLOAT: f32 = 1e-4;

/// Difference of two sets of rows.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    /// Largest absolute difference.
    pub largest: f32,
    /// Root of the mean square difference.
    pub root_mean_square: f32,
    /// Root of the mean square of the reference.
    pub reference: f32,
}

/// Measures how far `ours` is from `theirs`.
pub fn distance(ours: &Rows, theirs: &Rows) -> Result<Distance> {
    check_shape(ours, theirs)?;
    let mut largest = 0f32;
    let (mut square, mut reference) = (0f64, 0f64);
    for (x, y) in ours.values.iter().zip(&theirs.values) {
        if !x.is_finite() {
            bail!("{x} among the logits");
        }
        largest = largest.max((x - y).abs());
        square += f64::from(x - y).powi(2);
        reference += f64::from(*y).powi(2);
    }
    let count = theirs.values.len().max(1) as f64;
    Ok(Distance {
        largest,
        root_mean_square: (square / count).sqrt() as f32,
        reference: (reference / count).sqrt() as f32,
    })
}

/// Fails with the first place where `|x - y| > tolerance + tolerance |y|`.
pub fn close(what: &str, ours: &Rows, theirs: &Rows, tolerance: f32) -> Result<()> {
    check_shape(ours, theirs)?;
    for (index, (x, y)) in ours.values.iter().zip(&theirs.values).enumerate() {
        let allowed = tolerance + tolerance * y.abs();
        // A NaN is not within anything.
        let within = (x - y).abs() <= allowed;
        if !within {
            let (row, column) = (index / ours.width, index % ours.width);
            let all = distance(ours, theirs).map(|d| d.largest).unwrap_or(f32::NAN);
            bail!(
                "{what}: row {row} of {}, token {column}: {x}, expected {y} within {allowed:.2e}; \
                 largest difference {all:.2e}",
                ours.count()
            );
        }
    }
    Ok(())
}

/// Free-running tokens must be the best of the reference's rows. The rows were computed with `fed`
/// tokens, so the comparison ends where those leave the reference's own best (they come from the
/// file's own arithmetic), and at the first near tie: two best logits closer than twice the
/// tolerance.
pub fn same_greedy(ours: &[u32], fed: &[u32], steps: &Rows, tolerance: f32) -> Result<()> {
    for (index, (ours, fed)) in ours.iter().zip(fed).enumerate() {
        let mut best = [(f32::NEG_INFINITY, 0); 2];
        for (value, token) in steps.row(index).iter().zip(0..) {
            if *value > best[0].0 {
                best = [(*value, token), best[0]];
            } else if *value > best[1].0 {
                best[1] = (*value, token);
            }
        }
        let [(first, token), (second, _)] = best;
        if first - second < 2.0 * (tolerance + tolerance * first.abs()) {
            return Ok(());
        }
        if *ours != token {
            bail!("token {index} is {ours}, expected {token}");
        }
        if *fed != token {
            return Ok(());
        }
    }
    if ours.len() < fed.len() {
        bail!("{} tokens, expected {}", ours.len(), fed.len());
    }
    Ok(())
}

fn check_shape(ours: &Rows, theirs: &Rows) -> Result<()> {
    if ours.width != theirs.width || ours.values.len() != theirs.values.len() {
        bail!(
            "[{}, {}] logits, expected [{}, {}]",
            ours.count(),
            ours.width,
            theirs.count(),
            theirs.width
        );
    }
    Ok(())
}

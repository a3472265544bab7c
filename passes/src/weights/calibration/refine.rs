//! Moves codes by what the whole model's answers lose.
//!
//! Codes that give each product the least error on a text are many, and which of them are taken is
//! chance for the answers: errors of one layer add to those of others or take from them. Here the
//! divergence between the exact model's distribution of the next token, p, and the rounded one's, p̂,
//!
//! `L = Σ p (ln p - ln p̂)`, summed over the text,
//!
//! goes back through the graph ([`super::gradient`]) and asks every weight to move. With G the gradient
//! of the logarithm of a token that p̂ itself draws, by a result of output n, L grows with an error e of
//! the row as `½ s_n e H eᵀ`, where `s_n` is the mean of G² (Fisher's information) and H the inputs'
//! moments a token. So the wanted weight of each row, w*, moves by
//!
//! `-η H⁻¹ (Σ ∂L/∂w) / (s_n + mean s)`
//!
//! a token, where the mean keeps rows apart that matter to few tokens, and η is small because all layers
//! answer to the same loss at once. Codes and scales go after w*, by rounds of descent in the measure of
//! H ([`super::feedback`]); what a step does not reach adds up in w*. This is the straight-through
//! gradient of quantisation-aware training, in the metric of GPTQ.
//!
//! A part of the windows is held back: whenever all others have been seen once, the loss on these says
//! whether the turn was good. If not, its codes are given up and η gets smaller: how much layers answer for
//! each other differs from model to model. The best codes are kept, which may be those that were there
//! before.

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;
use weir_ir::interpret::Tensor;
use weir_ir::{Const, Constant, Graph, Value};

use super::attention::exponentials;
use super::feedback::Rounding;
use super::gradient::{Differentiable, Slope, Values, Weights, at};
use super::walk::{Movable, values_of};
use super::{Stage, Watch, products};
use crate::error::PassError;

/// η of the first turn.
const RATE: f64 = 0.01;
/// What becomes of it behind a turn that was too fast, whose codes are given up.
const SLOWER: f64 = 0.25;
/// Such turns behind which nothing more is tried.
const FAILURES: usize = 2;
/// A turn that leaves more of the loss is the last.
const ENOUGH: f64 = 0.98;
/// How often all windows are seen at most.
const TURNS: usize = 6;
/// Steps of a turn at least, where there are as many windows. The rate is shared by more.
const STEPS: usize = 8;
/// Numbers that are kept at a time, or those of one window: values of a batch.
const NUMBERS: usize = 1 << 26;
/// One of so many windows is held back.
const HELD_BACK: usize = 8;
/// Nats a token that are worth the work: weights of codes lose as much again by what is rounded besides.
const WORTH: f64 = 0.01;
/// Tokens without which steps are chance.
const LEAST_TOKENS: usize = 16_384;

/// The loss a token on the windows that are held back.
#[derive(Clone, Copy, Debug)]
pub struct Refined {
    /// With the codes that were there.
    pub before: f64,
    /// With those that are kept.
    pub after: f64,
}

/// Moves the codes of `movable` products, whose constants in `weights` are replaced. `None` if the graph
/// has something without a gradient, the text is too short or the loss is small: everything stays.
pub fn refine(
    graph: &Graph,
    windows: &[Vec<u32>],
    mut movable: Vec<Movable>,
    weights: &mut BTreeMap<Const, Constant>,
    watch: &Watch,
) -> Result<Option<Refined>, PassError> {
    let Some(model) = Differentiable::new(graph) else { return Ok(None) };
    let held_back: Vec<usize> = (0..windows.len()).skip(HELD_BACK - 1).step_by(HELD_BACK).collect();
    let seen: Vec<usize> = (0..windows.len()).filter(|index| !held_back.contains(index)).collect();
    let tokens = windows.iter().map(Vec::len).sum::<usize>();
    movable.retain(|product| readers(graph, product.constant) == 1);
    if held_back.is_empty() || tokens < LEAST_TOKENS || movable.is_empty() {
        return Ok(None);
    }
    let exact = Exact::new(&model, windows)?;
    // Values of the rounded model, and beside its logits the exact ones and their gradient.
    let numbers = model.numbers()?.saturating_add(model.tokens()?.saturating_mul(2));
    let most_tokens = (NUMBERS / numbers.max(1)).max(1);
    let batches = |of: &[usize], least: usize| -> Vec<Batch> {
        let tokens: usize = of.iter().map(|index| windows[*index].len()).sum();
        let count = tokens.div_ceil(most_tokens).max(least).min(of.len());
        let of_batch = |batch: usize| of.iter().copied().skip(batch).step_by(count);
        (0..count).map(|batch| Batch::new(&exact, windows, of_batch(batch))).collect()
    };
    let (seen, held_back) = (batches(&seen, STEPS), batches(&held_back, 1));
    let steps = seen.len();

    let before = loss(&model, &held_back, weights)?;
    if before < WORTH {
        return Ok(None);
    }
    let mut kept = Kept::new(before, weights, &movable);
    let steepness = steepness(&model, &seen[0], weights, &movable)?;
    let mut rate = RATE * STEPS.min(steps) as f64 / steps as f64;
    let mut failures = 0;
    for turn in 0..TURNS {
        for (step, batch) in seen.iter().enumerate() {
            watch.at(Stage::Refining, turn * steps + step, TURNS * steps);
            let gradients = gradients(&model, batch, weights, &movable)?;
            // H is a sum over all tokens, the gradient one over the batch.
            let rate = rate * tokens as f64 / batch.tokens() as f64;
            for (product, (gradient, steepness)) in
                movable.iter_mut().zip(gradients.iter().zip(&steepness))
            {
                let steps: Vec<f64> = steepness.iter().map(|steepness| rate / steepness).collect();
                product.rounding.descend_along(&product.inputs.curvature, gradient, &steps);
                if let Some(constant) = product.rounding.constant() {
                    weights.insert(product.constant, constant);
                }
            }
        }
        let now = loss(&model, &held_back, weights)?;
        let best = kept.loss;
        // A loss that is no number is not less.
        if now < best {
            kept = Kept::new(now, weights, &movable);
            if now > ENOUGH * best {
                break;
            }
        } else {
            kept.restore(weights, &mut movable);
            rate *= SLOWER;
            failures += 1;
            if failures == FAILURES {
                break;
            }
        }
    }
    let after = kept.loss;
    *weights = kept.weights;
    Ok(Some(Refined { before, after }))
}

/// The best codes so far.
struct Kept {
    loss: f64,
    weights: BTreeMap<Const, Constant>,
    roundings: Vec<Rounding>,
}

impl Kept {
    fn new(loss: f64, weights: &BTreeMap<Const, Constant>, movable: &[Movable]) -> Kept {
        let roundings = movable.iter().map(|product| product.rounding.clone()).collect();
        Kept { loss, weights: weights.clone(), roundings }
    }

    fn restore(&self, weights: &mut BTreeMap<Const, Constant>, movable: &mut [Movable]) {
        weights.clone_from(&self.weights);
        for (product, rounding) in movable.iter_mut().zip(&self.roundings) {
            product.rounding.clone_from(rounding);
        }
    }
}

/// How many operands of nodes are a constant.
fn readers(graph: &Graph, constant: Const) -> usize {
    let body = &graph.main;
    let is_constant = |value: &&Value| super::walk::constant_of(body, **value) == Some(constant);
    body.live().map(|(_, node)| node.operands.iter().filter(is_constant).count()).sum()
}

/// The rows that the last product reads in the exact model, of all windows.
struct Exact {
    value: Value,
    rows: Vec<Tensor>,
}

impl Exact {
    fn new(model: &Differentiable<'_>, windows: &[Vec<u32>]) -> Result<Exact, PassError> {
        let value =
            model.last_rows().ok_or_else(|| PassError::internal("no product".to_owned()))?;
        let mut rows = Vec::new();
        values_of(model.graph(), &HashSet::from([value]), windows, |_, tensors| {
            rows = tensors.to_vec();
            Ok(())
        })?;
        Ok(Exact { value, rows })
    }
}

/// Some windows.
struct Batch {
    windows: Vec<Vec<u32>>,
    /// What the last product reads in the exact model.
    exact: Values,
}

impl Batch {
    fn new(
        exact: &Exact,
        windows: &[Vec<u32>],
        numbers: impl Iterator<Item = usize> + Clone,
    ) -> Batch {
        let rows = numbers.clone().map(|index| exact.rows[index].clone()).collect();
        Batch {
            windows: numbers.map(|index| windows[index].clone()).collect(),
            exact: HashMap::from([(exact.value, rows)]),
        }
    }

    fn tokens(&self) -> usize {
        self.windows.iter().map(Vec::len).sum()
    }

    /// The values of the rounded model.
    fn forwards(
        &self,
        model: &Differentiable<'_>,
        weights: &BTreeMap<Const, Constant>,
    ) -> Result<Values, PassError> {
        let rounded = Weights { graph: model.graph(), chosen: Some(weights) };
        model.forwards(&rounded, &self.windows, Values::new())
    }

    /// L of each window and its gradient by the rounded model's logits.
    fn divergences(
        &self,
        model: &Differentiable<'_>,
        values: &Values,
    ) -> Result<Vec<(f64, Vec<f32>)>, PassError> {
        let exact = Weights { graph: model.graph(), chosen: None };
        let of_exact = model.forwards(&exact, &self.windows, self.exact.clone())?;
        let [exact, rounded] = [&of_exact, values].map(|values| at(values, model.logits()));
        let windows = exact?.par_iter().zip(rounded?);
        windows.map(|(exact, rounded)| divergence(exact, rounded)).collect()
    }
}

/// The softmax of a row of logits, and the logarithm of its denominator.
fn softmax(logits: &[f32], out: &mut Vec<f32>) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.clear();
    out.extend_from_slice(logits);
    exponentials(out, greatest);
    let sum: f64 = out.iter().map(|p| f64::from(*p)).sum();
    let part = (1.0 / sum) as f32;
    out.iter_mut().for_each(|p| *p *= part);
    f64::from(greatest) + sum.ln()
}

/// Σ p (ln p - ln p̂) over rows of logits, and its gradient by the rounded ones: p̂ - p.
fn divergence(exact: &Tensor, rounded: &Tensor) -> Result<(f64, Vec<f32>), PassError> {
    let width = width_of(rounded);
    let (exact, rounded) = (exact.f32s()?, rounded.f32s()?);
    let (mut sum, mut slope) = (0.0, Vec::with_capacity(rounded.len()));
    let (mut p, mut q) = (Vec::new(), Vec::new());
    for (exact, rounded) in exact.chunks_exact(width).zip(rounded.chunks_exact(width)) {
        let by = softmax(exact, &mut p) - softmax(rounded, &mut q);
        let terms = exact.iter().zip(rounded).zip(&p);
        let more = terms.fold(0.0, |sum, ((x, y), p)| sum + f64::from(*p) * f64::from(x - y));
        sum += more - by;
        slope.extend(q.iter().zip(&p).map(|(q, p)| q - p));
    }
    Ok((sum, slope))
}

/// Numbers of a row of logits.
fn width_of(logits: &Tensor) -> usize {
    logits.sizes().last().copied().unwrap_or(0).max(1)
}

/// L, a token.
fn loss(
    model: &Differentiable<'_>,
    batches: &[Batch],
    weights: &BTreeMap<Const, Constant>,
) -> Result<f64, PassError> {
    let mut sum = 0.0;
    for batch in batches {
        let of_windows = batch.divergences(model, &batch.forwards(model, weights)?)?;
        sum += of_windows.iter().map(|(divergence, _)| divergence).sum::<f64>();
    }
    Ok(sum / batches.iter().map(Batch::tokens).sum::<usize>() as f64)
}

/// The same on other windows.
#[cfg(test)]
pub fn loss_on(
    model: &Differentiable<'_>,
    windows: &[Vec<u32>],
    weights: &BTreeMap<Const, Constant>,
) -> Result<f64, PassError> {
    let batch = Batch::new(&Exact::new(model, windows)?, windows, 0..windows.len());
    loss(model, &[batch], weights)
}

/// Goes back from the logits and tells `see` the place, inputs and gradient of every movable product.
fn backwards(
    model: &Differentiable<'_>,
    weights: &BTreeMap<Const, Constant>,
    movable: &[Movable],
    (values, of_logits): (&Values, Slope),
    mut see: impl FnMut(usize, &[Tensor], &Slope) -> Result<(), PassError>,
) -> Result<(), PassError> {
    let rounded = Weights { graph: model.graph(), chosen: Some(weights) };
    model.backwards(&rounded, values, of_logits, |node, x, slope| {
        match movable.iter().position(|product| product.node == node) {
            Some(place) => see(place, x, slope),
            None => Ok(()),
        }
    })
}

/// Σ ∂L/∂w of every movable product, `[outputs, inputs]`.
fn gradients(
    model: &Differentiable<'_>,
    batch: &Batch,
    weights: &BTreeMap<Const, Constant>,
    movable: &[Movable],
) -> Result<Vec<Vec<f64>>, PassError> {
    let values = batch.forwards(model, weights)?;
    let of_windows = batch.divergences(model, &values)?;
    let of_logits = of_windows.into_iter().map(|(_, slope)| slope).collect();
    let mut found = vec![Vec::new(); movable.len()];
    backwards(model, weights, movable, (&values, of_logits), |place, x, slope| {
        let x = x.iter().map(Tensor::f32s).collect::<Result<Vec<_>, _>>()?;
        let pairs: Vec<(&[f32], &[f32])> =
            slope.iter().zip(&x).map(|(slope, x)| (slope.as_slice(), x.as_slice())).collect();
        found[place] = products::moments(&pairs, movable[place].rounding.sizes());
        Ok(())
    })?;
    Ok(found)
}

/// `s_n + mean s` of every row of every movable product.
fn steepness(
    model: &Differentiable<'_>,
    batch: &Batch,
    weights: &BTreeMap<Const, Constant>,
    movable: &[Movable],
) -> Result<Vec<Vec<f64>>, PassError> {
    let values = batch.forwards(model, weights)?;
    let mut of_logits = Slope::new();
    let mut chance = Chance(1);
    for logits in at(&values, model.logits())? {
        let width = width_of(logits);
        let (logits, mut q) = (logits.f32s()?, Vec::new());
        let mut slope = Vec::with_capacity(logits.len());
        for row in logits.chunks_exact(width) {
            softmax(row, &mut q);
            let drawn = chance.draw(&q);
            q[drawn] -= 1.0;
            slope.extend_from_slice(&q);
        }
        of_logits.push(slope);
    }
    let mut found: Vec<Vec<f64>> =
        movable.iter().map(|product| vec![0.0; product.rounding.sizes()[0]]).collect();
    backwards(model, weights, movable, (&values, of_logits), |place, _, slope| {
        let sums = &mut found[place];
        let outputs = sums.len();
        for row in slope.iter().flat_map(|slope| slope.chunks_exact(outputs)) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(x * x));
        }
        Ok(())
    })?;
    for sums in &mut found {
        sums.iter_mut().for_each(|sum| *sum /= batch.tokens() as f64);
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        // Results that nothing depends on ask for nothing, whatever they are divided by.
        let mean = if mean > 0.0 { mean } else { 1.0 };
        sums.iter_mut().for_each(|sum| *sum += mean);
    }
    Ok(found)
}

/// Numbers that are the same in every run.
struct Chance(u64);

impl Chance {
    /// A token by its probability.
    fn draw(&mut self, probabilities: &[f32]) -> usize {
        // Knuth's linear congruential generator; its upper bits are as good as is needed.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut left = (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        for (token, probability) in probabilities.iter().enumerate() {
            left -= f64::from(*probability);
            if left < 0.0 {
                return token;
            }
        }
        probabilities.len().saturating_sub(1)
    }
}

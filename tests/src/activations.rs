//! The arithmetic of int8 and bf16 activations by its definition, and the bounds of its error and of
//! that of caches of 16 bits and of codes; all are those of `docs/numerics.md`, which derives them.

mod apart;

use std::f64::consts::LN_2;

use std::fmt;

use anyhow::{Result, bail};
use weir_ir::graph::{CacheDecl, CacheFormat};
use weir_ir::interpret::Rounding;
use weir_ir::interpret::codes::{LEVELS, TILE};
use weir_ir::{ConstData, Constant, DType, Element, Graph, Op, TensorType};

use crate::compare::{Distance, FLOAT, close, distance};
use crate::golden::Rows;
use crate::systems::System;

use self::apart::{Apart, values_of_a_row};

/// Chance that a model without a fault exceeds a bound of one prompt's rows, if errors are normal.
const FALSE_ALARM: f64 = 1e-6;

/// How much more than expected the root mean square may be: room for attention that is sharper than
/// assumed, and for rows of a prompt that share their errors.
const MARGIN: f64 = 2.0;

/// Deviation of the scores of an attention whose rotation only turns, as assumed.
const SCORES: f64 = 1.0;

/// Gain of a gated MLP on the squared relative error of its input.
const MLP_GAIN: f64 = 2.0;

/// Prompts of three tokens that two systems of the same rounding are compared on.
pub const PROMPTS: usize = 5;

/// Tokens of a prompt that two systems with rounded caches are compared on: few, so that in many
/// prompts nothing rounds apart, and enough that a key meets another row's query.
const STORED_TOKENS: usize = 2;

/// Half the distance from 1 to the next float.
const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// How many of some prompts two systems agree on, and must.
#[derive(Clone, Copy, Debug)]
pub struct Agreement {
    /// Prompts with the same logits within float32.
    pub agree: usize,
    /// Prompts.
    pub prompts: usize,
    /// The least number that must agree.
    pub needed: usize,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Agreement { agree, prompts, needed } = self;
        write!(f, "{agree} of {prompts} prompts agree, {needed} are needed")
    }
}

/// An arithmetic of products by its definition.
#[derive(Clone, Copy)]
pub struct Arithmetic {
    /// `--compute`, or what suits the weights.
    pub compute: Option<weir::ComputeOption>,
    /// What it does to a row in front of a product.
    pub rounding: Rounding,
    /// The bound of a model's error; `None` where the arithmetic is float32.
    pub bound: fn(&Graph) -> Result<Option<Bound>>,
}

/// The default of each weight format.
pub const OWN: Arithmetic =
    Arithmetic { compute: None, rounding: round_activations, bound: Bound::of };

/// One scale a row.
pub const BY_ROW: Arithmetic = Arithmetic {
    compute: Some(weir::ComputeOption::Int8Row),
    rounding: round_by_row,
    bound: Bound::of_rows,
};

/// Elements of a block of int8 activations: the largest part of a weight's block of at most 64
/// elements, in sixteens, or of at most 32 where scales are powers of two.
pub fn block(weight: &TensorType) -> Option<usize> {
    let Element::Quant(format) = weight.element else { return None };
    let most = if format.short { 2 } else { 4 };
    (1..=most).rev().map(|n| 16 * n).find(|part| (format.block as usize).is_multiple_of(*part))
}

/// Rounds a row that enters a product with this weight: the default arithmetic of its format.
pub fn round_activations(weight: &TensorType, row: &mut [f32]) {
    match (block(weight), weight.element) {
        (Some(block), _) if has_powers(weight) => row.chunks_mut(block).for_each(to_powers),
        (Some(block), _) => row.chunks_mut(block).for_each(to_int8),
        (None, Element::Plain(DType::BF16)) => row.iter_mut().for_each(|x| *x = to_bf16(*x)),
        _ => {}
    }
}

/// Rounds a row that enters a product with this weight by one scale, where the weight has codes.
pub fn round_by_row(weight: &TensorType, row: &mut [f32]) {
    match block(weight) {
        Some(_) => to_int8(row),
        None => round_activations(weight, row),
    }
}

/// Whether scales of activations in front of a product with this weight are powers of two.
fn has_powers(weight: &TensorType) -> bool {
    matches!(weight.element, Element::Quant(format) if format.short)
}

/// Units that the largest of the activations that share a scale has, and of a row in an int8 cache.
const UNITS: f32 = 120.1;
const STORED_UNITS: f64 = 127.0;
/// Units that it has at most where scales are powers of two, and half of which at least.
const GREATEST_UNITS: f32 = 120.5;

/// Numbers that share a scale.
fn to_int8(numbers: &mut [f32]) {
    let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let inverse = if largest > 1e-30 { UNITS / largest } else { 0.0 };
    for x in numbers {
        *x = (*x * inverse).round_ties_even() * (largest / UNITS);
    }
}

/// Numbers that share a scale which is a power of two; the values here are of ordinary sizes.
fn to_powers(numbers: &mut [f32]) {
    let largest = numbers.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    if largest > 0.0 {
        let scale = 2f32.powi((largest / GREATEST_UNITS).log2().ceil() as i32);
        numbers.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
    }
}

/// To nearest even with 8 significant bits; the values here are finite.
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let even = (bits >> 16) & 1;
    f32::from_bits((bits + 0x7fff + even) & 0xffff_0000)
}

/// Error of rounded activations against float32, as the model's weights let expect it.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Root mean square of a prompt's errors in parts of its logits'.
    pub relative: f64,
    /// Norm of each logit's weights in parts of their root mean square.
    norms: Vec<f64>,
    /// Keys and values of a token.
    stored: usize,
    /// The part that a bf16 cache's rounded weights have in what caches add to attention.
    weights: f64,
    /// What two systems are expected to round apart.
    apart: Apart,
}

impl Bound {
    /// The bound of a graph at stage `Fixed`; `None` where the default arithmetic is float32.
    pub fn of(graph: &Graph) -> Result<Option<Bound>> {
        Bound::with_scales(graph, block)
    }

    /// The bound of a graph at stage `Fixed` whose activations have one scale a row where weights have
    /// codes: a block is then as long as the row.
    pub fn of_rows(graph: &Graph) -> Result<Option<Bound>> {
        Bound::with_scales(graph, |weight| {
            block(weight)?;
            weight.sizes()?.last().copied()
        })
    }

    /// The bound, if so many activations share a scale in front of a product with a weight.
    fn with_scales(
        graph: &Graph,
        numbers: fn(&TensorType) -> Option<usize>,
    ) -> Result<Option<Bound>> {
        let mut input_error = 0f64;
        let weights = graph.constants.iter().map(|(_, constant)| &constant.ty);
        for weight in weights.filter(|ty| ty.shape.len() == 2) {
            let error = match (numbers(weight), weight.element) {
                // Of powers of two the root mean square, in parts of the least, of numbers whose
                // logarithms are even: √∫ 4ᵗ dt from 0 to 1.
                (Some(numbers), _) if has_powers(weight) => {
                    code_error(numbers, f64::from(GREATEST_UNITS)) * (1.5 / LN_2).sqrt()
                }
                (Some(numbers), _) => code_error(numbers, f64::from(UNITS)),
                (None, Element::Plain(DType::BF16)) => 1.0 / 256.0 / 3f64.sqrt(),
                _ => continue,
            };
            input_error = input_error.max(error);
        }
        let mut weight_error = 0f64;
        for (_, constant) in graph.constants.iter() {
            weight_error = weight_error.max(rounding_error(constant));
        }
        let is_rounded = |cache: &CacheDecl| attention_error(cache, SCORES) > 0.0;
        if input_error == 0.0 && weight_error == 0.0 && !graph.caches.values().any(is_rounded) {
            return Ok(None);
        }
        // Rounded weights add an error to every product, as rounded activations do; a rounded table
        // of embeddings is one at the beginning of the stream.
        let product = input_error.hypot(weight_error).powi(2);
        let start = if weight_error > 0.0 { product } else { 0.0 };
        Bound::accumulated(graph, start, product).map(Some)
    }

    /// The bound of a graph at stage `Fixed` whose products are computed in float32: that of its
    /// caches alone.
    pub fn of_caches(graph: &Graph) -> Result<Bound> {
        let mut bound = Bound::accumulated(graph, 0.0, 0.0)?;
        bound.apart.activations = 0.0;
        Ok(bound)
    }

    fn accumulated(graph: &Graph, start: f64, product: f64) -> Result<Bound> {
        let scores = SCORES * rotary_factor(graph)?;
        let caches = graph.caches.values().map(|cache| attention_error(cache, scores));
        let cache = caches.fold(0.0, f64::max);
        let error = accumulated(graph.caches.len(), scores, start, product, cache);
        Ok(Bound {
            relative: MARGIN * error.sqrt(),
            norms: head_norms(graph)?,
            stored: graph.caches.values().map(values_of_a_row).sum(),
            // Of 2 (1 + σ²) δ² one δ².
            weights: match graph.caches.values().any(|cache| cache.format == CacheFormat::BF16) {
                true => 0.5 / (1.0 + scores.powi(2)),
                false => 0.0,
            },
            apart: Apart::expected(graph),
        })
    }

    /// What two systems may differ by that both round to caches of 16 bits, for `rows` tokens: so
    /// many values near the middle of two numbers go either way as chance allows; over bf16 queries and
    /// weights, too. Behind a tile all weights do, which are rounded beside other maxima.
    pub fn between_systems(&self, rows: usize) -> Bound {
        let values = (rows * self.stored) as f64;
        let expected = Apart { activations: 0.0, ..self.apart }.of(rows);
        let few = 12.0 * f64::from(most_events(expected)) / values;
        let many = if rows > TILE { 2.0 * self.weights } else { 0.0 };
        let share = few + many;
        Bound { relative: self.relative * share.sqrt(), ..self.clone() }
    }

    /// Systems that round activations, store keys and values and attend alike agree within float32,
    /// but where a number that is rounded lies so near to the middle of two that the order of sums
    /// decides. Of short prompts so many must agree that fewer are a false alarm.
    pub fn same_storing(
        &self,
        ours: &mut dyn System,
        defined: &mut dyn System,
        ids: &[u32],
    ) -> Result<Agreement> {
        let chance = (-self.apart.of(STORED_TOKENS)).exp();
        let prompts = ids.chunks_exact(STORED_TOKENS);
        agreement(chance, prompts, |ids| {
            let (found, wanted) = (ours.logits(ids, &ids[..1])?, defined.logits(ids, &ids[..1])?);
            Ok(close("against the definition", &found.prefill, &wanted.prefill, FLOAT).err())
        })
    }

    /// The same question about prompts of so many tokens, asked of the row of the last one and of one
    /// step behind it. For a model of one layer and products in float32: what other rows round, but
    /// for their keys and values, does not reach these two.
    pub fn same_attending(
        &self,
        ours: &mut dyn System,
        defined: &mut dyn System,
        ids: &[u32],
        tokens: usize,
    ) -> Result<Agreement> {
        let Apart { stored, queries, weights, .. } = self.apart;
        let read = (tokens + 1) as f64;
        let chance = (-read * stored - 2.0 * (queries + read * weights)).exp();
        agreement(chance, ids.windows(tokens), |ids| {
            let (found, wanted) = (ours.logits(ids, &ids[..2])?, defined.logits(ids, &ids[..2])?);
            Ok(close("against the definition", &found.steps, &wanted.steps, FLOAT).err())
        })
    }

    /// The same of a cache with a block of codes and a ring of 16 bits, whose own bound is `ring`: in
    /// every prompt some values of the ring go the other way, and most agree but for these.
    pub fn same_block(
        &self,
        ring: &Bound,
        ours: &mut dyn System,
        defined: &mut dyn System,
        (ids, tokens): (&[u32], usize),
    ) -> Result<Agreement> {
        let block = self.apart.stored - ring.apart.stored;
        let chance = (-((tokens + 1) as f64) * block).exp();
        let apart = ring.between_systems(tokens + 1);
        agreement(chance, ids.windows(tokens), |ids| {
            let (found, wanted) = (ours.logits(ids, &ids[..2])?, defined.logits(ids, &ids[..2])?);
            Ok(apart.check("against the definition", &found.steps, &wanted.steps).err())
        })
    }

    /// Judges rows of logits against float32: all together, each row, each logit.
    pub fn check(&self, what: &str, ours: &Rows, exact: &Rows) -> Result<Distance> {
        let all = distance(ours, exact)?;
        let allowed = self.relative * f64::from(all.reference);
        let found = f64::from(all.root_mean_square);
        if found > allowed {
            bail!("{what}: root mean square {found:.4}, allowed {allowed:.4}");
        }
        let (rows, width) = (exact.count() as f64, exact.width as f64);
        let row_factor = (2.0 * (rows / FALSE_ALARM).ln()).sqrt();
        let factor = (2.0 * (rows * width / FALSE_ALARM).ln()).sqrt();
        for index in 0..exact.count() {
            let (ours, exact) = (ours.row(index), exact.row(index));
            let row = distance(&Rows::single(ours), &Rows::single(exact))?;
            let found = f64::from(row.root_mean_square);
            let allowed = row_factor * self.relative * f64::from(row.reference);
            if found > allowed {
                bail!("{what}, row {index}: root mean square {found:.4}, allowed {allowed:.4}");
            }
            for (token, (x, y)) in ours.iter().zip(exact).enumerate() {
                let norm = self.norms.get(token).copied().unwrap_or(1.0);
                let error = f64::from((x - y).abs());
                // A row that is all but exact has no spread to compare with.
                let allowed = factor * norm * found + 1e-4 * f64::from(row.reference);
                if error > allowed {
                    bail!(
                        "{what}, row {index}, token {token}: off by {error:.4}, allowed {allowed:.4} \
                         where the row's root mean square is {found:.4}"
                    );
                }
            }
        }
        Ok(all)
    }
}

/// On how many prompts two systems agree that round all alike with this chance; what they differ by is
/// asked for each.
fn agreement<'p>(
    chance: f64,
    prompts: impl ExactSizeIterator<Item = &'p [u32]>,
    mut apart: impl FnMut(&'p [u32]) -> Result<Option<anyhow::Error>>,
) -> Result<Agreement> {
    let needed = least_events(prompts.len(), chance);
    let mut result = Agreement { agree: 0, prompts: prompts.len(), needed };
    if result.needed == 0 {
        bail!("{} prompts are too few to tell", result.prompts);
    }
    let mut difference = None;
    for ids in prompts {
        match apart(ids)? {
            None => result.agree += 1,
            found => difference = found,
        }
    }
    match difference {
        Some(error) if result.agree < result.needed => Err(error.context(format!("{result}"))),
        _ => Ok(result),
    }
}

/// Systems that round activations alike agree within float32, but for prompts in which an activation
/// lies so near to the middle of two codes that the order of sums decides: most of the prompts agree
/// (the document derives how rare the others are). Returns how many do not.
pub fn same_rounding(
    ours: &mut dyn System,
    defined: &mut dyn System,
    prompt: &[u32],
) -> Result<usize> {
    let mut differences = Vec::new();
    for ids in prompt.chunks_exact(3).take(PROMPTS) {
        let (found, wanted) = (ours.logits(ids, &ids[..1])?, defined.logits(ids, &ids[..1])?);
        let what = format!("{} against the definition", ours.name());
        if let Err(difference) = close(&what, &found.prefill, &wanted.prefill, FLOAT) {
            differences.push(difference);
        }
    }
    let count = differences.len();
    match differences.pop() {
        Some(difference) if 2 * count > PROMPTS => Err(difference),
        _ => Ok(count),
    }
}

/// Root mean square of what rounding changed in a weight that weir rounds, in parts of the weight's;
/// the largest of a stack. 0 for weights as they are in the file.
pub fn rounding_error(constant: &Constant) -> f64 {
    match &constant.data {
        ConstData::Stacked(parts) => parts.iter().map(rounding_error).fold(0.0, f64::max),
        ConstData::Rounded(source) => {
            let (Some(found), Some(exact)) = (constant.elements_f32(), source.elements_f32())
            else {
                return 0.0;
            };
            let error: f64 = found.iter().zip(&exact).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            let size: f64 = exact.iter().map(|x| f64::from(*x).powi(2)).sum();
            if size > 0.0 { (error / size).sqrt() } else { 0.0 }
        }
        ConstData::Dense { .. } | ConstData::Quantised(_) => 0.0,
    }
}

/// Squared error that a cache adds to what attention gives, in parts of the result's square: those of
/// values reach it as they are, those of keys (and queries) move scores of this deviation.
fn attention_error(cache: &CacheDecl, scores: f64) -> f64 {
    let [key, value] = [cache.key_width, cache.value_width].map(|width| {
        let error = |format| match format {
            CacheFormat::I8 => code_error(width as usize, STORED_UNITS).powi(2),
            CacheFormat::I4 => level_error(width as usize).powi(2),
            format => stored_error(format).powi(2),
        };
        // A row of a block with its own format has been rounded to the ring's before or after.
        error(cache.format) + cache.block.map_or(0.0, error)
    });
    let (query, weights) = match cache.format {
        CacheFormat::I8 | CacheFormat::I4 => (
            code_error(cache.key_width as usize, STORED_UNITS).powi(2),
            TILE as f64 / (12.0 * 255f64.powi(2)),
        ),
        CacheFormat::BF16 => {
            let error = stored_error(CacheFormat::BF16).powi(2);
            (error, error)
        }
        CacheFormat::F32 | CacheFormat::F16 => (0.0, 0.0),
    };
    value + scores.powi(2) * (key + query) + weights
}

/// Root mean square of what rounding changes in so many numbers, the largest of which has so many
/// units, in parts of theirs.
fn code_error(numbers: usize, units: f64) -> f64 {
    (2.0 * (2.0 * numbers as f64).ln()).sqrt() / (units * 12f64.sqrt())
}

/// Root mean square of what rounding to the levels of int4 changes in so many normal values, in parts
/// of theirs: the integral of the squared distance to the nearest level, times the density.
fn level_error(numbers: usize) -> f64 {
    const STEPS: u32 = 10_000;
    let largest = (2.0 * (2.0 * numbers as f64).ln()).sqrt();
    let step = largest / f64::from(STEPS);
    let square: f64 = (0..STEPS)
        .map(|index| {
            let x = (f64::from(index) + 0.5) * step;
            let apart = |level: i8| (x - f64::from(level) / STORED_UNITS * largest).abs();
            let apart = LEVELS.into_iter().map(apart).fold(f64::INFINITY, f64::min);
            apart.powi(2) * (-x * x / 2.0).exp()
        })
        .sum();
    (square * step * 2.0 / (2.0 * std::f64::consts::PI).sqrt()).sqrt()
}

/// Root mean square of what rounding to a number format of 16 bits changes, in parts of the value.
fn stored_error(format: CacheFormat) -> f64 {
    match format {
        CacheFormat::F16 => 1.0 / 2048.0 / 3f64.sqrt(),
        CacheFormat::BF16 => 1.0 / 256.0 / 3f64.sqrt(),
        _ => 0.0,
    }
}

/// The least number that a Poisson variable of this mean exceeds by a false alarm only.
fn most_events(mean: f64) -> u32 {
    let mut chance = (-mean).exp();
    let mut beyond = 1.0 - chance;
    let mut count = 0;
    while beyond > FALSE_ALARM {
        count += 1;
        chance *= mean / f64::from(count);
        beyond -= chance;
    }
    count
}

/// The most of `count` trials that fewer succeed in by a false alarm only, each with this chance.
fn least_events(count: usize, chance: f64) -> usize {
    let odds = chance / (1.0 - chance);
    let mut exactly = (1.0 - chance).powi(count as i32);
    let mut fewer = exactly;
    let mut events = 0;
    while fewer <= FALSE_ALARM && events < count {
        events += 1;
        exactly *= odds * (count + 1 - events) as f64 / events as f64;
        fewer += exactly;
    }
    events
}

/// What rotation multiplies a score by: 1, or cos² + sin² of tables that also scale.
fn rotary_factor(graph: &Graph) -> Result<f64> {
    let mut factor = 1f64;
    for (_, node) in graph.main.nodes.iter() {
        let Op::Layer(layer) = &node.op else { continue };
        let body = &graph.kinds[layer.kind].body;
        let table = |value| -> Result<Option<Vec<f32>>> {
            let Some(param) = body.params.iter().position(|param| param.value == value) else {
                return Ok(None);
            };
            let Some(index) = param.checked_sub(node.operands.len()) else { return Ok(None) };
            Ok(Some(graph.constants[layer.weights[index]].tensor()?.f32s()?.to_vec()))
        };
        for (_, rotary) in body.nodes.iter() {
            if !matches!(rotary.op, Op::RotaryRows(_)) {
                continue;
            }
            let [_, _, cos, sin] = rotary.operands[..] else { continue };
            let (Some(cos), Some(sin)) = (table(cos)?, table(sin)?) else { continue };
            for (cos, sin) in cos.iter().zip(&sin) {
                factor = factor.max(f64::from(*cos).powi(2) + f64::from(*sin).powi(2));
            }
        }
    }
    Ok(factor)
}

/// Squared relative error of the logits, from those of one product's input and of what a cache adds to
/// attention, and the deviation of scores: block i of the residual stream is 1 / (i + 1) of what it is
/// added to, and adds the error that it inherits, with its gain, that of the input of its second
/// product, and in attention that of the cache; the head adds one more.
fn accumulated(layers: usize, scores: f64, start: f64, product: f64, cache: f64) -> f64 {
    let mut error = start;
    let attention = (1.0 + 2.0 * scores.powi(2), cache);
    let blocks = [attention, (MLP_GAIN, 0.0)].into_iter().cycle();
    for (index, (gain, cache)) in blocks.take(2 * layers).enumerate() {
        let share = 1.0 / (index + 2) as f64;
        let block = gain * (error + product) + cache + product;
        error = (1.0 - share) * error + share * block;
    }
    error + product
}

/// Norms of the rows of the head's weight in parts of their root mean square; none where the logits
/// are no product.
fn head_norms(graph: &Graph) -> Result<Vec<f64>> {
    let main = &graph.main;
    let maker = |value| main.nodes.iter().find(|(_, node)| node.results.contains(&value));
    let mut products = main.nodes.iter().filter(|(_, node)| matches!(node.op, Op::Linear(_)));
    let Some((_, head)) = products.next_back() else { return Ok(Vec::new()) };
    let Some((_, weight)) = maker(head.operands[1]) else { return Ok(Vec::new()) };
    let Op::ReadConstant(read) = &weight.op else { return Ok(Vec::new()) };
    let weight = graph.constants[read.constant].tensor()?;
    let [channels, reduction] = *weight.sizes() else { return Ok(Vec::new()) };
    let values = weight.f32s()?;
    let squares: Vec<f64> = values
        .chunks(reduction)
        .map(|row| row.iter().map(|w| f64::from(*w).powi(2)).sum())
        .collect();
    let mean = squares.iter().sum::<f64>() / channels as f64;
    Ok(squares.iter().map(|square| (square / mean).sqrt()).collect())
}

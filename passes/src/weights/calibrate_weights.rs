//! Chooses the codes of rounded weights by what they do to a text.
//!
//! Before:  const c1: int4<block=32, scale=f16, zero=8>[N, K] = rounded f32[N, K] = ..
//! After:   const c1: int4<block=32, scale=f16, zero=8>[N, K] = codes, scales
//!
//! Needs: stage `Canonical`, weights rounded by `quantise-weights`, products with weights of their
//! own: a stack of weights would have one set of inputs, but a layer has not one set of weights.
//! Gives: weights of products in codes, of the same type; nothing else changes, so that kernels and
//! packed layout are those of any int4 file.
//!
//! Without a text nothing happens. A table that is embedding and head is a weight of the head's
//! product, and its codes give the embeddings too. Tables that are embeddings alone stay rounded to
//! nearest: a row that is looked up has no inputs that could count more than others.

use std::collections::BTreeSet;

use weir_ir::{Const, ConstData, Element, Graph, Node, Op};

use super::calibration::refine::{Refined, refine};
use super::calibration::walk::{Choice, Chosen, choose_codes, rounded_products};
use super::calibration::{Calibration, CalibrationError, RoundedWeights};
use super::format_name;
use crate::error::PassError;
use crate::registry::Change;

/// Most numbers of weights whose codes move by what the whole model loses, which holds some forty bytes for
/// each and takes some twenty passes over the text. Larger models have less to gain.
const MOST_REFINED: usize = 1 << 21;

/// Rewrites the graph; counts weights whose codes are chosen.
pub fn run(graph: &mut Graph, calibration: Option<&Calibration>) -> Result<Change, PassError> {
    let Some(calibration) = calibration else {
        return Ok(Change::default());
    };
    match choose(graph, calibration) {
        Err(error) if !calibration.is_asked_for && is_of_model(&error) => {
            let notes = vec![format!("rounded to nearest: {error}")];
            Ok(Change { count: 0, notes })
        }
        outcome => outcome,
    }
}

/// Whether it is the model that has no calibrated codes, not we that cannot choose them.
fn is_of_model(error: &PassError) -> bool {
    matches!(error, PassError::CalibrationText(_) | PassError::Calibration(_))
}

fn choose(graph: &mut Graph, calibration: &Calibration) -> Result<Change, PassError> {
    let products = rounded_products(&graph.main, graph);
    let Some(weights) = counted(graph, &products) else {
        return match calibration.is_asked_for {
            true => Err(nothing(graph).into()),
            false => Ok(Change::default()),
        };
    };
    let windows = calibration.text.windows(weights).map_err(PassError::CalibrationText)?;
    let goes_on = weights.numbers <= MOST_REFINED && weights.least_bits <= 4;
    let Chosen { weights: mut chosen, choices, movable } =
        choose_codes(graph, &products, &windows, goes_on, &calibration.watch)?;
    let refined = match goes_on {
        true => refine(graph, &windows, movable, &mut chosen, &calibration.watch)?,
        false => None,
    };
    for (constant, weight) in chosen {
        graph.constants[constant] = weight;
    }
    let sum = |of: fn(&Choice) -> f64| choices.iter().map(of).sum::<f64>();
    let (error, plain) = (sum(|choice| choice.error), sum(|choice| choice.plain_error));
    let part = if plain > 0.0 { 100.0 * error / plain } else { 100.0 };
    let tokens: usize = windows.iter().map(Vec::len).sum();
    let windows = windows.len();
    let note = format!(
        "on {tokens} tokens in {windows} windows the squared error of the products is {part:.0} % of \
         that of rounding to nearest"
    );
    let refined = refined.map(|Refined { before, after }| {
        format!(
            "codes moved by what the model's answers lose, on tokens held back: {before:.4} nats before, \
             {after:.4} after"
        )
    });
    let notes = std::iter::once(note).chain(refined).collect();
    Ok(Change { count: choices.len(), notes })
}

/// The weights of these products, each counted once; `None` if there is none.
fn counted(graph: &Graph, products: &[(Node, Const)]) -> Option<RoundedWeights> {
    let constants: BTreeSet<Const> = products.iter().map(|(_, constant)| *constant).collect();
    let weights = constants.into_iter().filter_map(|constant| {
        let weight = &graph.constants[constant];
        let Element::Quant(format) = weight.ty.element else { return None };
        let [outputs, inputs] = weight.matrix()?;
        Some(RoundedWeights { numbers: outputs * inputs, least_bits: format.bits })
    });
    weights.reduce(|all, weight| RoundedWeights {
        numbers: all.numbers.saturating_add(weight.numbers),
        least_bits: all.least_bits.min(weight.least_bits),
    })
}

/// Why there is nothing to calibrate.
fn nothing(graph: &Graph) -> CalibrationError {
    for (_, node) in graph.main.live().filter(|(_, node)| matches!(node.op, Op::Linear(_))) {
        let Some(Op::ReadConstant(read)) =
            graph.main.maker(node.operands[1]).map(|maker| &maker.op)
        else {
            continue;
        };
        let weight = &graph.constants[read.constant];
        if matches!(weight.data, ConstData::Quantised(_))
            && matches!(weight.ty.element, Element::Quant(_))
        {
            let (name, found) = (weight.name.clone(), format_name(weight.ty.element));
            return CalibrationError::Quantised { name, found };
        }
    }
    CalibrationError::NothingRounded
}

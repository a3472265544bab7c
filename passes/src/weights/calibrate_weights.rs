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

use weir_ir::{ConstData, Element, Graph, Op};

use super::calibration::walk::{Choice, choose_codes, rounded_products};
use super::calibration::{Calibration, CalibrationError};
use super::format_name;
use crate::error::PassError;
use crate::registry::Change;

/// Rewrites the graph; counts weights whose codes are chosen.
pub fn run(graph: &mut Graph, calibration: Option<&Calibration>) -> Result<Change, PassError> {
    let Some(calibration) = calibration else {
        return Ok(Change::default());
    };
    let products = rounded_products(&graph.main, graph);
    if products.is_empty() {
        return Err(nothing(graph).into());
    }
    let (chosen, choices) =
        choose_codes(graph, &products, &calibration.windows, &calibration.watch)?;
    for (constant, weight) in chosen {
        graph.constants[constant] = weight;
    }
    let sum = |of: fn(&Choice) -> f64| choices.iter().map(of).sum::<f64>();
    let (error, plain) = (sum(|choice| choice.error), sum(|choice| choice.plain_error));
    let part = if plain > 0.0 { 100.0 * error / plain } else { 100.0 };
    let tokens: usize = calibration.windows.iter().map(Vec::len).sum();
    let windows = calibration.windows.len();
    let note = format!(
        "on {tokens} tokens in {windows} windows the squared error of the products is {part:.0} % of \
         that of rounding to nearest"
    );
    Ok(Change { count: choices.len(), notes: vec![note] })
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

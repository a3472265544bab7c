//! The order of the passes, with the reason for each position.

use crate::registry::{Pass, pass};

/// A pass's place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Name of the pass.
    pub pass: &'static str,
    /// Why it stands here.
    pub reason: &'static str,
}

const fn at(pass: &'static str, reason: &'static str) -> Position {
    Position { pass, reason }
}

/// The passes in order.
pub const PIPELINE: &[Position] = &[
    at("bind-batch", "first, so that no later pass meets a symbol that means nothing to it"),
    at("widen-floats", "before patterns, which would otherwise have a spelling per float type"),
    at(
        "recognise-linear",
        "before folding: a weight behind a transposition stays in the file instead of being computed",
    ),
    at("fold-constants", "before the other patterns, whose epsilons and scales it makes visible"),
    at("recognise-rms-norm", "after folding, which turns 1 + weight into a weight"),
    at("recognise-rotary", "in tensors: angles are still values that can be evaluated anywhere"),
    at("form-rows", "after all patterns of tensors; it names attention and removes every mask"),
    at("recognise-gated-mlp", "in rows, where reshapes no longer stand between gate and product"),
    at(
        "quantise-weights",
        "in rows, where the head is known from the logits; before weights of one format are stacked",
    ),
    at(
        "calibrate-weights",
        "behind the choice of formats; before stacks and layers, while each product has its own weight",
    ),
    at(
        "centre-keys",
        "behind the last change of weights, by which keys are measured; while each layer has its own \
         constants",
    ),
    at("fuse-projections", "while constants are read by nodes: stacked weights need no parameters"),
    at("fuse-residual", "after bias and weight have found their product, which then is final"),
    at("fold-layers", "after everything that compares constants; all later passes see kinds"),
    at("drop-constants", "no later pass makes or unmakes constants"),
    at("insert-kv-cache", "once a kind: a layer's past and present meet its body here"),
    at("sparsify-kv", "needs caches; nothing before it depends on the policy"),
    at("fix-shapes", "last: until here one sequence is a symbol, from here a step is"),
];

/// The passes of the pipeline.
pub fn passes() -> impl Iterator<Item = (&'static Position, &'static Pass)> {
    PIPELINE.iter().filter_map(|position| Some((position, pass(position.pass)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::PASSES;

    #[test]
    fn every_pass_has_a_place() {
        assert_eq!(passes().count(), PIPELINE.len());
        for pass in PASSES {
            assert!(PIPELINE.iter().any(|position| position.pass == pass.name), "{}", pass.name);
        }
    }

    #[test]
    fn passes_are_sorted() {
        assert!(PASSES.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}

//! What a calibrated rounding is made of: a text's windows run through the graph ([`walk`]), sums over
//! their rows ([`products`]), how much an error of a weight matters ([`curvature`]), the scale of a
//! block ([`blocks`]), and the choice of codes ([`feedback`]).

pub mod blocks;
pub mod curvature;
pub mod feedback;
pub mod products;
pub mod walk;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

/// What weights are calibrated with.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Tokens of text; each window is the beginning of a sequence.
    pub windows: Vec<Vec<u32>>,
    /// Is told how far the work has come.
    pub watch: Watch,
}

/// Is told how many weights of how many are done.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(usize, usize) + Send + Sync>);

impl Watch {
    /// Calls a function.
    pub fn new(at: impl Fn(usize, usize) + Send + Sync + 'static) -> Watch {
        Watch(Arc::new(at))
    }

    fn at(&self, done: usize, all: usize) {
        (self.0)(done, all);
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new(|_, _| {})
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Why weights cannot be calibrated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrationError {
    /// The user asked for no codes.
    #[error("no weight of a product is rounded to codes; give --weights int4 or int8 with it")]
    NothingRounded,
    /// There is nothing left to choose.
    #[error(
        "{name:?} is {found} in the file already; codes are chosen for weights that the file has as \
         floats"
    )]
    Quantised {
        /// The first such weight.
        name: String,
        /// Its format.
        found: String,
    },
    /// Tokenizer and model do not fit.
    #[error("the tokenizer gives the text a token {0}, which the model has no embedding of")]
    NoEmbedding(i64),
    /// The model's arithmetic left the floats.
    #[error("inputs of {0:?} are not finite on this text")]
    NotFinite(String),
}

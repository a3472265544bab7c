//! What a calibrated rounding is made of: a text's windows run through the graph ([`walk`]), sums over
//! their rows ([`products`]), how much an error of a weight matters ([`curvature`]), the scale of a
//! block ([`blocks`]), and the choice of codes ([`feedback`]). Codes of small models then move by what
//! the whole model's answers lose ([`refine`]), which goes through the graph backwards ([`gradient`],
//! [`attention`]).

pub mod attention;
pub mod blocks;
pub mod curvature;
pub mod feedback;
pub mod gradient;
pub mod products;
pub mod refine;
pub mod walk;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// What weights are calibrated with.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Where the text comes from.
    pub text: TextSource,
    /// Whether the user asked for it. What stands in the way is an error then, and else the reason for
    /// which weights stay rounded to nearest.
    pub is_asked_for: bool,
    /// Is told how far the work has come.
    pub watch: Watch,
}

/// Tokens of text; each window is the beginning of a sequence.
pub type Windows = Vec<Vec<u32>>;

/// Why there is no text.
pub type NoText = Box<dyn Error + Send + Sync>;

/// Gives a text when it is known what it is for.
#[derive(Clone)]
pub struct TextSource(Arc<dyn Fn(RoundedWeights) -> Result<Windows, NoText> + Send + Sync>);

/// The weights that codes are to be chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundedWeights {
    /// How many numbers they have.
    pub numbers: usize,
    /// Bits of the shortest codes among them.
    pub least_bits: u8,
}

impl TextSource {
    /// Calls a function.
    pub fn new(
        text: impl Fn(RoundedWeights) -> Result<Windows, NoText> + Send + Sync + 'static,
    ) -> TextSource {
        TextSource(Arc::new(text))
    }

    /// Always the same text.
    pub fn fixed(windows: Windows) -> TextSource {
        TextSource::new(move |_| Ok(windows.clone()))
    }

    /// The text for these weights.
    pub fn windows(&self, weights: RoundedWeights) -> Result<Windows, NoText> {
        (self.0)(weights)
    }
}

impl fmt::Debug for TextSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextSource")
    }
}

/// What calibration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Chooses codes, weight by weight.
    Choosing,
    /// Moves codes, step by step.
    Refining,
}

/// Is told what is done, and how many weights or steps of how many are.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(Stage, usize, usize) + Send + Sync>);

impl Watch {
    /// Calls a function.
    pub fn new(at: impl Fn(Stage, usize, usize) + Send + Sync + 'static) -> Watch {
        Watch(Arc::new(at))
    }

    fn at(&self, stage: Stage, done: usize, all: usize) {
        (self.0)(stage, done, all);
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new(|_, _, _| {})
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
    /// The model's file holds a weight that has no codes in its format.
    #[error("tensor {0:?}: a number is not finite, or too large for the scale of its block")]
    NoCodes(String),
    /// The model's arithmetic left the floats.
    #[error("inputs of {0:?} are not finite on this text")]
    NotFinite(String),
}

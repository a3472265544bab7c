//! Why a graph cannot be rewritten.

use weir_ir::Value;
use weir_ir::interpret::{EvalError, EvalFault};
use weir_ir::ops::TypeError;

use crate::kv::policy::KvError;
use crate::weights::{CalibrationError, NoText, WeightsError};

/// A pass gave up.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The model has parts that no pass knows: the file is fine, we lack something. All of them.
    #[error("{}", list(.0))]
    Unsupported(Vec<Unsupported>),
    /// The user's options do not fit the model.
    #[error("{0}")]
    Options(String),
    /// The cache policy cannot be had.
    #[error("--kv: {0}")]
    Kv(#[from] KvError),
    /// The weights cannot have the formats that the user wants.
    #[error("--weights: {0}")]
    Weights(#[from] WeightsError),
    /// The weights cannot be calibrated.
    #[error("--calibrate: {0}")]
    Calibration(#[from] CalibrationError),
    /// There is no text to calibrate them with.
    #[error("{0}")]
    CalibrationText(NoText),
    /// A pass wrote something that the type rules refuse: our bug.
    #[error("internal error: {0}")]
    Type(#[from] TypeError),
    /// A value that must be known cannot be computed.
    #[error("{0}")]
    Eval(#[from] EvalError),
    /// An operation on a computed tensor failed.
    #[error("{0}")]
    Fault(#[from] EvalFault),
    /// The verifier refused a pass's result: our bug.
    #[error("internal error after pass {pass}: {message}")]
    Verifier {
        /// The pass.
        pass: &'static str,
        /// What the verifier found, one line each.
        message: String,
    },
    /// Something that must hold does not: our bug.
    #[error("internal error: {0}")]
    Internal(String),
}

/// A part of a model that no pass knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Its place in the model's file.
    pub place: String,
    /// What is missing.
    pub message: String,
}

impl PassError {
    /// A value has no counterpart in a rewritten body.
    pub fn lost(value: Value) -> PassError {
        PassError::Internal(format!("{value} has no place in the new body"))
    }

    /// Something that must hold does not.
    pub fn internal(message: impl Into<String>) -> PassError {
        PassError::Internal(message.into())
    }
}

fn list(parts: &[Unsupported]) -> String {
    let mut text = match parts {
        [_] => "1 part of the model is not supported:".to_owned(),
        _ => format!("{} parts of the model are not supported:", parts.len()),
    };
    for part in parts {
        text.push_str(&format!("\n  {}: {}", part.place, part.message));
    }
    text
}

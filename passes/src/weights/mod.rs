//! Number formats of weights: which the user wants, and the pass that gives them to the constants.

pub mod calibrate_weights;
pub mod calibration;
pub mod choice;
pub mod quantise_weights;

pub use calibration::{
    Calibration, CalibrationError, NoText, RoundedWeights, Stage as CalibrationStage, TextSource,
    Watch,
};
pub use choice::{Group, WeightChoice, WeightsError};

use weir_ir::{Element, QuantFormat, ZeroPoints};

/// An element type as a person reads it: `int4 in blocks of 32, f16 scales`.
pub fn format_name(element: Element) -> String {
    match element {
        Element::Plain(dtype) => dtype.to_string(),
        Element::Quant(QuantFormat { bits, block, scale, short, zero }) => {
            let zero = match zero {
                ZeroPoints::Fixed(_) => "",
                ZeroPoints::Codes | ZeroPoints::Float => " and zero points",
            };
            let short = if short { "short " } else { "" };
            format!("int{bits} in blocks of {block}, {short}{scale} scales{zero}")
        }
    }
}

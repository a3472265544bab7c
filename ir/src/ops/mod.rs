//! The closed set of core ops. One file an op: attributes, type rule, scalar reference. The table
//! below names each with the stages at which it may appear.

use std::fmt;

use crate::attribute::Attributes;
use crate::constant::Constant;
use crate::dim::Dim;
use crate::entity::Const;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::stage::{Stage, Stages};
use crate::types::TensorType;

/// Content of an integer or boolean tensor that follows from shapes.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// All elements, row-major; booleans are 0 and 1.
    Elements(Vec<Dim>),
    /// Every element has this value.
    Fill(Dim),
}

/// Most elements that `Known::Elements` lists: shape tensors are short.
pub const MAX_KNOWN: usize = 1024;

/// What a type rule sees of an operand.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Its content, where it follows from shapes.
    pub known: Option<&'a Known>,
}

/// A type rule refused its operands: our bug in a pass, the file's fault on import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {message}")]
pub struct TypeError {
    /// The op.
    pub op: &'static str,
    /// What does not fit, with the types.
    pub message: String,
}

/// What every core op has.
pub trait CoreOp: Attributes {
    /// Result types, and contents where they follow from shapes.
    /// An error is a sentence about the operands that do not fit.
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String>;

    /// The scalar reference, for operands and attributes that the rule has accepted.
    fn eval(&self, operands: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault>;

    /// The op with numbers for the symbols in its attributes.
    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault>
    where
        Self: Clone,
    {
        let _ = bindings;
        Ok(self.clone())
    }
}

pub mod rules;

use rules::Inferred;

#[cfg(test)]
mod tests;

/// A row of the table of ops.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// Name in the text form.
    pub name: &'static str,
    /// Stages at which the op may appear.
    pub stages: Stages,
    /// Names of its attributes.
    pub attributes: &'static [&'static str],
}

macro_rules! core_ops {
    ($($module:ident :: $variant:ident = $name:literal, $stages:expr;)*) => {
        $(pub mod $module; pub use $module::$variant;)*

        /// A core op with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(
                #[doc = concat!("See [`mod@", stringify!($module), "`].")]
                $variant($variant),
            )*
        }

        impl Op {
            /// Name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => $name,)* }
            }

            /// Stages at which the op may appear.
            pub fn stages(&self) -> Stages {
                match self { $(Op::$variant(_) => $stages,)* }
            }

            /// Attributes as names and texts.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                match self { $(Op::$variant(op) => op.print(),)* }
            }

            /// The op of a name with attributes looked up in a text.
            pub fn parse(
                name: &str,
                find: &mut dyn FnMut(&str) -> Option<String>,
            ) -> Option<Result<Op, &'static str>> {
                match name {
                    $($name => Some($variant::parse(find).map(Op::$variant)),)*
                    _ => None,
                }
            }

            /// Result types and contents.
            pub fn infer(
                &self,
                operands: &[Operand<'_>],
            ) -> Result<Inferred, TypeError> {
                let inferred = match self { $(Op::$variant(op) => op.infer(operands),)* };
                inferred.map_err(|message| TypeError { op: self.name(), message })
            }

            /// The op with numbers for the symbols in its attributes.
            pub fn bound(&self, bindings: &Bindings) -> Result<Op, EvalFault> {
                Ok(match self { $(Op::$variant(op) => Op::$variant(op.bound(bindings)?),)* })
            }

            /// Runs the scalar reference of an op whose attributes are numbers.
            pub(crate) fn run(
                &self,
                operands: &[Tensor],
                cx: &Context<'_>,
            ) -> Result<Vec<Tensor>, EvalFault> {
                match self { $(Op::$variant(op) => op.eval(operands, cx),)* }
            }
        }

        /// The table of ops.
        pub fn table() -> Vec<OpRow> {
            vec![$(OpRow { name: $name, stages: $stages, attributes: $variant::NAMES },)*]
        }

        $(impl From<$variant> for Op {
            fn from(op: $variant) -> Op {
                Op::$variant(op)
            }
        })*
    };
}

core_ops! {
    // Constants and shapes.
    read_constant::ReadConstant = "const", Stages::ALL;
    shape_of::ShapeOf = "shape_of", Stages::IMPORTED;
    known::KnownValue = "known", Stages::IMPORTED;
    range::Range = "range", Stages::IMPORTED;
    // Elementwise, numpy broadcasting.
    unary::Unary = "unary", Stages::ALL;
    binary::Binary = "binary", Stages::ALL;
    select::Select = "select", Stages::ALL;
    cast::Cast = "cast", Stages::ALL;
    // Data movement.
    reshape::Reshape = "reshape", Stages::ALL;
    transpose::Transpose = "transpose", Stages::IMPORTED;
    expand::Expand = "expand", Stages::IMPORTED;
    concat::Concat = "concat", Stages::ALL;
    slice::Slice = "slice", Stages::ALL;
    gather::Gather = "gather", Stages::IMPORTED;
    gather_elements::GatherElements = "gather_elements", Stages::IMPORTED;
    gather_nd::GatherNd = "gather_nd", Stages::IMPORTED;
    update_slice::UpdateSlice = "update_slice", Stages::IMPORTED;
    scatter_nd::ScatterNd = "scatter_nd", Stages::IMPORTED;
    trilu::Trilu = "trilu", Stages::IMPORTED;
    // Reductions and products.
    reduce::Reduce = "reduce", Stages::ALL;
    cumulative_sum::CumulativeSum = "cumulative_sum", Stages::IMPORTED;
    softmax::Softmax = "softmax", Stages::IMPORTED;
    matmul::MatMul = "matmul", Stages::IMPORTED;
    dequantise::Dequantise = "dequantise", Stages::IMPORTED;
    by_length::ByLength = "by_length", Stages::IMPORTED;
    // The named parts of language models.
    embed::Embed = "embed", Stages::ALL;
    linear::Linear = "linear", Stages::ALL;
    rms_norm::RmsNorm = "rms_norm", Stages::ALL;
    layer_norm::LayerNorm = "layer_norm", Stages::ALL;
    rotary::Rotary = "rotary", Stages::IMPORTED;
    rotary_rows::RotaryRows = "rotary_rows", Stages::FROM_CANONICAL;
    table_rows::TableRows = "table_rows", Stages::FROM_CANONICAL;
    gated::Gated = "gated", Stages::FROM_CANONICAL;
    attention::Attention = "attention", Stages::IMPORTED;
    causal_attention::CausalAttention = "causal_attention", Stages::CANONICAL;
    cache_append::CacheAppend = "cache_append", Stages::FROM_CACHED;
    cache_attend::CacheAttend = "cache_attend", Stages::FROM_CACHED;
    layer::Layer = "layer", Stages::FROM_CANONICAL;
}

impl Op {
    /// Reads a constant.
    pub fn read_constant(constant: Const) -> Op {
        Op::ReadConstant(ReadConstant { constant })
    }

    /// Whether the op may appear at the stage.
    pub fn is_legal_at(&self, stage: Stage) -> bool {
        self.stages().contains(stage)
    }
}

impl Known {
    /// Elements of a small integer or boolean constant.
    pub fn of_constant(constant: &Constant) -> Option<Known> {
        constant
            .small_integers(MAX_KNOWN)
            .map(|elements| Known::Elements(elements.into_iter().map(Dim::number).collect()))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

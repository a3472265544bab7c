//! What a value of the imported graph is in terms of rows.

use weir_ir::{Const, Value};

use super::axes::Axis;

/// A value of the imported graph as the new graph knows it.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// A constant.
    Constant(Const),
    /// Depends on sizes and positions only; computed when it is used.
    Positional,
    /// The token ids.
    Tokens,
    /// Rows in some layout.
    Rows(Rows),
    /// Past keys or values of a layer.
    Past(Past),
    /// Past and new keys or values.
    Keys(Keys),
    /// Scores of queries against keys.
    Scores(Scores),
    /// Softmax of scores.
    Weights(Scores),
    /// Where the softmax is not a number: nowhere, since every query sees at least its own key.
    WeightsAreNan,
    /// Something that was reported already.
    Unknown,
}

/// Rows `[sequence, width]` in some layout.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// f32 `[sequence, width]` in the new graph.
    pub value: Value,
    /// Values of a row.
    pub width: usize,
    /// The layout.
    pub axes: Vec<Axis>,
    /// The exporter took the last row only; the new graph keeps all, and the runtime asks for the
    /// rows that it needs.
    pub last_only: bool,
}

/// Past keys or values.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub layer: u32,
    pub is_key: bool,
    pub heads: usize,
    pub width: usize,
}

/// Past and new keys or values `[sequence, heads * width]`.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Layer and whether they are keys; `None` in a model without a cache.
    pub past: Option<Past>,
    /// The new rows.
    pub new: Value,
    /// Values of a new row: heads * head width.
    pub row_width: usize,
    /// The layout.
    pub axes: Vec<Axis>,
    /// Factor that the exporter multiplied in.
    pub scale: f32,
}

/// Scores of queries against keys.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    pub query: Rows,
    pub keys: Keys,
    pub heads: usize,
    pub scale: f32,
    /// c of `c tanh(s / c)`, once the product with c has been seen.
    pub softcap: f32,
    /// Between tanh and the product with c.
    pub squashed: bool,
    /// The window, once a mask has been seen.
    pub mask: Option<u32>,
}

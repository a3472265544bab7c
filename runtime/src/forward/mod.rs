//! Runs steps of a compiled model: rows in, logits out.
//!
//! [`Forward`] owns everything that a segment reads or writes besides weights: the slot cache, the
//! arena, hidden rows, scratch for long prompts and the team of threads. It knows no requests. The
//! engine sees it through [`StepModel`], so that the engine's tests run without a compiled model.

mod buffer;
mod compaction;
mod continuation;
mod long_prompt;
mod shape;
mod staged;
mod steps;
#[cfg(test)]
mod tests;

use weir_abi::Fault;

pub use long_prompt::tile_rows;
pub use shape::{MAX_SLOTS, MAX_THREADS, ModelShape, PrefillBytes, RuntimeOptions};
pub(crate) use shape::{layer_shapes, prefill_bytes};
pub use staged::StagedPrompt;
pub use steps::Forward;

use crate::cache::KeptRows;
use crate::constraint::ConstraintFault;

/// One row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Token id.
    pub token: u32,
    /// Absolute position.
    pub position: u32,
    /// Slot of its sequence.
    pub slot: u32,
    /// Rows of the sequence up to the end of its last prompt; they decide where rows lie.
    pub prompt_rows: u32,
    /// Which rotary tables the sequence uses, see [`ModelShape::rotary_set`].
    pub rotary_set: u32,
}

/// A prompt that is computed layer by layer.
#[derive(Clone, Copy, Debug)]
pub struct LongPrompt<'a> {
    /// Its tokens; those that have no row yet, if it goes on behind rows of the slot.
    pub tokens: &'a [u32],
    /// Slot of its sequence.
    pub slot: u32,
    /// Which rotary tables the sequence uses.
    pub rotary_set: u32,
    /// The rows of the slot that it goes on behind; none if it begins a sequence.
    pub past: Option<Past>,
    /// Whether it is the sequence's own last tokens, computed again so that rows are selected anew
    /// ([`StepModel::reselects`]).
    pub is_anew: bool,
}

/// The rows of a sequence that lie in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Rows produced: the position of the next one.
    pub rows: u32,
    /// Those up to the end of its last prompt.
    pub prompt_rows: u32,
}

/// Why a step failed: mostly an internal error that model code reported, a bug in the compiler or a
/// damaged model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// A score is not finite.
    #[error("internal error: a selection score of key/value head {head} is not finite")]
    ScoreNotFinite {
        /// Key/value head.
        head: u32,
    },
    /// A token is outside the embedding table.
    #[error("internal error: the token of row {row} is outside the embedding table")]
    TokenOutOfRange {
        /// Row of the step.
        row: u32,
    },
    /// More rows of a sequence behind its prompt than the cache can take back.
    #[error("internal error: {rows} rows of a sequence in flight, and there is room for {most}")]
    InFlight {
        /// Its rows in the step.
        rows: u32,
        /// D, or 1 where no token may be guessed.
        most: u32,
    },
    /// No logit is a number, or what an embedding would be has no length.
    #[error("internal error: what the head gives for a row is no number")]
    NotFinite,
    /// The answer cannot be held to its grammar: the grammar's fault, unlike the others.
    #[error(transparent)]
    Constraint(#[from] ConstraintFault),
    /// A number that this runtime does not know.
    #[error("internal error: model code reported fault {number} (detail {detail})")]
    Unknown {
        /// Its number.
        number: u32,
        /// Its detail.
        detail: u32,
    },
}

impl From<crate::team::ReportedFault> for StepFault {
    fn from(fault: crate::team::ReportedFault) -> StepFault {
        match fault.number {
            n if n == Fault::ScoreNotFinite as u32 => {
                StepFault::ScoreNotFinite { head: fault.detail }
            }
            n if n == Fault::TokenOutOfRange as u32 => {
                StepFault::TokenOutOfRange { row: fault.detail }
            }
            number => StepFault::Unknown { number, detail: fault.detail },
        }
    }
}

/// A model that runs steps.
pub trait StepModel {
    /// Limits and layouts.
    fn shape(&self) -> &ModelShape;

    /// Runs `rows` (at most [`ModelShape::max_rows`], those of a sequence behind each other, and behind
    /// its prompt at most one more than [`ModelShape::max_draft`]) and writes what the head gives,
    /// logits in most models, for those rows that `head_rows` names, `[head_rows, head_width]`.
    fn step(
        &mut self,
        rows: &[StepRow],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault>;

    /// Begins a long prompt. One runs at a time; beginning another abandons it. One that goes on behind
    /// rows of its slot spoils these from here on.
    fn begin_prompt(&mut self, prompt: LongPrompt<'_>);

    /// Runs the next tile of the prompt that was begun. `true` when its last tile is done: its rows
    /// are in the slot, and [`StepModel::prompt_logits`] may be asked for.
    fn advance_prompt(&mut self) -> Result<bool, StepFault>;

    /// Logits of rows `first ..` of a finished long prompt, counted from the first of its tokens, as
    /// many as `logits` has room for. Possible until the next prompt begins.
    fn prompt_logits(&mut self, first: u32, logits: &mut [f32]) -> Result<(), StepFault>;

    /// Slot `to` holds what the prompt of `prompt_rows` rows in slot `from` has left, for another sample
    /// of it. Nothing has been computed behind the prompt. The block is shared where
    /// [`ModelShape::shares`] says so: it is `from`'s, which takes no other sequence while any reads it;
    /// elsewhere `to` has a block of its own.
    fn copy_prompt(&mut self, prompt_rows: u32, from: u32, to: u32);

    /// Rows kept and dropped of the sequence in a slot, in the layout that keeps fewest.
    fn kept(&self, slot: u32, past: Past) -> KeptRows;

    /// Where a sequence goes on from by a prompt of its own last tokens instead of a step, because its
    /// slot is full and rows are to be selected anew.
    fn reselects(&self, slot: u32, past: Past) -> Option<Past>;

    /// Does so, if it is time, and writes the logits of the row of the last of `tokens`, all of the
    /// sequence's; the first of them whose row is to be computed follows `past`. Says whether it did;
    /// the tokens are a prompt from then on. For callers that run no long prompt meanwhile.
    fn reselect(
        &mut self,
        tokens: &[u32],
        slot: u32,
        rotary_set: u32,
        past: Past,
        logits: &mut [f32],
    ) -> Result<bool, StepFault> {
        let Some(from) = self.reselects(slot, past) else { return Ok(false) };
        let tokens = &tokens[from.rows as usize..];
        self.begin_prompt(LongPrompt { tokens, slot, rotary_set, past: Some(from), is_anew: true });
        while !self.advance_prompt()? {}
        self.prompt_logits(tokens.len() as u32 - 1, logits)?;
        Ok(true)
    }
}

//! Rows that finished requests have left in their slots, and what a new request makes of them.
//!
//! A prompt that begins with the tokens of such rows need not compute them again. Three ways, of which
//! the first two give the bits of a prompt that is computed from its first token on:
//!
//! * a prompt that fits its slot goes on where it parts from the tokens there, if their rows lie where
//!   it looks for them;
//! * a longer one goes on behind all of them, if none has been dropped, none can have been rounded to a
//!   block with a number format of its own, and enough tokens are new to observe by;
//! * one that asks for it goes on behind them although rows have been dropped or rounded
//!   ([`History::Incremental`]).
//!
//! Rows that have moved to a reservoir have lost the order of their positions, which the second and the
//! third go by: such slots are not gone on in.

use weir_abi::CacheLayout;

use super::request::History;
use crate::cache::{KeptRows, Placement};
use crate::forward::{ModelShape, Past};

/// Rows of a finished request.
#[derive(Debug)]
pub(super) struct LeftRows {
    /// Their tokens.
    pub tokens: Vec<u32>,
    /// Those up to the end of the last prompt.
    pub prompt_rows: u32,
    /// Rotary tables that they were computed with.
    pub rotary_set: u32,
    /// Whose request it was.
    pub owner: u32,
}

impl LeftRows {
    fn past(&self) -> Past {
        Past { rows: self.tokens.len() as u32, prompt_rows: self.prompt_rows }
    }
}

/// What a request brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub prompt: &'a [u32],
    pub rotary_set: u32,
    pub history: History,
    pub owner: u32,
}

/// How a prompt begins in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Behind so many rows that it has in common with those in the slot.
    Alike(u32),
    /// Layer by layer behind rows none of which has been dropped.
    Behind(Past),
    /// The same behind what is left of them.
    BehindSome(Past),
    /// With all of its so many rows computed for another sample of it.
    Copied(u32),
}

impl Beginning {
    /// Rows that need not be computed.
    pub fn rows(self) -> u32 {
        match self {
            Beginning::Alike(rows) | Beginning::Copied(rows) => rows,
            Beginning::Behind(past) | Beginning::BehindSome(past) => past.rows,
        }
    }
}

/// What lies in the slots that no sequence holds.
#[derive(Debug)]
pub(super) struct Slots {
    left: Vec<Option<(u64, LeftRows)>>,
    /// Counts what is left, so that the oldest gives way first.
    count: u64,
}

impl Slots {
    pub fn new(slots: u32) -> Slots {
        Slots { left: (0..slots).map(|_| None).collect(), count: 0 }
    }

    /// A finished request leaves its rows.
    pub fn leave(&mut self, slot: u32, rows: LeftRows) {
        self.count += 1;
        self.left[slot as usize] = Some((self.count, rows));
    }

    /// Nothing lies in a slot any more, as far as requests are concerned.
    pub fn forget(&mut self, slot: u32) {
        self.left[slot as usize] = None;
    }

    /// Nothing lies anywhere any more, as far as requests are concerned.
    pub fn clear(&mut self) {
        self.left.fill_with(|| None);
    }

    /// Takes the free slot in which the fewest rows are computed anew or lost, the oldest of equals.
    /// `kept` says what a slot still holds.
    pub fn take(
        &mut self,
        wanted: Wanted<'_>,
        free: &[u32],
        shape: &ModelShape,
        kept: impl Fn(u32, Past) -> KeptRows,
    ) -> (u32, Beginning) {
        let choice = free.iter().map(|&slot| match &self.left[slot as usize] {
            None => ((wanted.prompt.len() as u32, 0), slot, Beginning::Alike(0)),
            Some((age, left)) => {
                let beginning = beginning(&wanted, left, shape, kept(slot, left.past()));
                let lost = left.tokens.len() as u32 - beginning.rows();
                let anew = wanted.prompt.len() as u32 - beginning.rows();
                ((anew + lost, *age), slot, beginning)
            }
        });
        // The scheduler asks only while there are free slots.
        let (_, slot, beginning) = choice.min_by_key(|(cost, slot, _)| (*cost, *slot)).unwrap_or((
            (0, 0),
            0,
            Beginning::Alike(0),
        ));
        self.left[slot as usize] = None;
        (slot, beginning)
    }
}

fn beginning(
    wanted: &Wanted<'_>,
    left: &LeftRows,
    shape: &ModelShape,
    kept: KeptRows,
) -> Beginning {
    let prompt = wanted.prompt;
    let none = Beginning::Alike(0);
    if wanted.rotary_set != left.rotary_set || wanted.owner != left.owner {
        return none;
    }
    // The last row is computed in any case, for its logits.
    let alike = prompt[..prompt.len() - 1].iter().zip(&left.tokens);
    let alike = alike.take_while(|(a, b)| a == b).count() as u32;
    let (rows, past) = (prompt.len() as u32, left.past());
    if rows <= shape.direct_rows {
        let serves = shape.layouts.iter().all(|layout| {
            let [old, new] = [past.prompt_rows, rows].map(|rows| Placement::new(layout, rows));
            old.serves(past.rows, &new, alike)
        });
        return if kept.dropped == 0 && serves { Beginning::Alike(alike) } else { none };
    }
    // What has no order of positions, or differs from head to head, is not gone on behind.
    let is_last = |layout| {
        let placement = Placement::new(layout, past.prompt_rows);
        placement.has_sample(past.rows) || placement.has_further()
    };
    if alike < past.rows || shape.layouts.iter().any(is_last) {
        return none;
    }
    let observed = shape.layouts.iter().map(CacheLayout::kept_queries).max().unwrap_or(0);
    // A longer prompt is computed over rows of the ring's format.
    let rounds = shape.layouts.iter().any(|layout| layout.block_rows > 0);
    if kept.dropped == 0 && !rounds && rows - past.rows >= observed {
        Beginning::Behind(past)
    } else if wanted.history == History::Incremental {
        Beginning::BehindSome(past)
    } else {
        none
    }
}

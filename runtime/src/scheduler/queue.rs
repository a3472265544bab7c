//! Sequences that wait for a slot, and whose turn it is.
//!
//! Lower priorities come first. Among equals the owner that has been served least comes first, and of
//! one owner's requests the oldest. Served are rows: those of prompts when they are admitted, and one for
//! each token. An owner who comes back after a while counts as having been served as much as the least
//! served of those who wait, so nobody saves up (virtual token counters: Sheng et al., "Fairness in
//! Serving Large Language Models", 2024).

use std::collections::HashMap;

use super::SequenceId;

/// Who asks, and how urgent it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Whoever shares the slots fairly with others.
    pub owner: u32,
    /// Lower ones come first.
    pub priority: i32,
}

/// Sequences that have not been admitted: a prompt, and further samples of it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub sequence: SequenceId,
    pub prompt_rows: u32,
    pub samples: Vec<SequenceId>,
    pub shares: bool,
    pub turn: Turn,
}

/// All that wait, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Vec<Waiting>,
    /// Rows that each owner has been served.
    served: HashMap<u32, u64>,
    /// What the owner had been served whose group was taken last.
    last: u64,
}

impl Queue {
    /// A group arrives.
    pub fn push(&mut self, group: Waiting) {
        let owner = group.turn.owner;
        if !self.waiting.iter().any(|other| other.turn.owner == owner) {
            let others = self.waiting.iter().map(|other| self.served_to(other.turn.owner));
            let least = others.min().unwrap_or(self.last);
            let served = self.served.entry(owner).or_default();
            *served = least.max(*served);
        }
        self.waiting.push(group);
    }

    fn served_to(&self, owner: u32) -> u64 {
        self.served.get(&owner).copied().unwrap_or(0)
    }

    /// The place of the group whose turn it is.
    pub fn next(&self) -> Option<usize> {
        let rank = |index: &usize| {
            let Turn { owner, priority } = self.waiting[*index].turn;
            (priority, self.served_to(owner), *index)
        };
        (0..self.waiting.len()).min_by_key(rank)
    }

    /// Takes a group out.
    pub fn take(&mut self, index: usize) -> Waiting {
        let group = self.waiting.remove(index);
        self.last = self.served_to(group.turn.owner);
        group
    }

    /// So many rows were served to an owner.
    pub fn charge(&mut self, owner: u32, rows: u32) {
        *self.served.entry(owner).or_default() += u64::from(rows);
    }

    /// All groups.
    pub fn groups(&self) -> &[Waiting] {
        &self.waiting
    }

    /// All groups, to be changed but not moved.
    pub fn groups_mut(&mut self) -> &mut Vec<Waiting> {
        &mut self.waiting
    }
}

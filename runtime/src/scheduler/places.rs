//! Which slots are free, and which blocks.
//!
//! The first slots have a block each, which the sequence in a slot reads, or samples of its prompt in
//! other slots do as well. A block is in use until the last of them ends; until then no prompt can begin
//! in its slot, but another sample may run there.

/// A slot that a sequence holds, and the slot whose block it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its own slot.
    pub slot: u32,
    /// The same one, if the sequence has a block of its own.
    pub block: u32,
}

/// Slots and blocks.
#[derive(Debug)]
pub(super) struct Places {
    /// Free slots, those that became free last at the end.
    free: Vec<u32>,
    /// Sequences that read the block of each slot that has one.
    readers: Vec<u32>,
}

impl Places {
    pub fn new(slots: u32, blocks: u32) -> Places {
        assert!(slots >= 1 && (1..=slots).contains(&blocks), "there are slots and blocks");
        Places { free: (0..slots).rev().collect(), readers: vec![0; blocks as usize] }
    }

    /// Whether a prompt can begin in a slot if it is free.
    fn has_free_block(&self, slot: u32) -> bool {
        self.readers.get(slot as usize) == Some(&0)
    }

    /// Free slots in which a prompt can begin, in `into`.
    pub fn list(&self, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.free.iter().filter(|slot| self.has_free_block(**slot)));
    }

    /// Whether there is room for a prompt and so many further samples of it, which share its block or
    /// need one each.
    pub fn has_room(&self, samples: usize, shares: bool) -> bool {
        let prompts = self.free.iter().filter(|slot| self.has_free_block(**slot)).count();
        let of_samples = if shares { self.free.len() } else { prompts };
        prompts > 0 && of_samples > samples
    }

    /// Takes a slot for a prompt.
    pub fn take(&mut self, slot: u32) -> Held {
        self.hold(Held { slot, block: slot })
    }

    /// Takes a slot for a sample of the prompt in slot `prompt`: if it shares the block, one that is of
    /// the least use to prompts.
    pub fn take_sample(&mut self, prompt: u32, shares: bool) -> Option<Held> {
        let serves = |slot: &u32| shares || self.has_free_block(*slot);
        let slots = self.free.iter().copied().filter(serves);
        let slot = slots.min_by_key(|slot| (self.has_free_block(*slot), *slot))?;
        Some(self.hold(Held { slot, block: if shares { prompt } else { slot } }))
    }

    fn hold(&mut self, held: Held) -> Held {
        self.free.retain(|free| *free != held.slot);
        self.readers[held.block as usize] += 1;
        held
    }

    /// A sequence has ended.
    pub fn give_back(&mut self, held: Held) {
        self.free.push(held.slot);
        self.readers[held.block as usize] -= 1;
    }
}

//! Decides which rows run in the next step. Counts and ids in, a plan out: no clock, no input or
//! output, no tensors.
//!
//! * Sequences wait for a slot, by priority and fairly between owners (`queue`); they join and leave
//!   between steps. How many may wait is for whoever takes requests in to ask (`limit`).
//! * Several samples of one prompt wait for room for all of them. The prompt is computed once; the others
//!   only hold their slots until then, and decode from its end on.
//! * A step has one budget of rows. Every sequence that decodes gets one of them (if there are more
//!   than rows, or than an eighth of them leaves beside prompts, they take turns); what remains goes to
//!   prompts by priority and in order of arrival, in tiles of any size; the last of them is divided into
//!   steps that are about alike. Those who decode wait for the
//!   whole step, so beside them a step is to take no longer than one of prompts alone: a row that decodes
//!   counts as several of prompts. Half of what remains goes to prompts in any case, or they would starve
//!   where nearly all slots decode.
//! * What remains then goes to guesses: tokens that a sequence which decodes may choose next, each with a
//!   row behind the sequence's own ([`Scheduler::guess`]). They are a bet, so nobody waits for them.
//! * A prompt that does not fit into some cache layout is *long*: it is computed layer by layer, one
//!   tile a step, each tile a call of its own beside the step's rows. So between two tiles there is
//!   a decode step of everybody else. One long prompt runs at a time; the others keep their slots
//!   and wait for it in order. A sequence whose rows are selected anew is such a prompt for a while.

mod limit;
mod places;
mod queue;
#[cfg(test)]
mod tests;

pub use limit::QueueLimit;
pub use places::Held;
use places::Places;
pub use queue::Turn;
use queue::{Queue, Waiting};

/// A sequence, named by the engine.
pub type SequenceId = u64;

/// Limits that the scheduler keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Slots of the cache.
    pub slots: u32,
    /// How many of them have a block, so that prompts can begin there.
    pub blocks: u32,
    /// Most rows of a step.
    pub rows: u32,
    /// Longest prompt that is written straight into its slot.
    pub direct_rows: u32,
}

/// Rows of prompts that take at least as long as one that decodes, which reads its keys by itself and has logits:
/// 2.3 measured with 16 sequences of 110m at 560 rows, by steps of both kinds together.
const ROWS_OF_DECODING: u32 = 3;

/// Of a step's rows one in so many is for prompts, where there are some: those who decode take turns then. With
/// as many slots as rows, or more, prompts would wait until some of them end.
const ROWS_FOR_A_PROMPT: u32 = 8;

/// Rows that products take together without a rest.
const ROWS_TOGETHER: u32 = 16;

/// Rows of a prompt that nobody waits behind, of those that remain: as many steps as it needs anyhow, about
/// alike. A few rows left over would walk all weights for themselves.
fn rows_of_last(remaining: u32, budget: u32) -> u32 {
    let steps = remaining.div_ceil(budget);
    remaining.div_ceil(steps).next_multiple_of(ROWS_TOGETHER).min(budget).min(remaining)
}

impl SchedulerLimits {
    /// Rows that prompts have in any step, where there are some.
    fn least_prompt_rows(&self) -> u32 {
        self.rows.div_ceil(ROWS_FOR_A_PROMPT)
    }

    /// Rows of prompts in a step in which so many decode.
    fn prompt_rows_beside(&self, decoding: u32) -> u32 {
        let remaining = self.rows - decoding;
        let as_long = self.rows.saturating_sub(ROWS_OF_DECODING.saturating_mul(decoding));
        as_long.max(remaining.div_ceil(2)).max(self.least_prompt_rows().min(remaining))
    }
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRows {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its slot.
    pub slot: u32,
    /// Position of the first row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
    /// Whether a token is chosen from the last of these rows that is no guess.
    pub samples: bool,
    /// How many rows at the end are those of guesses. From each of them a token is chosen as well, if all
    /// guesses up to its own were right.
    pub guesses: u32,
}

/// One tile of a long prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedTile {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its slot.
    pub slot: u32,
    /// Whether this is the first tile of the prompt.
    pub starts: bool,
}

/// Where a sequence that has waited begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// One of the free slots.
    pub slot: u32,
    /// Rows of its prompt that lie there already, if the prompt is not long.
    pub done: u32,
}

/// What the next step runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Decode rows first, then rows of prompts.
    pub rows: Vec<PlannedRows>,
    /// How many of them decode.
    decoding: usize,
    /// A tile of the long prompt, to be run after the rows.
    pub tile: Option<PlannedTile>,
}

impl StepPlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.tile.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `done` rows of the prompt are in the slot.
    Prompt { done: u32 },
    /// A long prompt; `started` says whether it is the one that runs.
    Long { started: bool },
    /// A sample of the prompt that is computed in slot `prompt`.
    Waits { prompt: u32 },
    /// `next` is the position of the token chosen last.
    Decode { next: u32 },
}

impl Phase {
    /// Whether samples may wait for what is computed.
    fn is_prompt(self) -> bool {
        matches!(self, Phase::Prompt { .. } | Phase::Long { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Running {
    sequence: SequenceId,
    held: Held,
    prompt_rows: u32,
    phase: Phase,
    turn: Turn,
}

/// The scheduler. A plan that [`Scheduler::plan`] returned counts as done.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    waiting: Queue,
    /// In the order of ids, which is that of arrival.
    running: Vec<Running>,
    /// Who decodes first in the next step: the first sequence from this one on.
    turn: SequenceId,
    /// Whether prompts were kept no row in the last step.
    passed_over: bool,
    places: Places,
    /// Room for a list of free slots.
    free: Vec<u32>,
    /// Room for places in `running`, in the order in which their prompts are computed.
    order: Vec<usize>,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: SchedulerLimits) -> Scheduler {
        assert!(limits.rows >= 1, "there are rows");
        Scheduler {
            limits,
            waiting: Queue::default(),
            running: Vec::with_capacity(limits.slots as usize),
            turn: 0,
            passed_over: false,
            places: Places::new(limits.slots, limits.blocks),
            free: Vec::with_capacity(limits.slots as usize),
            order: Vec::with_capacity(limits.slots as usize),
        }
    }

    /// Queues a sequence whose prompt has `prompt_rows` rows, at least one. Ids rise.
    pub fn submit(&mut self, sequence: SequenceId, prompt_rows: u32) {
        self.submit_samples(sequence, prompt_rows, Vec::new(), true, Turn::default());
    }

    /// Queues a sequence and further samples of its prompt, whose ids follow. If they do not share its
    /// block they need one each. There must be slots for all of them.
    pub fn submit_samples(
        &mut self,
        sequence: SequenceId,
        prompt_rows: u32,
        samples: Vec<SequenceId>,
        shares: bool,
        turn: Turn,
    ) {
        assert!(prompt_rows > 0, "a prompt has rows");
        let most = if shares { self.limits.slots } else { self.limits.blocks };
        assert!(samples.len() < most as usize, "slots for all samples");
        self.waiting.push(Waiting { sequence, prompt_rows, samples, shares, turn });
    }

    /// The first sample that waits for what a sequence computes, or is to compute: it goes on with that
    /// when the sequence is removed.
    pub fn heir(&self, sequence: SequenceId) -> Option<SequenceId> {
        let mut groups = self.waiting.groups().iter();
        if let Some(waiting) = groups.find(|group| group.sequence == sequence) {
            return waiting.samples.first().copied();
        }
        let running = self.running.iter().find(|running| running.sequence == sequence)?;
        let phase = Phase::Waits { prompt: running.held.slot };
        let mut heirs = self.running.iter().filter(|running| running.phase == phase);
        heirs.next().filter(|_| running.phase.is_prompt()).map(|heir| heir.sequence)
    }

    /// Removes a sequence, wherever it is, and returns the slot that it held. What others wait for is
    /// computed in its slot all the same, and then it held none.
    pub fn remove(&mut self, sequence: SequenceId) -> Option<Held> {
        let heir = self.heir(sequence);
        let groups = self.waiting.groups_mut();
        if let Some(index) = groups.iter().position(|group| group.sequence == sequence) {
            match heir {
                Some(heir) => {
                    groups[index].sequence = heir;
                    groups[index].samples.remove(0);
                }
                None => _ = groups.remove(index),
            }
            return None;
        }
        for group in groups {
            group.samples.retain(|sample| *sample != sequence);
        }
        let place = |id| move |running: &Running| running.sequence == id;
        let mut index = self.running.iter().position(place(sequence))?;
        if let Some((heir, of_heir)) =
            heir.and_then(|heir| Some((heir, self.running.iter().position(place(heir))?)))
        {
            // They are in the order of ids, and the heir's is the next one here.
            self.running[index].sequence = heir;
            index = of_heir;
        }
        let held = self.running.remove(index).held;
        self.places.give_back(held);
        heir.is_none().then_some(held)
    }

    /// What a sequence holds.
    pub fn held(&self, sequence: SequenceId) -> Option<Held> {
        let running = self.running.iter().find(|running| running.sequence == sequence);
        running.map(|running| running.held)
    }

    /// A sequence's prompt has been computed: the samples that waited for it decode from now on. Writes
    /// them into `started`, with what they hold.
    pub fn start_samples(&mut self, sequence: SequenceId, started: &mut Vec<(SequenceId, Held)>) {
        started.clear();
        let Some(Held { slot, .. }) = self.held(sequence) else { return };
        for running in &mut self.running {
            if running.phase == (Phase::Waits { prompt: slot }) {
                running.phase = Phase::Decode { next: running.prompt_rows };
                started.push((running.sequence, running.held));
            }
        }
    }

    /// Writes the samples that wait for what a sequence computes into `waiting`.
    pub fn list_samples(&self, sequence: SequenceId, waiting: &mut Vec<(SequenceId, Held)>) {
        waiting.clear();
        let Some(Held { slot, .. }) = self.held(sequence) else { return };
        let waits = |running: &&Running| running.phase == Phase::Waits { prompt: slot };
        waiting.extend(self.running.iter().filter(waits).map(|r| (r.sequence, r.held)));
    }

    /// The next row of a sequence that decodes is the last of `rows` that are computed as a long prompt.
    pub fn reselect(&mut self, sequence: SequenceId, rows: u32) {
        if let Some(running) = self.running.iter_mut().find(|r| r.sequence == sequence) {
            running.prompt_rows = rows;
            running.phase = Phase::Long { started: false };
        }
    }

    /// The long prompt's last tile has been computed: its sequence decodes from now on.
    pub fn finish_long_prompt(&mut self, sequence: SequenceId) {
        if let Some(running) = self.running.iter_mut().find(|r| r.sequence == sequence) {
            running.phase = Phase::Decode { next: running.prompt_rows };
        }
    }

    /// Whether no sequence waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.groups().is_empty() && self.running.is_empty()
    }

    /// Sequences that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.waiting.groups().iter().map(|group| 1 + group.samples.len()).sum()
    }

    /// Sequences that hold a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Admits what has room and writes the next step into `plan`, whose memory is reused. `admit`
    /// chooses a slot of those that are free, of which there is at least one.
    pub fn plan(
        &mut self,
        plan: &mut StepPlan,
        admit: impl FnMut(SequenceId, &[u32]) -> Admission,
    ) {
        self.admit(admit);
        plan.rows.clear();
        plan.tile = None;
        let is_prompt = |running: &Running| matches!(running.phase, Phase::Prompt { .. });
        let has_prompts = self.running.iter().any(is_prompt);
        // Of a single row whoever decodes has every second one.
        let keeps = has_prompts && (self.limits.rows > 1 || self.passed_over);
        let for_prompts = if keeps { self.limits.least_prompt_rows() } else { 0 };
        let decoding = self.plan_decode(self.limits.rows - for_prompts, plan);
        self.passed_over = has_prompts && !keeps;
        let mut budget = self.limits.prompt_rows_beside(decoding);
        plan.decoding = plan.rows.len();
        self.order.clear();
        self.order.extend(0..self.running.len());
        self.order.sort_unstable_by_key(|index| (self.running[*index].turn.priority, *index));
        let last = self.order.iter().rposition(|index| is_prompt(&self.running[*index]));
        for (place, index) in self.order.iter().enumerate() {
            let running = &mut self.running[*index];
            let Phase::Prompt { done } = running.phase else { continue };
            if budget == 0 {
                break;
            }
            let remaining = running.prompt_rows - done;
            let rows = if Some(place) == last {
                rows_of_last(remaining, budget)
            } else {
                remaining.min(budget)
            };
            let samples = done + rows == running.prompt_rows;
            plan.rows.push(PlannedRows {
                sequence: running.sequence,
                slot: running.held.slot,
                first: done,
                rows,
                samples,
                guesses: 0,
            });
            running.phase = if samples {
                Phase::Decode { next: running.prompt_rows }
            } else {
                Phase::Prompt { done: done + rows }
            };
            budget -= rows;
        }
        plan.tile = self.plan_tile();
    }

    /// Gives rows of a step that nobody needs to guesses. `wanted` says how many a sequence that decodes
    /// has; all but those that [`Scheduler::keep`] names afterwards count as wrong.
    pub fn guess(&self, plan: &mut StepPlan, mut wanted: impl FnMut(SequenceId) -> u32) {
        let taken: u32 = plan.rows.iter().map(|rows| rows.rows).sum();
        let mut budget = self.limits.rows - taken;
        for planned in &mut plan.rows[..plan.decoding] {
            if budget == 0 {
                return;
            }
            planned.guesses = wanted(planned.sequence).min(budget);
            planned.rows += planned.guesses;
            budget -= planned.guesses;
        }
    }

    /// So many guesses of a sequence's last step were right: their rows stay.
    pub fn keep(&mut self, sequence: SequenceId, rows: u32) {
        let running = self.running.iter_mut().find(|running| running.sequence == sequence);
        if let Some(Running { phase: Phase::Decode { next }, .. }) = running {
            *next += rows;
        }
    }

    /// Gives decoding sequences a row each, `most` in all, and returns how many rows that took.
    fn plan_decode(&mut self, most: u32, plan: &mut StepPlan) -> u32 {
        let count = self.running.len();
        let first = self.running.partition_point(|running| running.sequence < self.turn);
        for index in (0..count).map(|offset| (first + offset) % count) {
            let running = &mut self.running[index];
            let Phase::Decode { next } = &mut running.phase else { continue };
            if plan.rows.len() as u32 == most {
                self.turn = running.sequence;
                return most;
            }
            plan.rows.push(PlannedRows {
                sequence: running.sequence,
                slot: running.held.slot,
                first: *next,
                rows: 1,
                samples: true,
                guesses: 0,
            });
            *next += 1;
            self.waiting.charge(running.turn.owner, 1);
        }
        plan.rows.len() as u32
    }

    fn admit(&mut self, mut admit: impl FnMut(SequenceId, &[u32]) -> Admission) {
        while let Some(next) = self.waiting.next() {
            let first = &self.waiting.groups()[next];
            if !self.places.has_room(first.samples.len(), first.shares) {
                // Whoever comes behind it does not overtake, or a large group would never find room.
                return;
            }
            let Waiting { sequence, prompt_rows, samples, shares, turn } = self.waiting.take(next);
            self.places.list(&mut self.free);
            let Admission { slot, done } = admit(sequence, &self.free);
            assert!(done < prompt_rows, "a prompt's last row is computed");
            self.waiting.charge(turn.owner, prompt_rows - done);
            let held = self.places.take(slot);
            let phase = if prompt_rows > self.limits.direct_rows {
                Phase::Long { started: false }
            } else {
                Phase::Prompt { done }
            };
            // Samples have the ids that follow, so all of them stand here together.
            let mut at = self.running.partition_point(|running| running.sequence < sequence);
            self.running.insert(at, Running { sequence, held, prompt_rows, phase, turn });
            let phase = Phase::Waits { prompt: slot };
            for sequence in samples {
                let Some(held) = self.places.take_sample(slot, shares) else { break };
                at += 1;
                self.running.insert(at, Running { sequence, held, prompt_rows, phase, turn });
            }
        }
    }

    fn plan_tile(&mut self) -> Option<PlannedTile> {
        let is_started = |running: &Running| running.phase == Phase::Long { started: true };
        let is_long = |running: &Running| matches!(running.phase, Phase::Long { .. });
        let index = (self.running.iter().position(is_started)).or_else(|| {
            let mut order = self.order.iter().copied();
            order.find(|index| is_long(&self.running[*index]))
        })?;
        let running = &mut self.running[index];
        let starts = !is_started(running);
        running.phase = Phase::Long { started: true };
        Some(PlannedTile { sequence: running.sequence, slot: running.held.slot, starts })
    }
}

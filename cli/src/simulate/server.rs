//! A server without a model: the product's scheduler, and a clock that a step's predicted time moves.
//!
//! Arrivals are taken between steps, as the engine's thread takes them; so are requests that have waited
//! or taken too long. The rows of a step are done before its tile, and tokens are there when what they
//! are chosen from is done. What the network, the text and the clients take is not part of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Formatter};

use weir_runtime::command::bench::steps::{StepLoad, StepShape};
use weir_runtime::scheduler::{
    Admission, QueueLimit, Scheduler, SchedulerLimits, SequenceId, StepPlan, Turn,
};

use super::fit::StepCosts;
use super::source::{Asked, Source};
use crate::traffic::outcome::{Answer, Failed, Kind, Outcome, Sent};

/// Prompts beyond the context that may follow each other at one moment where requests go on as long as time
/// does. Whoever is refused asks again at once, so where no prompt fits no time would ever pass.
const MOST_REFUSED: u64 = 10_000;

/// Time does not pass: so many prompts in a row were longer than the context. The user's choice of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandsStill {
    /// The request at which it was given up, from 1.
    request: usize,
    prompt_rows: u32,
    context: u32,
}

impl Display for StandsStill {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let StandsStill { request, prompt_rows, context } = self;
        write!(
            f,
            "request {request} has a prompt of {prompt_rows} tokens, and the context is {context}; so it was \
             with all {MOST_REFUSED} before it, and whoever is refused asks again at once, while no time \
             passes: give --requests or shorter prompts"
        )
    }
}

impl std::error::Error for StandsStill {}

/// A server as it would be started.
#[derive(Clone, Debug)]
pub struct Server {
    /// Numbers of the model, with the rows of a step that are asked for.
    pub shape: StepShape,
    /// What steps take.
    pub costs: StepCosts,
    /// Sequences at once.
    pub slots: u32,
    /// Requests that wait for a slot, at most, when nothing has been answered.
    pub queue: QueueLimit,
    /// Seconds that a request waits for a slot, at most.
    pub queue_timeout: Option<f64>,
    /// Seconds that a request takes, at most.
    pub request_timeout: Option<f64>,
}

/// How busy a server was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilisation {
    /// Steps.
    pub steps: u64,
    /// Rows of sequences that decode.
    pub decode_rows: u64,
    /// Rows of prompts, those of long ones aside.
    pub prompt_rows: u64,
    /// Tiles of long prompts.
    pub tiles: u64,
    /// Seconds in steps.
    pub busy: f64,
    /// Slots that were held, summed over seconds.
    pub slot_seconds: f64,
    /// Requests that waited for a slot, summed over seconds.
    pub waiting_seconds: f64,
    /// Requests that were refused because the queue was full.
    pub refused: u64,
}

/// A request that is being answered, or waits.
struct Open {
    at: f64,
    prompt_rows: u32,
    tokens: u32,
    /// Tiles of its prompt that are done, if that is long.
    tiles: u64,
    /// When its last token was there.
    last: f64,
    answer: Answer,
}

struct Simulation<'s, 'd> {
    server: &'s Server,
    source: Source<'d>,
    scheduler: Scheduler,
    open: BTreeMap<SequenceId, Open>,
    /// Owners by their keys.
    owners: HashMap<Option<String>, u32>,
    next: SequenceId,
    queue: QueueLimit,
    now: f64,
    last_end: f64,
    most_at_once: usize,
    /// Prompts beyond the context since another came or time passed.
    refused_in_a_row: u64,
    outcomes: Vec<Outcome>,
    utilisation: Utilisation,
}

impl Server {
    /// Answers all requests, and says what became of them.
    pub fn serve(&self, source: Source<'_>) -> Result<(Sent, Utilisation), StandsStill> {
        let limits = SchedulerLimits {
            slots: self.slots,
            blocks: self.slots,
            rows: self.shape.step_rows,
            direct_rows: self.shape.direct_rows,
        };
        let mut simulation = Simulation {
            server: self,
            source,
            scheduler: Scheduler::new(limits),
            open: BTreeMap::new(),
            owners: HashMap::new(),
            next: 0,
            queue: self.queue.clone(),
            now: 0.0,
            last_end: 0.0,
            most_at_once: 0,
            refused_in_a_row: 0,
            outcomes: Vec::new(),
            utilisation: Utilisation::default(),
        };
        simulation.run()?;
        let Simulation { outcomes, last_end, most_at_once, utilisation, .. } = simulation;
        Ok((Sent { outcomes, seconds: last_end, most_at_once }, utilisation))
    }
}

impl Simulation<'_, '_> {
    fn run(&mut self) -> Result<(), StandsStill> {
        let mut plan = StepPlan::default();
        loop {
            while let Some(asked) = self.source.due(self.now) {
                self.arrive(asked)?;
            }
            self.end_what_is_over();
            if !self.scheduler.is_idle() {
                self.step(&mut plan);
            } else if let Some(at) = self.source.next_at() {
                self.now = self.now.max(at);
            } else {
                return Ok(());
            }
        }
    }

    fn arrive(&mut self, asked: Asked) -> Result<(), StandsStill> {
        let Asked { at, prompt_rows, tokens, key, priority } = asked;
        self.most_at_once = self.most_at_once.max(self.open.len() + 1);
        let StepShape { context, .. } = self.server.shape;
        if prompt_rows > context {
            let message = format!("a prompt of {prompt_rows} tokens, and the context is {context}");
            self.end(at, Err(Failed { kind: Kind::Status(400), message }));
            self.refused_in_a_row += 1;
            if self.refused_in_a_row > MOST_REFUSED && self.source.is_endless() {
                let request = self.outcomes.len() + self.open.len();
                return Err(StandsStill { request, prompt_rows, context });
            }
            return Ok(());
        }
        self.refused_in_a_row = 0;
        let waiting = self.queue.at(self.now as u64);
        let places = u64::from(self.server.slots) + u64::from(waiting);
        if self.open.len() as u64 >= places {
            self.utilisation.refused += 1;
            let message = "all slots and places in the queue were taken".to_owned();
            self.end(at, Err(Failed { kind: Kind::Status(429), message }));
            return Ok(());
        }
        let owners = self.owners.len() as u32;
        let owner = *self.owners.entry(key).or_insert(owners);
        let id = self.next;
        self.next += 1;
        self.scheduler.submit_samples(id, prompt_rows, Vec::new(), true, Turn { owner, priority });
        // The last token needs no row, so there is room for one more than rows are left.
        let tokens = tokens.clamp(1, context - prompt_rows + 1);
        let answer = Answer { prompt_tokens: Some(u64::from(prompt_rows)), ..Answer::default() };
        self.open.insert(id, Open { at, prompt_rows, tokens, tiles: 0, last: at, answer });
        Ok(())
    }

    /// A request has ended, one way or the other.
    fn end(&mut self, at: f64, answer: Result<Answer, Failed>) {
        self.last_end = self.last_end.max(at);
        if answer.is_ok() {
            self.queue.ended(at as u64);
        }
        self.outcomes.push(Outcome { late: None, answer });
        self.source.ended(at);
    }

    fn end_what_is_over(&mut self) {
        let Server { queue_timeout, request_timeout, .. } = *self.server;
        if queue_timeout.is_none() && request_timeout.is_none() {
            return;
        }
        let is_over = |at: f64, most: Option<f64>| most.is_some_and(|most| at + most <= self.now);
        let mut over = Vec::new();
        for (id, open) in &self.open {
            if is_over(open.at, request_timeout) {
                // A stream that has begun cannot take its status back.
                let begun = open.answer.first.is_some();
                let kind = if begun { Kind::Stream } else { Kind::Status(504) };
                over.push((*id, kind, "the request's time was over"));
            } else if is_over(open.at, queue_timeout) && self.scheduler.held(*id).is_none() {
                over.push((*id, Kind::Status(503), "it waited for a slot for too long"));
            }
        }
        for (id, kind, message) in over {
            self.scheduler.remove(id);
            self.open.remove(&id);
            self.end(self.now, Err(Failed { kind, message: message.to_owned() }));
        }
    }

    fn step(&mut self, plan: &mut StepPlan) {
        self.scheduler.plan(plan, |_, free| Admission { slot: free[0], done: 0 });
        self.utilisation.steps += 1;
        let shape = &self.server.shape;
        let mut load = StepLoad::default();
        for planned in &plan.rows {
            let Some(open) = self.open.get(&planned.sequence) else { continue };
            let positions = planned.first..planned.first + planned.rows;
            let attended: f64 = positions.map(|position| shape.attended(position)).sum();
            if planned.first < open.prompt_rows {
                load.prompt_rows += f64::from(planned.rows);
                load.prompt_attended += attended;
                self.utilisation.prompt_rows += u64::from(planned.rows);
            } else {
                load.decode_rows += f64::from(planned.rows);
                load.decode_attended += attended;
                self.utilisation.decode_rows += u64::from(planned.rows);
            }
        }
        self.pass(&load);
        for planned in plan.rows.iter().filter(|planned| planned.samples) {
            self.choose(planned.sequence);
        }
        let Some(tile) = plan.tile else { return };
        let Some(open) = self.open.get_mut(&tile.sequence) else { return };
        let load = shape.tile(open.prompt_rows, open.tiles);
        open.tiles += 1;
        let is_done = open.tiles == shape.tiles(open.prompt_rows);
        self.utilisation.tiles += 1;
        self.pass(&load);
        if is_done {
            self.scheduler.finish_long_prompt(tile.sequence);
            self.choose(tile.sequence);
        }
    }

    /// Time passes with work.
    fn pass(&mut self, load: &StepLoad) {
        self.refused_in_a_row = 0;
        let seconds = self.server.costs.seconds(load);
        self.now += seconds;
        self.utilisation.busy += seconds;
        self.utilisation.slot_seconds += seconds * self.scheduler.running() as f64;
        self.utilisation.waiting_seconds += seconds * self.scheduler.waiting() as f64;
    }

    /// A token is there, and with the last one the answer.
    fn choose(&mut self, id: SequenceId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        match open.answer.first {
            None => open.answer.first = Some(self.now - open.at),
            Some(_) => open.answer.gaps.push(self.now - open.last),
        }
        open.last = self.now;
        if open.answer.chunks() < u64::from(open.tokens) {
            return;
        }
        self.scheduler.remove(id);
        if let Some(Open { at, tokens, answer, .. }) = self.open.remove(&id) {
            let output_tokens = Some(u64::from(tokens));
            self.end(self.now, Ok(Answer { seconds: self.now - at, output_tokens, ..answer }));
        }
    }
}

#[cfg(test)]
mod tests;

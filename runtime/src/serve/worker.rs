//! The engine's thread: takes requests in between steps, and puts what they are answered into their
//! mailboxes.
//!
//! Requests that nobody waits for any more, and those whose time is over, are cancelled between two
//! steps, so their slots are free in the next one. While there is nothing to do the thread sleeps.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::Receiver;

use super::board::Board;
use super::mailbox::{End, Outbox};
use super::queue::HeldPlaces;
use super::traces::Moments;
use crate::forward::{StepFault, StepModel};
use crate::{Engine, Event, FinishReason, Request, RequestId, RuntimeError};

/// A request with all of its answers.
pub struct Job {
    /// One per prompt. Their answers are numbered prompt by prompt.
    pub requests: Vec<Request>,
    /// Answers to each of them.
    pub samples: u32,
    /// Where the answers go.
    pub outbox: Outbox,
    /// When it was asked.
    pub asked: Instant,
    /// Until when it waits for a slot.
    pub waits_until: Option<Instant>,
    /// Until when it must be answered.
    pub answer_until: Option<Instant>,
    /// Its places in the queue, one per answer.
    pub places: HeldPlaces,
    /// Where it is noted what its time goes to, if somebody wants to know.
    pub moments: Option<Arc<Moments>>,
}

/// A job whose answers are not all there.
struct OpenJob {
    outbox: Outbox,
    asked: Instant,
    waits_until: Option<Instant>,
    answer_until: Option<Instant>,
    places: HeldPlaces,
    moments: Option<Arc<Moments>>,
}

impl OpenJob {
    /// Ends an answer. Its place is given back first: whoever hears of the end may ask again at once.
    fn end(&mut self, number: usize, text: &str, end: End) {
        let is_cut = matches!(end, End::Finished { reason: FinishReason::Cancelled, .. });
        self.places.give_back(matches!(end, End::Finished { .. }) && !is_cut);
        self.outbox.end(number, text, end);
    }
}

/// An answer that is being given.
struct OpenAnswer {
    job: u64,
    /// Its number within the job.
    number: usize,
    /// When its last token was chosen.
    last_token: Option<Instant>,
    /// Why it is being cancelled, unless nobody waits for it.
    ended: Option<End>,
}

/// Serves jobs until nobody can send any more and all are answered.
pub struct Worker<M> {
    engine: Engine<M>,
    jobs: Receiver<Job>,
    board: Arc<Board>,
    open: HashMap<u64, OpenJob>,
    answers: HashMap<RequestId, OpenAnswer>,
    next_job: u64,
    cancelled: Vec<RequestId>,
    /// Jobs with tokens of this step.
    heard: Vec<u64>,
    /// Answers that wait, of jobs whose moments are noted.
    queued: Vec<(RequestId, Arc<Moments>)>,
}

impl<M: StepModel> Worker<M> {
    /// A worker for an engine without requests.
    pub fn new(engine: Engine<M>, jobs: Receiver<Job>, board: Arc<Board>) -> Worker<M> {
        Worker {
            engine,
            jobs,
            board,
            open: HashMap::new(),
            answers: HashMap::new(),
            next_job: 0,
            cancelled: Vec::new(),
            heard: Vec::new(),
            queued: Vec::new(),
        }
    }

    /// Works until the last sender of jobs is gone.
    pub fn run(mut self) {
        loop {
            if self.engine.is_idle() {
                self.board.idle(&self.engine);
                match self.jobs.blocking_recv() {
                    Some(job) => self.begin(job),
                    None => return,
                }
            }
            while let Ok(job) = self.jobs.try_recv() {
                self.begin(job);
            }
            self.cancel_what_is_over(Instant::now());
            self.step();
        }
    }

    fn begin(&mut self, job: Job) {
        let Job { requests, samples, outbox, asked, waits_until, answer_until, places, moments } =
            job;
        let key = self.next_job;
        self.next_job += 1;
        let mut open = OpenJob { outbox, asked, waits_until, answer_until, places, moments };
        let mut number = 0;
        for request in requests {
            match self.engine.submit_samples(request, samples) {
                Ok(ids) => {
                    for id in ids {
                        let answer = OpenAnswer { job: key, number, last_token: None, ended: None };
                        self.answers.insert(id, answer);
                        self.queued.extend(open.moments.clone().map(|moments| (id, moments)));
                        number += 1;
                    }
                }
                // Requests are checked before they are sent here.
                Err(refused) => {
                    for _ in 0..samples {
                        open.end(number, "", End::Failed(refused.to_string()));
                        number += 1;
                    }
                }
            }
        }
        if !open.outbox.is_closed() {
            self.open.insert(key, open);
        }
    }

    fn cancel_what_is_over(&mut self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        for (id, answer) in &mut self.answers {
            let Some(job) = self.open.get(&answer.job) else { continue };
            let waits = || self.engine.waits(*id);
            if job.outbox.is_abandoned() {
                answer.ended = None;
            } else if is_over(job.answer_until) {
                answer.ended = Some(End::Overdue);
            } else if is_over(job.waits_until) && waits() {
                answer.ended = Some(End::WaitedTooLong);
            } else {
                continue;
            }
            self.cancelled.push(*id);
        }
        for id in self.cancelled.drain(..) {
            self.engine.cancel(id);
        }
    }

    fn step(&mut self) {
        let Worker { engine, board, open, answers, heard, queued, .. } = self;
        let began = Instant::now();
        engine.step(|id, event| {
            let Some(answer) = answers.get_mut(&id) else { return };
            let Some(job) = open.get_mut(&answer.job) else { return };
            let (text, end) = match event {
                Event::Token { token, text, logprobs } => {
                    let now = Instant::now();
                    job.moments.iter().for_each(|moments| moments.token(now));
                    match answer.last_token.replace(now) {
                        None => board.first_token(now - job.asked),
                        Some(last) => board.next_token(now - last),
                    }
                    job.outbox.token(answer.number, token, text, logprobs);
                    heard.push(answer.job);
                    return;
                }
                Event::Embedding { values } => {
                    return job.outbox.embedding(answer.number, values);
                }
                Event::Finished { text, reason, stop, usage } => {
                    board.finished(reason, usage, job.asked.elapsed());
                    let end = answer.ended.take().filter(|_| reason == FinishReason::Cancelled);
                    (text, end.unwrap_or(End::Finished { reason, stop, usage }))
                }
                Event::Failed(fault) => {
                    board.failed();
                    let end = match fault {
                        StepFault::Constraint(fault) => End::LeftGrammar(fault),
                        fault => End::Failed(RuntimeError::from(fault).to_string()),
                    };
                    ("", end)
                }
            };
            job.end(answer.number, text, end);
            if job.outbox.is_closed() {
                job.moments.iter().for_each(|moments| moments.end(Instant::now()));
                open.remove(&answer.job);
            }
            answers.remove(&id);
        });
        // Not one by one while tokens are chosen: every connection that wakes takes a processor from
        // what chooses them.
        for job in heard.drain(..) {
            open.get(&job).into_iter().for_each(|job| job.outbox.ring());
        }
        queued.retain(|(id, moments)| {
            let waits = engine.waits(*id);
            if !waits && answers.contains_key(id) {
                moments.start(began);
            }
            waits
        });
        board.step(engine, began);
    }
}

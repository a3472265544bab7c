//! Sends the requests of one rate and gathers what becomes of them.
//!
//! One thread: the generator may share a machine with the server. In an open loop a request is written
//! out before its time and sent at it, whatever the answers before it do; how late it was is measured
//! where its task begins, so that a generator without enough processor time says so. Timers have a
//! grain of a millisecond.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::client::Client;
use crate::progress::Work;
use crate::traffic::arrivals::{Arrival, Bounds, Wanted};
use crate::traffic::dataset::{Endpoint, Prompt, Prompts, Question};
use crate::traffic::outcome::{Outcome, Sent};

/// What all requests have in common.
pub struct Form {
    /// Where they go.
    pub client: Arc<Client>,
    /// What kind of question they are.
    pub endpoint: Endpoint,
    /// Fields of every request.
    pub fields: Map<String, Value>,
    /// Most tokens of an answer whose prompt does not say so.
    pub max_tokens: u32,
}

impl Form {
    /// A request as it is sent, and most tokens of its answer.
    fn fill(
        &self,
        question: Question,
        max_tokens: Option<u32>,
        priority: Option<i32>,
    ) -> (String, u32) {
        let mut fields = self.fields.clone();
        let max_tokens = max_tokens.or(question.max_tokens).unwrap_or(self.max_tokens);
        fields.insert("max_tokens".to_owned(), max_tokens.into());
        fields.extend(priority.map(|priority| ("priority".to_owned(), priority.into())));
        let (name, prompt) = match (self.endpoint, question.prompt) {
            (Endpoint::Completions, Prompt::Text(text)) => ("prompt", text.into()),
            (Endpoint::Chat, Prompt::Text(text)) => {
                ("messages", json!([{"role": "user", "content": text}]))
            }
            (_, Prompt::Messages(messages)) => ("messages", messages),
        };
        fields.insert(name.to_owned(), prompt);
        (Value::Object(fields).to_string(), max_tokens)
    }
}

/// Requests under way, and what became of the others.
pub struct Runner<'a> {
    form: &'a Form,
    prompts: &'a mut Prompts,
    work: &'a Work,
    tasks: JoinSet<Outcome>,
    outcomes: Vec<Outcome>,
    /// Failures after which nothing more is sent.
    failures_left: usize,
    most_at_once: usize,
    start: Instant,
}

impl<'a> Runner<'a> {
    /// Sends nothing yet, and nothing more after so many failures.
    pub fn new(
        form: &'a Form,
        prompts: &'a mut Prompts,
        work: &'a Work,
        failures_left: usize,
    ) -> Runner<'a> {
        Runner {
            form,
            prompts,
            work,
            tasks: JoinSet::new(),
            outcomes: Vec::new(),
            failures_left,
            most_at_once: 0,
            start: Instant::now(),
        }
    }

    /// Sends requests at their times.
    pub async fn open(mut self, arrivals: impl Iterator<Item = Arrival>) -> Sent {
        self.start = Instant::now();
        for arrival in arrivals {
            let due = self.start + Duration::from_secs_f64(arrival.at);
            let question = self.prompts.take(arrival.prompt);
            let request = self.form.fill(question, arrival.max_tokens, arrival.priority);
            self.wait_until(due).await;
            if self.failures_left == 0 {
                break;
            }
            self.send(request, Some(due));
        }
        self.end().await
    }

    /// Keeps so many requests under way.
    pub async fn closed(mut self, concurrency: usize, bounds: Bounds) -> Sent {
        self.start = Instant::now();
        let mut sent = 0;
        while self.failures_left > 0 && bounds.allow(sent, self.start.elapsed().as_secs_f64()) {
            if self.tasks.len() < concurrency {
                let question = self.prompts.take(Wanted::Next);
                let request = self.form.fill(question, None, None);
                self.send(request, None);
                sent += 1;
            } else if let Some(outcome) = self.tasks.join_next().await {
                self.note(outcome);
            }
        }
        self.end().await
    }

    fn send(&mut self, (body, tokens): (String, u32), due: Option<Instant>) {
        let answer = self.form.client.clone().ask(self.form.endpoint.path(), body, tokens);
        self.tasks.spawn(async move {
            let late = due.map(|due| due.elapsed().as_secs_f64());
            Outcome { late, answer: answer.await }
        });
        self.most_at_once = self.most_at_once.max(self.tasks.len());
    }

    /// Waits for a time, and meanwhile notes what ends.
    async fn wait_until(&mut self, due: Instant) {
        // Behind schedule there is nothing to wait for, but requests must go on.
        yield_now().await;
        while Instant::now() < due {
            match timeout_at(due, self.tasks.join_next()).await {
                Ok(Some(outcome)) => self.note(outcome),
                Ok(None) => sleep_until(due).await,
                Err(_) => break,
            }
        }
    }

    async fn end(mut self) -> Sent {
        while let Some(outcome) = self.tasks.join_next().await {
            self.note(outcome);
        }
        let seconds = self.start.elapsed().as_secs_f64();
        Sent { outcomes: self.outcomes, seconds, most_at_once: self.most_at_once }
    }

    fn note(&mut self, outcome: Result<Outcome, JoinError>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // Nothing here cancels a task, so it panicked: a bug of ours, not of a server.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        if outcome.answer.is_err() {
            self.failures_left = self.failures_left.saturating_sub(1);
        }
        self.outcomes.push(outcome);
        self.work.at(self.outcomes.len() as u64);
    }
}

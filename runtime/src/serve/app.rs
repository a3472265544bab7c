//! What all connections share: the model, the queue's places, keys and counters.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, StatusCode, header};
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::asked::check_size;
use super::board::Board;
use super::browsers::Browsers;
use super::failure::Failure;
use super::keys::{Keys, Tenant};
use super::limits::Limits;
use super::mailbox::{Inbox, mailbox};
use super::queue::{HeldPlaces, RequestPlaces};
use super::reported::ReportedRoom;
use super::traces::{Moments, Traces};
use super::worker::Job;
use crate::machine::Residence;
use crate::memory::MemoryCeiling;
use crate::notation::Notation;
use crate::template::Conversation;
use crate::{Model, Request, RequestRules};

/// Shared by all connections.
pub struct App {
    /// The model.
    pub model: Model,
    /// The name by which requests call it.
    pub name: String,
    /// What requests the engine can serve.
    pub rules: RequestRules,
    /// What strangers may send.
    pub limits: Limits,
    /// Numbers for whoever looks.
    pub board: Arc<Board>,
    /// Instruction set that runs.
    pub isa: &'static str,
    /// Compute threads.
    pub threads: usize,
    /// Slots of the cache.
    pub slots: u32,
    /// Rows that a slot has room for, per layer and head.
    pub rows_of_slot: u32,
    /// How much of this process is in memory.
    pub residence: Residence,
    /// What was printed when the server started.
    pub ceiling: MemoryCeiling,
    /// Bytes of the longest text that can fit into the context.
    pub longest_text: usize,
    /// Which pages may ask.
    pub browsers: Browsers,
    /// Memory for bodies that are being read.
    pub body_budget: Arc<Semaphore>,
    /// Memory for tokens that are reported with probabilities.
    pub(super) reported: ReportedRoom,
    /// How long a request waits for a slot, and until when it must be answered.
    pub queue_timeout: Option<Duration>,
    pub(super) request_timeout: Option<Duration>,
    pub(super) jobs: Sender<Job>,
    pub(super) places: Arc<RequestPlaces>,
    pub(super) keys: RwLock<Arc<Keys>>,
    pub(super) draining: AtomicBool,
    pub(super) ids: Arc<Ids>,
    /// How the model writes thoughts and calls of tools.
    pub notation: Notation,
    /// Where traces of requests go, if anywhere.
    pub(super) traces: Option<Arc<Traces>>,
}

/// Names that no other answer has.
pub struct Ids {
    random: RandomState,
    count: AtomicU64,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { random: RandomState::new(), count: AtomicU64::new(0) }
    }
}

impl Ids {
    /// A name that begins like this.
    pub fn next(&self, prefix: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(count);
        format!("{prefix}{:016x}{count:08x}", hasher.finish())
    }

    /// A name of nine letters and digits.
    pub fn nine(&self) -> String {
        const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.count.fetch_add(1, Ordering::Relaxed));
        let mut rest = hasher.finish();
        let mut letter = || {
            let letter = LETTERS[(rest % 36) as usize];
            rest /= 36;
            char::from(letter)
        };
        (0..9).map(|_| letter()).collect()
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

impl App {
    /// Parsing, templates and tokenizers take their time, which the other connections need not wait for.
    pub async fn off_the_network<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&App) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let app = Arc::clone(self);
        match tokio::task::spawn_blocking(move || work(&app)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "reading the request has failed: a bug in the server",
            )),
        }
    }

    /// Whether no further requests are taken.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Who asks, by their key.
    pub fn tenant(&self, headers: &HeaderMap) -> Result<Tenant, Failure> {
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        if keys.is_empty() {
            return Ok(Tenant::default());
        }
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, key)| key.trim());
        // As Anthropic's clients send it.
        let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok()).map(str::trim);
        let bearer = bearer.or(plain);
        let missing = "an API key is needed: Authorization: Bearer KEY";
        let Some(key) = bearer else {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, missing).coded("missing_api_key"));
        };
        keys.find(key).ok_or_else(|| {
            Failure::new(StatusCode::UNAUTHORIZED, "this API key is not valid")
                .coded("invalid_api_key")
        })
    }

    /// Refuses a model that is not the one here. None is as good as its name.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), Failure> {
        match name {
            Some(name) if name != self.name => {
                let message = format!("there is no model {name:?} here; {:?} is", self.name);
                Err(Failure {
                    param: Some("model".into()),
                    ..Failure::new(StatusCode::NOT_FOUND, message).coded("model_not_found")
                })
            }
            _ => Ok(()),
        }
    }

    /// Answers that are being given or wait, those that the engine has not heard of yet among them.
    pub fn places_taken(&self) -> usize {
        self.places.taken()
    }

    /// Refuses a text that cannot fit, whatever its tokens are, before time and memory are spent on them.
    pub fn check_text(&self, field: &str, text: &str) -> Result<(), Failure> {
        if text.len() <= self.longest_text {
            return Ok(());
        }
        let message = format!(
            "{} bytes of text cannot fit into the model's context of {} tokens",
            text.len(),
            self.rules.context
        );
        Err(Failure::field(field, message).coded("context_length_exceeded"))
    }

    /// Ids of a text, which is that of a field.
    pub fn encode(&self, field: &str, text: &str) -> Result<Vec<u32>, Failure> {
        self.check_text(field, text)?;
        Ok(self.model.encode(text)?)
    }

    /// Text and ids of a conversation, the beginning of the model's turn at its end.
    pub fn encode_chat(
        &self,
        conversation: &Conversation<'_>,
    ) -> Result<(String, Vec<u32>), Failure> {
        check_size(conversation.messages, conversation.tools, conversation.variables)?;
        let conversation = Conversation { add_generation_prompt: true, ..*conversation };
        let text = self.model.template()?.render_conversation(&conversation)?;
        self.check_text("messages", &text)?;
        let ids = self.model.encode_plain(&text)?;
        Ok((text, ids))
    }

    /// Queues requests, `samples` answers to each. What their time goes to is noted in `moments`. Where
    /// probabilities are reported it waits for the memory that they take, which whoever answers holds.
    pub async fn ask(
        &self,
        requests: Vec<Request>,
        samples: u32,
        moments: Option<Arc<Moments>>,
    ) -> Result<(Inbox, Option<OwnedSemaphorePermit>), Failure> {
        if self.is_draining() {
            return Err(Failure::draining());
        }
        for request in &requests {
            self.rules.check(request)?;
        }
        self.reported.check(&requests, samples, &self.rules)?;
        let answers = requests.len() * samples as usize;
        let is_constrained = requests.iter().any(|request| request.constraint.is_some());
        let places = self.places.take(answers, is_constrained)?;
        let room = self.waiting(self.reported.wait(&requests, samples, &self.rules)).await?;
        Ok((self.queue(requests, samples, moments, places)?, room))
    }

    /// Queues further requests of somebody who has been answered some, which have been checked: waits for
    /// places, as long as it may wait for a slot.
    pub async fn ask_on(&self, requests: Vec<Request>) -> Result<Inbox, Failure> {
        let places = self.waiting(self.places.wait(requests.len())).await?;
        self.queue(requests, 1, None, places)
    }

    /// Waits as long as a request may wait for a slot.
    async fn waiting<T>(
        &self,
        what: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match self.queue_timeout {
            None => what.await,
            Some(limit) => match tokio::time::timeout(limit, what).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Failure::waited_too_long()),
            },
        }
    }

    fn queue(
        &self,
        requests: Vec<Request>,
        samples: u32,
        moments: Option<Arc<Moments>>,
        places: HeldPlaces,
    ) -> Result<Inbox, Failure> {
        let (outbox, inbox) = mailbox(requests.len() * samples as usize);
        let asked = Instant::now();
        let job = Job {
            requests,
            samples,
            outbox,
            asked,
            waits_until: self.queue_timeout.map(|limit| asked + limit),
            answer_until: self.request_timeout.map(|limit| asked + limit),
            places,
            moments,
        };
        // There are as many places in the channel as for answers, so it is full only when the engine's
        // thread is gone.
        self.jobs.try_send(job).map_err(|_| {
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has stopped")
        })?;
        Ok(inbox)
    }
}

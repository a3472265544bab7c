//! What the engine has to say to one request's connection.
//!
//! The engine never waits for a connection: it puts what it has down and goes on. A slow reader finds
//! more at once, and its memory is bounded by the answer's length. Both ends notice when the other is
//! gone. Buffers go back and forth, so that a token costs no allocation once they have grown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::sampling::TokenLogprobs;
use crate::{ConstraintFault, FinishReason, Usage};

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// Its id.
    pub id: u32,
    /// Where the text that was certain with it ends in [`Delivery::text`].
    pub text_end: usize,
    /// How probable it was, where the request asks.
    pub logprobs: Option<TokenLogprobs>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Which of the request's stop texts has ended it, if one has.
        stop: Option<usize>,
        /// Counts.
        usage: Usage,
    },
    /// The request has waited for a slot for too long.
    WaitedTooLong,
    /// The answer was not complete when its time was over.
    Overdue,
    /// The answer could not be held to its grammar any longer.
    LeftGrammar(ConstraintFault),
    /// The engine failed: a bug, or a damaged model.
    Failed(String),
}

/// What is new of one answer.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Text that is certain.
    pub text: String,
    /// Tokens that were chosen.
    pub tokens: Vec<ChosenToken>,
    /// The embedding, if it is one that was asked for.
    pub embedding: Option<Vec<f32>>,
    /// Its end; the text before it is the last.
    pub end: Option<End>,
}

impl Delivery {
    /// Nothing, with room for what comes between two looks of a reader that keeps up.
    fn with_room() -> Delivery {
        let (text, tokens) = (String::with_capacity(256), Vec::with_capacity(16));
        Delivery { text, tokens, embedding: None, end: None }
    }

    fn is_empty(&self) -> bool {
        self.tokens.is_empty()
            && self.text.is_empty()
            && self.embedding.is_none()
            && self.end.is_none()
    }

    fn clear(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.embedding = None;
        self.end = None;
    }
}

struct Shared {
    /// One per answer of the request.
    deliveries: Mutex<Vec<Delivery>>,
    arrived: Notify,
    /// Nobody reads any more.
    abandoned: AtomicBool,
}

impl Shared {
    fn deliveries(&self) -> MutexGuard<'_, Vec<Delivery>> {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end.
pub struct Outbox {
    shared: Arc<Shared>,
    open: Vec<bool>,
}

/// The connection's end. Dropping it ends the request.
pub struct Inbox {
    shared: Arc<Shared>,
    received: Vec<Delivery>,
}

/// A mailbox for so many answers.
pub fn mailbox(answers: usize) -> (Outbox, Inbox) {
    let empty = || (0..answers).map(|_| Delivery::with_room()).collect();
    let shared = Arc::new(Shared {
        deliveries: Mutex::new(empty()),
        arrived: Notify::new(),
        abandoned: AtomicBool::new(false),
    });
    let outbox = Outbox { shared: Arc::clone(&shared), open: vec![true; answers] };
    (outbox, Inbox { shared, received: empty() })
}

impl Outbox {
    /// A token of answer number `answer`, and the text that is certain with it. Whoever waits is not told
    /// before [`Self::ring`].
    pub fn token(&mut self, answer: usize, id: u32, text: &str, logprobs: Option<&TokenLogprobs>) {
        let mut deliveries = self.shared.deliveries();
        let Some(delivery) = deliveries.get_mut(answer) else { return };
        delivery.text.push_str(text);
        let text_end = delivery.text.len();
        delivery.tokens.push(ChosenToken { id, text_end, logprobs: logprobs.cloned() });
    }

    /// The embedding that answer number `answer` is. Its end follows.
    pub fn embedding(&mut self, answer: usize, values: &[f32]) {
        if let Some(delivery) = self.shared.deliveries().get_mut(answer) {
            delivery.embedding = Some(values.to_vec());
        }
    }

    /// Wakes whoever waits for what has been put down.
    pub fn ring(&self) {
        self.shared.arrived.notify_one();
    }

    /// The end of an answer, with text that was held back, and a ring. Whatever comes after it is ignored.
    pub fn end(&mut self, answer: usize, text: &str, end: End) {
        if !self.open.get(answer).copied().unwrap_or(false) {
            return;
        }
        self.open[answer] = false;
        let mut deliveries = self.shared.deliveries();
        deliveries[answer].text.push_str(text);
        deliveries[answer].end = Some(end);
        drop(deliveries);
        self.ring();
    }

    /// Whether nobody reads any more.
    pub fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Relaxed)
    }

    /// Whether all answers have ended.
    pub fn is_closed(&self) -> bool {
        !self.open.contains(&true)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        for answer in 0..self.open.len() {
            self.end(answer, "", End::Failed("the engine has stopped".into()));
        }
    }
}

impl Inbox {
    /// What is new, one delivery per answer; waits until there is something. What was received before is
    /// gone.
    pub async fn receive(&mut self) -> &[Delivery] {
        self.received.iter_mut().for_each(Delivery::clear);
        loop {
            {
                let mut deliveries = self.shared.deliveries();
                if deliveries.iter().any(|delivery| !delivery.is_empty()) {
                    std::mem::swap(&mut *deliveries, &mut self.received);
                    break;
                }
            }
            self.shared.arrived.notified().await;
        }
        &self.received
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn a_slow_reader_finds_everything_at_once() {
        let (mut outbox, mut inbox) = mailbox(2);
        outbox.token(0, 5, "a", None);
        outbox.token(0, 6, "bc", None);
        outbox.end(1, "late", End::Overdue);
        let received = run(inbox.receive());
        assert_eq!(received[0].text, "abc");
        let ends: Vec<(u32, usize)> =
            received[0].tokens.iter().map(|token| (token.id, token.text_end)).collect();
        assert_eq!(ends, [(5, 1), (6, 3)]);
        assert_eq!(received[0].end, None);
        assert_eq!((received[1].text.as_str(), &received[1].end), ("late", &Some(End::Overdue)));
        outbox.token(0, 7, "d", None);
        let received = run(inbox.receive());
        assert_eq!((received[0].text.as_str(), received[0].tokens.len()), ("d", 1));
        assert_eq!(received[1].end, None);
    }

    #[test]
    fn each_end_notices_that_the_other_is_gone() {
        let (mut outbox, mut inbox) = mailbox(2);
        outbox.end(0, "", End::Overdue);
        outbox.end(0, "again", End::WaitedTooLong);
        assert!(!outbox.is_closed());
        drop(outbox);
        let received = run(inbox.receive());
        assert_eq!(received[0].end, Some(End::Overdue));
        assert!(matches!(received[1].end, Some(End::Failed(_))));
        let (outbox, inbox) = mailbox(1);
        assert!(!outbox.is_abandoned());
        drop(inbox);
        assert!(outbox.is_abandoned());
    }
}

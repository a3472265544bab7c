//! Memory for tokens that are reported with their probabilities, which are a hundred times as long as their
//! text: all answers together have so much. Whoever comes too late waits before the engine begins with him.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;
use super::limits::{LOGPROBS, Limits};
use crate::memory::{Mebibytes, product};
use crate::{Request, RequestRules};

/// Bytes of a token or an alternative to it, as text and before it is written (80 to 110 seen in
/// conversations).
const ENTRY_BYTES: u64 = 128;

/// Bytes that a unit of the memory stands for.
const UNIT: u64 = 4096;

/// The memory that there is.
pub struct ReportedRoom {
    bytes: u64,
    free: Arc<Semaphore>,
}

impl ReportedRoom {
    /// Bytes for a server in which so many answers, of at most `context` tokens each, are given or wait.
    pub fn bytes(limits: &Limits, answers: u32, context: u32) -> u64 {
        let all = product([answers.into(), context.into(), 1 + u64::from(LOGPROBS), ENTRY_BYTES]);
        all.min(limits.all_reported_bytes as u64)
    }

    /// Room for so many bytes.
    pub fn new(bytes: u64) -> ReportedRoom {
        ReportedRoom { bytes, free: Arc::new(Semaphore::new((bytes / UNIT) as usize)) }
    }

    /// Bytes that `samples` answers to each request can report.
    fn needed(requests: &[Request], samples: u32, rules: &RequestRules) -> u64 {
        let of_request = |request: &Request| {
            let room = u64::from(rules.context).saturating_sub(request.prompt.len() as u64) + 1;
            let tokens = request.max_tokens.map_or(room, |most| room.min(most.into()));
            let entries = request.logprobs.map_or(0, |count| 1 + u64::from(count));
            // Each below 2³², 2⁵ and 2⁷.
            tokens * entries * ENTRY_BYTES
        };
        requests.iter().map(of_request).sum::<u64>().saturating_mul(samples.into())
    }

    /// Refuses what there can never be room for.
    pub fn check(
        &self,
        requests: &[Request],
        samples: u32,
        rules: &RequestRules,
    ) -> Result<(), Failure> {
        let needed = ReportedRoom::needed(requests, samples, rules);
        if needed <= self.bytes {
            return Ok(());
        }
        let message = format!(
            "the probabilities of so many tokens can take {}, and there are {} for all answers; ask for \
             fewer max_tokens or fewer alternatives",
            Mebibytes(needed),
            Mebibytes(self.bytes)
        );
        Err(Failure::field("max_tokens", message))
    }

    /// Waits for room; none where nothing is reported. It is given back when it is dropped.
    pub async fn wait(
        &self,
        requests: &[Request],
        samples: u32,
        rules: &RequestRules,
    ) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let needed = ReportedRoom::needed(requests, samples, rules);
        if needed == 0 {
            return Ok(None);
        }
        // No more than there is, which is below 2³² units.
        let units = needed.div_ceil(UNIT).min(self.bytes / UNIT) as u32;
        let held = Arc::clone(&self.free).acquire_many_owned(units).await;
        let stopped = |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the room is closed");
        held.map(Some).map_err(stopped)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn request(logprobs: Option<u32>, max_tokens: Option<u32>) -> Request {
        Request { prompt: vec![1; 5], logprobs, max_tokens, ..Request::default() }
    }

    #[test]
    fn answers_share_the_room() {
        let rules = RequestRules { context: 104, vocabulary: 10, has_tokenizer: true };
        let limits = Limits { all_reported_bytes: 64 << 10, ..Limits::default() };
        assert_eq!(ReportedRoom::bytes(&limits, 2, 3), 2 * 3 * 21 * 128);
        let room = ReportedRoom::new(ReportedRoom::bytes(&limits, 9, 104));
        // A hundred tokens are left; with an alternative each that is 25,600 bytes.
        let some = [request(Some(1), None)];
        assert_eq!(ReportedRoom::needed(&some, 1, &rules), 25_600);
        assert!(room.check(&some, 2, &rules).is_ok());
        let refused = room.check(&some, 3, &rules).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("max_tokens"));
        assert!(room.check(&[request(None, None)], 8, &rules).is_ok());

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            assert!(room.wait(&[request(None, None)], 8, &rules).await.unwrap().is_none());
            let held = room.wait(&some, 2, &rules).await.unwrap();
            let few = [request(Some(0), Some(30))];
            let short = room.wait(&few, 1, &rules).await.unwrap();
            let mut waits = Box::pin(room.wait(&some, 1, &rules));
            assert!(waits.as_mut().now_or_never().is_none());
            drop(short);
            assert!(waits.as_mut().now_or_never().is_none());
            drop(held);
            assert!(waits.await.unwrap().is_some());
        });
    }
}

//! The worker over a model that says the same thing all the time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::mpsc;
use weir_abi::{CacheLayout, CachePolicy, HeadResult};

use super::*;
use crate::SamplingOptions;
use crate::cache::KeptRows;
use crate::forward::{LongPrompt, ModelShape, Past, StepFault, StepRow};
use crate::scheduler::QueueLimit;
use crate::serve::mailbox::{Inbox, mailbox};
use crate::serve::queue::RequestPlaces;

const VOCABULARY: u32 = 64;
const ROWS: u32 = 4096;

/// Every token is followed by the one after it.
struct Counting {
    shape: ModelShape,
}

fn counting(slots: u32) -> Counting {
    let layout = CacheLayout {
        policy: CachePolicy::Full as u32,
        elastic: 0,
        sinks: 0,
        selected: 0,
        recent: 0,
        rows: ROWS,
        window: 0,
        observed: 0,
        pool: 1,
        growth: 0,
        in_flight: 0,
        reservoir: 0,
        reselect: 0,
        redundancy: 0,
        block_rows: 0,
        further: 0,
        first_head: 0,
        second: 0,
        second_share: 0,
    };
    let shape = ModelShape {
        vocabulary: VOCABULARY,
        head_result: HeadResult::Logits,
        head_width: VOCABULARY,
        context: ROWS,
        max_rows: 16,
        slots,
        blocks: slots,
        hidden_width: 16,
        rotary_switch: ROWS,
        layouts: vec![layout],
        direct_rows: ROWS,
    };
    Counting { shape }
}

impl StepModel for Counting {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn step(
        &mut self,
        rows: &[StepRow],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        for (row, logits) in head_rows.iter().zip(logits.chunks_mut(VOCABULARY as usize)) {
            logits.fill(0.0);
            logits[((rows[*row as usize].token + 1) % VOCABULARY) as usize] = 5.0;
        }
        Ok(())
    }

    fn copy_prompt(&mut self, _prompt_rows: u32, _from: u32, _to: u32) {}

    fn kept(&self, _slot: u32, past: Past) -> KeptRows {
        self.shape.kept(past, &[])
    }

    fn reselects(&self, _slot: u32, _past: Past) -> Option<Past> {
        None
    }

    fn begin_prompt(&mut self, _prompt: LongPrompt<'_>) {}

    fn advance_prompt(&mut self) -> Result<bool, StepFault> {
        Ok(true)
    }

    fn prompt_logits(&mut self, _first: u32, _logits: &mut [f32]) -> Result<(), StepFault> {
        Ok(())
    }
}

fn request(seed: u64) -> Request {
    let sampling = SamplingOptions {
        temperature: if seed == 0 { 0.0 } else { 0.9 },
        top_p: 0.9,
        frequency_penalty: 0.01,
        seed,
        ..SamplingOptions::default()
    };
    Request { prompt: vec![1, 2, 3], sampling, ..Request::default() }
}

/// A job without limits of time, and where its answers are read.
fn job(requests: Vec<Request>, samples: u32, places: HeldPlaces) -> (Job, Inbox) {
    let (outbox, inbox) = mailbox(requests.len() * samples as usize);
    let asked = Instant::now();
    let (waits_until, answer_until, moments) = (None, None, None);
    (Job { requests, samples, outbox, asked, waits_until, answer_until, places, moments }, inbox)
}

/// From the engine's step to the mailbox, numbers for the page and metrics included.
#[test]
fn a_step_allocates_nothing_once_its_readers_have_read() {
    let engine = Engine::new(counting(4), None, vec![]);
    let (_jobs, taken) = mpsc::channel(1);
    let mut worker = Worker::new(engine, taken, Arc::new(Board::new("m", "none", 4, ROWS)));
    let places = RequestPlaces::new(4, QueueLimit::new(4, None)).take(4, false).ok().unwrap();
    let (asked, mut inbox) = job(vec![request(0), request(1)], 2, places);
    worker.begin(Job { moments: Some(Arc::default()), ..asked });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut allocations, mut tokens) = (0, 0);
    for step in 0..400 {
        let counted = allocation_counter::measure(|| {
            worker.cancel_what_is_over(Instant::now());
            worker.step();
        });
        if step >= 20 {
            allocations += counted.count_total;
            let received = runtime.block_on(inbox.receive());
            tokens += received.iter().map(|delivery| delivery.tokens.len()).sum::<usize>();
        }
    }
    assert!(tokens >= 4 * 380, "{tokens} tokens were received");
    assert_eq!(allocations, 0);
}

/// Notes how many places were free when it was woken.
struct Watcher {
    places: Arc<RequestPlaces>,
    free: AtomicUsize,
}

impl Wake for Watcher {
    fn wake(self: Arc<Self>) {
        self.free.store(self.places.all() - self.places.taken(), Ordering::Relaxed);
    }
}

/// A client asks again as soon as it hears of the end, and is not refused for its own last answer.
#[test]
fn whoever_hears_of_an_end_finds_its_place_free() {
    let engine = Engine::new(counting(2), None, vec![]);
    let (_jobs, taken) = mpsc::channel(1);
    let mut worker = Worker::new(engine, taken, Arc::new(Board::new("m", "none", 2, ROWS)));
    let places = RequestPlaces::new(2, QueueLimit::new(2, Some(0)));
    let short = Request { max_tokens: Some(1), ..request(0) };
    let long = Request { max_tokens: Some(4), ..request(0) };
    let taken_places = places.take(2, false).ok().unwrap();
    let (asked, mut inbox) = job(vec![short, long], 1, taken_places);
    worker.begin(asked);
    let watcher = Arc::new(Watcher { places, free: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&watcher));
    let mut free_at_ends = Vec::new();
    for _ in 0..8 {
        let mut received = Box::pin(inbox.receive());
        if received.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            worker.step();
            let Poll::Ready(deliveries) = received.as_mut().poll(&mut Context::from_waker(&waker))
            else {
                continue;
            };
            if deliveries.iter().any(|delivery| delivery.end.is_some()) {
                free_at_ends.push(watcher.free.load(Ordering::Relaxed));
            }
        }
    }
    assert_eq!(free_at_ends, [1, 2]);
}

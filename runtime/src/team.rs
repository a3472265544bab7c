//! The compute team: threads that enter one segment together.
//!
//! The caller is thread 0; the others wait between calls, first spinning, then asleep. Segments
//! divide their work by a fixed rule over (thread, threads), so results do not depend on the number
//! of threads. This is one of the few files that may use `unsafe`: it turns the slices of a
//! [`Call`] into the pointers of a [`StepContext`] and calls model code with them.

#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod tests;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_abi::{LayerCall, PromptCall, RowSpans, Segment, StepContext};

use crate::cores::available_processors;

/// Turns of a waiting thread before it sleeps: about 20 µs, longer than the gap between two
/// segments of a step, shorter than what a sleeping thread's wake-up costs.
const SPINS: u32 = 2_000;

/// A fault that model code reported: its number and its detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedFault {
    /// Number of a [`weir_abi::Fault`].
    pub number: u32,
    /// What it says about the place.
    pub detail: u32,
}

/// A barrier that can be used any number of times.
struct Rendezvous {
    threads: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
    spins: u32,
}

impl Rendezvous {
    fn new(threads: u32, spins: u32) -> Rendezvous {
        Rendezvous {
            threads,
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            spins,
        }
    }

    /// Returns when all threads have called it as often as this one.
    fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.threads {
            self.arrived.store(0, Ordering::SeqCst);
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            // Either this load sees the sleeper, or the sleeper sees the new generation.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                self.wake.notify_all();
            }
            return;
        }
        for _ in 0..self.spins {
            if self.generation.load(Ordering::SeqCst) != generation {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == generation {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A segment and its context, handed to the waiting threads.
#[derive(Clone, Copy)]
struct Job {
    segment: Segment,
    context: *const StepContext,
}

/// What the threads share.
struct Shared {
    threads: u32,
    start: Rendezvous,
    inside: Rendezvous,
    finish: Rendezvous,
    stop: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    /// First fault: detail in the low half, number in the high half; 0 is none.
    fault: AtomicU64,
    /// Whether somebody wants to know when barriers are passed.
    watched: AtomicBool,
    /// When thread 0 passed the barriers of the segment that runs.
    passed: Mutex<Vec<Instant>>,
}

/// How long the phases of a segment took, summed over its calls.
#[derive(Clone, Debug)]
pub struct SegmentTimes {
    /// The segment.
    pub segment: Segment,
    /// Calls.
    pub calls: u64,
    /// From one barrier to the next.
    pub phases: Vec<Duration>,
}

// SAFETY: `job` is written by thread 0 before it arrives at `start` and read by the others after
// they have left it, and not written again before all have arrived at `finish`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

unsafe extern "C" fn barrier(team: *const c_void, thread: u32) {
    // SAFETY: model code passes on `StepContext::team`, which is the `Shared` of a living team.
    let shared = unsafe { &*team.cast::<Shared>() };
    shared.inside.wait();
    if thread == 0 && shared.watched.load(Ordering::Relaxed) {
        shared.passed.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    }
}

unsafe extern "C" fn report_fault(team: *const c_void, number: u32, detail: u32) {
    // SAFETY: as in `barrier`.
    let shared = unsafe { &*team.cast::<Shared>() };
    let packed = u64::from(number.max(1)) << 32 | u64::from(detail);
    let _ = shared.fault.compare_exchange(0, packed, Ordering::SeqCst, Ordering::SeqCst);
}

/// Threads that enter segments together.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    times: Vec<SegmentTimes>,
}

/// The planes of one layer's cache and who writes and reads what in them.
pub struct LayerPlanes<'a> {
    /// Key plane.
    pub keys: &'a mut [u8],
    /// Value plane.
    pub values: &'a mut [u8],
    /// Distances in both.
    pub strides: PlaneStrides,
}

/// Distances in a layer's planes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaneStrides {
    /// From one slot's keys to the next.
    pub key_slot: u64,
    /// From one head's keys to the next.
    pub key_head: u64,
    /// From one slot's values to the next.
    pub value_slot: u64,
    /// From one head's values to the next.
    pub value_head: u64,
}

/// Where the last queries of a prompt are stored.
pub struct Observed<'a> {
    /// Rotated queries, `[observed, heads, key_width]`.
    pub queries: &'a mut [f32],
    /// Log-sum-exp, `[observed, heads]`.
    pub lse: &'a mut [f32],
    /// First observed position.
    pub from: u32,
}

/// The layer part of a [`Call`].
pub struct LayerArguments<'a> {
    /// Planes that rows are written to and read from.
    pub planes: LayerPlanes<'a>,
    /// Per row of the step.
    pub spans: &'a [RowSpans],
    /// Set while rows of a prompt that is going to be scored are computed.
    pub observed: Option<Observed<'a>>,
}

/// The prompt part of a [`Call`]: what the selection knows and where it writes.
pub struct PromptArguments<'a> {
    /// Numbers; pointers and strides in it are ignored.
    pub numbers: PromptCall,
    /// Planes of the slot cache.
    pub destination: LayerPlanes<'a>,
    /// Pooled scores, `[kv_heads, rows]`.
    pub scores: &'a mut [f32],
    /// Scratch, `[kv_heads, rows]`.
    pub scratch: &'a mut [f32],
    /// Positions of the selected rows, `[kv_heads, K]`.
    pub selected_positions: &'a mut [u32],
}

/// Everything that a segment receives, as slices; the default is a call of no rows.
#[derive(Default)]
pub struct Call<'a> {
    /// Weights region.
    pub weights: &'a [u8],
    /// Weight offsets of the segment.
    pub segment_weights: &'a [u64],
    /// Arena.
    pub arena: &'a mut [u8],
    /// Hidden rows of the call.
    pub hidden: &'a mut [f32],
    /// Token id of each row.
    pub tokens: &'a [u32],
    /// Position of each row.
    pub positions: &'a [u32],
    /// Rotary row of each row.
    pub rotary_rows: &'a [u32],
    /// The layer, for `layer`, `observe` and `compact`.
    pub layer: Option<LayerArguments<'a>>,
    /// The prompt, for `observe` and `compact`.
    pub prompt: Option<PromptArguments<'a>>,
    /// Rows for the head, indices into `hidden`.
    pub head_rows: &'a [u32],
    /// Logits of those rows.
    pub logits: &'a mut [f32],
    /// Rows of the call.
    pub rows: u32,
}

impl Team {
    /// A team of `threads` threads, the caller included; at least one.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        let count = u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
        // More threads than processors: spinning would keep the one that is awaited from running.
        let spins = if threads <= available_processors() { SPINS } else { 0 };
        let shared = Arc::new(Shared {
            threads: count,
            start: Rendezvous::new(count, spins),
            inside: Rendezvous::new(count, spins),
            finish: Rendezvous::new(count, spins),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            fault: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            passed: Mutex::new(Vec::new()),
        });
        let workers = (1..count)
            .map(|thread| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("weir-{thread}"))
                    .spawn(move || work(&shared, thread))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        Ok(Team { shared, workers, times: Vec::new() })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.shared.threads as usize
    }

    /// From now on notes how long the phases of segments take.
    pub fn watch(&mut self) {
        self.shared.watched.store(true, Ordering::Relaxed);
    }

    /// What was noted since it was last asked for.
    pub fn take_times(&mut self) -> Vec<SegmentTimes> {
        std::mem::take(&mut self.times)
    }

    fn note_times(&mut self, segment: Segment, start: Instant) {
        let mut passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.times.iter().position(|times| times.segment as usize == segment as usize);
        let index = known.unwrap_or_else(|| {
            let phases = vec![Duration::ZERO; passed.len()];
            self.times.push(SegmentTimes { segment, calls: 0, phases });
            self.times.len() - 1
        });
        let times = &mut self.times[index];
        times.calls += 1;
        let mut from = start;
        for (phase, passed) in times.phases.iter_mut().zip(passed.drain(..)) {
            *phase += passed - from;
            from = passed;
        }
    }

    /// Runs a segment on all threads and returns when all have left it.
    ///
    /// Only for segments of a [`crate::CompiledModel`] (whose makers promised that they keep to the
    /// contract of `weir_abi`) with the sizes of that model's tables; that is why this is private
    /// to the crate.
    pub(crate) fn enter(&mut self, segment: Segment, call: Call<'_>) -> Result<(), ReportedFault> {
        let rows = call.rows as usize;
        assert!(
            call.tokens.len() >= rows
                && call.positions.len() >= rows
                && call.rotary_rows.len() >= rows,
            "a step's rows have tokens, positions and rotary rows"
        );
        let layer = call.layer.map(|layer| {
            assert!(layer.spans.len() >= rows, "a step's rows have spans");
            let (queries, lse, from) = match layer.observed {
                Some(observed) => {
                    (observed.queries.as_mut_ptr(), observed.lse.as_mut_ptr(), observed.from)
                }
                None => (std::ptr::null_mut(), std::ptr::null_mut(), 0),
            };
            LayerCall {
                keys: layer.planes.keys.as_mut_ptr(),
                values: layer.planes.values.as_mut_ptr(),
                key_slot_stride: layer.planes.strides.key_slot,
                key_head_stride: layer.planes.strides.key_head,
                value_slot_stride: layer.planes.strides.value_slot,
                value_head_stride: layer.planes.strides.value_head,
                spans: layer.spans.as_ptr(),
                observed_queries: queries,
                observed_lse: lse,
                observed_from: from,
                reserved: 0,
            }
        });
        let prompt = call.prompt.map(|prompt| PromptCall {
            keys: prompt.destination.keys.as_mut_ptr(),
            values: prompt.destination.values.as_mut_ptr(),
            key_slot_stride: prompt.destination.strides.key_slot,
            key_head_stride: prompt.destination.strides.key_head,
            value_slot_stride: prompt.destination.strides.value_slot,
            value_head_stride: prompt.destination.strides.value_head,
            scores: prompt.scores.as_mut_ptr(),
            scratch: prompt.scratch.as_mut_ptr(),
            selected_positions: prompt.selected_positions.as_mut_ptr(),
            ..prompt.numbers
        });
        let context = StepContext {
            weights: call.weights.as_ptr(),
            arena: call.arena.as_mut_ptr(),
            hidden: call.hidden.as_mut_ptr(),
            tokens: call.tokens.as_ptr(),
            positions: call.positions.as_ptr(),
            rotary_rows: call.rotary_rows.as_ptr(),
            segment_weights: call.segment_weights.as_ptr(),
            layer: layer.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            prompt: prompt.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            head_rows: call.head_rows.as_ptr(),
            logits: call.logits.as_mut_ptr(),
            barrier,
            fault: report_fault,
            team: Arc::as_ptr(&self.shared).cast(),
            rows: call.rows,
            head_row_count: call.head_rows.len() as u32,
        };
        let start = Instant::now();
        self.run(Job { segment, context: &raw const context });
        if self.shared.watched.load(Ordering::Relaxed) {
            self.note_times(segment, start);
        }
        match self.shared.fault.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            packed => Err(ReportedFault { number: (packed >> 32) as u32, detail: packed as u32 }),
        }
    }

    fn run(&mut self, job: Job) {
        // SAFETY: the other threads read the job only between `start` and `finish`; thread 0 is
        // here, before `start`.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.start.wait();
        // SAFETY: the segment comes from a compiled model and `context` points to living data of
        // the sizes that the model's tables state (see `enter`).
        unsafe { (job.segment)(job.context, 0, self.shared.threads) };
        self.shared.finish.wait();
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.start.wait();
        for worker in self.workers.drain(..) {
            // A worker runs model code only, which cannot unwind.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, thread: u32) {
    loop {
        shared.start.wait();
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: thread 0 wrote the job before it arrived at `start`.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: thread 0 keeps the context alive until all threads have arrived at `finish`.
            unsafe { (job.segment)(job.context, thread, shared.threads) };
        }
        shared.finish.wait();
    }
}

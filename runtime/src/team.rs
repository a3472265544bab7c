//! The compute team: threads that walk the segments of a step together.
//!
//! The caller is thread 0; the others wait between entries (`rendezvous`). An entry is a list of
//! visits: every thread calls their segments one after the other by itself, and meets the others
//! only at the barriers of the segments, the last of which stands at each segment's end. Segments
//! divide their work by a fixed rule over (thread, threads), or, with many rows, as threads come to
//! it (`deal`); no sum is ever divided, so no result depends on either. This is one of the few files
//! that may use `unsafe`: it turns the slices of an [`Entry`] and its [`Visit`]s into the pointers of
//! a [`StepContext`] and calls model code with them, and it asks the system for state that threads may
//! use.

#![allow(unsafe_code)]

mod deal;
mod rendezvous;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_abi::{FURTHER, HeadRows, LayerCall, PromptCall, RowSpans, Segment, StepContext, TakeOf};

use self::deal::Deal;
use self::rendezvous::Rendezvous;
use crate::cores::available_processors;

/// A fault that model code reported: its number and its detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedFault {
    /// Number of a [`weir_abi::Fault`].
    pub number: u32,
    /// What it says about the place.
    pub detail: u32,
}

/// Parts of a thread's state that the system saves (`XCR0`), by their bits; none where the system says
/// nothing about it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn saved_state() -> u64 {
    #[target_feature(enable = "xsave")]
    fn read() -> u64 {
        // SAFETY: the register exists where the system has turned `XGETBV` on, which the caller asked.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    /// `CPUID` leaf 1, `ECX`: the system has turned `XGETBV` on.
    const TURNED_ON: u32 = 1 << 27;
    if std::arch::x86_64::__cpuid(1).ecx & TURNED_ON == 0 {
        return 0;
    }
    // SAFETY: the instruction is there, as the bit says.
    unsafe { read() }
}

/// See above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn saved_state() -> u64 {
    0
}

/// Asks the system to save tiles' content for all threads of this process, which it does not do for
/// those who never use it. Refused by systems that are older than the request.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn request_tiles() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const REQUEST: libc::c_long = 0x1023;
    /// `XFEATURE_XTILEDATA`.
    const TILE_CONTENT: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_CONTENT) == 0 }
}

/// See above.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn request_tiles() -> bool {
    false
}

/// A visit as model code sees it.
struct Prepared {
    segment: Segment,
    context: StepContext,
    layer: Option<LayerCall>,
    prompt: Option<PromptCall>,
}

/// The visits of an entry, handed to the waiting threads.
#[derive(Clone, Copy)]
struct Job {
    visits: *const Prepared,
    count: usize,
}

/// What the threads share.
struct Shared {
    threads: u32,
    start: Rendezvous,
    inside: Rendezvous,
    /// Works between two barriers of `inside`, whose generation tells them apart.
    deal: Deal,
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

unsafe extern "C" fn take(
    team: *const c_void,
    thread: u32,
    work: u32,
    items: u32,
    together: u32,
    of: u32,
) -> u64 {
    // SAFETY: as in `barrier`.
    let shared = unsafe { &*team.cast::<Shared>() };
    let of = if of == TakeOf::Own as u32 { TakeOf::Own } else { TakeOf::Any };
    let part = shared.deal.take(shared.inside.generation(), [thread, work, items, together], of);
    part.map_or(0, |[first, end]| u64::from(first) << 32 | u64::from(end))
}

unsafe extern "C" fn report_fault(team: *const c_void, number: u32, detail: u32) {
    // SAFETY: as in `barrier`.
    let shared = unsafe { &*team.cast::<Shared>() };
    let packed = u64::from(number.max(1)) << 32 | u64::from(detail);
    let _ = shared.fault.compare_exchange(0, packed, Ordering::SeqCst, Ordering::SeqCst);
}

/// Threads that walk segments together.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    times: Vec<SegmentTimes>,
    /// Room for the visits of an entry; empty between entries.
    prepared: Vec<Prepared>,
    /// Per visit of a watched entry, how many barriers had been passed behind it.
    ends: Vec<usize>,
}

// SAFETY: pointers lie in `prepared` only during `enter`, which has the team to itself.
unsafe impl Send for Team {}

/// The planes of one layer's cache and who writes and reads what in them.
pub struct LayerPlanes<'a> {
    /// Key plane.
    pub keys: &'a mut [u8],
    /// Value plane.
    pub values: &'a mut [u8],
    /// Distances in both.
    pub strides: PlaneStrides,
    /// Rows by head; none where heads have the same.
    pub heads: &'a [HeadRows],
}

/// Distances in a layer's planes, in bytes, and where their parts meet.
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
    /// From a head's first key to where row 0 of the ring's format would lie, modulo 2⁶⁴.
    pub key_ring: u64,
    /// The same of the values.
    pub value_ring: u64,
    /// Rows below this have the block's number format.
    pub block_rows: u32,
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

/// The layer part of a [`Visit`].
pub struct LayerArguments<'a> {
    /// Planes that rows are written to and read from.
    pub planes: LayerPlanes<'a>,
    /// Per row of the step.
    pub spans: &'a [RowSpans],
    /// Number of the layer.
    pub number: u32,
    /// Set while rows of a prompt that is going to be scored are computed.
    pub observed: Option<Observed<'a>>,
}

/// The prompt part of a [`Visit`]: what the selection knows and where it writes.
pub struct PromptArguments<'a> {
    /// Numbers; pointers and strides in it are ignored.
    pub numbers: PromptCall,
    /// Planes of the slot cache.
    pub destination: LayerPlanes<'a>,
    /// Pooled scores, `[kv_heads, rows]`.
    pub scores: &'a mut [f32],
    /// Scratch, `[kv_heads, rows]`.
    pub scratch: &'a mut [f32],
    /// Scratch, `[heads]`.
    pub floors: &'a mut [f32],
    /// Scratch where rows may be asked beside the last ones ([`weir_abi::second_scratch`]).
    pub second: &'a mut [f32],
    /// Positions of the selected rows, `[kv_heads, K]`.
    pub selected_positions: &'a mut [u32],
}

/// What all segments of an entry receive, as slices; the default is an entry of no rows.
#[derive(Default)]
pub struct Entry<'a> {
    /// Weights region.
    pub weights: &'a [u8],
    /// Arena.
    pub arena: &'a mut [u8],
    /// Hidden rows.
    pub hidden: &'a mut [f32],
    /// Token id of each row.
    pub tokens: &'a [u32],
    /// Position of each row.
    pub positions: &'a [u32],
    /// Rotary row of each row.
    pub rotary_rows: &'a [u32],
    /// Rows of the entry.
    pub rows: u32,
}

/// The head part of a [`Visit`].
pub struct HeadArguments<'a> {
    /// Rows for the head, indices into the hidden rows.
    pub rows: &'a [u32],
    /// Logits of those rows.
    pub logits: &'a mut [f32],
}

/// One segment of an entry and what only it receives.
pub struct Visit<'a> {
    /// The segment.
    pub segment: Segment,
    /// Its weight offsets.
    pub weights: &'a [u64],
    /// The layer, for `layer`, `observe` and `compact`.
    pub layer: Option<LayerArguments<'a>>,
    /// The prompt, for `observe` and `compact`.
    pub prompt: Option<PromptArguments<'a>>,
    /// The rows, for `head`.
    pub head: Option<HeadArguments<'a>>,
}

impl<'a> Visit<'a> {
    /// A visit of a segment that needs nothing but its weights.
    pub fn new(segment: Segment, weights: &'a [u64]) -> Visit<'a> {
        Visit { segment, weights, layer: None, prompt: None, head: None }
    }
}

impl Team {
    /// A team of `threads` threads, the caller included; at least one.
    pub fn new(threads: usize) -> std::io::Result<Team> {
        let count = u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
        let crowded = threads > available_processors();
        let shared = Arc::new(Shared {
            threads: count,
            start: Rendezvous::new(count, crowded),
            inside: Rendezvous::new(count, crowded),
            deal: Deal::new(count),
            finish: Rendezvous::new(count, crowded),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            fault: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            passed: Mutex::new(Vec::new()),
        });
        let (times, prepared, ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut team = Team { shared, workers: Vec::new(), times, prepared, ends };
        for thread in 1..count {
            let shared = Arc::clone(&team.shared);
            let worker = std::thread::Builder::new().name(format!("weir-{thread}"));
            match worker.spawn(move || work(&shared, thread)) {
                Ok(worker) => team.workers.push(worker),
                Err(error) => {
                    // The team ends as any other does, once nobody waits for those who do not come.
                    team.shared.start.excuse(count - thread);
                    return Err(error);
                }
            }
        }
        Ok(team)
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

    fn note_times(&mut self, start: Instant) {
        let mut passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut from, mut first) = (start, 0);
        for (visit, end) in self.prepared.iter().zip(self.ends.drain(..)) {
            let passed = &passed[first..end];
            let address = visit.segment as usize;
            let known = self.times.iter().position(|times| times.segment as usize == address);
            let index = known.unwrap_or_else(|| {
                let phases = vec![Duration::ZERO; passed.len()];
                self.times.push(SegmentTimes { segment: visit.segment, calls: 0, phases });
                self.times.len() - 1
            });
            let times = &mut self.times[index];
            times.calls += 1;
            for (phase, passed) in times.phases.iter_mut().zip(passed) {
                *phase += *passed - from;
                from = *passed;
            }
            first = end;
        }
        passed.clear();
    }

    /// Visits segments in order on all threads and returns when all threads have left the last.
    ///
    /// Only for segments of a [`crate::CompiledModel`] (whose makers promised that they keep to the
    /// contract of `weir_abi`) with the sizes of that model's tables; that is why this is private
    /// to the crate.
    pub(crate) fn enter<'a>(
        &mut self,
        entry: Entry<'a>,
        visits: impl IntoIterator<Item = Visit<'a>>,
    ) -> Result<(), ReportedFault> {
        let rows = entry.rows as usize;
        assert!(
            entry.tokens.len() >= rows
                && entry.positions.len() >= rows
                && entry.rotary_rows.len() >= rows,
            "a step's rows have tokens, positions and rotary rows"
        );
        let common = StepContext {
            weights: entry.weights.as_ptr(),
            arena: entry.arena.as_mut_ptr(),
            hidden: entry.hidden.as_mut_ptr(),
            tokens: entry.tokens.as_ptr(),
            positions: entry.positions.as_ptr(),
            rotary_rows: entry.rotary_rows.as_ptr(),
            segment_weights: std::ptr::null(),
            layer: std::ptr::null(),
            prompt: std::ptr::null(),
            head_rows: std::ptr::null(),
            logits: std::ptr::null_mut(),
            barrier,
            take,
            fault: report_fault,
            team: Arc::as_ptr(&self.shared).cast(),
            rows: entry.rows,
            head_row_count: 0,
            reads_far: crate::machine::reads_far().into(),
        };
        self.prepared.clear();
        self.prepared.extend(visits.into_iter().map(|visit| prepare(&common, rows, visit)));
        // Only now, when their number is known, do the visits stay where they are.
        for visit in &mut self.prepared {
            visit.context.layer = visit.layer.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            visit.context.prompt =
                visit.prompt.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        }
        // No entry passes so many barriers that generations of it could be mistaken for others.
        if self.shared.inside.generation() > u32::MAX / 2 {
            self.shared.inside.restart();
            self.shared.deal.clear();
        }
        let start = Instant::now();
        self.run();
        if self.shared.watched.load(Ordering::Relaxed) {
            self.note_times(start);
        }
        self.prepared.clear();
        match self.shared.fault.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            packed => Err(ReportedFault { number: (packed >> 32) as u32, detail: packed as u32 }),
        }
    }

    fn run(&mut self) {
        let job = Job { visits: self.prepared.as_ptr(), count: self.prepared.len() };
        // SAFETY: the other threads read the job only between `start` and `finish`; thread 0 is
        // here, before `start`.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.start.wait();
        let watched = self.shared.watched.load(Ordering::Relaxed);
        for visit in &self.prepared {
            // SAFETY: the segment comes from a compiled model and its context points to living
            // data of the sizes that the model's tables state (see `enter`).
            unsafe { (visit.segment)(&raw const visit.context, 0, self.shared.threads) };
            if watched {
                let passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
                self.ends.push(passed.len());
            }
        }
        self.shared.finish.wait();
    }
}

/// Rows of the block's number format. Where heads have rows of their own, behind all others, the block is
/// nothing or the whole plane.
fn block_rows(strides: PlaneStrides, heads: &[HeadRows]) -> u32 {
    if heads.is_empty() || strides.block_rows == 0 { strides.block_rows } else { FURTHER }
}

fn table(heads: &[HeadRows]) -> *const HeadRows {
    if heads.is_empty() { std::ptr::null() } else { heads.as_ptr() }
}

/// The pointers of a visit.
fn prepare(common: &StepContext, rows: usize, visit: Visit<'_>) -> Prepared {
    let layer = visit.layer.map(|layer| {
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
            layer: layer.number,
            key_ring: layer.planes.strides.key_ring,
            value_ring: layer.planes.strides.value_ring,
            block_rows: block_rows(layer.planes.strides, layer.planes.heads),
            heads: table(layer.planes.heads),
        }
    });
    let prompt = visit.prompt.map(|prompt| PromptCall {
        keys: prompt.destination.keys.as_mut_ptr(),
        values: prompt.destination.values.as_mut_ptr(),
        key_slot_stride: prompt.destination.strides.key_slot,
        key_head_stride: prompt.destination.strides.key_head,
        value_slot_stride: prompt.destination.strides.value_slot,
        value_head_stride: prompt.destination.strides.value_head,
        key_ring: prompt.destination.strides.key_ring,
        value_ring: prompt.destination.strides.value_ring,
        block_rows: block_rows(prompt.destination.strides, prompt.destination.heads),
        heads: table(prompt.destination.heads),
        scores: prompt.scores.as_mut_ptr(),
        scratch: prompt.scratch.as_mut_ptr(),
        floors: prompt.floors.as_mut_ptr(),
        second: prompt.second.as_mut_ptr(),
        selected_positions: prompt.selected_positions.as_mut_ptr(),
        ..prompt.numbers
    });
    let mut context = StepContext { segment_weights: visit.weights.as_ptr(), ..*common };
    if let Some(head) = visit.head {
        context.head_rows = head.rows.as_ptr();
        context.head_row_count = head.rows.len() as u32;
        context.logits = head.logits.as_mut_ptr();
    }
    Prepared { segment: visit.segment, context, layer, prompt }
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
        // SAFETY: thread 0 wrote the job before it arrived at `start`, and keeps the visits where
        // they are until all threads have arrived at `finish`.
        let visits = unsafe {
            (*shared.job.get())
                .map_or(&[][..], |job| std::slice::from_raw_parts(job.visits, job.count))
        };
        for visit in visits {
            // SAFETY: as in `run`.
            unsafe { (visit.segment)(&raw const visit.context, thread, shared.threads) };
        }
        shared.finish.wait();
    }
}

//! The barrier of the team: spin, then give way, then sleep.
//!
//! A thread that waits inside a step waits for work that is being done, so it spins: a sleeping
//! thread's wake-up costs more than most kernels take. After that it offers its processor to
//! whoever wants it, for the thread that is awaited may be one of them; only a wait that is longer
//! than any kernel puts it to sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of a waiting thread before it gives way: some tens of microseconds, longer than threads
/// that share a kernel's work come apart on an idle machine.
const SPINS: u32 = 2_000;

/// Turns in which it gives way before it sleeps: about a millisecond where nobody else wants the
/// processor, longer than the gap between two steps.
const YIELDS: u32 = 2_000;

/// A barrier that can be used any number of times. It has its cache lines (two, for processors that
/// fetch them in pairs) to itself.
#[repr(align(128))]
pub(super) struct Rendezvous {
    threads: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    sleepers: AtomicU32,
    spins: u32,
    yields: u32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Rendezvous {
    /// A barrier for this many threads. `crowded`: there are more threads than processors, so that
    /// spinning would keep the one that is awaited from running.
    pub(super) fn new(threads: u32, crowded: bool) -> Rendezvous {
        Rendezvous {
            threads,
            arrived: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            spins: if crowded { 0 } else { SPINS },
            yields: if crowded { 0 } else { YIELDS },
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Returns when all threads have called it as often as this one.
    pub(super) fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            // Either this load sees the sleeper, or the sleeper sees the new generation.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                self.wake.notify_all();
            }
            return;
        }
        let has_passed = || self.generation.load(Ordering::Acquire) != generation;
        for _ in 0..self.spins {
            if has_passed() {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..self.yields {
            if has_passed() {
                return;
            }
            std::thread::yield_now();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == generation {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

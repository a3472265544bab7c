//! The barrier of the team: spin for a moment, then sleep.
//!
//! A thread that waits inside a step waits for work that is being done, so it spins first: a sleeping
//! thread's wake-up costs more than small kernels take. A longer wait means that the awaited thread
//! has lost its processor to somebody else, the server's connections for one; a sleeper's processor
//! is free for it at once, while one that spins, or only gives way, holds on to it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// How long a waiting thread spins before it sleeps.
const SPINNING: Duration = Duration::from_micros(20);

/// Turns between two looks at the clock, which take as long as some of them.
const TURNS: u32 = 8;

/// A barrier that can be used any number of times. It has its cache lines (two, for processors that
/// fetch them in pairs) to itself.
#[repr(align(128))]
pub(super) struct Rendezvous {
    threads: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
    sleepers: AtomicU32,
    spinning: Duration,
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
            spinning: if crowded { Duration::ZERO } else { SPINNING },
        }
    }

    /// How often it has been passed, by all threads; the same for each between two barriers.
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Counts from the beginning again. Only while no thread is at the barrier or may come to it.
    pub(super) fn restart(&self) {
        self.generation.store(0, Ordering::Relaxed);
    }

    /// Lets the others pass once without this many threads, which will never come.
    pub(super) fn excuse(&self, threads: u32) {
        self.arrived.fetch_add(threads, Ordering::SeqCst);
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
                // It cannot fail: the word is there, and nothing else is asked. The system takes the
                // number for a signed one.
                let _ = futex::wake(&self.generation, futex::Flags::PRIVATE, i32::MAX as u32);
            }
            return;
        }
        let has_passed = || self.generation.load(Ordering::Acquire) != generation;
        if !self.spinning.is_zero() {
            let begin = Instant::now();
            loop {
                for _ in 0..TURNS {
                    if has_passed() {
                        return;
                    }
                    std::hint::spin_loop();
                }
                if begin.elapsed() >= self.spinning {
                    break;
                }
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == generation {
            // Returns as well when the generation is another one already, and now and then for nothing.
            let _ = futex::wait(&self.generation, futex::Flags::PRIVATE, generation, None);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_do_not_come_are_not_waited_for() {
        let barrier = Rendezvous::new(4, true);
        std::thread::scope(|scope| {
            scope.spawn(|| barrier.wait());
            barrier.excuse(2);
            barrier.wait();
        });
        assert_eq!(barrier.generation(), 1);
    }
}

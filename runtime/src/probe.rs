//! How fast this machine reads and computes, measured with a model's own probes.
//!
//! The best of several runs is what the machine can do while others leave it alone; the median says
//! how much they do.

use std::time::Instant;

use memmap2::{Advice, MmapMut};
use weir_abi::{IsaLevel, PROBE_SUMS, Probe};

use crate::forward::StepFault;
use crate::team::{Entry, Team, Visit};
use crate::weights::Probes;
use crate::{RuntimeError, machine};

/// Runs of each measurement: many short ones, so that on a busy machine some pass between two turns
/// of the others.
const RUNS: usize = 40;

/// Turns of a run of arithmetic: about a millisecond.
const TURNS: u64 = 400_000;

/// Bytes that a run reads: hundreds of millions, as a decode step of a model of a billion weights
/// does, so that it is a rate that memory keeps up as long as a step needs it. Shorter runs find the
/// moments in which neighbours on the same memory pause. A smaller working set is read in several
/// passes.
const READ_BYTES: u64 = 256 << 20;

/// Bytes that each thread reads a whole number of.
pub const PAGE: usize = 4096;

/// Bytes of a working set that no cache holds.
pub const BEYOND_CACHES: usize = 256 << 20;

/// Amounts per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// In the best run.
    pub best: f64,
    /// In the middle one.
    pub median: f64,
}

/// What bounds the steps of a model on one level: bytes and operations per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks {
    /// Bytes read from memory.
    pub read: Rate,
    /// Operations on floats.
    pub float: Rate,
    /// Operations on bytes.
    pub integer: Rate,
    /// Operations in tiles of bf16; 0 where the level has none.
    pub tiles: Rate,
    /// Operations on pairs of bf16, in vectors or tiles; 0 where the level has none.
    pub bf16: Rate,
}

impl Peaks {
    /// Of each rate the better one.
    pub fn better(self, other: Peaks) -> Peaks {
        let better = |a: Rate, b: Rate| if a.best < b.best { b } else { a };
        Peaks {
            read: better(self.read, other.read),
            float: better(self.float, other.float),
            integer: better(self.integer, other.integer),
            tiles: better(self.tiles, other.tiles),
            bf16: better(self.bf16, other.bf16),
        }
    }
}

/// Threads and probes that measure.
pub struct Prober<'a> {
    probes: &'a Probes,
    team: Team,
}

impl<'a> Prober<'a> {
    /// Starts the threads.
    pub fn new(probes: &'a Probes, threads: usize) -> Result<Prober<'a>, RuntimeError> {
        let team = Team::new(threads).map_err(|error| {
            RuntimeError::Machine(format!("cannot start {threads} threads: {error}"))
        })?;
        Ok(Prober { probes, team })
    }

    /// Bytes per second read from a working set of this size by all threads together. `memory` is
    /// at least as large and was written before: untouched pages are all one page.
    pub fn read(&mut self, memory: &[u8], working_set: usize) -> Result<Rate, RuntimeError> {
        let whole = (self.team.threads() * PAGE) as u64;
        let bytes = working_set.min(memory.len()) as u64 / whole * whole;
        if bytes == 0 {
            return Err(RuntimeError::Options("a working set under a page a thread".into()));
        }
        let passes = (READ_BYTES / bytes).max(1);
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            seconds.push(self.run(Probe::Read, &memory[..bytes as usize], [bytes, passes])?);
        }
        Ok(rate(seconds, (bytes * passes) as f64))
    }

    /// Operations per second of a probe of arithmetic, by all threads together.
    pub fn arithmetic(&mut self, probe: Probe) -> Result<Rate, RuntimeError> {
        let turns = match probe {
            // A product of tiles occupies its unit for 16 cycles.
            Probe::ByteTiles | Probe::Bf16Tiles => TURNS / 16,
            _ => TURNS,
        };
        let operations = turns * PROBE_SUMS * probe.operations() * self.team.threads() as u64;
        let mut seconds = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            seconds.push(self.run(probe, &[], [turns, 1])?);
        }
        Ok(rate(seconds, operations as f64))
    }

    /// What bounds a level.
    pub fn peaks(&mut self, level: IsaLevel) -> Result<Peaks, RuntimeError> {
        let memory = memory_to_read()?;
        let (float, integer) = level_probes(level);
        let read = self.read(&memory, BEYOND_CACHES)?;
        let [float, integer] = [self.arithmetic(float)?, self.arithmetic(integer)?];
        let none = Rate::default();
        // What AMX's vectors compute of bf16 is measured by its tiles, which could.
        let (tiles, bf16) = match level {
            IsaLevel::Amx => {
                let tiles = self.arithmetic(Probe::Bf16Tiles)?;
                (tiles, tiles)
            }
            IsaLevel::Avx512Pairs => (none, self.arithmetic(Probe::Bf16Dots512)?),
            _ => (none, none),
        };
        Ok(Peaks { read, float, integer, tiles, bf16 })
    }

    /// Seconds of one run.
    fn run(&mut self, probe: Probe, memory: &[u8], numbers: [u64; 2]) -> Result<f64, RuntimeError> {
        if !machine::runs_probe(probe) {
            return Err(RuntimeError::Machine(format!("no {} here", probe.symbol())));
        }
        let segment = self.probes.segment(probe).ok_or(RuntimeError::Absent(
            "probes of the machine; compile it again with this version",
        ))?;
        let entry = || Entry { weights: memory, ..Entry::default() };
        // Wakes the threads: how long that takes is not what is measured.
        self.team.enter(entry(), [Visit::new(segment, &[1, 1])]).map_err(StepFault::from)?;
        let start = Instant::now();
        self.team.enter(entry(), [Visit::new(segment, &numbers)]).map_err(StepFault::from)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Memory to be read, [`BEYOND_CACHES`] bytes of it, in large pages where the system has them: from small
/// ones one thread reads a tenth slower (Zen 4), and that is not what memory can give.
pub fn memory_to_read() -> Result<MmapMut, RuntimeError> {
    let mut memory = MmapMut::map_anon(BEYOND_CACHES).map_err(|error| {
        RuntimeError::Machine(format!("cannot map {BEYOND_CACHES} bytes to read: {error}"))
    })?;
    // A hint: without large pages it is refused.
    let _ = memory.advise(Advice::HugePage);
    memory.fill(1);
    Ok(memory)
}

/// The rate of runs that did `amount` each.
fn rate(mut seconds: Vec<f64>, amount: f64) -> Rate {
    seconds.sort_by(f64::total_cmp);
    Rate { best: amount / seconds[0], median: amount / seconds[seconds.len() / 2] }
}

/// Probes of the float and the byte instructions that a level's products use.
pub fn level_probes(level: IsaLevel) -> (Probe, Probe) {
    match level {
        IsaLevel::Portable => (Probe::Float128, Probe::Bytes128),
        IsaLevel::Avx2 => (Probe::Float256, Probe::Bytes256),
        IsaLevel::AvxVnni => (Probe::Float256, Probe::ByteDots256),
        IsaLevel::Avx512 | IsaLevel::Avx512Pairs => (Probe::Float512, Probe::ByteDots512),
        // Float products are those of AVX-512.
        IsaLevel::Amx => (Probe::Float512, Probe::ByteTiles),
    }
}

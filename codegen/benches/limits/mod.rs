//! Loops that run into a limit of the machine, for the benches to compare kernels with.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_codegen::emit::{Assembly, POINTER, signature};

/// Registers of independent sums.
pub(crate) const YMM: [AsmRegisterYmm; 12] =
    [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11];
/// The same in 512 bits.
pub(crate) const ZMM: [AsmRegisterZmm; 12] =
    [zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11];

/// Threads that a bench uses: `THREADS` of the environment, else one.
pub(crate) fn threads() -> usize {
    std::env::var("THREADS").ok().and_then(|threads| threads.parse().ok()).unwrap_or(1)
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rates of a kernel, each with the limit's before and after it.
#[derive(Clone, Default)]
struct Rates {
    of_kernel: Vec<f64>,
    of_limit: Vec<[f64; 2]>,
}

impl Rates {
    fn share(&self) -> f64 {
        let pairs = self.of_kernel.iter().zip(&self.of_limit);
        median(pairs.map(|(rate, [before, after])| 2.0 * rate / (before + after)).collect())
    }

    fn best_share(&self) -> f64 {
        let best = |rates: &mut dyn Iterator<Item = f64>| rates.fold(0.0, f64::max);
        best(&mut self.of_kernel.iter().copied())
            / best(&mut self.of_limit.iter().flatten().copied())
    }
}

/// What a run does of one kind, and the limit that it runs into.
pub(crate) struct Work<'a> {
    /// Name of the limit.
    pub(crate) limit: &'static str,
    /// Bytes or operations of a run.
    pub(crate) amount: f64,
    /// The same per second at the limit, now.
    pub(crate) rate: &'a dyn Fn() -> f64,
}

/// Benches `run`, which gives its seconds, and prints its shares of the limits. Other work disturbs,
/// and clocks move: each run lies between two runs of the limits. A share is the median of all such
/// comparisons; beside it stands the best run's in the best run of the limit, which a busy machine
/// disturbs less.
pub(crate) fn compare(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    works: &[Work<'_>],
    mut run: impl FnMut() -> f64,
) {
    let mut all = vec![Rates::default(); works.len()];
    let limits = || works.iter().map(|work| (work.rate)()).collect::<Vec<f64>>();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|runs| {
            let mut total = 0.0;
            for _ in 0..runs {
                let before = limits();
                let seconds = run();
                let after = limits();
                total += seconds;
                for (index, (rates, work)) in all.iter_mut().zip(works).enumerate() {
                    rates.of_kernel.push(work.amount / seconds);
                    rates.of_limit.push([before[index], after[index]]);
                }
            }
            Duration::from_secs_f64(total)
        });
    });
    for (rates, work) in all.iter().zip(works).filter(|(rates, _)| !rates.of_kernel.is_empty()) {
        println!(
            "    {:.1} G/s, of {} {:.0} % (best {:.0} %)",
            median(rates.of_kernel.clone()) / 1e9,
            work.limit,
            100.0 * rates.share(),
            100.0 * rates.best_share(),
        );
    }
}

/// Few samples of few runs: a run lasts milliseconds, and so do those of its limits.
pub(crate) fn settings() -> Criterion {
    Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
}

/// A loop of independent operations: `(turns)`, twelve operations of the widest registers a turn.
pub(crate) fn peak_loop(
    assembly: &mut Assembly,
    name: &str,
    step: impl Fn(&mut CodeAssembler, usize) -> Result<(), IcedError>,
) {
    let id = assembly.declare(name, signature(&[POINTER], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            for index in 0..12 {
                step(code, index)?;
            }
            code.dec(rdi)?;
            code.jnz(again)?;
            code.vzeroupper()?;
            code.ret()
        })
        .expect("instructions of the level");
}

/// The same for products of whole tiles of bytes, six sums in turn.
#[allow(dead_code, reason = "one of the benches has no such products")]
pub(crate) fn tile_loop(assembly: &mut Assembly, name: &str) {
    const SUMS: [AsmRegisterTmm; 6] = [tmm0, tmm1, tmm2, tmm3, tmm4, tmm5];
    let id = assembly.declare(name, signature(&[POINTER], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            let mut configuration = code.create_label();
            let mut again = code.create_label();
            code.ldtilecfg(zmmword_ptr(configuration))?;
            code.set_label(&mut again)?;
            for product in 0..12 {
                code.tdpbssd(SUMS[product % SUMS.len()], tmm6, tmm7)?;
            }
            code.dec(rdi)?;
            code.jnz(again)?;
            code.tilerelease()?;
            code.ret()?;
            code.set_label(&mut configuration)?;
            let mut bytes = [0; 64];
            bytes[0] = 1;
            for tile in 0..8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = 16;
            }
            code.db(&bytes)
        })
        .expect("instructions of AMX");
}

/// `(memory, bytes)`: adds all words.
pub(crate) fn read_loop(assembly: &mut Assembly) {
    let id = assembly.declare("read", signature(&[POINTER; 2], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            code.shr(rsi, 8)?;
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            for (index, sum) in YMM[..8].iter().enumerate() {
                if index % 2 == 0 {
                    code.prefetcht0(byte_ptr(rdi + 512 + index * 32))?;
                }
                code.vpaddd(*sum, *sum, ymmword_ptr(rdi + index * 32))?;
            }
            code.add(rdi, 256)?;
            code.dec(rsi)?;
            code.jnz(again)?;
            code.vzeroupper()?;
            code.ret()
        })
        .expect("instructions of x86-64-v3");
}

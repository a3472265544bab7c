//! Matrix products of one and of many rows, against this machine's measured limits.
//!
//! `cargo bench -p weir-codegen --bench matmul [-- THREADS] [WORD ...]` prints, per level, format and
//! M: weights read per second with their share of the measured read rate, and operations per second
//! with their share of the measured peak of the instruction used. Words choose lines: a line counts
//! whose level, format, arithmetic and M (`avx2 int4b32f16 int8 M64`) contain them all.
//!
//! Other work disturbs, and clocks move: each run of a kernel lies between two runs of the limit it
//! is compared with. Shares are medians over [`RUNS`] of such comparisons; beside them stands the
//! share of the best run in the best run of the limit, which a busy machine disturbs less. Weights of
//! few rows are several times larger than the last cache of common machines. Every thread has an
//! output of its own.

mod limits;

use std::time::Instant;

use iced_x86::code_asm::*;
use weir_abi::IsaLevel;
use weir_codegen::emit::Assembly;
use weir_codegen::jit::{Argument, ExecutableCode};
use weir_codegen::kernels::matmul::{Compute, MatmulSpec, emit_matmul};
use weir_codegen::pack::{Blocks, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

use crate::limits::{YMM, ZMM, median, peak_loop, read_loop, tile_loop};

/// Comparisons; their median counts.
const RUNS: usize = 15;

/// 0.0115 as f32, 1.06 as f16, 60 as a code.
const ORDINARY: u8 = 0x3c;

/// Seconds of one run of `work(thread)` by all threads together.
fn seconds(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        work(0);
    });
    start.elapsed().as_secs_f64()
}

/// Rates of a kernel, each with the limit's before and after it.
#[derive(Default)]
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

/// What a kernel is compared with.
struct Limits {
    code: ExecutableCode,
    threads: usize,
    memory: Vec<u8>,
}

impl Limits {
    fn new(level: IsaLevel, threads: usize) -> Self {
        let mut assembly = Assembly::new().expect("a target");
        peak_loop(&mut assembly, "float", |code, i| match level {
            IsaLevel::Avx512 | IsaLevel::Amx => code.vfmadd231ps(ZMM[i], zmm12, zmm13),
            _ => code.vfmadd231ps(YMM[i], ymm12, ymm13),
        });
        if level == IsaLevel::Amx {
            tile_loop(&mut assembly, "int8");
        } else {
            peak_loop(&mut assembly, "int8", |code, i| match level {
                IsaLevel::Avx512 => code.vpdpbusd(ZMM[i], zmm12, zmm13),
                IsaLevel::AvxVnni => code.vpdpbusd(YMM[i], ymm12, ymm13),
                _ => {
                    code.vpmaddubsw(ymm14, ymm12, ymm13)?;
                    code.vpaddw(YMM[i], YMM[i], ymm14)
                }
            });
        }
        read_loop(&mut assembly);
        let code = ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory");
        Self { code, threads, memory: vec![ORDINARY; 64 << 20] }
    }

    /// Operations per second of f32 or of bytes: about a millisecond.
    fn peak(&self, level: IsaLevel, compute: Compute) -> f64 {
        let lanes = if level >= IsaLevel::Avx512 { 16 } else { 8 };
        let (name, operations, turns) = match (compute, level) {
            (Compute::Int8, IsaLevel::Amx) => ("int8", 2 * 16 * 16 * 64, 12_500u64),
            (Compute::Int8, _) => ("int8", lanes * 8, 200_000),
            _ => ("float", lanes * 2, 200_000),
        };
        let seconds = seconds(self.threads, |_| {
            self.code.call_kernel(name, &mut [Argument::Count(turns)]);
        });
        (turns as usize * 12 * operations * self.threads) as f64 / seconds
    }

    /// Bytes read per second from memory larger than the caches, asked for ahead of use.
    fn read(&self) -> f64 {
        let share = self.memory.len() / self.threads / 256 * 256;
        let seconds = seconds(self.threads, |thread| {
            let bytes = &self.memory[thread * share..][..share];
            let count = Argument::Count(share as u64);
            self.code.call_kernel("read", &mut [Argument::Read(bytes), count]);
        });
        (share * self.threads) as f64 / seconds
    }
}

fn runs(level: IsaLevel) -> bool {
    weir_runtime::machine::supports(level)
}

/// One kernel with its operands.
struct Subject {
    spec: MatmulSpec,
    symbol: String,
    code: ExecutableCode,
    weights: Vec<u8>,
}

impl Subject {
    fn new(spec: MatmulSpec, level: IsaLevel) -> Self {
        let mut assembly = Assembly::new().expect("a target");
        emit_matmul(&mut assembly, &spec, level).expect("a kernel");
        Self {
            spec,
            symbol: spec.symbol(level),
            code: ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory"),
            // Any bytes will do that are ordinary numbers in every format; they are written, for
            // pages that were not would all be one page of zeros in the nearest cache.
            weights: vec![ORDINARY; spec.layout.bytes()],
        }
    }

    /// Weights read per second and operations per second.
    fn measure(&self, limits: &Limits, level: IsaLevel, rows: usize) -> [Rates; 2] {
        let threads = limits.threads;
        let layout = self.spec.layout;
        let input = vec![ORDINARY; rows * self.spec.input_row_bytes()];
        let outputs: Vec<_> = (0..threads)
            .map(|_| std::sync::Mutex::new(vec![ORDINARY; rows * self.spec.output_stride * 4]))
            .collect();
        let run = || {
            seconds(threads, |thread| {
                let mut output = outputs[thread].lock().expect("no thread panics");
                let groups = self.spec.groups();
                self.code.call_kernel(
                    &self.symbol,
                    &mut [
                        Argument::Read(&input),
                        Argument::Read(&self.weights),
                        Argument::Write(&mut output),
                        Argument::Null,
                        Argument::Null,
                        Argument::Count(rows as u64),
                        Argument::Count((groups * thread / threads) as u64),
                        Argument::Count((groups * (thread + 1) / threads) as u64),
                    ],
                );
            })
        };
        run();
        let operations = (2 * rows * layout.channels * layout.reduction) as f64;
        let limit = || [limits.read(), limits.peak(level, self.spec.compute)];
        let mut rates = [Rates::default(), Rates::default()];
        for _ in 0..RUNS {
            let before = limit();
            let seconds = run();
            let after = limit();
            for (index, work) in [layout.bytes() as f64, operations].into_iter().enumerate() {
                rates[index].of_kernel.push(work / seconds);
                rates[index].of_limit.push([before[index], after[index]]);
            }
        }
        rates
    }
}

/// Rows times channels of products of many rows: they last one or two milliseconds, less than a slice
/// of the scheduler's, for a longer run shares its time with what else the machine does, and the
/// limit's short one does not.
fn many(compute: Compute) -> usize {
    if compute == Compute::Int8 { 64 << 10 } else { 32 << 10 }
}

/// Most rows for which reading the weights is what a product is limited by.
const FEW: usize = 4;

fn main() {
    // `cargo bench` and `cargo test` add options of their own.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    let threads = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1);
    let words: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-') && argument.parse::<usize>().is_err())
        .collect();
    let blocks = Blocks { block: 32, scale: ScaleType::F16, zero: ZeroPoint::Implied };
    let channel = Blocks { block: 128, scale: ScaleType::F32, zero: ZeroPoint::Implied };
    let formats = [
        (WeightFormat::F32, Compute::F32),
        (WeightFormat::Bf16, Compute::Bf16),
        (WeightFormat::F16, Compute::F32),
        (WeightFormat::Int8(blocks), Compute::F32),
        (WeightFormat::Int8(blocks), Compute::Int8),
        (WeightFormat::Int8(channel), Compute::Int8),
        (WeightFormat::Int4(blocks), Compute::F32),
        (WeightFormat::Int4(blocks), Compute::Int8),
    ];
    println!("threads {threads}");
    for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
        let limits = Limits::new(level, threads);
        for (format, compute) in formats {
            for rows in [1, 2, 4, 8, 64, 512] {
                let line = format!("{} {} {} M{rows}", level.name(), format.name(), compute.name());
                let parts: Vec<&str> = line.split(' ').collect();
                if !words.iter().all(|word| parts.contains(&word.as_str())) {
                    continue;
                }
                let (mut channels, reduction) = (many(compute) / rows.max(64), 2048);
                let mut layout = PackedLayout { channels, reduction, format };
                while rows <= FEW && layout.bytes() < 100 << 20 {
                    channels *= 2;
                    layout.channels = channels;
                }
                let subject = Subject::new(MatmulSpec::new(layout, compute), level);
                let [read, peak] = subject.measure(&limits, level, rows);
                println!(
                    "{line:<30} {:6.1} GB/s, of read {:4.0} % (best {:4.0} %); {:7.1} GOP/s, of peak \
                     {:4.0} % (best {:4.0} %)",
                    median(read.of_kernel.clone()) / 1e9,
                    100.0 * read.share(),
                    100.0 * read.best_share(),
                    median(peak.of_kernel.clone()) / 1e9,
                    100.0 * peak.share(),
                    100.0 * peak.best_share(),
                );
            }
        }
    }
}

//! Matrix products of one and of many rows, against this machine's measured limits.
//!
//! `[THREADS=2] cargo bench -p weir-codegen --bench matmul [-- FILTER]` gives, per level, format,
//! arithmetic and M, the time of a product, its rate in bytes of weights (few rows) or in operations
//! (many), and its shares of the measured read rate and of the measured peak of the instruction used.
//! The filter is a regular expression for names like `matmul avx2/int4b32f16 int8 M64`.
//!
//! Weights of up to 16 rows are several times larger than the last cache of common machines. Every
//! thread has an output of its own.

mod limits;

use std::cell::OnceCell;
use std::sync::Mutex;
use std::time::Instant;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use iced_x86::code_asm::*;
use weir_abi::IsaLevel;
use weir_codegen::emit::Assembly;
use weir_codegen::jit::{Argument, ExecutableCode};
use weir_codegen::kernels::matmul::{Compute, MatmulSpec, emit_matmul};
use weir_codegen::pack::{Blocks, PackedLayout, ScaleType, WeightFormat, ZeroPoint};
use weir_runtime::machine;

use crate::limits::{Work, YMM, ZMM, compare, peak_loop, read_loop, settings, threads, tile_loop};

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
            _ if level >= IsaLevel::Avx512 => code.vfmadd231ps(ZMM[i], zmm12, zmm13),
            _ => code.vfmadd231ps(YMM[i], ymm12, ymm13),
        });
        if level == IsaLevel::Amx {
            tile_loop(&mut assembly, "int8");
        } else {
            peak_loop(&mut assembly, "int8", |code, i| match level {
                IsaLevel::Avx512 | IsaLevel::Avx512Pairs => code.vpdpbusd(ZMM[i], zmm12, zmm13),
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
        let (name, operations, turns) = match (compute.is_integer(), level) {
            (true, IsaLevel::Amx) => ("int8", 2 * 16 * 16 * 64, 12_500u64),
            (true, _) => ("int8", lanes * 8, 200_000),
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
    machine::supports(level)
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

    /// Seconds of one run by all threads, whose outputs these are.
    fn run(&self, input: &[u8], outputs: &[Mutex<Vec<u8>>], rows: usize) -> f64 {
        let threads = outputs.len();
        seconds(threads, |thread| {
            let mut output = outputs[thread].lock().expect("no thread panics");
            let groups = self.spec.groups();
            self.code.call_kernel(
                &self.symbol,
                &mut [
                    Argument::Read(input),
                    Argument::Read(&self.weights),
                    Argument::Write(&mut output),
                    Argument::Null,
                    Argument::Null,
                    Argument::Count(rows as u64),
                    Argument::Count((groups * thread / threads) as u64),
                    Argument::Count((groups * (thread + 1) / threads) as u64),
                    Argument::Count(machine::reads_far().into()),
                ],
            );
        })
    }
}

/// Rows times channels of products of many rows: with two threads they last one or two milliseconds, so
/// that beginning threads is a small part of it, yet less than a slice of the scheduler's, for a longer run
/// shares its time with what else the machine does, and the limit's short one does not.
fn many(compute: Compute, level: IsaLevel) -> usize {
    match (compute.is_integer(), level >= IsaLevel::Avx512) {
        (true, true) => 512 << 10,
        (true, false) | (false, true) => 128 << 10,
        (false, false) => 32 << 10,
    }
}

/// Most rows for which reading the weights is what a product is limited by.
const FEW: usize = 4;
/// Most rows of a step that decodes: its weights come from memory.
const DECODED: usize = 16;

fn products(criterion: &mut Criterion) {
    let threads = threads();
    let blocks = Blocks { block: 32, scale: ScaleType::F16, zero: ZeroPoint::Implied };
    // What `--weights int4` makes.
    let short = Blocks { scale: ScaleType::Short, ..blocks };
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
        (WeightFormat::Int4(short), Compute::Int8),
    ];
    for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
        let limits = OnceCell::new();
        let limits = || limits.get_or_init(|| Limits::new(level, threads));
        let mut group = criterion.benchmark_group(format!("matmul {}", level.name()));
        group.sampling_mode(SamplingMode::Flat);
        for (format, compute) in formats {
            for rows in [1, 2, 4, 8, 16, 64, 128, 512] {
                let name = format!("{} {} M{rows}", format.name(), compute.name());
                let (mut channels, reduction) = (many(compute, level) / rows.max(64), 2048);
                let mut layout = PackedLayout { channels, reduction, format };
                while rows <= DECODED && layout.bytes() < 100 << 20 {
                    channels *= 2;
                    layout.channels = channels;
                }
                let operations = 2 * rows * layout.channels * layout.reduction;
                group.throughput(match rows {
                    0..=FEW => Throughput::Bytes(layout.bytes() as u64),
                    _ => Throughput::Elements(operations as u64),
                });
                let works = [
                    Work {
                        limit: "read",
                        amount: layout.bytes() as f64,
                        rate: &|| limits().read(),
                    },
                    Work {
                        limit: "peak",
                        amount: operations as f64,
                        rate: &|| limits().peak(level, compute),
                    },
                ];
                let spec = MatmulSpec::new(layout, compute).at(level);
                // Made when the filter lets the name pass.
                let operands = OnceCell::new();
                compare(&mut group, &name, &works, || {
                    let (subject, input, outputs) = operands.get_or_init(|| {
                        let room = rows * spec.output_stride * 4;
                        let outputs = (0..threads).map(|_| Mutex::new(vec![ORDINARY; room]));
                        let input = vec![ORDINARY; rows * spec.input_row_bytes()];
                        (Subject::new(spec, level), input, outputs.collect::<Vec<_>>())
                    });
                    subject.run(input, outputs, rows)
                });
            }
        }
        group.finish();
    }
}

criterion_group!(name = benches; config = settings(); targets = products);
criterion_main!(benches);

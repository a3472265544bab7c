//! Matrix products of one and of many rows, against this machine's measured peaks.
//!
//! `cargo bench -p weir-codegen --bench matmul [-- threads]` prints, per level, format and M: time,
//! weights read per second with its share of the measured read rate, and operations per second with
//! its share of the measured peak of the instruction used. Weights are several times larger than the
//! last cache of common machines, and every thread has an output of its own.

use std::time::Instant;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::IsaLevel;
use weir_codegen::emit::{Assembly, POINTER, signature};
use weir_codegen::jit::{Argument, ExecutableCode};
use weir_codegen::kernels::matmul::{Compute, MatmulSpec, emit_matmul};
use weir_codegen::pack::{Blocks, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

/// Repetitions; the best counts, for other work disturbs.
const RUNS: usize = 7;

/// 0.0115 as f32, 1.06 as f16, 60 as a code.
const ORDINARY: u8 = 0x3c;

const YMM: [AsmRegisterYmm; 12] =
    [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11];
const ZMM: [AsmRegisterZmm; 12] =
    [zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11];

/// Seconds of the best run of `work(thread)` by all threads together.
fn best(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for thread in 1..threads {
                    let work = &work;
                    scope.spawn(move || work(thread));
                }
                work(0);
            });
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

/// A loop of independent operations: `(turns)`, twelve operations of the widest registers a turn.
fn peak_loop(
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

/// Peaks of a level: f32 and int8 operations per second.
fn peaks(level: IsaLevel, threads: usize) -> (f64, f64) {
    let mut assembly = Assembly::new().expect("a target");
    let lanes = if level == IsaLevel::Avx512 { 16 } else { 8 };
    peak_loop(&mut assembly, "float", |code, i| match level {
        IsaLevel::Avx512 => code.vfmadd231ps(ZMM[i], zmm12, zmm13),
        _ => code.vfmadd231ps(YMM[i], ymm12, ymm13),
    });
    peak_loop(&mut assembly, "int8", |code, i| match level {
        IsaLevel::Avx512 => code.vpdpbusd(ZMM[i], zmm12, zmm13),
        _ => {
            code.vpmaddubsw(ymm14, ymm12, ymm13)?;
            code.vpaddw(YMM[i], YMM[i], ymm14)
        }
    });
    let code = ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory");
    let turns = 4_000_000u64;
    let rate = |name: &str, operations: usize| {
        let seconds = best(threads, |_| code.call_kernel(name, &mut [Argument::Count(turns)]));
        (turns as usize * 12 * operations * threads) as f64 / seconds
    };
    (rate("float", lanes * 2), rate("int8", lanes * 8))
}

/// Bytes read per second from memory larger than the caches, asked for ahead of use.
fn read_rate(memory: &[u8], threads: usize) -> f64 {
    let mut assembly = Assembly::new().expect("a target");
    let id = assembly.declare("read", signature(&[POINTER; 2], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            code.shr(rsi, 8)?;
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            for (index, sum) in YMM[..8].iter().enumerate() {
                if index % 2 == 0 {
                    code.prefetcht0(byte_ptr(rdi + 4096 + index * 32))?;
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
    let code = ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory");
    let share = memory.len() / threads / 256 * 256;
    let seconds = best(threads, |thread| {
        let bytes = &memory[thread * share..][..share];
        code.call_kernel("read", &mut [Argument::Read(bytes), Argument::Count(share as u64)]);
    });
    (share * threads) as f64 / seconds
}

fn runs(level: IsaLevel) -> bool {
    match level {
        IsaLevel::Portable | IsaLevel::Avx2 => is_x86_feature_detected!("fma"),
        IsaLevel::Avx512 => is_x86_feature_detected!("avx512vnni"),
    }
}

fn measure(spec: &MatmulSpec, level: IsaLevel, rows: usize, threads: usize) -> f64 {
    let mut assembly = Assembly::new().expect("a target");
    emit_matmul(&mut assembly, spec, level).expect("a kernel");
    let code = ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory");
    // Any bytes will do that are ordinary numbers in every format; they are written, for pages that
    // were not would all be one page of zeros in the nearest cache.
    let weights = vec![ORDINARY; spec.layout.bytes()];
    let input = vec![ORDINARY; rows * spec.input_row_bytes()];
    let outputs: Vec<_> = (0..threads)
        .map(|_| std::sync::Mutex::new(vec![ORDINARY; rows * spec.output_stride * 4]))
        .collect();
    let symbol = spec.symbol(level);
    best(threads, |thread| {
        let mut output = outputs[thread].lock().expect("no thread panics");
        code.call_kernel(
            &symbol,
            &mut [
                Argument::Read(&input),
                Argument::Read(&weights),
                Argument::Write(&mut output),
                Argument::Null,
                Argument::Null,
                Argument::Count(rows as u64),
                Argument::Count((spec.groups() * thread / threads) as u64),
                Argument::Count((spec.groups() * (thread + 1) / threads) as u64),
            ],
        );
    })
}

fn main() {
    // `cargo bench` and `cargo test` add options of their own.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    let threads = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1);
    let read = read_rate(&vec![ORDINARY; 256 << 20], threads);
    println!("threads {threads}: read {:.1} GB/s", read / 1e9);
    let blocks = Blocks { block: 32, scale: ScaleType::F16, zero: ZeroPoint::Implied };
    let int4 = WeightFormat::Int4(blocks);
    for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
        let (float, int8) = peaks(level, threads);
        println!("{}: peak {:.0} GFLOP/s, {:.0} GOP/s", level.name(), float / 1e9, int8 / 1e9);
        for (format, compute, channels, reduction, peak) in [
            (WeightFormat::F32, Compute::F32, 32_768, 2048, float),
            (int4, Compute::Int8, 131_072, 4096, int8),
        ] {
            let layout = PackedLayout { channels, reduction, format };
            let spec = MatmulSpec::new(layout, compute);
            for rows in [1, 2, 4, 8, 64] {
                let seconds = measure(&spec, level, rows, threads);
                let bytes = layout.bytes() as f64 / seconds;
                let operations = (2 * rows * channels * reduction) as f64 / seconds;
                println!(
                    "  {:<12} M {rows:>2}: {:8.2} ms  {:6.1} GB/s ({:3.0} %)  {:7.1} GOP/s ({:3.0} %)",
                    format.name(),
                    seconds * 1e3,
                    bytes / 1e9,
                    100.0 * bytes / read,
                    operations / 1e9,
                    100.0 * operations / peak,
                );
            }
        }
    }
}

//! Attention of prompts and of single rows, against this machine's measured peaks.
//!
//! `[THREADS=2] cargo bench -p weir-codegen --bench attention [-- FILTER]` gives per level: for prompts
//! the operations per second of scores and values (4 · width per query head and key read) with their
//! share of the measured peak of fused multiply-adds, for single rows the bytes of keys and values
//! per second with their share of the measured read rate. The filter is a regular expression for
//! names like `attention avx2/prompt 512` and `attention avx2/1 of short int8 rows at 512`. Single rows
//! take turns in slots that together are larger than the caches, and lie in large pages; those that are
//! near are read over and over.

mod limits;

use std::cell::{Cell, OnceCell};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use iced_x86::code_asm::*;
use memmap2::{Advice, MmapMut};
use rustix::time::{ClockId, clock_gettime};
use weir_abi::{CacheRange, IsaLevel, KEY_BLOCK, KEY_TILE, LayerCall, RowSpans, StepContext};
use weir_codegen::emit::Assembly;
use weir_codegen::jit::{Argument, ExecutableCode};
use weir_codegen::kernels::attention::{AttendSpec, CacheShape, CacheType, ScoreSpec, emit_attend};

use crate::limits::{Work, YMM, ZMM, compare, peak_loop, read_loop, settings, threads};

const WIDTH: usize = 64;

/// What is measured: heads, and the cache that they read.
#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    rows: usize,
    slots: usize,
    number: CacheType,
}

/// Long rows, eight heads of which share four queries each.
const LONG: Shape = Shape { heads: 32, kv_heads: 8, rows: 4096, slots: 8, number: CacheType::F32 };
/// Short rows in planes of a longer context, a query for every head. Slots stand for layers as well:
/// a step comes back to a layer's rows only when it has read those of all others.
const SHORT: Shape =
    Shape { heads: 12, kv_heads: 12, rows: 1024, slots: 64, number: CacheType::F32 };
/// Rows that stay in a processor's second cache: what attention takes when it never waits for them.
const NEAR: Shape = Shape { heads: 4, kv_heads: 4, rows: 512, slots: 1, number: CacheType::F32 };
/// Times that near rows are read.
const TURNS: usize = 256;

const XMM: [AsmRegisterXmm; 12] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11];

/// Seconds that this thread has been on a processor: other work on the machine takes wall time from
/// us, but little of this.
fn on_processor() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Seconds of the thread that works longest on `work(thread)`.
fn seconds(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let timed = |thread: usize| {
        let start = on_processor();
        work(thread);
        on_processor() - start
    };
    std::thread::scope(|scope| {
        let timed = &timed;
        let others: Vec<_> =
            (1..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        let own = timed(0);
        others.into_iter().map(|other| other.join().expect("no panic")).fold(own, f64::max)
    })
}

/// Memory in large pages, as caches of programs lie.
fn large_pages(bytes: usize) -> MmapMut {
    let memory = MmapMut::map_anon(bytes).expect("memory");
    // Where the system has no large pages, small ones do.
    let _ = memory.advise(Advice::HugePage);
    memory
}

/// What the machine can do: loops of fused multiply-adds and of reads.
struct Machine {
    code: ExecutableCode,
    memory: MmapMut,
    lanes: usize,
    threads: usize,
}

impl Machine {
    fn new(level: IsaLevel, threads: usize) -> Machine {
        let mut assembly = Assembly::new().expect("a target");
        let lanes = match level {
            IsaLevel::Portable => 4,
            _ if level >= IsaLevel::Avx512 => 16,
            _ => 8,
        };
        peak_loop(&mut assembly, "peak", |code, index| match lanes {
            16 => code.vfmadd231ps(ZMM[index], zmm12, zmm13),
            8 => code.vfmadd231ps(YMM[index], ymm12, ymm13),
            _ => code.vfmadd231ps(XMM[index], xmm12, xmm13),
        });
        read_loop(&mut assembly);
        let code = ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory");
        let mut memory = large_pages(128 << 20);
        memory.fill(1);
        Machine { code, memory, lanes, threads }
    }

    /// Operations per second, now.
    fn peak(&self) -> f64 {
        let turns = 2_000_000;
        let time = seconds(self.threads, |_| {
            self.code.call_kernel("peak", &mut [Argument::Count(turns)]);
        });
        (turns as usize * 12 * 2 * self.lanes * self.threads) as f64 / time
    }

    /// Bytes read per second, now.
    fn read(&self) -> f64 {
        let share = self.memory.len() / self.threads / 256 * 256;
        let turns = 1;
        let time = seconds(self.threads, |thread| {
            let bytes = &self.memory[thread * share..][..share];
            for _ in 0..turns {
                let bytes = &mut [Argument::Read(bytes), Argument::Count(share as u64)];
                self.code.call_kernel("read", bytes);
            }
        });
        (turns * share * self.threads) as f64 / time
    }
}

fn runs(level: IsaLevel) -> bool {
    match level {
        IsaLevel::Portable | IsaLevel::Avx2 => is_x86_feature_detected!("fma"),
        IsaLevel::Avx512 => is_x86_feature_detected!("avx512dq"),
        // Tiles need the system's permission, which the runtime asks for.
        IsaLevel::Amx => false,
        // Their attention over these caches is that of AVX2 and of AVX-512.
        IsaLevel::AvxVnni | IsaLevel::Avx512Pairs => false,
    }
}

extern "C" fn no_barrier(_: *const std::ffi::c_void, _: u32) {}
/// Units in turn, so that no thread's time depends on another's.
extern "C" fn in_turn(
    _: *const std::ffi::c_void,
    _: u32,
    _: u32,
    items: u32,
    _: u32,
    _: u32,
) -> u64 {
    let (next, threads) = TURN.get();
    if next >= items {
        return 0;
    }
    TURN.set((next + threads, threads));
    u64::from(next) << 32 | u64::from(next + 1)
}
thread_local! {
    /// The next unit of this thread, and the number of threads.
    static TURN: Cell<(u32, u32)> = const { Cell::new((0, 1)) };
}
extern "C" fn no_fault(_: *const std::ffi::c_void, _: u32, _: u32) {}

/// What the kernel of a shape computes.
fn spec(shape: &Shape) -> AttendSpec {
    let Shape { heads, kv_heads, rows, number, .. } = *shape;
    AttendSpec {
        cache: CacheShape {
            kv_heads,
            key_width: WIDTH,
            value_width: WIDTH,
            number,
            block: None,
            by_head: false,
        },
        score: ScoreSpec { heads, scale: 0.125, softcap: 0.0 },
        sinks: false,
        query: (heads * WIDTH, WIDTH),
        output_row: heads * WIDTH,
        // No thread waits for another here: heads are enough for all.
        rounded: None,
        shared_chunks: 0,
        max_rows: rows,
    }
}

/// A cache of ordinary numbers and a kernel over it.
struct Attention {
    code: ExecutableCode,
    symbol: String,
    spec: AttendSpec,
    shape: Shape,
    keys: MmapMut,
    values: MmapMut,
    query: Vec<f32>,
    output: Vec<f32>,
    threads: usize,
}

impl Attention {
    fn new(level: IsaLevel, threads: usize, shape: Shape) -> Attention {
        let Shape { heads, kv_heads, rows, slots, number } = shape;
        let spec = spec(&shape);
        let mut assembly = Assembly::new().expect("a target");
        emit_attend(&mut assembly, &spec, level).expect("a kernel");
        let numbers = |count: usize| -> Vec<f32> {
            (0..count)
                .map(|i| (i.wrapping_mul(2_654_435_761) % 2048) as f32 / 1024.0 - 1.0)
                .collect()
        };
        // Rows of all slots: of floats the bits of `number`, of codes any, and scales of one.
        let cached = || -> MmapMut {
            let bytes = slots * kv_heads * rows * spec.cache.key_bytes();
            let mut memory = large_pages(bytes);
            let numbers = numbers(2048);
            let bytes: Vec<u8> = match number {
                CacheType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                CacheType::F16 => numbers
                    .iter()
                    .flat_map(|x| half::f16::from_f32(*x).to_bits().to_le_bytes())
                    .collect(),
                CacheType::Int8 => {
                    let codes = numbers.iter().map(|x| (x * 127.0) as i8 as u8);
                    let scales = [1.0f32; KEY_BLOCK].map(f32::to_le_bytes);
                    let codes: Vec<u8> = codes.take(KEY_BLOCK * WIDTH).collect();
                    [codes.as_slice(), scales.as_flattened()].concat()
                }
                CacheType::Bf16 | CacheType::Int4 => unreachable!("not among the formats below"),
            };
            memory
                .chunks_mut(bytes.len())
                .for_each(|part| part.copy_from_slice(&bytes[..part.len()]));
            memory
        };
        assert!(rows.is_multiple_of(KEY_TILE), "keys lie in whole tiles");
        Attention {
            code: ExecutableCode::new(&assembly.finish().expect("whole")).expect("memory"),
            symbol: spec.symbol(level),
            spec,
            shape,
            keys: cached(),
            values: cached(),
            query: numbers(rows * heads * WIDTH),
            output: vec![0.0; rows * heads * WIDTH],
            threads,
        }
    }

    /// Seconds of some steps, one after the other.
    fn steps(&mut self, steps: &[Vec<RowSpans>]) -> f64 {
        let Shape { kv_heads, rows, .. } = self.shape;
        let head_stride = (rows * self.spec.cache.key_bytes()) as u64;
        let slot_stride = head_stride * kv_heads as u64;
        let layer = |spans: &Vec<RowSpans>| LayerCall {
            keys: self.keys.as_mut_ptr(),
            values: self.values.as_mut_ptr(),
            key_slot_stride: slot_stride,
            key_head_stride: head_stride,
            value_slot_stride: slot_stride,
            value_head_stride: head_stride,
            spans: spans.as_ptr(),
            observed_queries: std::ptr::null_mut(),
            observed_lse: std::ptr::null_mut(),
            observed_from: 0,
            layer: 0,
            key_ring: 0,
            value_ring: 0,
            block_rows: 0,
            heads: std::ptr::null(),
        };
        let layers: Vec<LayerCall> = steps.iter().map(layer).collect();
        let context = |(layer, spans): (&LayerCall, &Vec<RowSpans>)| StepContext {
            weights: std::ptr::null(),
            arena: std::ptr::null_mut(),
            hidden: std::ptr::null_mut(),
            tokens: std::ptr::null(),
            positions: std::ptr::null(),
            rotary_rows: std::ptr::null(),
            segment_weights: std::ptr::null(),
            layer,
            prompt: std::ptr::null(),
            head_rows: std::ptr::null(),
            logits: std::ptr::null_mut(),
            barrier: no_barrier,
            take: in_turn,
            fault: no_fault,
            team: std::ptr::null(),
            rows: spans.len() as u32,
            head_row_count: 0,
            reads_far: 0,
        };
        let contexts: Vec<StepContext> = layers.iter().zip(steps).map(context).collect();
        let addresses: Vec<u64> =
            contexts.iter().map(|context| std::ptr::from_ref(context) as u64).collect();
        let output = self.output.as_mut_ptr() as u64;
        let query = self.query.as_ptr() as u64;
        assert!(steps.iter().all(|spans| spans.len() * self.spec.output_row <= self.output.len()));
        seconds(self.threads, |thread| {
            for context in &addresses {
                TURN.set((thread as u32, self.threads as u32));
                let (thread, threads) = (thread as u64, self.threads as u64);
                let numbers = [*context, query, 0, output, 0, thread, threads, 0];
                self.code.call_kernel(&self.symbol, &mut numbers.map(Argument::Count));
            }
        })
    }
}

/// A row at `position` of a sequence in `slot`.
fn causal(slot: usize, position: usize) -> RowSpans {
    let mut span = RowSpans { range_count: 1, ..RowSpans::default() };
    span.ranges[0] = CacheRange { slot: slot as u32, first: 0, rows: position as u32 + 1 };
    span
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// An attention that is made when the first name that needs it passes the filter.
struct Subject {
    level: IsaLevel,
    shape: Shape,
    made: Option<Attention>,
}

impl Subject {
    fn steps(&mut self, steps: &[Vec<RowSpans>]) -> f64 {
        let Subject { level, shape, made } = self;
        made.get_or_insert_with(|| Attention::new(*level, threads(), *shape)).steps(steps)
    }

    /// The cache of its kernel.
    fn cache(&self) -> CacheShape {
        spec(&self.shape).cache
    }
}

/// A prompt of so many rows.
fn prompt(group: &mut Group<'_>, peak: &dyn Fn() -> f64, subject: &mut Subject, rows: usize) {
    let spans: Vec<RowSpans> = (0..rows).map(|position| causal(0, position)).collect();
    let operations = rows * (rows + 1) / 2 * subject.shape.heads * WIDTH * 4;
    group.throughput(Throughput::Elements(operations as u64));
    let work = Work { limit: "peak", amount: operations as f64, rate: peak };
    let steps = [spans];
    compare(group, &format!("prompt {rows}"), &[work], || subject.steps(&steps));
}

/// Steps of `batch` single rows of sequences that have `rows`, until all slots had their turn.
fn single_rows(
    group: &mut Group<'_>,
    read: &dyn Fn() -> f64,
    (subject, name): (&mut Subject, &str),
    (batch, rows): (usize, usize),
) {
    let Shape { slots, number, .. } = subject.shape;
    let turns = if slots == 1 { TURNS } else { slots / batch };
    let bytes = turns * batch * rows * subject.cache().row_bytes();
    let steps: Vec<Vec<RowSpans>> = (0..turns)
        .map(|turn| {
            let first = turn * batch % slots;
            (first..first + batch).map(|slot| causal(slot, rows - 1)).collect()
        })
        .collect();
    group.throughput(Throughput::Bytes(bytes as u64));
    let work = Work { limit: "read", amount: bytes as f64, rate: read };
    let name = format!("{batch} of {name} {} rows at {rows}", number.name());
    compare(group, &name, &[work], || subject.steps(&steps));
}

fn attention(criterion: &mut Criterion) {
    for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
        let machine = OnceCell::new();
        let machine = || machine.get_or_init(|| Machine::new(level, threads()));
        let mut group = criterion.benchmark_group(format!("attention {}", level.name()));
        group.sampling_mode(SamplingMode::Flat);
        let mut long = Subject { level, shape: LONG, made: None };
        for rows in [512, LONG.rows] {
            prompt(&mut group, &|| machine().peak(), &mut long, rows);
        }
        drop(long);
        for number in [CacheType::F32, CacheType::F16, CacheType::Int8] {
            let mut near = Subject { level, shape: Shape { number, ..NEAR }, made: None };
            single_rows(&mut group, &|| machine().read(), (&mut near, "near"), (1, NEAR.rows));
            let mut long = Subject { level, shape: Shape { number, ..LONG }, made: None };
            for batch in [1, LONG.slots] {
                let subject = (&mut long, "long");
                single_rows(&mut group, &|| machine().read(), subject, (batch, LONG.rows));
            }
            drop(long);
            let mut short = Subject { level, shape: Shape { number, ..SHORT }, made: None };
            for case in [(1, 130), (1, 512), (1, 600), (8, 130), (8, 512), (16, 300), (16, 560)] {
                single_rows(&mut group, &|| machine().read(), (&mut short, "short"), case);
            }
        }
        group.finish();
    }
}

criterion_group!(name = benches; config = settings(); targets = attention);
criterion_main!(benches);

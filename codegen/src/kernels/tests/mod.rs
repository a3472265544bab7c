//! Kernels that Cranelift writes, each alone, against double precision computed here.
//!
//! Shapes are odd on purpose: widths that fill no vector, single rows and many, strides wider than
//! rows. Numbers come from a generator with a fixed seed. Every bound stands beside its test with
//! its derivation; u is the unit roundoff of f32, and products of errors are left out (they are
//! below 2⁻⁴⁰ here), for which [`FIRST_ORDER`] makes room.

mod append;
mod attention;
mod attention_exact;
mod attention_heads;
mod attention_interpreted;
mod attention_planes;
mod attention_random;
mod attention_rounded;
mod block_products;
mod elements;
mod faults;
mod gated;
mod groups;
pub(super) mod guard;
pub(crate) mod in_bytes;
mod parts;
mod processor;
mod prompt;
mod random;
mod redundancy;
mod rounding;
mod rows;
mod turn;

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use weir_abi::{StepContext, WORKS};

use self::guard::{Guarded, Side};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::jit::{Argument, ExecutableCode};

/// Unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Room for what a first-order bound leaves out.
const FIRST_ORDER: f64 = 1.001;

/// What no kernel may write over.
const POISON: f32 = -7.25e30;

/// A generator with a fixed seed (xorshift64*, Vigna, arXiv:1402.6246).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 33) as usize) % end
    }

    /// -1 ..= 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// One kernel in executable memory.
struct Kernel {
    code: ExecutableCode,
    name: String,
}

impl Kernel {
    fn new(emit: impl FnOnce(&mut Assembly) -> Result<FuncId, EmitError>) -> Kernel {
        let mut assembly = Assembly::new().unwrap();
        let id = emit(&mut assembly).unwrap();
        let name = assembly.name(id).to_owned();
        let image = assembly.finish().unwrap();
        Kernel { code: ExecutableCode::new(&image).unwrap(), name }
    }

    /// Calls the kernel for `items` in two shares, as two threads would, over an output of poison.
    /// All buffers lie between pages without access: once against the one before, once against the
    /// one behind.
    fn run(&self, inputs: &[Input<'_>], output: usize, items: usize) -> Vec<f32> {
        self.run_shares(inputs, output, &[vec![0, items / 2], vec![items / 2, items]])
    }

    /// The same for a kernel whose share is rows and heads: some rows of all heads, others of some heads.
    fn run_heads(
        &self,
        inputs: &[Input<'_>],
        output: usize,
        [rows, heads]: [usize; 2],
    ) -> Vec<f32> {
        self.run_shares(inputs, output, &shares_of_heads(rows, heads))
    }

    fn run_shares(&self, inputs: &[Input<'_>], output: usize, shares: &[Vec<usize>]) -> Vec<f32> {
        let [got, again] =
            [Side::Begin, Side::End].map(|side| self.run_beside(inputs, output, shares, side));
        let same = got.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{}: results depend on where buffers lie", self.name);
        got
    }

    fn run_beside(
        &self,
        inputs: &[Input<'_>],
        output: usize,
        shares: &[Vec<usize>],
        side: Side,
    ) -> Vec<f32> {
        let mut out = Guarded::new(&bytes(&vec![POISON; output]), side);
        let mut buffers: Vec<Option<Guarded>> = inputs
            .iter()
            .map(|input| match input {
                Input::Floats(bytes) => Some(Guarded::new(bytes, side)),
                _ => None,
            })
            .collect();
        let before = inputs.iter().zip(&mut buffers).map(|(input, buffer)| match buffer {
            Some(buffer) => buffer.bytes().as_ptr() as u64,
            None => input.address(),
        });
        let before: Vec<u64> = before.chain([out.bytes().as_mut_ptr() as u64]).collect();
        for share in shares {
            let words = before.iter().copied().chain(share.iter().map(|item| *item as u64));
            let mut arguments: Vec<Argument<'_>> = words.map(Argument::Count).collect();
            self.code.call_kernel(&self.name, &mut arguments);
        }
        for buffer in buffers.into_iter().flatten() {
            buffer.finish();
        }
        floats(&out.finish())
    }

    /// Calls a kernel that divides its work itself as a team of threads over an output of poison,
    /// with `shared` floats of it as memory, both between pages without access; returns both. The
    /// context's barrier is [`wait_for_team`]. It is work number 0.
    fn run_team(
        &self,
        inputs: &[Input<'_>],
        output: usize,
        shared: usize,
        (threads, side): (usize, Side),
    ) -> (Vec<f32>, Vec<f32>) {
        let mut out = Guarded::new(&bytes(&vec![POISON; output]), side);
        let mut memory = Guarded::new(&bytes(&vec![POISON; shared]), side);
        // Addresses, for the threads write to parts of the same memory.
        let mut words: Vec<u64> = inputs.iter().map(|input| input.address()).collect();
        words.extend([&mut out, &mut memory].map(|buffer| buffer.bytes().as_mut_ptr() as u64));
        self.call_team(&words, threads, &[0]);
        (floats(&out.finish()), floats(&memory.finish()))
    }

    /// Calls a kernel by a team of threads with these words, each thread's place in the team, and
    /// more words.
    fn call_team(&self, words: &[u64], threads: usize, more: &[u64]) -> Arc<TestTeam> {
        let taken = std::array::from_fn(|_| AtomicU32::new(0));
        let parts = AtomicU32::new(0);
        let team = Arc::new(TestTeam { barrier: Barrier::new(threads), taken, parts });
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let team = Arc::clone(&team);
                scope.spawn(move || {
                    TEAM.set(Some(team));
                    let place = [thread as u64, threads as u64];
                    let words = words.iter().chain(&place).chain(more).copied();
                    let mut arguments: Vec<Argument<'_>> = words.map(Argument::Count).collect();
                    self.code.call_kernel(&self.name, &mut arguments);
                });
            }
        });
        team
    }
}

/// Rows and heads in shares: first row, row behind the last, first head, head behind the last.
fn shares_of_heads(rows: usize, heads: usize) -> [Vec<usize>; 3] {
    let (row, head) = (rows / 2, heads / 2);
    [vec![0, row, 0, heads], vec![row, rows, 0, head], vec![row, rows, head, heads]]
}

/// Threads that call a kernel together, which is their only work.
struct TestTeam {
    barrier: Barrier,
    /// Items taken of each work, in order and whoever asks.
    taken: [AtomicU32; WORKS as usize],
    /// In how many parts.
    parts: AtomicU32,
}

thread_local! {
    /// The team that this thread belongs to.
    static TEAM: RefCell<Option<Arc<TestTeam>>> = const { RefCell::new(None) };
}

extern "C" fn wait_for_team(_: *const c_void, _: u32) {
    TEAM.with_borrow(|team| team.as_ref().expect("a thread of a team").barrier.wait());
}
extern "C" fn take_of_team(
    _: *const c_void,
    _: u32,
    work: u32,
    items: u32,
    least: u32,
    _: u32,
) -> u64 {
    let take = |team: &TestTeam| {
        let begin = team.taken[work as usize].fetch_add(least, Ordering::Relaxed);
        if begin >= items {
            return 0;
        }
        team.parts.fetch_add(1, Ordering::Relaxed);
        u64::from(begin) << 32 | u64::from(items.min(begin + least))
    };
    TEAM.with_borrow(|team| take(team.as_ref().expect("a thread of a team")))
}

/// An argument before the output.
enum Input<'a> {
    Context(&'a StepContext),
    Floats(Vec<u8>),
    /// Memory that the test keeps.
    Guarded(*const u8),
    Nothing,
}

impl Input<'_> {
    fn floats(values: &[f32]) -> Input<'static> {
        Input::Floats(bytes(values))
    }

    fn address(&self) -> u64 {
        match self {
            Input::Context(context) => std::ptr::from_ref::<StepContext>(context) as u64,
            Input::Floats(bytes) => bytes.as_ptr() as u64,
            Input::Guarded(address) => address.addr() as u64,
            Input::Nothing => 0,
        }
    }
}

extern "C" fn no_barrier(_: *const c_void, _: u32) {}
extern "C" fn no_fault(_: *const c_void, fault: u32, detail: u32) {
    panic!("fault {fault} {detail}");
}

/// A step without anything; a test sets what its kernel reads.
pub(crate) fn context() -> StepContext {
    StepContext {
        weights: null(),
        arena: null_mut(),
        hidden: null_mut(),
        tokens: null(),
        positions: null(),
        rotary_rows: null(),
        segment_weights: null(),
        layer: null(),
        prompt: null(),
        head_rows: null(),
        logits: null_mut(),
        barrier: no_barrier,
        take: take_of_team,
        fault: no_fault,
        team: null(),
        rows: 0,
        head_row_count: 0,
        reads_far: 0,
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn double(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Fails if `got` is further than `bound` from `exact`, or is no number.
fn within(what: &dyn std::fmt::Debug, got: f32, exact: f64, bound: f64) {
    let error = (f64::from(got) - exact).abs();
    let inside = error <= bound * FIRST_ORDER + f64::from(f32::MIN_POSITIVE);
    assert!(inside, "{what:?}: {got}, expected {exact} within {bound:.2e}, is off by {error:.2e}");
}

/// Longest chain of roundings in a sum of `count` values by sixteen lanes: an addition a turn, two
/// to join vectors, two to join lanes, then the rest one by one.
fn sum_depth(count: usize) -> f64 {
    let rest = (count % 16) as f64;
    if count < 16 { rest } else { (count / 16) as f64 + 4.0 + rest }
}

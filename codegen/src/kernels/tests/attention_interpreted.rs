//! Attention of the assembled levels in the instruction interpreter, whether this machine has them or
//! not: the whole kernel, frame and steps, with nothing around any of its memory. Every case keeps the
//! bound, and all levels give the same bits, those of this machine where it runs the level. (Over a bf16
//! cache those that multiply pairs take numbers below 2⁻¹²⁶ for zero, and may have other bits where there
//! are some.)

use std::mem::{offset_of, size_of};

use weir_abi::{IsaLevel, LayerCall};
use weir_processor as processor;
use weir_runtime::machine::supports;

use super::attention::{Case, PATTERNS, Sizes};
use super::attention_planes::Formats;
use super::attention_random::sizes;
use super::in_bytes::{bytes_of_layer, bytes_of_spans, put};
use super::*;
use crate::image::CodeImage;
use crate::kernels::attention::{CacheType, emit_attend};

/// Cases of a number format in every run, and in the long one; each runs on every level.
const FEW: usize = 8;
const MANY: usize = 150;

/// AVX-VNNI attends like AVX2 where a cache holds no codes, AMX like AVX-512 in pairs; which has a way of
/// its own over bf16 alone.
const LEVELS: [IsaLevel; 5] =
    [IsaLevel::Avx2, IsaLevel::AvxVnni, IsaLevel::Avx512, IsaLevel::Avx512Pairs, IsaLevel::Amx];

/// The whole step on a level, by a team of one or two threads one after the other; and whether they
/// shared a row.
///
/// A thread that waits for another goes on at once: its barrier is a return. Hence the last thread
/// runs again when all the others' parts are there, and writes what it wrote too early.
pub(super) fn interpret(case: &Case, level: IsaLevel, threads: usize) -> (Vec<f32>, bool) {
    let mut assembly = Assembly::new().unwrap();
    emit_attend(&mut assembly, &case.spec, level).unwrap();
    let mut image: CodeImage = assembly.finish().unwrap();
    let symbol = case.spec.symbol(level);
    let entry = image.symbols.iter().find(|known| known.name == symbol).unwrap().offset;
    let barrier = processor::CODE + image.bytes.len() as u64;
    image.bytes.push(0xc3);

    let rows = case.spans.len();
    let spans = bytes_of_spans(&case.spans);
    let query = bytes(&case.query);
    let sinks = if case.spec.sinks { bytes(&case.sink) } else { Vec::new() };
    let mut output = bytes(&vec![POISON; rows * case.spec.output_row]);
    let mut shared = bytes(&vec![POISON; case.spec.shared_bytes() / 4]);
    let (planes, _) = case.layer([0; 2]);
    let lengths = [
        size_of::<StepContext>(),
        query.len(),
        sinks.len(),
        output.len(),
        shared.len(),
        size_of::<LayerCall>(),
        spans.len(),
        planes[0].len(),
        planes[1].len(),
    ];
    let [.., layer_at, spans_at, keys_at, values_at] = processor::addresses(lengths)[..] else {
        unreachable!("an address for each length")
    };
    let (_, layer) = case.layer([keys_at, values_at]);
    let layer = bytes_of_layer(&layer, spans_at);
    let mut context = vec![0; size_of::<StepContext>()];
    put(&mut context, offset_of!(StepContext, rows), (rows as u32).to_le_bytes());
    put(&mut context, offset_of!(StepContext, layer), layer_at.to_le_bytes());
    put(&mut context, offset_of!(StepContext, barrier), barrier.to_le_bytes());

    let order: &[u64] = if threads == 1 { &[0] } else { &[1, 0, 1] };
    for thread in order {
        use processor::Argument;
        let arguments = vec![
            Argument::Read(&context),
            Argument::Read(&query),
            Argument::Read(&sinks),
            Argument::Write(&mut output),
            Argument::Write(&mut shared),
            Argument::Count(*thread),
            Argument::Count(threads as u64),
            // Number of the work.
            Argument::Count(0),
            // No arguments of the kernel: what the context leads to.
            Argument::Read(&layer),
            Argument::Read(&spans),
            Argument::Read(&planes[0]),
            Argument::Read(&planes[1]),
        ];
        if let Err(fault) = processor::call(&image.bytes, entry as usize, arguments) {
            panic!("{symbol} with {rows} rows: {fault}");
        }
    }
    let shares = floats(&shared).iter().any(|float| *float != POISON);
    (floats(&output), shares)
}

/// Whether the threads shared a row. All numbers are ordinary ones unless some `are_tiny`.
fn check(case: &mut Case, threads: usize, are_tiny: bool) -> bool {
    let [avx2, avx_vnni, avx512, pairs, amx] = LEVELS.map(|level| {
        let (got, shares) = interpret(case, level, threads);
        case.check_output(level, &got);
        if supports(level) {
            let on_machine = case.run_all(level);
            assert!(bits(&got) == bits(&on_machine), "{level:?} of {:?}", case.spec);
        }
        (bits(&got), shares)
    });
    assert!([avx_vnni, avx512].iter().all(|other| *other == avx2), "{:?}", case.spec);
    assert!(pairs == amx, "{:?}", case.spec);
    let flushes = are_tiny && case.spec.cache.number == CacheType::Bf16;
    assert!(flushes || pairs == avx2, "{:?}", case.spec);
    avx2.1
}

fn run(cases: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut count = 0;
    for formats in Formats::all() {
        for index in 0..cases {
            let (rows, heads, kv_heads, key, value) = sizes(&mut random);
            // A block's values of other widths become floats by instructions that are not interpreted.
            let to_floats = formats.block.is_some() && !formats.ring.is_coded();
            let value = if to_floats { value.next_multiple_of(8) } else { value };
            // Interpretation takes its time.
            let sizes: Sizes = (rows.min(9), heads, kv_heads, key, value);
            let pattern = PATTERNS[random.below(PATTERNS.len())];
            let softcap = [0.0, 0.0, 2.5][random.below(3)];
            let sinks = random.below(3) == 0;
            let mut case = Case::new(&mut random, sizes, formats, pattern, (sinks, softcap));
            let are_tiny = random.below(3) == 0;
            if are_tiny {
                case.with_tiny_numbers(&mut random);
            }
            check(&mut case, 1 + index % 2, are_tiny);
            count += LEVELS.len();
        }
    }
    println!("interpreted attention: {count} cases");
    assert_eq!(count, Formats::all().len() * LEVELS.len() * cases);
}

#[test]
fn interpreted_attention_keeps_its_bound() {
    run(FEW, 61);
}

#[test]
#[ignore = "the long run"]
fn much_interpreted_attention_keeps_its_bound() {
    run(MANY, 62);
}

/// One long row whose heads would leave a thread idle, divided by chunks and combined.
#[test]
fn a_divided_row_is_interpreted() {
    let mut random = Random::new(63);
    for number in CacheType::ALL {
        let mut long_row = || loop {
            let sizes = (1, 3, 1, 20, 24);
            let case = Case::new(&mut random, sizes, number, PATTERNS[1], (true, 0.0));
            if case.spans[0].ranges[0].rows > 512 {
                return case;
            }
        };
        let mut case = long_row();
        assert!(!check(&mut case, 1, false));
        assert!(check(&mut case, 2, false));
    }
}

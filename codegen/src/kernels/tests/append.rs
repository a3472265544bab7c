//! Cache writes, with and without rotation, against the steps of the separate kernels one by one.

use weir_abi::RowSpans;
use weir_ir::interpret::select::reservoir_row;

use super::attention::levels;
use super::attention_planes::{BLOCK_ROWS, CACHE_ROWS, Formats, Planes, SLOTS, widened};
use super::*;
use crate::kernels::append::{AppendSpec, emit_append};
use crate::kernels::attention::{CacheShape, CacheType};
use crate::kernels::rotary::Rotation;

/// Halves between two numbers, subnormal ones, beyond the range.
const BORDERS: [f32; 14] = [
    65504.0,
    65519.99,
    65520.0,
    -1e6,
    f32::MAX,
    f32::INFINITY,
    f32::NEG_INFINITY,
    6e-8,
    2.98e-8,
    -0.0,
    1.000_488_3,
    1.001_464_8,
    1.003_906_2,
    1e-40,
];

/// Angles of this many positions.
const POSITIONS: usize = 19;

/// Rows, heads, widths of key and value, rotated values of a key.
const SHAPES: [[usize; 5]; 11] = [
    [1, 1, 1, 1, 0],
    [1, 2, 6, 9, 4],
    [8, 3, 16, 17, 16],
    [21, 1, 37, 33, 26],
    // Whole vectors.
    [1, 1, 8, 8, 0],
    [5, 3, 64, 64, 64],
    [17, 2, 128, 128, 128],
    [3, 8, 96, 64, 32],
    [4, 2, 24, 40, 16],
    // Several quads of rows.
    [23, 3, 64, 64, 64],
    [14, 2, 48, 16, 32],
];

/// Where rows go: one far from the other, or one behind the other in a slot, and after some in the next.
fn random_places(random: &mut Random, rows: usize) -> Vec<RowSpans> {
    let is_run = random.below(2) == 0;
    let (mut slot, first) = (random.below(SLOTS), random.below(8));
    let place = |row: usize| {
        let [write_slot, write_row] = match is_run {
            true => {
                slot = (slot + usize::from(random.below(9) == 0)) % SLOTS;
                [slot, first + row]
            }
            false => [random.below(SLOTS), (row * 4 + random.below(4)) % CACHE_ROWS],
        };
        let [write_slot, write_row] = [write_slot, write_row].map(|number| number as u32);
        RowSpans { write_slot, write_row, ..Default::default() }
    };
    (0..rows).map(place).collect()
}

/// The key as the two kernels make it: each product and each sum rounded.
fn rotated(key: &[f32], rotation: Option<Rotation>, cos: &[f32], sin: &[f32]) -> Vec<f32> {
    let mut result = key.to_vec();
    let Some(Rotation { width, interleaved }) = rotation else { return result };
    for pair in 0..width / 2 {
        let (first, second) =
            if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + width / 2) };
        let (a, b, c, s) = (key[first], key[second], cos[pair], sin[pair]);
        result[first] = a * c - b * s;
        result[second] = b * c + a * s;
    }
    result
}

/// Rows written by a kernel and by the definition, both planes as bytes.
pub(super) fn check_append(
    random: &mut Random,
    [rows, kv_heads, key_width, value_width, width]: [usize; 5],
    number: CacheType,
    interleaved: bool,
    side: Side,
) {
    let cache =
        CacheShape { kv_heads, key_width, value_width, number, block: None, by_head: false };
    let spec = AppendSpec {
        cache,
        key: (kv_heads * key_width + 2, key_width),
        value: (kv_heads * (value_width + 1), value_width + 1),
        rotation: (width > 0).then_some(Rotation { width, interleaved }),
        reservoir: None,
    };
    let spans = random_places(random, rows);
    let mut key = random.units(rows * spec.key.0);
    let mut value = random.units(rows * spec.value.0);
    for (numbers, stride) in [(&mut key, spec.key.0), (&mut value, spec.value.0)] {
        for row in numbers.chunks_mut(stride) {
            // One number of a border decides the scale of a whole row of codes: some rows have none, and
            // some no number that counts.
            match random.below(8) {
                0 => row.iter_mut().for_each(|number| *number *= 1e-33),
                1..=3 => {}
                _ => {
                    for index in (1..stride).step_by(3) {
                        row[index] = BORDERS[random.below(BORDERS.len())];
                    }
                }
            }
        }
    }
    let half = width / 2;
    let places: Vec<u32> = (0..rows).map(|_| random.below(POSITIONS) as u32).collect();
    let angles: Vec<f32> = random.units(POSITIONS * half).iter().map(|v| v * 3.0).collect();
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
    let mut expected = Planes::new(cache);
    for (row, span) in spans.iter().enumerate() {
        let at = places[row] as usize * half;
        let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
        for head in 0..kv_heads {
            let at = expected.row(span.write_slot as usize, head, span.write_row as usize);
            let key = &key[row * spec.key.0 + head * spec.key.1..][..key_width];
            let value = &value[row * spec.value.0 + head * spec.value.1..][..value_width];
            expected.set(at, &rotated(key, spec.rotation, cos, sin), value);
        }
    }
    let expected = expected.encoded();
    for level in levels() {
        let kernel = Kernel::new(|assembly| emit_append(assembly, &spec, level));
        let mut planes = Planes::new(cache);
        let layer = planes.call(planes.encoded(), &spans, side);
        let context = StepContext { layer: &layer, rotary_rows: places.as_ptr(), ..context() };
        let mut inputs =
            [&key, &value, &cos, &sin].map(|floats| Guarded::new(&bytes(floats), side));
        for share in shares_of_heads(rows, kv_heads) {
            let mut words = vec![std::ptr::from_ref(&context) as u64];
            words.extend(inputs.iter_mut().map(|input| input.bytes().as_ptr().addr() as u64));
            words.extend(share.into_iter().map(|item| item as u64));
            let mut arguments: Vec<Argument<'_>> = words.into_iter().map(Argument::Count).collect();
            kernel.code.call_kernel(&kernel.name, &mut arguments);
        }
        let mut written = planes.guarded.take().unwrap().map(Guarded::finish);
        if number.is_coded() {
            let planes = written.iter_mut().zip(&expected).zip([true, false]);
            for ((written, expected), is_key) in planes {
                forget_what_is_no_number(written, expected, &cache, is_key);
            }
        }
        for (plane, (written, expected)) in written.iter().zip(&expected).enumerate() {
            let same = written
                .chunks(number.bytes())
                .zip(expected.chunks(number.bytes()))
                .position(|(ours, wanted)| !same_number(number, ours, wanted));
            assert_eq!(same, None, "{level:?} {spec:?} plane {plane}");
        }
    }
}

/// Codes of rows whose scale is no number, as it has to be, are not specified.
fn forget_what_is_no_number(written: &mut [u8], expected: &[u8], cache: &CacheShape, is_key: bool) {
    let (width, size) = (cache.bytes_of(is_key), cache.number.scale_bytes());
    let block = 16 * (width + size);
    for (written, expected) in written.chunks_mut(block).zip(expected.chunks(block)) {
        for lane in 0..16 {
            let scale = 16 * width + lane * size..16 * width + (lane + 1) * size;
            let is_nan = |bytes: &[u8]| match *bytes {
                [low, high] => half::f16::from_le_bytes([low, high]).is_nan(),
                _ => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            };
            if !is_nan(&written[scale.clone()]) || !is_nan(&expected[scale.clone()]) {
                continue;
            }
            let codes = (0..width).map(|d| match is_key {
                true => d / 4 * 64 + lane * 4 + d % 4,
                false => lane / 4 * 4 * width + d * 4 + lane % 4,
            });
            for at in codes.chain(scale) {
                written[at] = expected[at];
            }
        }
    }
}

/// The same bits, or both no number: which one is not specified.
fn same_number(number: CacheType, ours: &[u8], wanted: &[u8]) -> bool {
    let is_nan = |bytes: &[u8]| match (number, bytes) {
        (CacheType::F16, [low, high]) => half::f16::from_le_bytes([*low, *high]).is_nan(),
        (CacheType::Bf16, [low, high]) => half::bf16::from_le_bytes([*low, *high]).is_nan(),
        (CacheType::Int8 | CacheType::Int4, _) => false,
        (_, bytes) => bytes.try_into().is_ok_and(|bytes| f32::from_le_bytes(bytes).is_nan()),
    };
    ours == wanted || is_nan(ours) && is_nan(wanted)
}

/// A row's key and value go where its span says, rotated and rounded as the separate kernels and the
/// interpreter do it, on every level; nothing else of the planes is written.
#[test]
fn rows_are_written_where_spans_say() {
    let mut random = Random::new(32);
    for shape in SHAPES {
        for number in CacheType::ALL {
            for (interleaved, side) in [(false, Side::Begin), (true, Side::End)] {
                check_append(&mut random, shape, number, interleaved, side);
            }
        }
    }
}

/// Before a row is written, what it overwrites goes where the interpreter's lots say, head by head.
#[test]
fn rows_that_leave_the_ring_are_sampled() {
    const SEED: u32 = 7;
    const LAYER: u32 = 5;
    const RESERVOIR: u32 = 20;
    const FIRST: u32 = CACHE_ROWS as u32 - RESERVOIR;
    let mut random = Random::new(33);
    let mut kept = [0; 2];
    // Levels among codes of int8 are no row that tests write: such rows do not leave the block here.
    let random_row = |random: &mut Random, cache: CacheShape| {
        let first = if cache.block.is_some() && cache.number.is_coded() { BLOCK_ROWS } else { 0 };
        first + random.below(FIRST as usize - first)
    };
    // The rank among those that have left: one that finds a free row, or one that may be dropped.
    let all = Formats::all();
    for (rank, Formats { ring: number, block }) in [0, 1, 20, 21, 40, 90_000]
        .into_iter()
        .flat_map(|rank| all.iter().map(move |formats| (rank, *formats)))
    {
        for [kv_heads, key_width, value_width] in [[3, 6, 9], [16, 16, 8]] {
            let cache =
                CacheShape { kv_heads, key_width, value_width, number, block, by_head: false };
            let spec = AppendSpec {
                cache,
                key: (kv_heads * key_width, key_width),
                value: (kv_heads * value_width, value_width),
                rotation: None,
                reservoir: Some(SEED),
            };
            let spans: Vec<RowSpans> = (0..SLOTS as u32)
                .map(|slot| RowSpans {
                    write_slot: slot,
                    write_row: random_row(&mut random, cache) as u32,
                    leaving_rank: if slot == 1 { 0 } else { rank },
                    leaving_position: 1000 * rank + slot,
                    reservoir_first: FIRST,
                    reservoir_rows: RESERVOIR,
                    ..Default::default()
                })
                .collect();
            let (key, value) =
                (random.units(SLOTS * spec.key.0), random.units(SLOTS * spec.value.0));
            let (old_key, old_value) =
                (random.units(SLOTS * spec.key.0), random.units(SLOTS * spec.value.0));
            let row_of = |plane: &[f32], slot: usize, stride: usize, head: usize, width: usize| {
                plane[slot * stride + head * width..][..width].to_vec()
            };
            let mut planes = Planes::new(cache);
            let mut expected = Planes::new(cache);
            for (slot, span) in spans.iter().enumerate() {
                for head in 0..kv_heads {
                    let place = |planes: &Planes, row: u32| planes.row(slot, head, row as usize);
                    let part = |[key, value]: [&[f32]; 2]| {
                        let key = row_of(key, slot, spec.key.0, head, key_width);
                        (key, row_of(value, slot, spec.value.0, head, value_width))
                    };
                    let (key, value) = part([&key, &value]);
                    let (old_key, old_value) = part([&old_key, &old_value]);
                    let at = place(&planes, span.write_row);
                    planes.set(at, &old_key, &old_value);
                    expected.set(at, &key, &value);
                    let (lots, position) = ((SEED, LAYER), span.leaving_position);
                    let rank = span.leaving_rank as usize;
                    let chosen =
                        reservoir_row(lots, head as u32, position, rank, RESERVOIR as usize);
                    if let Some(row) = chosen {
                        let [from, to] =
                            [span.write_row, FIRST + row as u32].map(|row| place(&expected, row));
                        let seen = |row: &[f32]| match planes.number(from) {
                            block if block != number => widened(block, number, row),
                            _ => row.to_vec(),
                        };
                        expected.set(to, &seen(&old_key), &seen(&old_value));
                    }
                    kept[usize::from(chosen.is_some())] += 1;
                }
            }
            let expected = expected.encoded();
            for level in levels() {
                let kernel = Kernel::new(|assembly| emit_append(assembly, &spec, level));
                let encoded = planes.encoded();
                let layer = planes.call(encoded, &spans, Side::End);
                let layer = weir_abi::LayerCall { layer: LAYER, ..layer };
                let places = [0; SLOTS];
                let context =
                    StepContext { layer: &layer, rotary_rows: places.as_ptr(), ..context() };
                let mut words = vec![std::ptr::from_ref(&context) as u64];
                words.extend([&key, &value].map(|floats| floats.as_ptr().addr() as u64));
                words.extend([0, 0, 0, SLOTS as u64, 0, kv_heads as u64]);
                let mut arguments: Vec<Argument<'_>> =
                    words.into_iter().map(Argument::Count).collect();
                kernel.code.call_kernel(&kernel.name, &mut arguments);
                let written = planes.guarded.take().unwrap().map(Guarded::finish);
                assert!(written == expected, "{level:?} {spec:?} rank {rank}");
            }
        }
    }
    assert!(kept.into_iter().all(|count| count > 50), "{kept:?}");
}

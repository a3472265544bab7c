//! Cache writes: which rows they touch, and how numbers are rounded.

use weir_abi::RowSpans;

use super::attention::{CACHE_ROWS, Planes, SLOTS};
use super::*;
use crate::kernels::attention::{CacheShape, CacheType, emit_append};

/// A row's key and value go where its span says, rounded as the interpreter does it; nothing else of
/// the planes is written.
pub(super) fn check_append(
    random: &mut Random,
    [rows, kv_heads, key_width, value_width]: [usize; 4],
    number: CacheType,
    side: Side,
) {
    let cache = CacheShape { kv_heads, key_width, value_width, number };
    let (key_row, value_row) = (kv_heads * key_width + 2, kv_heads * (value_width + 1));
    let kernel = Kernel::new(|assembly| {
        emit_append(assembly, &cache, (key_row, key_width), (value_row, value_width + 1))
    });
    let spans: Vec<RowSpans> = (0..rows)
        .map(|row| RowSpans {
            write_slot: random.below(SLOTS) as u32,
            write_row: ((row * 4 + random.below(4)) % CACHE_ROWS) as u32,
            ..Default::default()
        })
        .collect();
    let mut key = random.units(rows * key_row);
    let value = random.units(rows * value_row);
    // Borders: halves between two numbers, subnormal ones, beyond the range, no numbers.
    let borders = [
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
    for (index, number) in key.iter_mut().enumerate() {
        if index % 3 == 1 {
            *number = borders[random.below(borders.len())];
        }
    }
    let mut planes = Planes::new(cache);
    let mut expected = Planes::new(cache);
    for (row, span) in spans.iter().enumerate() {
        for head in 0..kv_heads {
            let at = expected.row(span.write_slot as usize, head, span.write_row as usize);
            let key = &key[row * key_row + head * key_width..][..key_width];
            let value = &value[row * value_row + head * (value_width + 1)..][..value_width];
            expected.set(at, key, value);
        }
    }
    let layer = planes.call(planes.encoded(), &spans, side);
    let context = StepContext { layer: &layer, ..context() };
    let address = std::ptr::from_ref(&context) as u64;
    let [mut key, mut value] = [key, value].map(|rows| Guarded::new(&bytes(&rows), side));
    kernel.code.call_kernel(
        &kernel.name,
        &mut [
            Argument::Count(address),
            Argument::Read(key.bytes()),
            Argument::Read(value.bytes()),
            Argument::Count(0),
            Argument::Count(rows as u64),
        ],
    );
    let written = planes.guarded.take().unwrap().map(Guarded::finish);
    assert!(written == expected.encoded(), "{number:?}");
}

#[test]
fn rows_are_written_where_spans_say() {
    let mut random = Random::new(32);
    for shape in [[1, 1, 1, 1], [1, 2, 6, 9], [8, 3, 16, 17], [21, 1, 37, 33]] {
        for number in CacheType::ALL {
            check_append(&mut random, shape, number, Side::End);
        }
    }
}

//! Products of queries with a block of keys: every assembled version, in the instruction interpreter,
//! gives the bits of fused steps in ascending order, and touches no byte beside its operands.

use weir_abi::{IsaLevel, KEY_BLOCK};
use weir_ir::interpret::stored;
use weir_processor as processor;

use super::attention_planes::{encoded_planes, format};
use super::*;
use crate::image::CodeImage;
use crate::kernels::attention::{CacheShape, CacheType, emit_block_products};

/// Levels with a version; the others share these.
const LEVELS: [IsaLevel; 2] = [IsaLevel::Avx2, IsaLevel::Avx512];
/// Cases of a number format in every run.
const CASES: usize = 12;

fn check(random: &mut Random, number: CacheType, level: IsaLevel) {
    let key_width = 1 + random.below(40);
    let cache =
        CacheShape { kv_heads: 1, key_width, value_width: 1, number, block: None, by_head: false };
    let queries = random.below(33);
    let query_row = key_width + random.below(9);
    // Codes come as floats.
    let held = CacheShape { number: number.aside(), ..cache };
    let keys = random.units(KEY_BLOCK * key_width);
    let keys: Vec<f32> = keys.into_iter().map(|key| stored(key, format(held.number))).collect();
    let [mut block, _] = encoded_planes(&held, [&keys, &[0.0; KEY_BLOCK]], KEY_BLOCK);
    block.truncate(KEY_BLOCK * held.key_bytes());
    let mut query = random.units(queries * query_row);
    query.truncate(query.len().saturating_sub(query_row - key_width));

    let mut assembly = Assembly::new().unwrap();
    let id = emit_block_products(&mut assembly, &cache, query_row, level).unwrap().unwrap();
    let symbol = assembly.name(id).to_owned();
    let image: CodeImage = assembly.finish().unwrap();
    let entry = image.symbols.iter().find(|known| known.name == symbol).unwrap().offset;
    let query_bytes = bytes(&query);
    let mut products = bytes(&vec![POISON; queries * KEY_BLOCK]);
    let arguments = vec![
        processor::Argument::Read(&query_bytes),
        processor::Argument::Read(&block),
        processor::Argument::Write(&mut products),
        processor::Argument::Count(queries as u64),
    ];
    if let Err(fault) = processor::call(&image.bytes, entry as usize, arguments) {
        panic!("{symbol} of {queries} queries: {fault}");
    }
    for (at, got) in floats(&products).into_iter().enumerate() {
        let query = &query[at / KEY_BLOCK * query_row..][..key_width];
        let key = &keys[at % KEY_BLOCK * key_width..][..key_width];
        let sum = query.iter().zip(key).fold(0.0_f32, |sum, (q, k)| q.mul_add(*k, sum));
        assert_eq!(got.to_bits(), sum.to_bits(), "{symbol}, product {at} of {queries} queries");
    }
}

#[test]
fn products_with_a_block_are_fused_in_order() {
    let mut random = Random::new(53);
    for number in CacheType::ALL {
        for level in LEVELS {
            (0..CASES).for_each(|_| check(&mut random, number, level));
        }
    }
}

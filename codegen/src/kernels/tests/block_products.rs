//! Products of queries with a block of keys, and weights of them: every assembled version, in the
//! instruction interpreter, gives the bits of fused steps in ascending order, or those that
//! [`Body::exp`](crate::emit::Body::exp) has here, and touches no byte beside its operands.

use weir_abi::{IsaLevel, KEY_BLOCK};
use weir_ir::interpret::stored;
use weir_processor as processor;

use super::attention_planes::{encoded_planes, format};
use super::*;
use crate::emit::{POINTER, signature};
use crate::image::CodeImage;
use crate::kernels::attention::{
    AttendSpec, CacheShape, CacheType, ScoreSpec, emit_block_products, emit_block_weights,
};

/// Levels with a version; the others share these.
const LEVELS: [IsaLevel; 2] = [IsaLevel::Avx2, IsaLevel::Avx512];
/// Cases of a number format in every run.
const CASES: usize = 12;

fn finished(assembly: Assembly, id: FuncId) -> (CodeImage, String, usize) {
    let symbol = assembly.name(id).to_owned();
    let image: CodeImage = assembly.finish().unwrap();
    let entry = image.symbols.iter().find(|known| known.name == symbol).unwrap().offset as usize;
    (image, symbol, entry)
}

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
    let (image, symbol, entry) = finished(assembly, id);
    let query_bytes = bytes(&query);
    let mut products = bytes(&vec![POISON; queries * KEY_BLOCK]);
    let arguments = vec![
        processor::Argument::Read(&query_bytes),
        processor::Argument::Read(&block),
        processor::Argument::Write(&mut products),
        processor::Argument::Count(queries as u64),
    ];
    if let Err(fault) = processor::call(&image.bytes, entry, arguments) {
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

/// `(from, to, first, last)`: exponentials by the portable code.
fn portable_exp() -> Kernel {
    Kernel::new(|assembly| {
        let id = assembly.declare("exp", signature(&[POINTER; 4], &[]))?;
        assembly.define(id, |b| {
            let [from, to, first, last] = b.params();
            b.for_lanes(first, last, |b, index, lanes| {
                let [from, to] = [from, to].map(|at| b.element(at, index, 4));
                let number = b.load(lanes.float(), from, 0);
                let power = b.exp(number);
                b.store(power, to, 0);
            });
            b.ret(&[]);
        })?;
        Ok(id)
    })
}

fn check_weights(random: &mut Random, exp: &Kernel, is_coded: bool, level: IsaLevel) {
    let number = if is_coded { CacheType::Int8 } else { CacheType::F32 };
    let cache = CacheShape {
        kv_heads: 1,
        key_width: 8,
        value_width: 8,
        number,
        block: None,
        by_head: false,
    };
    let scale = random.units(1)[0] * 3.0;
    let spec = AttendSpec {
        cache,
        score: ScoreSpec { heads: 1, scale, softcap: 0.0 },
        sinks: false,
        query: (8, 8),
        output_row: 8,
        rounded: None,
        shared_chunks: 1,
        max_rows: 1,
    };
    let queries = random.below(11);
    let apart = 1 + random.below(3);
    // Up to where results are subnormal, infinite, or no numbers.
    let mut products: Vec<f32> =
        random.units(queries * KEY_BLOCK).into_iter().map(|unit| unit * 60.0).collect();
    for product in &mut products {
        match random.below(40) {
            0 => *product = f32::NAN,
            1 => *product = f32::INFINITY,
            2 => *product = f32::NEG_INFINITY,
            _ => {}
        }
    }
    let scales = random.units(KEY_BLOCK);
    let mut sums = random.units(queries * apart);
    sums.iter_mut().for_each(|sum| *sum *= 20.0);
    sums.truncate(sums.len().saturating_sub(apart - 1));

    let mut assembly = Assembly::new().unwrap();
    let id = emit_block_weights(&mut assembly, &spec, level).unwrap().unwrap();
    let (image, symbol, entry) = finished(assembly, id);
    let mut weights = bytes(&products);
    let (sum_bytes, scale_bytes) = (bytes(&sums), bytes(&scales));
    let arguments = vec![
        processor::Argument::Write(&mut weights),
        processor::Argument::Count(queries as u64),
        processor::Argument::Read(&sum_bytes),
        processor::Argument::Count(apart as u64 * 4),
        processor::Argument::Read(&scale_bytes),
    ];
    if let Err(fault) = processor::call(&image.bytes, entry, arguments) {
        panic!("{symbol} of {queries} queries: {fault}");
    }
    let scores: Vec<f32> = products
        .iter()
        .enumerate()
        .map(|(at, product)| {
            let product = if is_coded { product * scales[at % KEY_BLOCK] } else { *product };
            product * scale - sums[at / KEY_BLOCK * apart]
        })
        .collect();
    let expected = match scores.len() {
        0 => Vec::new(),
        count => exp.run(&[Input::floats(&scores)], count, count),
    };
    for ((got, expected), score) in floats(&weights).into_iter().zip(expected).zip(scores) {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{symbol}: exp({score}) is {got}, not {expected}");
    }
}

#[test]
fn weights_of_a_block_are_those_of_portable_code() {
    let mut random = Random::new(54);
    let exp = portable_exp();
    for is_coded in [false, true] {
        for level in LEVELS {
            (0..CASES).for_each(|_| check_weights(&mut random, &exp, is_coded, level));
        }
    }
}

//! Faults put into the arithmetic of activations on purpose: the checks of `own_arithmetic` must see
//! them, and this says which check sees which (the table in `docs/numerics.md`).

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use weir_ir::interpret::Rounding;
use weir_ir::{CacheFormat, TensorType};
use weir_tests::activations::{
    Arithmetic, BY_ROW, Bound, OWN, block, round_activations, round_by_row, same_rounding,
};
use weir_tests::golden::read;
use weir_tests::places::{name, root};
use weir_tests::systems::{Oracle, Setup, System};

use crate::trial;

/// A wrong arithmetic: its name, the arithmetic, whether it leaves the bound against float32.
type Fault = (&'static str, Rounding, bool);

/// The second block of a row has a scale that is 2 % too great.
fn scale_of_one_block(weight: &TensorType, row: &mut [f32]) {
    round_activations(weight, row);
    let block = block(weight).unwrap_or(32);
    row.iter_mut().skip(block).take(block).for_each(|x| *x *= 1.02);
}

/// The same, only where a product narrows its rows (the second of an MLP).
fn scale_of_one_block_of_one_product(weight: &TensorType, row: &mut [f32]) {
    let sizes = weight.sizes().unwrap_or_default();
    if sizes.first() < sizes.last() {
        scale_of_one_block(weight, row);
    } else {
        round_activations(weight, row);
    }
}

/// Every scale is 5 % too great; norms take most of it out again.
fn scale_of_all_blocks(weight: &TensorType, row: &mut [f32]) {
    round_activations(weight, row);
    row.iter_mut().for_each(|x| *x *= 1.05);
}

/// Codes end at 95 instead of 120.
fn codes_to_95(weight: &TensorType, row: &mut [f32]) {
    let block = block(weight).unwrap_or(row.len().max(1));
    for block in row.chunks_mut(block) {
        let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let end = largest * (95.0 / 120.1);
        block.iter_mut().for_each(|x| *x = x.clamp(-end, end));
    }
    round_activations(weight, row);
}

/// Towards zero instead of to the nearest code.
fn truncated(weight: &TensorType, row: &mut [f32]) {
    let Some(block) = block(weight) else {
        row.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        return;
    };
    for block in row.chunks_mut(block) {
        let unit = block.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 120.1;
        if unit > 0.0 {
            block.iter_mut().for_each(|x| *x = (*x / unit).trunc() * unit);
        }
    }
}

/// The first block's scale serves all.
fn one_scale(weight: &TensorType, row: &mut [f32]) {
    let block = block(weight).unwrap_or(row.len().max(1));
    let size = |part: &[f32]| part.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let first = size(&row[..block.min(row.len())]);
    round_activations(weight, row);
    for part in row.chunks_mut(block) {
        let own = size(part);
        if own > 0.0 {
            part.iter_mut().for_each(|x| *x *= first / own);
        }
    }
}

/// The last element of a row is left out.
fn without_the_last(weight: &TensorType, row: &mut [f32]) {
    round_activations(weight, row);
    if let Some(last) = row.last_mut() {
        *last = 0.0;
    }
}

/// The same of rows with one scale.
fn last_left_out_by_row(weight: &TensorType, row: &mut [f32]) {
    round_by_row(weight, row);
    if let Some(last) = row.last_mut() {
        *last = 0.0;
    }
}

/// A thread that found the largest magnitude in its own part of the row; codes beyond a byte end
/// there.
fn scale_of_the_first_half(weight: &TensorType, row: &mut [f32]) {
    if block(weight).is_none() {
        return;
    }
    let half = &row[..row.len().div_ceil(2)];
    let unit = half.iter().fold(0f32, |largest, x| largest.max(x.abs())) / 120.1;
    if unit > 0.0 {
        row.iter_mut().for_each(|x| *x = (*x / unit).round_ties_even().clamp(-128.0, 127.0) * unit);
    }
}

/// No rounding at all: a model that was compiled in float32 by mistake.
fn exact(_: &TensorType, _: &mut [f32]) {}

const INT8: [Fault; 8] = [
    ("one block of one product is 2 % off", scale_of_one_block_of_one_product, false),
    ("one block of each product is 2 % off", scale_of_one_block, true),
    ("all scales are 5 % off", scale_of_all_blocks, true),
    ("codes end at 95", codes_to_95, true),
    ("codes are truncated", truncated, true),
    ("one scale serves all blocks", one_scale, true),
    ("the last element is left out", without_the_last, true),
    ("nothing is rounded", exact, false),
];

const BF16: [Fault; 3] = [
    ("values are truncated", truncated, false),
    ("the last element is left out", without_the_last, true),
    ("nothing is rounded", exact, false),
];

const ROWS: [Fault; 4] = [
    ("blocks have their own scales", round_activations, false),
    ("the first half's scale serves the row", scale_of_the_first_half, true),
    ("the last element is left out", last_left_out_by_row, true),
    ("nothing is rounded", exact, false),
];

pub fn trials() -> Vec<Trial> {
    [
        ("narrow-nbits-int4", "faults", &OWN, &INT8[..]),
        ("qwen2-genai-int8", "faults", &OWN, &INT8[..]),
        ("llama-genai-bf16", "faults", &OWN, &BF16[..]),
        ("narrow-nbits-int4", "int8_row_faults", &BY_ROW, &ROWS[..]),
        ("qwen2-genai-int8", "int8_row_faults", &BY_ROW, &ROWS[..]),
    ]
    .into_iter()
    .map(|(fixture, check, defined, faults)| {
        trial(format!("activations/{fixture}/{check}"), move || {
            faults_are_seen(fixture, defined, faults)
        })
    })
    .chain([trial("activations/cache/faults".to_owned(), caches_are_seen)])
    .chain(["llama-genai-fp32", "mistral-layered-genai-fp32", "phi3-longrope-dynamo18-fp32"].map(
        |fixture| {
            let folder = root().join("tests/fixtures/onnx").join(fixture);
            trial(format!("activations/cache/codes/{fixture}"), move || codes_stay_near(&folder))
        },
    ))
    .collect()
}

/// Attention over codes is as far from float32 as derived, in the interpreter alone.
fn codes_stay_near(folder: &Path) -> Result<()> {
    for kv_dtype in [weir::KvTypeOption::Int8, weir::KvTypeOption::Int4] {
        let setup = Setup { kv_dtype: Some(kv_dtype), ..Setup::exact(320) };
        let mut oracle = Oracle::lower(folder, &setup)?;
        let bound = Bound::of_caches(oracle.graph())?;
        for case in read(folder)? {
            let ours = oracle.logits(&case.prompt, &case.forced)?;
            let what = format!("{} {} {kv_dtype:?}", name(folder), case.name);
            let found = bound.check(&what, &ours.steps, &case.steps)?;
            let parts = found.root_mean_square / found.reference;
            println!("{what}: root mean square {parts:.5}, bound {:.5}", bound.relative);
        }
    }
    Ok(())
}

/// A cache that is rounded otherwise than defined, or not, is seen by the check of the definition.
fn caches_are_seen() -> Result<()> {
    use weir::KvTypeOption::{Bf16, F16, F32, Int4, Int8};
    // What suits their products: rows of 16 numbers are too short for scales.
    let fixtures =
        [("narrow-nbits-int4", CacheFormat::F16), ("llama-genai-bf16", CacheFormat::BF16)];
    for (fixture, own) in fixtures {
        let folder = root().join("tests/fixtures/onnx").join(fixture);
        let oracle = |kv_dtype| -> Result<Oracle> {
            let setup = Setup { compute: None, kv_dtype, ..Setup::exact(320) };
            Ok(Oracle::lower(&folder, &setup)?.with_rounding(round_activations))
        };
        let cases = read(&folder)?;
        let ids = cases.iter().map(|case| &case.prompt).max_by_key(|ids| ids.len());
        let ids = ids.context("no prompts")?;
        for defined in [F16, Bf16, Int8, Int4] {
            let Some(bound) = Bound::of(oracle(Some(defined))?.graph())? else {
                bail!("nothing is rounded");
            };
            for kv_dtype in [F32, F16, Bf16, Int8, Int4] {
                let (mut ours, mut wanted) = (oracle(Some(kv_dtype))?, oracle(Some(defined))?);
                let judged = bound.same_storing(&mut ours, &mut wanted, ids);
                println!("{fixture}: {kv_dtype:?} for {defined:?}: {judged:?}");
                ensure!(judged.is_ok() == (kv_dtype == defined), "{kv_dtype:?} for {defined:?}");
            }
        }
        let caches = oracle(None)?;
        let formats: Vec<_> = caches.graph().caches.values().map(|k| k.format).collect();
        ensure!(formats.iter().all(|format| *format == own), "{formats:?}");
    }
    Ok(())
}

fn faults_are_seen(fixture: &str, expected: &Arithmetic, faults: &[Fault]) -> Result<()> {
    let folder = root().join("tests/fixtures/onnx").join(fixture);
    // Where nothing else is rounded.
    let kv_dtype = Some(weir::KvTypeOption::F32);
    let setup = Setup { compute: expected.compute, kv_dtype, ..Setup::exact(320) };
    let oracle = || Oracle::lower(&folder, &setup);
    let Some(bound) = (expected.bound)(oracle()?.graph())? else { bail!("it is float32") };
    let case = &read(&folder)?[0];
    let mut wrong = Vec::new();
    for (fault, rounding, leaves) in faults {
        let mut faulty = oracle()?.with_rounding(*rounding);
        let mut defined = oracle()?.with_rounding(expected.rounding);
        let is_seen = same_rounding(&mut faulty, &mut defined, &case.prompt).is_err();
        let logits = faulty.logits(&case.prompt, &case.forced)?;
        let judged = bound.check(fixture, &logits.steps, &case.steps);
        let answer = match &judged {
            Ok(found) => format!("{:.4} within", found.root_mean_square / found.reference),
            Err(error) => format!("{error} of"),
        };
        println!("{fixture}: {fault}: {answer} {:.4}; definition: {is_seen}", bound.relative);
        if !is_seen || judged.is_err() != *leaves {
            wrong.push(*fault);
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("not seen as expected: {}", wrong.join("; ")) }
}

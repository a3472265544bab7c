//! The bits of an answer do not depend on who computes it beside whom: threads, sequences at once, rows
//! of a step and the order in which requests join and leave (section 12 of the method's document).

use std::collections::BTreeMap;
use std::thread::available_parallelism;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use weir_ir::CacheFormat;
use weir_runtime::{Model, Request, RuntimeOptions, SamplingOptions};
use weir_tests::places::root;
use weir_tests::systems::Setup;

use crate::trial;

/// Prompts at once.
const REQUESTS: usize = 9;

/// w.
const OBSERVED: u32 = 8;

/// The longest prompt: two and a half times what the cache keeps.
const LONGEST: u32 = 120;

pub fn trials() -> Vec<Trial> {
    let kvs = [
        "snapstream,rows=48,sinks=3,recent=12,window=8",
        "snapstream,rows=48,sinks=3,recent=12,window=8,mode=static,agg=defensive",
        "snapkv,rows=40,recent=8,window=8,limit=64",
        "snapstream,rows=48,sinks=3,recent=12,window=8,reservoir=6",
        "snapstream,rows=32,sinks=3,recent=12,window=8,reselect=6",
        "snapstream,rows=32,sinks=3,recent=12,window=8,reselect=6,redundancy=90",
        "snapstream,rows=48,sinks=3,recent=12,window=8,second=20,second_share=50",
    ];
    let mut trials = Vec::new();
    for (name, kv_dtype) in [
        ("llama-genai-fp32", weir::KvTypeOption::F32),
        ("narrow-nbits-int4", weir::KvTypeOption::Int8),
        ("narrow-nbits-int4", weir::KvTypeOption::Int4),
        (
            "narrow-nbits-int4",
            weir::KvTypeOption::Parts { block: CacheFormat::I4, ring: CacheFormat::F16 },
        ),
    ] {
        for kv in kvs {
            let format = weir::formats_name(kv_dtype.formats());
            let place = format!("invariance/{name}/{format}/{kv}");
            trials.push(trial(place, move || invariant(name, kv, kv_dtype)));
        }
    }
    let name = "llama-genai-fp32";
    let kv = "snapstream,rows=48,sinks=3,recent=12,window=8,budget=90:30/20:48";
    for kv_dtype in [weir::KvTypeOption::F32, weir::KvTypeOption::Int4] {
        let place = format!("invariance/{name}/{}/{kv}", weir::formats_name(kv_dtype.formats()));
        trials.push(trial(place, move || invariant(name, kv, kv_dtype)));
    }
    trials
}

fn invariant(name: &str, kv: &str, kv_dtype: weir::KvTypeOption) -> Result<()> {
    let folder = root().join("tests/fixtures/onnx").join(name);
    let setup =
        Setup { kv: kv.to_owned(), kv_dtype: Some(kv_dtype), slots: 1, ..Setup::exact(200) };
    let all = available_parallelism()?.get();
    let mut expected = None;
    // Hidden rows of a long prompt's tile fill whole lines of 64 bytes; of 288 bytes each it takes two.
    let least = if name.starts_with("narrow") { 2 } else { 1 };
    for step_rows in [least, OBSERVED - 1, OBSERVED, LONGEST] {
        let options = weir::ModelOptions { step_rows, ..setup.options(&folder) };
        let report = weir::ReportOptions { quiet: true, ..weir::ReportOptions::default() };
        let model = Model::new(weir::load(&options, &report, &weir::Progress::new(true))?)?;
        for (threads, slots) in [(1, 1), (2, 7), (all, REQUESTS as u32), (1, 7), (2, 1)] {
            for order in [Order::Rising, Order::Falling, Order::OneByOne] {
                let found = answers(&model, threads, slots, order)?;
                let expected = expected.get_or_insert_with(|| found.clone());
                ensure!(
                    found == *expected,
                    "steps of {step_rows} rows, {threads} threads, {slots} slots, {order:?}"
                );
            }
        }
    }
    Ok(())
}

/// How requests join.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// All at once, short prompts first.
    Rising,
    /// All at once, long prompts first.
    Falling,
    /// One more after every third step.
    OneByOne,
}

/// The tokens that every request gets.
fn answers(
    model: &Model,
    threads: usize,
    slots: u32,
    order: Order,
) -> Result<BTreeMap<usize, Vec<u32>>> {
    let options =
        RuntimeOptions { slots: Some(slots), threads: Some(threads), ..RuntimeOptions::default() };
    let mut engine = model.engine(&options)?;
    let vocabulary = model.compiled().header().vocabulary;
    let request = |number: usize| {
        let length = 1 + number as u32 * (LONGEST - 1) / (REQUESTS as u32 - 1);
        Request {
            prompt: (0..length).map(|i| (i * i + 31 * number as u32 + 7) % vocabulary).collect(),
            // They leave at different times.
            max_tokens: Some(5 + 7 * (number as u32 % 4)),
            sampling: SamplingOptions { temperature: 1.0, seed: 5, ..SamplingOptions::default() },
            ignore_eos: true,
            ..Request::default()
        }
    };
    let mut numbers: Vec<usize> = (0..REQUESTS).collect();
    if matches!(order, Order::Falling) {
        numbers.reverse();
    }
    let mut waiting = numbers.into_iter();
    let mut known = BTreeMap::new();
    let mut found: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for step in 0.. {
        let joins = match order {
            Order::OneByOne if step % 3 == 0 => 1,
            Order::OneByOne => 0,
            _ => REQUESTS,
        };
        for number in waiting.by_ref().take(joins) {
            known.insert(engine.submit(request(number))?, number);
        }
        let mut failed = None;
        let goes_on = engine.step(|id, event| match event {
            weir_runtime::Event::Token { token, .. } => {
                found.entry(known[&id]).or_default().push(token);
            }
            weir_runtime::Event::Embedding { .. } | weir_runtime::Event::Finished { .. } => {}
            weir_runtime::Event::Failed(fault) => failed = Some(fault),
        });
        if let Some(fault) = failed {
            return Err(fault.into());
        }
        if !goes_on && known.len() == REQUESTS {
            return Ok(found);
        }
    }
    Ok(found)
}

//! Samples of one prompt give, token for token, what as many requests by themselves give; the prompt is
//! computed once, and its block is there once.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use weir_ir::CacheFormat;
use weir_runtime::forward::Forward;
use weir_runtime::{Completion, Engine, Model, Request, RuntimeOptions, SamplingOptions, Usage};
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// Positions of a sequence.
const CONTEXT: u32 = 400;

/// Of each policy a cache whose block has no whole tile of rows, and one whose block has some.
const POLICIES: [&str; 9] = [
    "full",
    "stream,rows=24,sinks=3",
    "stream,rows=100,sinks=70",
    "snapstream,rows=40,sinks=3,recent=12,window=8",
    "snapstream,rows=96,sinks=4,recent=16,window=8",
    "snapstream,rows=96,sinks=4,recent=16,window=8,mode=static",
    "snapkv,rows=90,recent=8,window=8,limit=130",
    "random,rows=96,sinks=4,recent=16",
    "snapstream,rows=96,sinks=4,recent=16,window=8,reservoir=6",
];

/// Samples of a prompt.
const SAMPLES: u32 = 3;

pub fn trials() -> Vec<Trial> {
    let parts = |block, ring| weir::KvTypeOption::Parts { block, ring };
    let mut trials = Vec::new();
    for (name, kv_dtype) in [
        ("llama-genai-fp32", weir::KvTypeOption::F32),
        // Every second layer has a window.
        ("mistral-layered-genai-fp32", weir::KvTypeOption::F32),
        ("narrow-nbits-int4", weir::KvTypeOption::Int8),
        ("narrow-nbits-int4", weir::KvTypeOption::Int4),
        ("narrow-nbits-int4", parts(CacheFormat::I4, CacheFormat::F16)),
        ("narrow-nbits-int4", parts(CacheFormat::I4, CacheFormat::I8)),
    ] {
        for kv in POLICIES {
            let format = weir::formats_name(kv_dtype.formats());
            let has_block = !kv.starts_with("full") && !kv.contains("reservoir");
            if !has_block && matches!(kv_dtype, weir::KvTypeOption::Parts { .. }) {
                continue;
            }
            let setup = Setup {
                kv: kv.to_owned(),
                kv_dtype: Some(kv_dtype),
                slots: 4,
                ..Setup::exact(CONTEXT)
            };
            let place = format!("samples/{name}/{format}/{kv}");
            trials.push(trial(place, move || samples(name, &setup)));
        }
    }
    trials.push(trial("samples/anew".to_owned(), selected_anew));
    for (format, kv_dtype) in [("f32", weir::KvTypeOption::F32), ("i4", weir::KvTypeOption::Int4)] {
        trials.push(trial(format!("samples/by-head/{format}"), move || by_head(kv_dtype)));
    }
    trials.push(trial("samples/program".to_owned(), program));
    trials
}

/// Prompts that fit a cache, fill it, and do not fit, with answers that turn a ring of sixteen several
/// times.
fn requests(vocabulary: u32) -> Vec<Request> {
    [1_u32, 3, 40, 70, 96, 97, 170]
        .into_iter()
        .map(|length| Request {
            prompt: (0..length).map(|i| (i * i + 31 * length + 7) % vocabulary).collect(),
            max_tokens: Some(70),
            sampling: SamplingOptions {
                temperature: 0.9,
                repetition_penalty: if length % 3 == 0 { 1.2 } else { 1.0 },
                seed: u64::from(length),
                ..SamplingOptions::default()
            },
            // So that samples end at different lengths.
            stop_tokens: (0..vocabulary).filter(|token| token % 90 == length % 90).collect(),
            ignore_eos: true,
            ..Request::default()
        })
        .collect()
}

fn engine(model: &Model, [slots, blocks]: [u32; 2], threads: usize) -> Result<Engine<Forward>> {
    let options = RuntimeOptions {
        slots: Some(slots),
        blocks: Some(blocks),
        threads: Some(threads),
        ..RuntimeOptions::default()
    };
    Ok(model.engine(&options)?)
}

/// An answer without the count that depends on who comes before.
fn alone(answer: &Completion) -> Completion {
    let usage = Usage { reused_tokens: 0, ..answer.usage };
    Completion { usage, ..answer.clone() }
}

/// The requests that samples of one are.
fn apart(request: &Request) -> Vec<Request> {
    let nth = |sample| {
        let mut request = request.clone();
        request.sampling.seed += sample;
        request
    };
    (0..u64::from(SAMPLES)).map(nth).collect()
}

/// Sequences, how many of them can have a block, threads, and whether prompts go one behind the other,
/// whose blocks are freed and taken again, or each by itself.
type Places = ([u32; 2], usize, bool);

const PLACES: [Places; 4] =
    [([3, 1], 1, false), ([3, 3], 2, true), ([4, 2], 1, true), ([4, 1], 2, true)];

fn samples(name: &str, setup: &Setup) -> Result<()> {
    samples_at(name, setup, &PLACES)
}

fn samples_at(name: &str, setup: &Setup, places: &[Places]) -> Result<()> {
    let model = setup.load(&root().join("tests/fixtures/onnx").join(name))?;
    let requests = requests(model.compiled().header().vocabulary);
    let mut by_itself = engine(&model, [1, 1], 1)?;
    let mut expected = Vec::new();
    for request in &requests {
        let answers: Result<Vec<Completion>> = apart(request)
            .into_iter()
            .map(|one| Ok(by_itself.generate(vec![one])?.swap_remove(0)))
            .collect();
        expected.push(answers?);
    }
    let lengths: Vec<usize> = expected.iter().flatten().map(|answer| answer.ids.len()).collect();
    let is_short = |length: &&usize| **length < 70;
    let short = lengths.iter().filter(is_short).count();
    ensure!(short > 0 && short < lengths.len(), "answers of different lengths: {lengths:?}");
    for (places, threads, in_company) in places.iter().copied() {
        let mut engine = engine(&model, places, threads)?;
        let mut ids = Vec::new();
        for (request, answers) in requests.iter().zip(&expected) {
            ids.push(engine.submit_samples(request.clone(), SAMPLES)?);
            if in_company {
                // One that is alone, and takes a slot of those for samples.
                ids.push(vec![engine.submit(request.clone())?]);
                continue;
            }
            let found = engine.complete(&ids.concat())?;
            compare(&found, answers, places, request)?;
            ids.clear();
        }
        let mut found = engine.complete(&ids.concat())?.into_iter();
        for (request, answers) in requests.iter().zip(&expected).filter(|_| in_company) {
            let group: Vec<_> = found.by_ref().take(answers.len()).collect();
            compare(&group, answers, places, request)?;
            let one = found.next().context("the one beside them")?;
            compare(&[one], &answers[..1], places, request)?;
        }
    }
    Ok(())
}

fn compare(
    found: &[Completion],
    expected: &[Completion],
    places: [u32; 2],
    request: &Request,
) -> Result<()> {
    let length = request.prompt.len();
    for (sample, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (one, other) = (alone(found), alone(expected));
        ensure!(one == other, "{length} tokens, {places:?}, sample {sample}: {one:?}, {other:?}");
    }
    ensure!(found.len() == expected.len(), "{} answers", found.len());
    // In turns, each turn computes the last row of its prompt at least.
    let computed = |answer: &&Completion| answer.usage.reused_tokens < length as u32;
    let prompts = found.iter().filter(computed).count();
    let most = if places[1] < SAMPLES { SAMPLES as usize } else { 1 };
    ensure!((1..=most).contains(&prompts), "{length} tokens, {places:?}: {prompts} times");
    Ok(())
}

/// Where rows are selected anew, each sample has a block of its own.
fn selected_anew() -> Result<()> {
    let kv = "snapstream,rows=96,sinks=4,recent=16,window=8,reselect=20".to_owned();
    samples("llama-genai-fp32", &Setup { kv, slots: 4, ..Setup::exact(CONTEXT) })
}

/// Where heads have different rows, samples share a block, and each could have one.
fn by_head(kv_dtype: weir::KvTypeOption) -> Result<()> {
    let kv = "snapstream,rows=96,sinks=4,recent=16,window=8,budget=130:40/96:250".to_owned();
    let kv_dtype = Some(kv_dtype);
    let setup = Setup { kv, kv_dtype, slots: 4, ..Setup::exact(CONTEXT) };
    samples_at("llama-genai-fp32", &setup, &[([3, 3], 1, false), ([4, 4], 2, true)])?;
    let model = setup.load(&root().join("tests/fixtures/onnx/llama-genai-fp32"))?;
    let refused = engine(&model, [4, 2], 1).err().context("every slot has a block")?.to_string();
    ensure!(refused.contains("2 blocks for 4 slots: a cache with a budget by head"), "{refused}");
    Ok(())
}

/// What the program says: answers under their numbers, equal to those of single runs.
fn program() -> Result<()> {
    let kv = "snapstream,rows=96,sinks=4,recent=16,window=8".to_owned();
    let setup = Setup { kv, slots: 4, ..Setup::exact(CONTEXT) };
    let binary = Binary::compile(&root().join("models/tales/onnx"), &setup)?;
    let prompts = ["Once upon a time", &"Tom has a red ball and a big dog. ".repeat(14)];
    let ask = |prompt: &str, seed: &str, extra: &[&str]| -> Result<String> {
        let always = ["generate", "--max-tokens", "30", "--temperature", "0.8", "--seed", seed];
        binary.run(&[&always[..], &["--prompt", prompt], extra].concat())
    };
    for prompt in prompts {
        let sampled = ask(prompt, "7", &["--samples", "3", "--json", "--blocks", "1"])?;
        let labelled = ask(prompt, "7", &["--samples", "3"])?;
        let mut rest = labelled.as_str();
        for (index, line) in (0..3).zip(sampled.lines()) {
            let found: serde_json::Value = serde_json::from_str(line)?;
            let seed = (7 + index).to_string();
            let one: serde_json::Value = serde_json::from_str(&ask(prompt, &seed, &["--json"])?)?;
            ensure!(found["ids"] == one["ids"], "sample {index}: {found}, {one}");
            ensure!(found["prompt"] == 1 && found["sample"] == index + 1, "{found}");
            let text = one["text"].as_str().context("text")?;
            let label = format!("[1.{}] {text}\n", index + 1);
            rest = rest.strip_prefix(&label).with_context(|| format!("{label:?} in {rest:?}"))?;
        }
        ensure!(rest.is_empty() && sampled.lines().count() == 3, "{sampled}{rest:?}");
    }
    let refused = binary.run(&["generate", "--ids", "1", "--blocks", "5"]).err();
    let reason = refused.context("there are four slots")?.to_string();
    ensure!(reason.contains("5 blocks for 4 slots"), "{reason}");
    Ok(())
}

//! While a sequence fits into the cache all policies give what dense attention gives; a longer one is
//! selected from as the scalar reference selects.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use weir_ir::CacheFormat;
use weir_runtime::comparison::{Candidate, Comparison, Passage, surprise};
use weir_runtime::forward::Forward;
use weir_runtime::{Request, RuntimeOptions};
use weir_tests::activations::Bound;
use weir_tests::compare::{FLOAT, close};
use weir_tests::golden::read;
use weir_tests::places::root;
use weir_tests::systems::{Binary, Jit, Oracle, Setup, System};

use crate::trial;

/// Orders of sums may differ between policies, nothing else.
const SAME: f32 = 1e-5;

/// Tokens of a prompt to an int8 cache: two tiles, of which the second is short.
const CODED_TOKENS: usize = 100;

/// Number formats of the block and of the ring.
const PARTS: [(CacheFormat, CacheFormat); 5] = [
    (CacheFormat::I4, CacheFormat::I8),
    (CacheFormat::I4, CacheFormat::F32),
    (CacheFormat::I8, CacheFormat::F32),
    (CacheFormat::I4, CacheFormat::F16),
    (CacheFormat::I4, CacheFormat::BF16),
];

/// Rows that repeat others are dropped where rows are selected anew.
const REDUNDANT: &str = "snapstream,rows=64,sinks=4,recent=16,window=8,reselect=10,redundancy=90";

/// Earlier rows are asked beside the last ones.
const ASKING: &str =
    "snapstream,rows=64,sinks=4,recent=16,window=8,agg=defensive,second=16,second_share=60";

/// Tokens of an answer: rows are selected anew three times.
const ANSWER: u32 = 45;

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/onnx").join(name)
}

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for name in ["llama-genai-fp32", "mistral-layered-genai-fp32"] {
        trials.push(trial(format!("policies/same/{name}"), move || same(name)));
    }
    for (name, kv) in [
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,mode=static"),
        ("llama-genai-fp32", "snapstream,rows=199,sinks=0,recent=1,window=1,pool=1"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,recent=16,window=8,agg=max,pooling=max,normalise=candidates",
        ),
        // Where all of a window lies at the floor its mean differs from others' by how their sums round,
        // so these are rows and queries with which no such window is on the border.
        ("llama-genai-fp32", "snapstream,rows=64,recent=16,window=7,agg=defensive,second=0"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,budget=pyramid:2"),
        ("llama-genai-fp32", "snapkv,rows=48,recent=16,pooling=reference,budget=pyramid"),
        // Numbers by head: more than there are candidates of some prompts, none, and no range more.
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,budget=40:90/64"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,budget=150:20/30:33"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,mode=static,budget=110:50/50:110",
        ),
        ("llama-genai-fp32", "snapkv,rows=48,recent=16,limit=60,agg=max,budget=20:90/48:35"),
        ("llama-genai-fp32", "random,rows=48,sinks=4,recent=8,seed=5,budget=100:20/12:13"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,draft=3,budget=30:90/64:80",
        ),
        ("gemma2-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,budget=90:40"),
        ("llama-genai-fp32", "snapkv,rows=48,recent=16,pooling=reference"),
        ("llama-genai-fp32", "snapkv,rows=40,recent=8,limit=44"),
        ("llama-genai-fp32", "random,rows=48,sinks=4,recent=8,seed=5"),
        ("llama-genai-fp32", "stream,rows=48,sinks=4"),
        ("llama-genai-fp32", "stream,rows=48,sinks=4,reservoir=6"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,draft=5"),
        ("llama-genai-fp32", "snapstream,rows=64,recent=16,window=8,draft=2,mode=static"),
        ("llama-genai-fp32", "snapkv,rows=48,recent=16,limit=50,draft=1,budget=pyramid"),
        ("mistral-layered-genai-fp32", "stream,rows=32,sinks=8,draft=4"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,reselect=10"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,reselect=10,mode=static,budget=pyramid:2",
        ),
        ("llama-genai-fp32", "snapstream,rows=20,sinks=2,recent=4,window=4,agg=max,reselect=3"),
        ("mistral-layered-genai-fp32", "snapstream,rows=64,recent=24,window=16,reselect=9"),
        ("llama-genai-fp32", REDUNDANT),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,reselect=10,redundancy=40,mode=static,\
             budget=pyramid:2",
        ),
        (
            "mistral-layered-genai-fp32",
            "snapstream,rows=64,recent=24,window=16,reselect=9,redundancy=100",
        ),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,second=9"),
        ("llama-genai-fp32", ASKING),
        ("llama-genai-fp32", "snapstream,rows=64,recent=40,window=8,second=500,second_share=100"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,second=5,second_share=50,reselect=10,\
             redundancy=40,mode=static",
        ),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,second=16,second_share=40,\
             budget=40:90/64",
        ),
        (
            "llama-genai-fp32",
            "snapkv,rows=48,recent=16,pooling=reference,agg=max,normalise=candidates,second=6",
        ),
        ("gemma2-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,second=8"),
        ("mistral-layered-genai-fp32", "snapstream,rows=64,recent=24,window=16,second=30"),
        ("llama-genai-fp32", "snapstream,rows=64,sinks=4,recent=16,window=8,reservoir=4,seed=3"),
        (
            "llama-genai-fp32",
            "snapstream,rows=64,sinks=4,recent=16,window=8,reservoir=9,mode=static,budget=pyramid:2",
        ),
        ("mistral-layered-genai-fp32", "snapstream,rows=96,sinks=3,recent=24,window=16,pool=7"),
        ("mistral-layered-genai-fp32", "random,rows=64,recent=24"),
        ("mistral-layered-genai-fp32", "stream,rows=32,sinks=8"),
        ("mistral-layered-genai-fp32", "stream,rows=32,sinks=8,reservoir=5"),
    ] {
        trials.push(trial(format!("policies/bounded/{name}/{kv}"), move || bounded(name, kv)));
    }
    for kv in [
        "full",
        "snapstream,rows=100",
        "snapstream,rows=160,sinks=5,recent=70,window=8,mode=static",
        "snapstream,rows=81,sinks=3,recent=30,window=8",
        "snapstream,rows=81,sinks=3,recent=30,window=8,mode=static",
        "snapstream,rows=81,sinks=3,recent=30,window=8,second=20,second_share=50",
        "snapkv,rows=81,recent=30,limit=90",
        "random,rows=81,sinks=3,recent=30,mode=static",
        "stream,rows=80,sinks=4",
        "stream,rows=80,sinks=4,draft=4",
        "snapstream,rows=81,sinks=3,recent=30,window=8,draft=9",
        "stream,rows=80,sinks=4,reservoir=7",
        "snapstream,rows=81,sinks=3,recent=30,window=8,reservoir=7",
    ] {
        for format in [weir::KvTypeOption::Int8, weir::KvTypeOption::Int4] {
            let place = format!("policies/codes/{format:?}/{kv}");
            trials.push(trial(place, move || codes("narrow-nbits-int4", kv, format)));
        }
    }
    for kv in [
        "snapstream,rows=60,sinks=3,recent=20,window=8,budget=30:90/40:140",
        "snapstream,rows=60,sinks=3,recent=20,window=8,mode=static,budget=95:23/40",
        "random,rows=60,sinks=3,recent=20,draft=2,budget=30:90/100:40",
    ] {
        for format in [weir::KvTypeOption::Int8, weir::KvTypeOption::Int4] {
            let place = format!("policies/codes/{format:?}/{kv}");
            trials.push(trial(place, move || codes("llama-genai-fp32", kv, format)));
        }
    }
    for (block, ring) in PARTS {
        let format = weir::KvTypeOption::Parts { block, ring };
        for kv in [
            // Every row stays, of a prompt as long as the cache and of shorter ones.
            "snapstream,rows=100",
            "snapstream,rows=160,sinks=5,recent=70,window=8,mode=static",
            "snapstream,rows=160,sinks=5,recent=40,window=8",
            // Some are dropped; the block ends within a tile and behind one.
            "snapstream,rows=81,sinks=3,recent=30,window=8",
            "snapstream,rows=81,sinks=3,recent=30,window=8,mode=static",
            "snapstream,rows=96,sinks=8,recent=16,window=8",
            "snapkv,rows=81,recent=30,limit=90",
            "random,rows=81,sinks=3,recent=30,mode=static",
            "stream,rows=80,sinks=4",
            "snapstream,rows=81,sinks=3,recent=30,window=8,reservoir=7",
            "full",
        ] {
            let place = format!("policies/codes/{}/{kv}", weir::formats_name(format.formats()));
            trials.push(trial(place, move || codes("narrow-nbits-int4", kv, format)));
        }
    }
    const FLOATS: &[weir::KvTypeOption] = &[weir::KvTypeOption::F32];
    // Rows of the second and the third have as many bytes and mean other numbers.
    const ALL: &[weir::KvTypeOption] = &[
        weir::KvTypeOption::Int8,
        weir::KvTypeOption::F16,
        weir::KvTypeOption::Bf16,
        weir::KvTypeOption::Int4,
    ];
    trials.push(trial("policies/answered".to_owned(), answered));
    for (name, formats) in [
        ("llama-genai-fp32", FLOATS),
        ("mistral-layered-genai-fp32", FLOATS),
        ("narrow-nbits-int4", ALL),
    ] {
        trials.push(trial(format!("policies/compared/{name}"), move || compared(name, formats)));
    }
    trials
}

/// Models that take over a prompt which one of them has computed go on as each does by itself.
fn compared(name: &str, formats: &[weir::KvTypeOption]) -> Result<()> {
    const POLICIES: [&str; 10] = [
        "snapstream,rows=64,sinks=4,recent=16,window=8,reselect=10",
        // Sums of its own in the place of those that the next ones score by.
        "snapstream,rows=64,sinks=4,recent=16,window=8,normalise=candidates",
        ASKING,
        REDUNDANT,
        "snapstream,rows=64,sinks=4,recent=16,window=8",
        "snapstream,rows=64,sinks=4,recent=16,window=8,mode=static,budget=pyramid:2",
        "snapkv,rows=48,recent=20,agg=max",
        "stream,rows=48,sinks=4",
        "snapstream,rows=64,sinks=4,recent=16,window=8,reservoir=6",
        "full",
    ];
    let folder = fixture(name);
    let setup = |kv: &str, format: weir::KvTypeOption| Setup {
        kv: kv.to_owned(),
        kv_dtype: Some(format),
        ..Setup::exact(320)
    };
    let options = RuntimeOptions { slots: Some(2), threads: Some(2), ..RuntimeOptions::default() };
    let cases = read(&folder)?;
    let whole = setup(POLICIES[0], formats[0]).load(&folder)?;
    let candidate = |kv: &str, format: weir::KvTypeOption, forward: Forward| Candidate {
        name: kv.to_owned(),
        format: format!("{format:?}"),
        forward,
    };
    let forward = Forward::keeping_all(whole.compiled().clone(), &options, 320)?;
    let mut arms = vec![candidate("full", formats[0], forward)];
    let mut ways = vec![("full", formats[0])];
    for format in formats {
        for kv in POLICIES {
            let forward = setup(kv, *format).load(&folder)?.forward(&options)?;
            arms.push(candidate(kv, *format, forward));
            ways.push((kv, *format));
        }
    }
    let mut comparison = Comparison::new(arms, 320)?;
    let tokens: Vec<Vec<u32>> =
        cases.iter().map(|case| [&case.prompt[..], &case.forced].concat()).collect();
    let passages: Vec<Passage<'_>> = tokens
        .iter()
        .zip(&cases)
        .map(|(tokens, case)| Passage { tokens, prompt: case.prompt.len() })
        .collect();
    let surprises = comparison.surprise(&passages)?;
    for (index, (kv, format)) in ways.into_iter().enumerate() {
        for (case, surprises) in cases.iter().zip(&surprises) {
            // A static layout divides a prompt that it keeps whole, and so the sums over it; one of int4
            // that drops rows of longer prompts keeps those of such a prompt in int4 at once.
            let divides = kv.contains("static");
            let rounds = matches!(format, weir::KvTypeOption::Int4) && kv != "full";
            if (divides || rounds) && case.prompt.len() <= 64 {
                continue;
            }
            let mut alone = Jit::compile(&folder, &setup(kv, format))?;
            let alone = alone.logits(&case.prompt, &case.forced)?;
            let vocabulary = alone.steps.values.len() / case.forced.len();
            let rows = alone.steps.values.chunks_exact(vocabulary);
            let alone: Vec<f64> =
                rows.zip(&case.forced).map(|(row, id)| surprise(row, *id)).collect();
            // A ring for a window turns while a prompt is computed by itself: sums in another order.
            let mut pairs = surprises[index].iter().zip(&alone);
            let same = match name.starts_with("mistral-layered") {
                true => pairs.all(|(one, other)| (one - other).abs() <= f64::from(SAME)),
                false => surprises[index] == alone,
            };
            ensure!(same, "{kv} in {format:?}, {} rows", case.prompt.len());
        }
    }
    Ok(())
}

/// An engine's answer is what the logits of the same tokens say, in which redundancy counts.
fn answered() -> Result<()> {
    let folder = fixture("llama-genai-fp32");
    let setup = |kv: &str| Setup { kv: kv.to_owned(), ..Setup::exact(320) };
    let case = read(&folder)?.into_iter().max_by_key(|case| case.prompt.len());
    let prompt = case.context("no prompts")?.prompt;
    let answer = |kv: &str| -> Result<Vec<u32>> {
        let model = setup(kv).load(&folder)?;
        let request = Request {
            prompt: prompt.clone(),
            max_tokens: Some(ANSWER),
            ignore_eos: true,
            ..Request::default()
        };
        let mut engine = model.engine(&RuntimeOptions::default())?;
        Ok(engine.generate(vec![request])?.swap_remove(0).ids)
    };
    let ids = answer(REDUNDANT)?;
    let (kv, _) = REDUNDANT.rsplit_once(',').context("options")?;
    ensure!(ids != answer(kv)?, "redundancy counts");
    let logits = Jit::compile(&folder, &setup(REDUNDANT))?.logits(&prompt, &ids)?;
    let vocabulary = logits.steps.values.len() / ids.len();
    let best = |row: &[f32]| {
        let best = (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b]));
        best.map(|token| token as u32)
    };
    let rows = logits.steps.values.chunks_exact(vocabulary).map(best);
    ensure!(rows.zip(&ids).all(|(row, id)| row == Some(*id)), "{ids:?}");
    Ok(())
}

fn same(name: &str) -> Result<()> {
    let folder = fixture(name);
    let exact = Setup::exact(320);
    for case in read(&folder)? {
        let full = Jit::compile(&folder, &exact)?.logits(&case.prompt, &case.forced)?;
        for kv in [
            "stream,rows=320,sinks=4",
            "snapstream,rows=320",
            "snapstream,rows=232,sinks=4,recent=40",
            // The rows that leave the ring are all in the reservoir.
            "snapstream,rows=232,sinks=4,recent=40,reservoir=32",
            "stream,rows=232,reservoir=32",
        ] {
            let setup = Setup { kv: kv.to_owned(), ..exact.clone() };
            let ours = Jit::compile(&folder, &setup)?.logits(&case.prompt, &case.forced)?;
            close(&format!("{kv}, {} prompt", case.name), &ours.prefill, &full.prefill, SAME)?;
            close(&format!("{kv}, {} steps", case.name), &ours.steps, &full.steps, SAME)?;
        }
    }
    Ok(())
}

/// The compiled `observe` and `compact` against the scalar selection.
fn bounded(name: &str, kv: &str) -> Result<()> {
    let folder = fixture(name);
    let setup = Setup { kv: kv.to_owned(), ..Setup::exact(320) };
    for case in read(&folder)? {
        let ours = Jit::compile(&folder, &setup)?.logits(&case.prompt, &case.forced)?;
        let oracle = Oracle::lower(&folder, &setup)?.logits(&case.prompt, &case.forced)?;
        close(&format!("{} prompt", case.name), &ours.prefill, &oracle.prefill, FLOAT)?;
        close(&format!("{} steps", case.name), &ours.steps, &oracle.steps, FLOAT)?;
    }
    Ok(())
}

/// Tiles of a cache of codes are those of the definition, wherever a policy puts rows.
fn codes(name: &str, kv: &str, format: weir::KvTypeOption) -> Result<()> {
    let folder = fixture(name);
    let setup = Setup { kv: kv.to_owned(), kv_dtype: Some(format), ..Setup::exact(320) };
    let cases = read(&folder)?;
    let longest = cases.iter().max_by_key(|case| case.prompt.len()).context("no prompts")?;
    let mut binary = Binary::compile(&folder, &setup)?;
    let mut oracle = Oracle::lower(&folder, &setup)?;
    let bound = Bound::of_caches(oracle.graph())?;
    let (ids, tokens) = (&longest.prompt, CODED_TOKENS);
    let agree = match format {
        weir::KvTypeOption::Parts {
            ring: ring @ (CacheFormat::F16 | CacheFormat::BF16), ..
        } => {
            // Hardly a prompt has no value of the ring that goes the other way.
            let kv_dtype = Some(match ring {
                CacheFormat::F16 => weir::KvTypeOption::F16,
                _ => weir::KvTypeOption::Bf16,
            });
            let ring = Oracle::lower(&folder, &Setup { kv_dtype, ..setup })?;
            let ring = Bound::of_caches(ring.graph())?;
            bound.same_block(&ring, &mut binary, &mut oracle, (ids, tokens))?
        }
        _ => bound.same_attending(&mut binary, &mut oracle, ids, tokens)?,
    };
    println!("{kv} {format:?}: {agree}");
    Ok(())
}

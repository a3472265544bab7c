//! Every dense fixture against an independent system: the interpreter, the JIT and the static binary
//! in float32 arithmetic, and the arithmetic that the weights' format gets by default.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use weir::KvTypeOption::{Bf16, F16, Int4, Int8};
use weir_tests::activations::{Arithmetic, BY_ROW, Bound, OWN, PROMPTS, same_rounding};
use weir_tests::compare::{FLOAT, close, same_greedy};
use weir_tests::golden::{Case, read};
use weir_tests::places::{fixtures, name};
use weir_tests::systems::{Binary, Jit, Logits, Oracle, Setup, System, list};

use crate::trial;

/// Long enough for the prompts of 200 tokens and what follows them.
const CONTEXT: u32 = 320;

/// Families that this compiler must refuse: routed experts, latent attention.
const REFUSED: [&str; 3] = ["mixtral", "deepseek-v3", "gpt-oss"];

/// Fixtures, of int4 and of int8, whose products are also asked with one scale a row.
const BY_ROWS: [&str; 2] = ["narrow-nbits-int4", "qwen2-genai-int8"];

/// A check of a fixture with its name.
type Check = (&'static str, fn(&Path) -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for folder in fixtures() {
        let fixture = name(&folder);
        if REFUSED.iter().any(|family| fixture.starts_with(family)) {
            trials.push(trial(format!("golden/{fixture}/refused"), move || refused(&folder)));
            continue;
        }
        let mut checks: Vec<Check> = vec![
            ("float32", float32),
            ("own_arithmetic", |folder| arithmetic(folder, &OWN)),
            ("short_cache", short_cache),
        ];
        if BY_ROWS.contains(&&*fixture) {
            checks.push(("int8_row", |folder| arithmetic(folder, &BY_ROW)));
        }
        for (check_name, check) in checks {
            let folder: PathBuf = folder.clone();
            trials.push(trial(format!("golden/{fixture}/{check_name}"), move || check(&folder)));
        }
    }
    trials
}

fn judge(system: &str, case: &Case, ours: &Logits, tolerance: f32) -> Result<()> {
    let prefill = ours.prefill.tail(case.prefill.count());
    close(&format!("{system}, {} prompt", case.name), &prefill, &case.prefill, tolerance)?;
    close(&format!("{system}, {} steps", case.name), &ours.steps, &case.steps, tolerance)
}

/// The three systems agree with the reference, and the two that run machine code bit for bit.
fn float32(folder: &Path) -> Result<()> {
    let setup = Setup::exact(CONTEXT);
    let mut binary = Binary::compile(folder, &setup)?;
    let mut jit = Jit::compile(folder, &setup)?;
    let mut oracle = Oracle::lower(folder, &setup)?;
    for case in read(folder)? {
        let from_binary = binary.logits(&case.prompt, &case.forced)?;
        judge(binary.name(), &case, &from_binary, FLOAT)?;
        let from_jit = jit.logits(&case.prompt, &case.forced)?;
        if from_jit != from_binary {
            bail!("{}: JIT and binary differ", case.name);
        }
        // The scalar references take a second for the long prompt; the short one shows all ops.
        if case.name == "short" {
            let from_oracle = oracle.logits(&case.prompt, &case.forced)?;
            judge(oracle.name(), &case, &from_oracle, FLOAT)?;
        }
        greedy(&binary, &case)?;
    }
    Ok(())
}

fn greedy(binary: &Binary, case: &Case) -> Result<()> {
    let count = case.forced.len().to_string();
    let prompt = list(&case.prompt);
    let arguments =
        ["generate", "--ids", &prompt, "--max-tokens", &count, "--json", "--ignore-eos"];
    let greedy = ["--temperature", "0"];
    let output = binary.run(&[&arguments[..], &greedy[..]].concat())?;
    let answer: serde_json::Value = serde_json::from_str(output.trim())?;
    let ids = answer["ids"].as_array().context("no ids in the answer")?;
    let ids: Vec<u32> = ids.iter().filter_map(|id| Some(id.as_u64()? as u32)).collect();
    same_greedy(&ids, &case.forced, &case.steps, FLOAT)
}

/// The arithmetic is what `docs/numerics.md` says, and as far from float32 as it derives.
fn arithmetic(folder: &Path, expected: &Arithmetic) -> Result<()> {
    let setup = Setup { compute: expected.compute, ..Setup::exact(CONTEXT) };
    let mut jit = Jit::compile(folder, &setup)?;
    let fixture = name(folder);
    let oracle = Oracle::lower(folder, &setup)?;
    let Some(bound) = (expected.bound)(oracle.graph())? else {
        for case in read(folder)? {
            let ours = jit.logits(&case.prompt, &case.forced)?;
            judge(jit.name(), &case, &ours, FLOAT)?;
        }
        return Ok(());
    };
    for case in read(folder)? {
        let ours = jit.logits(&case.prompt, &case.forced)?;
        let what = format!("{fixture} {}", case.name);
        let found = bound.check(&what, &ours.steps, &case.steps)?;
        println!(
            "{what}: root mean square {:.4}, largest {:.4} of {:.2}; bound {:.4}",
            found.root_mean_square / found.reference,
            found.largest / found.reference,
            found.reference,
            bound.relative
        );
    }
    let cases = read(folder)?;
    let longest = cases.iter().max_by_key(|case| case.prompt.len()).context("no prompts")?;
    let mut defined = oracle.with_rounding(expected.rounding);
    let mut binary = Binary::compile(folder, &setup)?;
    let stored = bound.same_storing(&mut binary, &mut defined, &longest.prompt)?;
    println!("{fixture}: with the cache's own rounding {stored}");
    // Codes in the cache as well.
    for kv_dtype in [Int8, Int4] {
        let coded = Setup { kv_dtype: Some(kv_dtype), ..setup.clone() };
        let mut binary = Binary::compile(folder, &coded)?;
        let mut defined = Oracle::lower(folder, &coded)?.with_rounding(expected.rounding);
        let bound = (expected.bound)(defined.graph())?.context("the cache is of codes")?;
        let ours = binary.logits(&longest.prompt, &longest.forced)?;
        let found = bound.check(&format!("{fixture} {kv_dtype:?}"), &ours.steps, &longest.steps)?;
        let stored = bound.same_storing(&mut binary, &mut defined, &longest.prompt)?;
        println!(
            "{fixture}: with a cache of {kv_dtype:?} root mean square {:.4}, bound {:.4}; {stored}",
            found.root_mean_square / found.reference,
            bound.relative
        );
    }
    // Activations alone, which more prompts round alike.
    let setup = Setup { kv_dtype: Some(weir::KvTypeOption::F32), ..setup };
    let mut jit = Jit::compile(folder, &setup)?;
    let mut defined = Oracle::lower(folder, &setup)?.with_rounding(expected.rounding);
    let others = same_rounding(&mut jit, &mut defined, &cases[0].prompt)?;
    println!("{fixture}: {others} of {PROMPTS} prompts round differently");
    Ok(())
}

/// A cache of 16, 8 or 4 bits is all that moves products in float32 from the reference, as far as
/// `docs/numerics.md` derives; rows are rounded where the interpreter rounds them.
fn short_cache(folder: &Path) -> Result<()> {
    for kv_dtype in [F16, Bf16, Int8, Int4] {
        let setup = Setup { kv_dtype: Some(kv_dtype), ..Setup::exact(CONTEXT) };
        let mut binary = Binary::compile(folder, &setup)?;
        let mut jit = Jit::compile(folder, &setup)?;
        let mut oracle = Oracle::lower(folder, &setup)?;
        let bound = Bound::of_caches(oracle.graph())?;
        let cases = read(folder)?;
        for case in &cases {
            let ours = jit.logits(&case.prompt, &case.forced)?;
            let what = format!("{} {} {kv_dtype:?}", name(folder), case.name);
            let found = bound.check(&what, &ours.steps, &case.steps)?;
            println!(
                "{what}: root mean square {:.5}, bound {:.5}",
                found.root_mean_square / found.reference,
                bound.relative
            );
            if case.name == "short" {
                if binary.logits(&case.prompt, &case.forced)? != ours {
                    bail!("{what}: JIT and binary differ");
                }
                if matches!(kv_dtype, Int8 | Int4) {
                    continue;
                }
                let defined = oracle.logits(&case.prompt, &case.forced)?;
                let what = format!("{what} against the definition");
                let rounded_apart = bound.between_systems(case.prompt.len());
                rounded_apart.check(&what, &ours.prefill, &defined.prefill)?;
                let rounded_apart = bound.between_systems(case.prompt.len() + case.forced.len());
                rounded_apart.check(&what, &ours.steps, &defined.steps)?;
            }
        }
        if matches!(kv_dtype, Int8 | Int4) {
            let longest = cases.iter().max_by_key(|case| case.prompt.len());
            let ids = &longest.context("no prompts")?.prompt;
            let stored = bound.same_storing(&mut binary, &mut oracle, ids)?;
            println!("{} {kv_dtype:?}: {stored}", name(folder));
        }
    }
    Ok(())
}

/// A model that needs what is not there is refused with all of it, and nothing is written.
fn refused(folder: &Path) -> Result<()> {
    let output = tempfile::tempdir()?;
    let file = output.path().join("model");
    let options = Setup::exact(CONTEXT).options(folder);
    let Err(failure) = weir::compile_executable(&options, &file) else {
        bail!("it compiled");
    };
    if failure.code != 1 || !failure.message.contains("not supported") {
        bail!("exit code {}: {failure}", failure.code);
    }
    if std::fs::read_dir(output.path())?.next().is_some() {
        bail!("something was written");
    }
    Ok(())
}

//! Turns of a conversation that go on behind rows of the last one ("continuation" in the method's
//! document). A turn that reports an exact history has the tokens of a prompt that is computed from its
//! first token on; one that reports an incremental history has them whoever computes it.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use weir_ir::CacheFormat;
use weir_runtime::forward::Forward;
use weir_runtime::{Completion, Engine, History, Model, Request, RuntimeOptions};
use weir_tests::places::root;
use weir_tests::systems::Setup;

use crate::trial;

/// Tokens that each turn adds: the conversation fits the cache, leaves it, and goes on. Fewer than are
/// observed among them.
const TURNS: [u32; 7] = [9, 4, 23, 31, 1, 40, 12];

pub fn trials() -> Vec<Trial> {
    let kvs = [
        ("full", false),
        ("snapstream,rows=48,sinks=3,recent=12,window=8", true),
        ("snapstream,rows=48,sinks=3,recent=12,window=8,mode=static,agg=defensive", true),
        ("snapstream,rows=48,sinks=3,recent=12,window=8,budget=pyramid:2", true),
        ("snapkv,rows=40,recent=8,window=8,limit=64", true),
        ("snapstream,rows=48,sinks=3,recent=12,window=8,reselect=9", true),
        ("snapstream,rows=48,sinks=3,recent=12,window=8,second=9", true),
        ("stream,rows=32,sinks=4", true),
    ];
    let mut trials = Vec::new();
    for (name, kv_dtype) in [
        ("llama-genai-fp32", weir::KvTypeOption::F32),
        ("narrow-nbits-int4", weir::KvTypeOption::Int8),
        ("narrow-nbits-int4", weir::KvTypeOption::Int4),
        ("narrow-nbits-int4", parts(CacheFormat::I4, CacheFormat::I8)),
        ("narrow-nbits-int4", parts(CacheFormat::I4, CacheFormat::F16)),
        ("gemma2-genai-fp32", weir::KvTypeOption::F32),
    ] {
        for (kv, drops) in kvs {
            let format = weir::formats_name(kv_dtype.formats());
            let place = format!("conversation/{name}/{format}/{kv}");
            trials.push(trial(place, move || conversation(name, kv, kv_dtype, drops)));
        }
    }
    trials.push(trial("conversation/reservoir".to_owned(), || {
        // Within the 42 rows that take a prompt, behind them, and with what they have pushed out.
        gone_on("reservoir=6", [(9, false), (14, true), (25, true), (12, false)])
    }));
    trials.push(trial("conversation/by-head".to_owned(), || {
        // Within the 30 rows of the shortest head, behind them, and where heads have kept other rows.
        gone_on("budget=90:48/30:60", [(9, false), (25, true), (25, false), (12, false)])
    }));
    trials
}

fn parts(block: CacheFormat, ring: CacheFormat) -> weir::KvTypeOption {
    weir::KvTypeOption::Parts { block, ring }
}

/// A slot is gone on in until its reservoir is in use, or heads have kept different rows of a prompt; then
/// the conversation is computed again. Turns are new tokens, and whether rows are taken over.
fn gone_on(option: &str, turns: [(u32, bool); 4]) -> Result<()> {
    let folder = root().join("tests/fixtures/onnx/llama-genai-fp32");
    // Rows that are gone on behind have no queries to ask, so that a turn would not be exact.
    let kv = format!("snapstream,rows=48,sinks=3,recent=12,window=8,second=0,{option}");
    let setup = Setup { kv, slots: 1, ..Setup::exact(200) };
    let report = weir::ReportOptions { quiet: true, ..weir::ReportOptions::default() };
    let options = setup.options(&folder);
    let model = Model::new(weir::load(&options, &report, &weir::Progress::new(true))?)?;
    let vocabulary = model.compiled().header().vocabulary;
    let mut engine = model.engine(&RuntimeOptions::default())?;
    let mut tokens: Vec<u32> = Vec::new();
    for (turn, (new, reuses)) in (0..).zip(turns) {
        tokens.extend((0..new).map(|i| (i * i + 31 * turn + 7) % vocabulary));
        let answer = engine.generate(vec![ask(&tokens, History::Incremental)])?.swap_remove(0);
        let reused = answer.usage.reused_tokens > 0;
        ensure!(reused == reuses, "turn {turn}: {:?}", answer.usage);
        ensure!(answer.usage.history == History::Exact, "turn {turn}: {:?}", answer.usage);
        let whole = alone(&mut model.engine(&RuntimeOptions::default())?, &tokens)?;
        ensure!(answer.ids == whole.ids, "turn {turn}");
        tokens.extend(&answer.ids);
    }
    Ok(())
}

fn conversation(name: &str, kv: &str, kv_dtype: weir::KvTypeOption, drops: bool) -> Result<()> {
    let folder = root().join("tests/fixtures/onnx").join(name);
    let setup =
        Setup { kv: kv.to_owned(), kv_dtype: Some(kv_dtype), slots: 2, ..Setup::exact(200) };
    let mut incremental: Option<Vec<Completion>> = None;
    // Beside a ring for a window there is room for what re-selection computes again.
    let is_tight = kv.contains("reselect") && name.starts_with("gemma2");
    for step_rows in [if is_tight { 8 } else { 2 }, 24] {
        let options = weir::ModelOptions { step_rows, ..setup.options(&folder) };
        let report = weir::ReportOptions { quiet: true, ..weir::ReportOptions::default() };
        let model = Model::new(weir::load(&options, &report, &weir::Progress::new(true))?)?;
        let exact = turns(&model, History::Exact, 1)?;
        // Where the lengths of prompts differ, a static cache has their rows in other places.
        let is_static = kv.contains("mode=static");
        let reuses = exact.iter().any(|turn| turn.usage.reused_tokens > 0);
        ensure!(reuses || is_static, "rows are taken over");
        let reused = exact.last().is_some_and(|turn| turn.usage.reused_tokens > 0);
        ensure!(
            reused != drops,
            "the last turn takes over all rows or, where some are missing, none"
        );
        for threads in [1, 2] {
            let found = turns(&model, History::Incremental, threads)?;
            let last = found.last().map(|turn| turn.usage).unwrap_or_default();
            ensure!(last.reused_tokens > 0, "the last turn takes over rows");
            ensure!((last.history == History::Incremental) == drops, "what is reported");
            let expected = incremental.get_or_insert_with(|| found.clone());
            ensure!(found == *expected, "steps of {step_rows} rows, {threads} threads");
        }
    }
    Ok(())
}

/// Answers of all turns, beside a request that comes and goes.
fn turns(model: &Model, history: History, threads: usize) -> Result<Vec<Completion>> {
    let options = RuntimeOptions { threads: Some(threads), ..RuntimeOptions::default() };
    let vocabulary = model.compiled().header().vocabulary;
    let mut engine = model.engine(&options)?;
    let (mut tokens, mut answers) = (Vec::new(), Vec::new());
    for (turn, count) in (0..).zip(TURNS) {
        tokens.extend((0..count).map(|i| (i * i + 31 * turn + 7) % vocabulary));
        let neighbour = ask(&[turn % vocabulary, 3], History::Exact);
        let mut found = engine.generate(vec![ask(&tokens, history), neighbour])?;
        let answer = found.swap_remove(0);
        if answer.usage.history == History::Exact && history == History::Exact {
            let whole = alone(&mut model.engine(&options)?, &tokens)?;
            ensure!(answer.ids == whole.ids, "turn {turn}");
        }
        tokens.extend(&answer.ids);
        answers.push(answer);
    }
    Ok(answers)
}

fn alone(engine: &mut Engine<Forward>, tokens: &[u32]) -> Result<Completion> {
    let answer = engine.generate(vec![ask(tokens, History::Exact)])?.swap_remove(0);
    ensure!(answer.usage.reused_tokens == 0, "a new engine has nothing to take over");
    Ok(answer)
}

fn ask(tokens: &[u32], history: History) -> Request {
    Request {
        prompt: tokens.to_vec(),
        max_tokens: Some(6),
        ignore_eos: true,
        history,
        ..Request::default()
    }
}

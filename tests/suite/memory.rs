//! The memory ceiling that a compiled model prints is kept, with a vocabulary of real size.
//!
//! Mapped file pages are the system's to drop and reread, so what counts is anonymous memory: caches,
//! buffers, logits, what the tokenizer builds and the allowance for the process. The kernel's count of
//! it (`RssAnon`) is read while requests run in all slots. A peak between two readings is missed, so
//! the test can pass where it should fail, never the other way round.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use weir_frontend::synthetic::Shape;
use weir_ir::CacheFormat;
use weir_runtime::RuntimeOptions;
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// Requests at once.
const SLOTS: u32 = 8;

/// Tokens of a request; the tokenizer of the made model has one per byte of such a text.
const CONTEXT: u32 = 1024;

/// What may lie beside weights, cache and prompt scratch at the width of a 1B model.
const BESIDE: u64 = 64 << 20;

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = [
        ("full", "0"),
        ("snapstream,rows=256", "0"),
        ("snapstream,rows=252,draft=3", "3"),
        ("snapstream,rows=256,second=64", "0"),
        ("snapstream,rows=256,budget=130:600:256:256:100:256:256:200/120/300/256", "0"),
    ]
    .into_iter()
    .map(|(kv, draft)| trial(format!("memory/{kv}"), move || ceiling_is_kept(kv, draft)))
    .collect();
    trials.push(trial("memory/steady".to_owned(), || {
        steady(Course { context: 4096, rows: 96, prompt: 2000, answer: 960 })
    }));
    trials.push(trial("memory/int4".to_owned(), int4_is_counted));
    trials.push(trial("memory/blocks".to_owned(), blocks_are_counted));
    trials.push(trial("memory/second".to_owned(), second_queries_are_counted));
    // Minutes: the attention of the prompt alone takes 25 tera-operations.
    let longest = Course { context: 131_072, rows: 2048, prompt: 110_000, answer: 20_480 };
    let long = trial("memory/steady-131072".to_owned(), move || steady(longest));
    trials.push(long.with_ignored_flag(true));
    trials
}

/// A prompt and an answer that are both many times as long as the cache.
#[derive(Clone, Copy)]
struct Course {
    context: u32,
    /// C.
    rows: u32,
    /// Tokens of the prompt, about.
    prompt: usize,
    /// Tokens of the answer, ten times C.
    answer: usize,
}

/// Memory that a program may touch after its first tokens: a page here and there of the stack, of the
/// allocator and of the answer's own text.
const TOUCHED_LATE: u64 = 1 << 20;

/// Once a sequence is being continued, memory no longer grows, and all of it stays below what was
/// printed.
fn steady(course: Course) -> Result<()> {
    let setup = Setup {
        context: course.context,
        kv: format!(
            "snapstream,rows={},recent={},window=16,reservoir={}",
            course.rows,
            course.rows / 4,
            course.rows / 8
        ),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 1,
    };
    let binary = Binary::compile(&root().join("models/tales/onnx"), &setup)?;
    let facts: Value = serde_json::from_str(&binary.run(&["info", "--json"])?)?;
    let part = |name: &str| facts["memory"][name].as_u64().with_context(|| name.to_owned());
    let parts = ["step", "logits", "tokenizer", "process", "cache", "prefill"];
    let printed = parts.into_iter().map(part).sum::<Result<u64>>()?;
    // Three words that the tokenizer has as a token each, with the space in front of them.
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), " upon a day".repeat(course.prompt / 3))?;
    let said = tempfile::NamedTempFile::new()?;
    let mut program = Command::new(binary.path());
    program.args(["generate", "--ignore-eos", "--max-tokens", &course.answer.to_string()]);
    program.arg("--prompt-file").arg(file.path());
    let mut child = program.stdout(Stdio::piped()).stderr(said.reopen()?).spawn()?;
    let mut output = child.stdout.take().context("its standard output")?;
    let anonymous = || anonymous(child.id());
    let (mut begun, mut last, mut read) = (None, 0, 0);
    let mut piece = [0; 64];
    loop {
        let bytes = output.read(&mut piece)?;
        if bytes == 0 {
            break;
        }
        read += bytes;
        // The first tokens touch what a step needs.
        if read > 64 {
            last = anonymous().unwrap_or(last);
            begun.get_or_insert(last);
        }
    }
    let outcome = child.wait()?;
    ensure!(outcome.success(), "generate: {outcome}: {}", fs::read_to_string(said.path())?);
    let begun = begun.context("an answer")?;
    println!("{read} bytes of text; {} KiB, then {} of {}", begun >> 10, last >> 10, printed >> 10);
    ensure!(last <= begun + TOUCHED_LATE, "{begun} bytes at first, {last} at the end");
    ensure!(last <= printed, "{last} bytes, {printed} printed: {facts:#}");
    ensure!(last > part("cache")?, "{last} bytes with {facts:#}");
    Ok(())
}

/// Narrow, so that it is quick, but with as many tokens as Llama 3 has, and heads so wide that a slot
/// has more of cache than the process has of allowance.
fn shape() -> Shape {
    Shape {
        name: "narrow",
        hidden: 64,
        layers: 4,
        heads: 8,
        kv_heads: 8,
        head_width: 64,
        inner: 96,
        vocabulary: 128_256,
        context: CONTEXT as usize,
        tied: true,
        rope_base: 10_000.0,
        rope_factor: None,
    }
}

/// A slot is as large as its rows, scales and positions; in int4 with a quarter of the rows it is a
/// fourteenth of dense rows in f16.
fn int4_is_counted() -> Result<()> {
    const LAYERS: u64 = 2;
    const KV_HEADS: u64 = 2;
    const SINKS: u64 = 4;
    const RECENT: u64 = 60;
    let rows = u64::from(CONTEXT) / 4;
    let folder = tempfile::tempdir()?;
    for head_width in [64, 128] {
        let model = folder.path().join(head_width.to_string());
        let shape = Shape {
            layers: LAYERS as usize,
            heads: 4,
            kv_heads: KV_HEADS as usize,
            head_width,
            vocabulary: 512,
            ..shape()
        };
        weir::write_model(&shape, 1, &model, &weir::Progress::new(true))?;
        let bytes = |kv: String, format: weir::KvTypeOption| -> Result<u64> {
            let setup = Setup { kv, kv_dtype: Some(format), slots: 1, ..Setup::exact(CONTEXT) };
            let options =
                RuntimeOptions { slots: Some(1), threads: Some(1), ..RuntimeOptions::default() };
            Ok(setup.load(&model)?.forward(&options)?.cache_bytes())
        };
        let width = head_width as u64;
        let dense = bytes("full".to_owned(), weir::KvTypeOption::F16)?;
        ensure!(dense == LAYERS * KV_HEADS * u64::from(CONTEXT) * 2 * width * 2, "{dense} bytes");
        let kv = format!("snapstream,rows={rows},sinks={SINKS},recent={RECENT}");
        let found = bytes(kv, weir::KvTypeOption::Int4)?;
        let row = 2 * (width / 2 + 2);
        let positions = (rows - SINKS - RECENT) * 4;
        ensure!(found == LAYERS * KV_HEADS * (rows * row + positions), "{found} bytes");
        // As many rows on the whole, and as many tiles, dealt out by head; and a tile less of one.
        let budget = |first: u64, second: u64| {
            let kv = format!("snapstream,rows={rows},sinks={SINKS},recent={RECENT}");
            bytes(format!("{kv},budget={first}:{second}/{rows}"), weir::KvTypeOption::Int4)
        };
        let by_head = budget(rows - 128, rows + 128)?;
        ensure!(by_head == found, "{by_head} bytes by head, {found} alike");
        let by_head = budget(rows - 128, rows + 64)?;
        ensure!(by_head == found - 64 * (row + 4), "{by_head} bytes with 64 rows less");
        // Sinks and selected rows alone in int4, 256 of 320 rows: whole tiles on both sides.
        let kv = format!("snapstream,rows={},sinks={SINKS},recent=64", rows + 64);
        let parts = weir::KvTypeOption::Parts { block: CacheFormat::I4, ring: CacheFormat::F16 };
        let of_parts = bytes(kv.clone(), parts)?;
        let positions = (rows - SINKS) * 4;
        let expected = rows * row + 64 * 2 * width * 2 + positions;
        ensure!(of_parts == LAYERS * KV_HEADS * expected, "{of_parts} bytes in two formats");
        let of_ring = bytes(kv, weir::KvTypeOption::F16)?;
        ensure!(2 * of_parts < of_ring, "{of_parts} bytes in two formats, {of_ring} in f16");
        println!("heads of {width}: {dense} / {found} = {:.2}", dense as f64 / found as f64);
        // The same rows, four of which are in flight and none of those selected.
        let kv = format!("snapstream,rows={},sinks={SINKS},recent={RECENT},draft=3", rows - 4);
        let guessing = bytes(kv, weir::KvTypeOption::Int4)?;
        ensure!(guessing == found - LAYERS * KV_HEADS * 4 * 4, "{guessing} bytes with guesses");
        ensure!(dense >= 14 * found, "{dense} bytes in f16, {found} in int4");
    }
    Ok(())
}

/// Queries of all rows of one layer, and room for those that are asked, where any may be.
fn second_queries_are_counted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("narrow");
    let shape = Shape { vocabulary: 512, ..shape() };
    weir::write_model(&shape, 1, &model, &weir::Progress::new(true))?;
    let prefill = |second: &str| -> Result<u64> {
        let kv = format!("snapstream,rows=256,window=32{second}");
        let setup = Setup { kv, slots: 1, ..Setup::exact(CONTEXT) };
        Ok(setup.load(&model)?.memory_ceiling(&RuntimeOptions::default())?.prefill)
    };
    let (heads, context) = (shape.heads as u64, u64::from(CONTEXT));
    let query = heads * (shape.head_width as u64 + 1);
    let kv_heads = shape.kv_heads as u64;
    let expected =
        |asked: u64| 4 * ((context - 32) * query + kv_heads * context + asked * (query + kv_heads));
    let without = prefill(",second=0")?;
    for (second, asked) in [("", 64), (",second=64", 64), (",second=9,second_share=50", 9)] {
        let more = prefill(second)? - without;
        ensure!(more == expected(asked), "{second}: {more} bytes, not {}", expected(asked));
    }
    // There are no more rows than that.
    ensure!(prefill(",second=4000000")? - without == expected(context), "rows of a prompt");
    Ok(())
}

/// Where fewer prompts than sequences have room, each has one block and each sequence one ring.
fn blocks_are_counted() -> Result<()> {
    const LAYERS: u64 = 2;
    const KV_HEADS: u64 = 2;
    const WIDTH: u64 = 64;
    // Sinks and selected rows are four tiles, and the ring is one.
    const BLOCK: u64 = 256;
    const RING: u64 = 64;
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("shared");
    let shape = Shape {
        layers: LAYERS as usize,
        heads: 4,
        kv_heads: KV_HEADS as usize,
        head_width: WIDTH as usize,
        vocabulary: 512,
        ..shape()
    };
    weir::write_model(&shape, 1, &model, &weir::Progress::new(true))?;
    let parts = weir::KvTypeOption::Parts { block: CacheFormat::I4, ring: CacheFormat::F16 };
    let [narrow, half] = [2 * (WIDTH / 2 + 2), 2 * WIDTH * 2];
    let kv = format!("snapstream,rows={},sinks=4,recent={RING}", BLOCK + RING);
    let positions = 4 * (BLOCK - 4);
    // Of sinks that are no whole tile there is nothing to share, nor of a full cache.
    let stream = format!("stream,rows={BLOCK},sinks=4");
    for (kv, format, block, ring) in [
        (kv.clone(), weir::KvTypeOption::F16, BLOCK * half + positions, RING * half),
        (kv.clone(), weir::KvTypeOption::Int4, BLOCK * narrow + positions, RING * narrow),
        (kv, parts, BLOCK * narrow + positions, RING * half),
        (stream, weir::KvTypeOption::F16, 0, BLOCK * half),
        ("full".to_owned(), weir::KvTypeOption::F16, 0, u64::from(CONTEXT) * half),
    ] {
        let setup = Setup { kv, kv_dtype: Some(format), slots: 8, ..Setup::exact(CONTEXT) };
        let model = setup.load(&model)?;
        for (slots, blocks) in [(8, None), (8, Some(8)), (8, Some(3)), (8, Some(1)), (1, Some(1))] {
            let options = RuntimeOptions {
                slots: Some(slots),
                blocks,
                threads: Some(1),
                ..RuntimeOptions::default()
            };
            let found = model.forward(&options)?.cache_bytes();
            let blocks = u64::from(blocks.unwrap_or(slots));
            let expected = LAYERS * KV_HEADS * (blocks * block + u64::from(slots) * ring);
            ensure!(found == expected, "{blocks} of {slots}: {found} bytes, not {expected}");
            let ceiling = model.memory_ceiling(&options)?;
            ensure!(ceiling.cache == expected, "{} bytes in the ceiling", ceiling.cache);
        }
    }
    Ok(())
}

fn ceiling_is_kept(kv: &str, draft: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("narrow");
    weir::write_model(&shape(), 1, &model, &weir::Progress::new(true))?;
    let setup = Setup {
        context: CONTEXT,
        kv: kv.to_owned(),
        kv_dtype: Some(weir::KvTypeOption::F32),
        compute: None,
        weights: Some("int4".to_owned()),
        calibrate: None,
        slots: SLOTS,
    };
    let binary = Binary::compile(&model, &setup)?;
    let facts: Value = serde_json::from_str(&binary.run(&["info", "--json", "--draft", draft])?)?;
    let part = |name: &str| facts["memory"][name].as_u64().with_context(|| name.to_owned());
    let beside = part("step")? + part("logits")? + part("tokenizer")? + part("process")?;
    let printed = beside + part("cache")? + part("prefill")?;
    let tables = part("code_and_tables")?;
    ensure!(beside + tables <= BESIDE, "{} bytes beside weights and cache", beside + tables);
    let peak = peak_anonymous(&binary, draft)?;
    println!("memory/{kv}: {} KiB of {} KiB", peak >> 10, printed >> 10);
    ensure!(peak <= printed, "{peak} bytes of anonymous memory, {printed} printed: {facts:#}");
    // The readings were of a program at work: it has written its caches.
    let cache = part("cache")?;
    ensure!(peak > cache / 2, "{peak} bytes of anonymous memory with {cache} of cache");
    Ok(())
}

/// Most anonymous memory that was seen while all slots were at work with everything that sampling
/// keeps notes for.
fn peak_anonymous(binary: &Binary, draft: &str) -> Result<u64> {
    let mut program = Command::new(binary.path());
    program.args(["generate", "--max-tokens", "24", "--ignore-eos", "--seed", "1"]);
    program.args(["--draft", draft]);
    program.args(["--temperature", "0.8", "--top-p", "0.9", "--repetition-penalty", "1.1"]);
    for slot in 0..SLOTS {
        program
            .args(["--prompt", &format!("{slot} once upon a ").repeat(CONTEXT as usize / 16 - 4)]);
    }
    let mut child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak = 0;
    let outcome = loop {
        if let Some(outcome) = child.try_wait()? {
            break outcome;
        }
        peak = peak.max(anonymous(child.id()).unwrap_or(0));
        sleep(Duration::from_millis(1));
    };
    ensure!(outcome.success(), "generate: {outcome}");
    Ok(peak)
}

/// Anonymous memory of a process in bytes, while it is there.
fn anonymous(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

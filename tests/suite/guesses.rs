//! Tokens that are guessed ahead change nothing: with guesses of which every second one is right, as
//! with those of prompt lookup, answers are those of plain decoding, and a row's logits have the bits
//! that they have when rows come one by one (sections 9 and 12 of the method's document).

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use weir_ir::interpret::Session;
use weir_runtime::drafts::Drafter;
use weir_runtime::forward::{Forward, LongPrompt, StepModel, StepRow};
use weir_runtime::{Completion, Engine, Model, Request, RuntimeOptions, SamplingOptions, Usage};
use weir_tests::compare::{FLOAT, close};
use weir_tests::golden::{Rows, read};
use weir_tests::places::root;
use weir_tests::systems::{Binary, Jit, Oracle, Setup, System};

use crate::trial;

/// Tokens that are guessed at once.
const MOST: u32 = 3;

/// Positions of a sequence.
const CONTEXT: u32 = 320;

/// Policies whose answers the interpreter gives as well.
const POLICIES: [&str; 5] = [
    "full,draft=3",
    "stream,rows=24,sinks=3,draft=3",
    "snapstream,rows=40,sinks=3,recent=12,window=8,draft=3",
    "snapstream,rows=40,sinks=3,recent=12,window=8,mode=static,draft=3",
    "snapkv,rows=32,recent=8,window=8,limit=40,draft=3",
];

/// One that selects by lot.
const RANDOM: &str = "random,rows=40,sinks=3,recent=12,draft=4";

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, kv_dtype) in [
        ("llama-genai-fp32", weir::KvTypeOption::F32),
        // Every second layer has a window.
        ("mistral-layered-genai-fp32", weir::KvTypeOption::F32),
        ("narrow-nbits-int4", weir::KvTypeOption::Int8),
        ("narrow-nbits-int4", weir::KvTypeOption::Int4),
    ] {
        for kv in POLICIES.into_iter().chain([RANDOM]) {
            let setup = Setup {
                kv: kv.to_owned(),
                kv_dtype: Some(kv_dtype),
                slots: 3,
                ..Setup::exact(CONTEXT)
            };
            let place = format!("guesses/answers/{name}/{kv_dtype:?}/{kv}");
            trials.push(trial(place, move || answers(name, &setup)));
        }
    }
    let by_head = "snapstream,rows=40,sinks=3,recent=12,window=8,draft=3,budget=90:30/20:40";
    let setup = Setup { kv: by_head.to_owned(), slots: 3, ..Setup::exact(CONTEXT) };
    let place = format!("guesses/answers/llama-genai-fp32/{by_head}");
    trials.push(trial(place, move || answers("llama-genai-fp32", &setup)));
    for name in ["llama-genai-fp32", "mistral-layered-genai-fp32"] {
        for kv in POLICIES {
            let setup = Setup { kv: kv.to_owned(), ..Setup::exact(CONTEXT) };
            let place = format!("guesses/logits/{name}/{kv}");
            trials.push(trial(place, move || logits(name, &setup)));
        }
    }
    trials.push(trial("guesses/lookup".to_owned(), lookup));
    trials
}

/// Numbers without an order.
struct Lots(Cell<u64>);

impl Lots {
    fn below(&self, end: u32) -> u32 {
        let next = self.0.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767);
        self.0.set(next);
        ((next >> 33) % u64::from(end)) as u32
    }

    /// Up to `most` guesses of what comes, each right with a chance of one half.
    fn guesses(&self, coming: &[u32], most: u32, vocabulary: u32) -> Vec<u32> {
        (0..self.below(most + 1) as usize)
            .map(|index| match (coming.get(index), self.below(2)) {
                (Some(right), 0) => *right,
                _ => self.below(vocabulary),
            })
            .collect()
    }
}

/// Guesses tokens of known sequences.
struct HalfRight {
    known: Vec<Vec<u32>>,
    vocabulary: u32,
    lots: Lots,
}

impl Drafter for HalfRight {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
        let known = self.known.iter().find(|known| known.starts_with(tokens));
        let coming = known.map_or(&[][..], |known| &known[tokens.len()..]);
        draft.extend(self.lots.guesses(coming, most as u32, self.vocabulary));
    }
}

/// Prompts that fit the cache and others, with answers that turn its ring several times.
fn requests(vocabulary: u32) -> Vec<Request> {
    [1_u32, 2, 7, 24, 25, 39, 40, 41, 70, 130]
        .into_iter()
        .map(|length| Request {
            prompt: (0..length).map(|i| (i * i + 31 * length + 7) % vocabulary).collect(),
            max_tokens: Some(120),
            sampling: SamplingOptions {
                temperature: if length % 2 == 0 { 0.9 } else { 0.0 },
                repetition_penalty: if length % 3 == 0 { 1.2 } else { 1.0 },
                seed: 5,
                ..SamplingOptions::default()
            },
            ignore_eos: true,
            ..Request::default()
        })
        .collect()
}

/// An answer without the counts that depend on who guesses and who comes before.
fn alone(answer: &Completion) -> Completion {
    let (drafted_tokens, accepted_tokens, reused_tokens) = (0, 0, 0);
    let usage = Usage { drafted_tokens, accepted_tokens, reused_tokens, ..answer.usage };
    Completion { usage, ..answer.clone() }
}

fn engine(model: &Model, slots: u32, threads: usize) -> Result<Engine<Forward>> {
    let options =
        RuntimeOptions { slots: Some(slots), threads: Some(threads), ..RuntimeOptions::default() };
    Ok(model.engine(&options)?)
}

fn answers(name: &str, setup: &Setup) -> Result<()> {
    let model = setup.load(&root().join("tests/fixtures/onnx").join(name))?;
    let vocabulary = model.compiled().header().vocabulary;
    let requests = requests(vocabulary);
    let plain = engine(&model, 1, 1)?.generate(requests.clone())?;
    let known = requests.iter().zip(&plain);
    let known: Vec<Vec<u32>> =
        known.map(|(request, answer)| [&request.prompt[..], &answer.ids[..]].concat()).collect();
    for (slots, threads) in [(1, 1), (3, 2)] {
        let mut engine = engine(&model, slots, threads)?;
        let lots = Lots(Cell::new(slots.into()));
        engine.guess(MOST, HalfRight { known: known.clone(), vocabulary, lots })?;
        let guessed = engine.generate(requests.clone())?;
        for (request, (guessed, plain)) in requests.iter().zip(guessed.iter().zip(&plain)) {
            let length = request.prompt.len();
            ensure!(alone(guessed) == alone(plain), "{length} tokens, {slots} slots");
            // Half a guess is right in a step on average, some forty in an answer.
            let Usage { drafted_tokens, accepted_tokens, .. } = guessed.usage;
            ensure!(drafted_tokens > accepted_tokens && accepted_tokens > 10, "{length} tokens");
        }
    }
    Ok(())
}

/// Logits from which the tokens of a continuation are chosen, computed with guesses.
trait Guessing {
    /// Computes a prompt; logits of its last row.
    fn prompt(&mut self, ids: &[u32]) -> Result<Vec<f32>>;
    /// Computes tokens behind it; logits of their rows.
    fn rows(&mut self, ids: &[u32]) -> Result<Vec<f32>>;
    /// Takes back the last ones.
    fn take_back(&mut self, count: usize) -> Result<()>;
}

/// The interpreter.
struct Interpreted<'g>(Session<'g>);

fn wide(ids: &[u32]) -> Vec<i64> {
    ids.iter().map(|id| i64::from(*id)).collect()
}

impl Guessing for Interpreted<'_> {
    fn prompt(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        self.0.prefill(&wide(ids))?.pop().context("a row")
    }

    fn rows(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        Ok(self.0.guess(&wide(ids))?.concat())
    }

    fn take_back(&mut self, count: usize) -> Result<()> {
        Ok(self.0.take_back(count)?)
    }
}

/// Compiled code, of which slot 1 is used.
struct Compiled {
    forward: Forward,
    prompt_rows: u32,
    /// Rows so far.
    rows: u32,
}

impl Compiled {
    fn step(&mut self, ids: &[u32], logits: &mut [f32]) -> Result<()> {
        let row = |(position, token): (u32, &u32)| StepRow {
            token: *token,
            position,
            slot: 1,
            prompt_rows: self.prompt_rows,
            rotary_set: 0,
        };
        let rows: Vec<StepRow> = (self.rows..).zip(ids).map(row).collect();
        let count = (logits.len() / self.forward.shape().vocabulary as usize) as u32;
        let end = rows.len() as u32;
        let head_rows: Vec<u32> = (end - count..end).collect();
        self.rows += end;
        Ok(self.forward.step(&rows, &head_rows, logits)?)
    }
}

impl Guessing for Compiled {
    fn prompt(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let shape = self.forward.shape();
        let (direct, tile) = (shape.direct_rows as usize, shape.max_rows as usize);
        let mut logits = vec![0.0; shape.vocabulary as usize];
        self.prompt_rows = ids.len() as u32;
        if ids.len() > direct {
            let prompt =
                LongPrompt { tokens: ids, slot: 1, rotary_set: 0, past: None, is_anew: false };
            self.forward.begin_prompt(prompt);
            while !self.forward.advance_prompt()? {}
            self.forward.prompt_logits(self.prompt_rows - 1, &mut logits)?;
            self.rows = self.prompt_rows;
        } else {
            ids.chunks(tile).try_for_each(|ids| self.step(ids, &mut logits))?;
        }
        Ok(logits)
    }

    fn rows(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut logits = vec![0.0; ids.len() * self.forward.shape().vocabulary as usize];
        self.step(ids, &mut logits)?;
        Ok(logits)
    }

    fn take_back(&mut self, count: usize) -> Result<()> {
        self.rows -= count as u32;
        Ok(())
    }
}

fn guessed(system: &mut impl Guessing, prompt: &[u32], forced: &[u32]) -> Result<Rows> {
    let mut values = system.prompt(prompt)?;
    let width = values.len();
    let lots = Lots(Cell::new(prompt.len() as u64));
    let mut fed = 0;
    while fed + 1 < forced.len() {
        let coming = &forced[fed + 1..];
        let most = MOST.min(coming.len() as u32 - 1);
        let guesses = lots.guesses(coming, most, width as u32);
        let right = guesses.iter().zip(coming).take_while(|(guess, right)| guess == right).count();
        let logits = system.rows(&[&forced[fed..=fed], &guesses[..]].concat())?;
        values.extend(&logits[..(1 + right) * width]);
        system.take_back(guesses.len() - right)?;
        fed += 1 + right;
    }
    Ok(Rows { width, values })
}

fn logits(name: &str, setup: &Setup) -> Result<()> {
    let folder = root().join("tests/fixtures/onnx").join(name);
    let model = setup.load(&folder)?;
    let oracle = Oracle::lower(&folder, setup)?;
    for case in read(&folder)? {
        let (prompt, continuation) = (&case.prompt[..], &case.forced[..]);
        let plain = Jit::compile(&folder, setup)?.logits(prompt, continuation)?;
        let options = RuntimeOptions { threads: Some(2), ..RuntimeOptions::default() };
        let forward = model.forward(&options)?;
        let mut compiled = Compiled { forward, prompt_rows: 0, rows: 0 };
        let ours = guessed(&mut compiled, prompt, continuation)?;
        ensure!(ours == plain.steps, "{}: guesses change bits", case.name);
        let mut session = Session::new(oracle.graph())?;
        session.set_longest(prompt.len() + continuation.len() - 1);
        let reference = guessed(&mut Interpreted(session), prompt, continuation)?;
        close(case.name, &ours, &reference, FLOAT)?;
    }
    Ok(())
}

/// A story that repeats itself, and one that does not yet.
const PROMPTS: [&str; 2] = [
    "Tom has a red ball and a big dog. The dog has a red ball. Tom and the dog run to the park. Lily \
     has a red ball and a big cat. The cat has a red ball. Lily and the cat run to the park. Sam has a",
    "Once upon a time",
];

/// The program finds what repeats itself, and says so; greedy or sampled, the text is the same.
fn lookup() -> Result<()> {
    let kv = format!("snapstream,rows=40,sinks=3,recent=12,window=8,draft={MOST}");
    let setup = Setup { kv, ..Setup::exact(CONTEXT) };
    let binary = Binary::compile(&root().join("models/tales/onnx"), &setup)?;
    let (mut drafted, mut accepted) = (0, 0);
    for (prompt, temperature) in PROMPTS.iter().flat_map(|prompt| [(prompt, "0"), (prompt, "0.7")])
    {
        let ask = |extra: &[&str]| -> Result<serde_json::Value> {
            let always = ["generate", "--json", "--max-tokens", "150", "--seed", "5"];
            let arguments = ["--prompt", prompt, "--temperature", temperature];
            let arguments = [&always[..], &arguments, extra].concat();
            Ok(serde_json::from_str(&binary.run(&arguments)?)?)
        };
        let (plain, guessed) = (ask(&[])?, ask(&["--draft", "3"])?);
        for part in ["ids", "text", "finish_reason"] {
            ensure!(plain[part] == guessed[part], "{part}: {plain}\n{guessed}");
        }
        for part in ["completion_tokens", "kv_rows_kept", "kv_rows_dropped"] {
            ensure!(plain["usage"][part] == guessed["usage"][part], "{part}: {plain}\n{guessed}");
        }
        let count = |part: &str| guessed["usage"][part].as_u64().context("a count");
        drafted += count("drafted_tokens")?;
        accepted += count("accepted_tokens")?;
        ensure!(plain["usage"]["drafted_tokens"] == 0, "guesses without --draft: {plain}");
    }
    println!("{accepted} of {drafted} tokens accepted");
    ensure!(accepted > 0 && drafted > accepted, "{accepted} of {drafted} tokens accepted");
    let refused = binary.run(&["generate", "--ids", "1", "--draft", "4"]).err();
    let reason = refused.context("the cache has room for three")?.to_string();
    ensure!(reason.contains("compiled with room for 3"), "{reason}");
    Ok(())
}

//! A step that only decodes allocates nothing, on no thread of the process, once buffers have grown.
//!
//! A program by itself, with one test at a time: the allocator counts for all threads.

use std::alloc::System;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};
use weir_runtime::drafts::PromptLookup;
use weir_runtime::{Event, Request, RuntimeOptions, SamplingOptions};
use weir_tests::places::root;
use weir_tests::systems::Setup;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Sequences at once.
const SEQUENCES: u32 = 4;

/// Steps until buffers have grown, those of the prompts among them.
const WARM_UP: usize = 40;

/// Steps that are counted.
const STEPS: usize = 200;

fn main() {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let snapstream = "snapstream,rows=64,sinks=4,recent=16,window=8";
    let setups = [("full", 1, 0), ("full", 2, 0), ("full", 2, 3), (snapstream, 2, 0)];
    let trials = setups.into_iter().map(|(kv, threads, guesses)| {
        let name = format!("allocations/{kv}/{threads}_threads/{guesses}_guesses");
        let check = move || decoding(kv, threads, guesses);
        Trial::test(name, move || check().map_err(|error| Failed::from(format!("{error:#}"))))
    });
    libtest_mimic::run(&arguments, trials.chain([counted()]).collect()).exit();
}

/// The counter sees what another thread allocates.
fn counted() -> Trial {
    Trial::test("allocations/of_other_threads_are_counted", || {
        let (ask, asked) = std::sync::mpsc::sync_channel::<()>(1);
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let other = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                drop(std::hint::black_box(vec![0_u8; 100]));
                let _ = tell.send(());
            }
        });
        let turn = || ask.send(()).is_ok() && told.recv().is_ok();
        let is_warm = turn();
        let region = Region::new(ALLOCATOR);
        let has_run = turn();
        let Stats { allocations, .. } = region.change();
        drop(ask);
        let ended = other.join().is_ok();
        match is_warm && has_run && ended && allocations > 0 {
            true => Ok(()),
            false => Err(Failed::from(format!("{allocations} allocations were counted"))),
        }
    })
}

fn decoding(kv: &str, threads: usize, guesses: u32) -> Result<()> {
    let setup = Setup {
        context: 1024,
        kv: kv.to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: SEQUENCES,
    };
    let model = setup.load(&root().join("models/tales/onnx-genai-int4"))?;
    let options = RuntimeOptions { threads: Some(threads), ..RuntimeOptions::default() };
    let mut engine = model.engine(&options)?;
    if guesses > 0 {
        engine.guess(guesses, PromptLookup)?;
    }
    let prompt = model.encode("Once upon a time there was a dog. The dog was happy.")?;
    for seed in 0..u64::from(SEQUENCES) {
        let sampling = if seed.is_multiple_of(2) {
            SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }
        } else {
            SamplingOptions {
                temperature: 0.9,
                top_k: if seed == 1 { 0 } else { 50 },
                top_p: 0.95,
                min_p: 0.01,
                repetition_penalty: 1.1,
                presence_penalty: 0.1,
                frequency_penalty: 0.1,
                seed,
                ..SamplingOptions::default()
            }
        };
        // They begin often, and do not occur: text is held back and let go.
        let stop = vec![". The end of all".to_owned(), " and Zebedee".to_owned()];
        let ignore_eos = true;
        engine.submit(Request {
            prompt: prompt.clone(),
            sampling,
            stop,
            ignore_eos,
            ..Request::default()
        })?;
    }
    for _ in 0..WARM_UP {
        engine.step(|_, _| {});
    }
    let (mut tokens, mut bytes, mut others) = (0, 0, 0);
    let region = Region::new(ALLOCATOR);
    for _ in 0..STEPS {
        engine.step(|_, event| match event {
            Event::Token { text, .. } => {
                tokens += 1;
                bytes += text.len();
            }
            _ => others += 1,
        });
    }
    let Stats { allocations, reallocations, deallocations, .. } = region.change();
    ensure!(others == 0, "{others} answers ended");
    let least = STEPS * SEQUENCES as usize;
    ensure!(tokens >= least && bytes > least, "{tokens} tokens with {bytes} bytes of text");
    ensure!(
        [allocations, reallocations, deallocations] == [0; 3],
        "{allocations} allocations, {reallocations} reallocations and {deallocations} deallocations \
         in {STEPS} steps"
    );
    Ok(())
}

//! A request gives the same tokens alone and in any company, with any number of threads.

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// Weights of float32, and of int4.
const EXPORTS: [&str; 2] = ["onnx", "onnx-genai-int4"];

pub fn trials() -> Vec<Trial> {
    let snapstream = "snapstream,rows=64,sinks=4,recent=16,window=8";
    // Threads that share a row each find its largest magnitude.
    let by_row = Some(weir::ComputeOption::Int8Row);
    let setups = [
        ("full", None, &EXPORTS[..]),
        (snapstream, None, &EXPORTS),
        ("full", by_row, &EXPORTS[1..]),
    ];
    let mut trials = Vec::new();
    for (kv, compute, exports) in setups {
        for export in exports {
            let setup = Setup {
                context: 256,
                kv: kv.to_owned(),
                kv_dtype: None,
                compute,
                weights: None,
                calibrate: None,
                slots: 3,
            };
            let by_row = if compute.is_some() { "/int8_row" } else { "" };
            trials.push(trial(format!("company/{export}/{kv}{by_row}"), move || {
                company(export, &setup)
            }));
        }
    }
    trials
}

const PROMPTS: [&str; 6] = [
    "Once upon a time",
    "The dog",
    "Lily and Tom went to the park. They saw a big tree and a small bird. The bird was sad because \
     it could not fly. Lily said, \"Do not be sad, little bird. We will help you.\" Tom found a soft \
     leaf and some water. They gave the water to the bird and put it on the leaf. The bird drank and \
     was happy again. Then the sun went down and it was time to go home. Mom was waiting",
    "a",
    "One day a cat found a red ball and",
    "It was raining. Ben",
];

/// An answer without the rows that it took over: those depend on who came before, and change nothing.
fn without_reuse(line: &str) -> Result<String> {
    let mut answer: serde_json::Value = serde_json::from_str(line)?;
    let usage = answer["usage"].as_object_mut().context("an answer has its usage")?;
    usage.remove("reused_tokens").context("usage has rows taken over")?;
    Ok(answer.to_string())
}

fn company(export: &str, setup: &Setup) -> Result<()> {
    let model = root().join("models/tales").join(export);
    let binary = Binary::compile(&model, setup)?;
    let sampling = ["--json", "--max-tokens", "48", "--temperature", "0.8", "--seed", "7"];
    let ask = |prompts: &[&str], extra: &[&str]| -> Result<Vec<String>> {
        let mut arguments = vec!["generate"];
        for prompt in prompts {
            arguments.extend(["--prompt", prompt]);
        }
        arguments.extend(sampling);
        arguments.extend(extra);
        binary.run(&arguments)?.lines().map(without_reuse).collect()
    };
    let together = ask(&PROMPTS, &["--threads", "2"])?;
    for (prompt, among) in PROMPTS.iter().zip(&together) {
        for threads in ["1", "2"] {
            let alone = ask(&[prompt], &["--threads", threads])?;
            if alone != [among.clone()] {
                bail!("{prompt:?} with {threads} threads:\n{alone:?}\nin company:\n{among}");
            }
        }
    }
    let fewer = ask(&PROMPTS, &["--threads", "1", "--slots", "2"])?;
    if fewer != together {
        bail!("another number of slots and threads gives other answers");
    }
    Ok(())
}

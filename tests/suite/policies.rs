//! While a sequence fits into the cache all policies give what dense attention gives; a longer one is
//! selected from as the scalar reference selects.

use std::path::PathBuf;

use anyhow::Result;
use libtest_mimic::Trial;
use weir_tests::compare::{FLOAT, close};
use weir_tests::golden::read;
use weir_tests::places::root;
use weir_tests::systems::{Jit, Oracle, Setup, System};

use crate::trial;

/// Orders of sums may differ between policies, nothing else.
const SAME: f32 = 1e-5;

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
        ("llama-genai-fp32", "stream,rows=48,sinks=4"),
        ("mistral-layered-genai-fp32", "snapstream,rows=96,sinks=3,recent=24,window=16,pool=7"),
        ("mistral-layered-genai-fp32", "stream,rows=32,sinks=8"),
    ] {
        trials.push(trial(format!("policies/bounded/{name}/{kv}"), move || bounded(name, kv)));
    }
    trials
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

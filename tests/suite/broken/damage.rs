//! Damage without a plan: flipped bytes and cut files. What comes of it may be a model or an error,
//! never a panic and never half a file.

use std::fs;

use anyhow::{Context, Result};
use libtest_mimic::Trial;
use weir_tests::places::root;

use super::{FIXTURE, compile};
use crate::trial;

/// Flips per trial, and how many trials.
const FLIPS: u64 = 40;
const ROUNDS: u64 = 8;

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = (0..ROUNDS)
        .map(|round| trial(format!("broken/flipped_{round}"), move || flips(round)))
        .collect();
    trials.push(trial("broken/cut".to_owned(), cuts));
    trials
}

/// A fixed sequence of numbers (splitmix64), so that a failure comes back.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// One file of the export replaced, the others as they are.
fn attempt(name: &str, contents: &[u8]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for file in ["model.onnx", "model.onnx.data", "tokenizer.json", "genai_config.json"] {
        fs::copy(root().join(FIXTURE).join(file), folder.path().join(file))?;
    }
    fs::write(folder.path().join(name), contents)?;
    compile(folder.path()).map(|_| ())
}

fn flips(round: u64) -> Result<()> {
    let mut state = round;
    for flip in 0..FLIPS {
        let name =
            ["model.onnx", "model.onnx", "model.onnx", "tokenizer.json", "genai_config.json"]
                [(flip % 5) as usize];
        let mut bytes = fs::read(root().join(FIXTURE).join(name))?;
        let place = (draw(&mut state) % bytes.len() as u64) as usize;
        let flipped = (draw(&mut state) % 255) as u8 + 1;
        bytes[place] ^= flipped;
        attempt(name, &bytes).with_context(|| format!("{name}, byte {place} ^ {flipped:#x}"))?;
    }
    Ok(())
}

fn cuts() -> Result<()> {
    for name in ["model.onnx", "model.onnx.data", "tokenizer.json", "genai_config.json"] {
        let bytes = fs::read(root().join(FIXTURE).join(name))?;
        for part in 0..10 {
            let length = bytes.len() * part / 10;
            attempt(name, &bytes[..length]).with_context(|| format!("{name}, {length} bytes"))?;
        }
    }
    Ok(())
}

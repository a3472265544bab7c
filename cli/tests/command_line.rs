//! The program as a person starts it: what it prints, where, and with which exit code.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn weir(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    program.current_dir(root()).args(arguments).output().expect("weir starts")
}

/// Exit code and the first line of standard error.
fn refusal(arguments: &[&str]) -> (Option<i32>, String) {
    let output = weir(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), error.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn a_story_without_a_file() {
    let output =
        weir(&["run", "models/tales/onnx", "--prompt", "Once upon a time", "--max-tokens", "12"]);
    assert!(output.status.success());
    let story = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(story.starts_with(", there was a little girl named Lily."), "{story}");
}

#[test]
fn texts_to_standard_output_are_those_of_a_file() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for form in ["ir", "clif", "asm"] {
        let file = folder.path().join(form);
        let file = file.to_str().expect("a UTF-8 path");
        let text = |output: &str| {
            weir(&["compile", "models/tales/onnx-genai-int4", "--emit", form, "-o", output])
        };
        assert!(text(file).status.success());
        let written = std::fs::read(file).expect("the file was written");
        assert!(!written.is_empty() && text("-").stdout == written, "--emit {form}");
    }
}

#[test]
fn inspect_names_shapes_and_passes() {
    let output = weir(&["inspect", "models/tales/onnx"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["6 layers", "4 query heads over 2 key/value heads", "insert-kv-cache", "per slot"]
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn wrong_usage_is_named() {
    let model = "models/tales/onnx";
    for (arguments, part) in [
        (vec!["compile", model, "-o", "x", "--kv", "snapkv"], "unknown policy \"snapkv\""),
        (vec!["compile", model, "-o", "x", "--kv", "full,rows=3"], "has no option \"rows\""),
        (vec!["compile", model, "--stop-after", "nothing"], "no pass is called \"nothing\""),
        (vec!["run", model, "--prompt", "x", "--stop-after", "fold-layers"], "--stop-after ends"),
        (vec!["run", model], "nothing to continue"),
        (vec!["compile", model], "required"),
    ] {
        let (code, _) = refusal(&arguments);
        let all = String::from_utf8_lossy(&weir(&arguments).stderr).into_owned();
        assert_eq!(code, Some(2), "{arguments:?}: {all}");
        assert!(all.contains(part), "{arguments:?}: {all}");
        assert!(!root().join("x").exists());
    }
}

#[test]
fn what_is_no_model_is_named() {
    for place in ["no/such/place", "README.md", "docs"] {
        let (code, error) = refusal(&["compile", place, "-o", "x"]);
        assert!(matches!(code, Some(1 | 2)), "{place}: {code:?}");
        assert!(error.starts_with("error: ") && error.contains(place), "{place}: {error}");
        assert!(!root().join("x").exists());
    }
}

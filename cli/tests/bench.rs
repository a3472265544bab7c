//! Measuring: every figure has its share of the machine, for programs, for people and as a drawing.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const MODEL: &str = "models/tales/onnx-genai-int4";

fn weir(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .current_dir(root)
        .args(arguments)
        .output()
        .expect("weir starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

#[test]
fn figures_have_their_shares() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plot = folder.path().join("roofline.svg");
    let plot = plot.to_str().expect("a UTF-8 path");
    let output = weir(&[
        "bench",
        MODEL,
        "--context",
        "256",
        "--kv",
        "full",
        "--prefill",
        "48",
        "--decode",
        "16",
        "--batch",
        "1,3",
        "--batch-context",
        "16",
        "--gen",
        "6",
        "--reps",
        "2",
        "--threads",
        "1",
        "--name",
        "t",
        "--json",
        "--plot",
        plot,
    ]);
    let figures = lines(&output);
    let names: Vec<_> = figures
        .iter()
        .map(|figure| {
            (
                figure["metric"].as_str().unwrap_or_default(),
                figure["context"].as_u64(),
                figure["batch"].as_u64(),
            )
        })
        .collect();
    let expected = [
        ("decode", 16, 1),
        ("prefill", 48, 1),
        ("decode_total", 16, 1),
        ("prefill_total", 16, 1),
        ("decode_total", 16, 3),
        ("prefill_total", 16, 3),
    ];
    let expected = expected.map(|(metric, context, batch)| (metric, Some(context), Some(batch)));
    assert_eq!(names, expected);
    for figure in &figures {
        for key in ["value", "median", "share_read", "share_peak", "seconds"] {
            assert!(figure[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {figure}");
        }
        assert_eq!((&figure["peer"], &figure["model"]), (&"weir".into(), &"t".into()));
        assert_eq!((&figure["dtype"], &figure["threads"]), (&"int4".into(), &1.into()));
        assert_eq!(figure["unit"], "tok/s");
    }
    // Three sequences read the weights once, and multiply three times as much.
    let of = |at: usize, key: &str| figures[at][key].as_u64().expect("a count");
    assert_eq!(of(4, "integer_operations"), 3 * of(2, "integer_operations"));
    assert!(of(4, "bytes") < 2 * of(2, "bytes"));
    let drawing = std::fs::read_to_string(plot).expect("the drawing");
    assert!(drawing.starts_with("<svg") && drawing.contains("decode @16"), "{drawing}");
}

#[test]
fn a_profile_has_every_kernel() {
    let output = weir(&[
        "bench",
        MODEL,
        "--context",
        "128",
        "--prefill",
        "20",
        "--decode",
        "8",
        "--gen",
        "6",
        "--profile",
        "--json",
        "--threads",
        "2",
    ]);
    let kernels = lines(&output);
    for metric in ["profile_prefill", "profile_decode"] {
        let of = || kernels.iter().filter(|kernel| kernel["metric"] == metric);
        let parts: f64 = of().filter_map(|kernel| kernel["part"].as_f64()).sum();
        assert!((parts - 1.0).abs() < 1e-6, "{metric}: {parts}");
        let attend = of().find(|kernel| kernel["kernel"] == "layer-0/attend").expect("attention");
        // Six layers, once a tile or step.
        let calls = if metric == "profile_prefill" { 6 } else { 6 * 5 };
        assert_eq!(attend["calls"], calls, "{attend}");
        assert!(attend["value"].as_f64().is_some_and(|seconds| seconds > 1e-7), "{attend}");
        assert!(attend["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{attend}");
        assert!(of().any(|kernel| kernel["integer_operations"].as_u64() > Some(0)));
    }
}

#[test]
fn a_machine_needs_no_model() {
    let output = weir(&["bench", "--machine", "--json", "--threads", "1"]);
    let figures = lines(&output);
    let metrics: Vec<_> = figures.iter().filter_map(|figure| figure["metric"].as_str()).collect();
    for metric in ["read", "f32-fma-256", "int8-maddubs-256"] {
        assert!(metrics.contains(&metric), "{metrics:?}");
    }
    assert!(figures.iter().all(|figure| figure["value"].as_f64() >= figure["median"].as_f64()));
}

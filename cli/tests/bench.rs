//! Measuring: every figure has its share of the machine, for programs, for people and as a drawing.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const MODEL: &str = "models/tales/onnx-genai-int4";

/// Runs `weir` with arguments that have spaces between them, and behind them paths, which may have some.
fn weir(arguments: &str, paths: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .current_dir(root)
        .args(arguments.split_whitespace())
        .args(paths)
        .output()
        .expect("weir starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

/// The kernel of attention, which rounds what it gives for the product behind it.
const ATTENTION: &str = "layer-0/attend, quantise";

#[test]
fn figures_have_their_shares() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let plot = folder.path().join("roofline.svg");
    let plot = plot.to_str().expect("a UTF-8 path");
    let line = format!(
        "bench {MODEL} --context 256 --kv full --prefill 48 --decode 16 --batch 1,3 \
         --batch-context 16 --gen 6 --reps 2 --threads 1 --name t --json --plot"
    );
    let output = weir(&line, &[plot]);
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
    let line = format!(
        "bench {MODEL} --context 128 --prefill 20 --decode 8 --gen 6 --profile --json --threads 2"
    );
    let output = weir(&line, &[]);
    let kernels = lines(&output);
    for metric in ["profile_prefill", "profile_decode"] {
        let of = || kernels.iter().filter(|kernel| kernel["metric"] == metric);
        let parts: f64 = of().filter_map(|kernel| kernel["part"].as_f64()).sum();
        assert!((parts - 1.0).abs() < 1e-6, "{metric}: {parts}");
        let attend = of().find(|kernel| kernel["kernel"] == ATTENTION).expect("attention");
        // Six layers, once a tile or step.
        let calls = if metric == "profile_prefill" { 6 } else { 6 * 5 };
        assert_eq!(attend["calls"], calls, "{attend}");
        assert!(attend["value"].as_f64().is_some_and(|seconds| seconds > 1e-7), "{attend}");
        assert!(attend["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{attend}");
        assert!(of().any(|kernel| kernel["integer_operations"].as_u64() > Some(0)));
    }
}

#[test]
fn caches_take_turns() {
    let line = format!(
        "bench {MODEL} --context 256 --kv full --kv stream,rows=48 --kv-dtype f32 \
         --kv-dtype int8 --decode 100 --batch 2 --batch-context 100 --assume-prompts \
         --gen 8 --reps 1 --threads 1 --json"
    );
    let output = weir(&line, &[]);
    let figures = lines(&output);
    let text = |figure: &Value, key: &str| figure[key].as_str().unwrap_or_default().to_owned();
    for (metric, figures) in ["decode", "decode_total"].into_iter().zip(figures.chunks(4)) {
        let names: Vec<_> = figures
            .iter()
            .map(|one| ["metric", "kv", "kv_dtype"].map(|key| text(one, key)))
            .collect();
        let expected = [
            ("full", "f32"),
            ("full", "int8"),
            ("stream,rows=48", "f32"),
            ("stream,rows=48", "int8"),
        ];
        assert_eq!(names, expected.map(|(kv, dtype)| [metric, kv, dtype].map(str::to_owned)));
        // Half of the rows, or rows of a quarter, beside the same weights.
        let bytes: Vec<_> = figures.iter().filter_map(|one| one["bytes"].as_u64()).collect();
        assert!(bytes[0] > bytes[1] && bytes[0] > bytes[2] && bytes[2] > bytes[3], "{bytes:?}");
        assert!(figures[0]["times_first"].is_null(), "{}", figures[0]);
        for figure in &figures[1..] {
            let of = |key: &str| figure[key].as_f64().expect("a number");
            let [low, median, high] =
                ["times_first_low", "times_first", "times_first_high"].map(of);
            assert!(0.0 < low && low <= median && median <= high, "{figure}");
        }
        // All programs are resident.
        assert!(figures.iter().all(|figure| figure["rss_mb"].is_null()));
    }
    assert_eq!(figures.len(), 8);
}

#[test]
fn profiles_take_turns() {
    let line = format!(
        "bench {MODEL} --context 256 --kv full --kv stream,rows=48 --kv-dtype f32 --decode 100 \
         --batch 2 --batch-context 100 --assume-prompts --gen 8 --reps 2 --threads 1 --profile"
    );
    let output = weir(&format!("{line} --json"), &[]);
    let kernels = lines(&output);
    for metric in ["profile_decode", "profile_decode_total"] {
        let of = |kv: &str| -> Vec<&Value> {
            let is = |kernel: &&Value| kernel["metric"] == metric && kernel["kv"] == kv;
            kernels.iter().filter(is).collect()
        };
        let (first, other) = (of("full"), of("stream,rows=48"));
        let names =
            |of: &[&Value]| of.iter().map(|one| one["kernel"].to_string()).collect::<Vec<_>>();
        assert_eq!(names(&first), names(&other), "{metric}");
        assert!(first.iter().all(|kernel| kernel["times_first"].is_null()), "{metric}");
        for (first, other) in first.iter().zip(&other) {
            let of = |key: &str| other[key].as_f64().expect("a number");
            let [low, median, high] =
                ["times_first_low", "times_first", "times_first_high"].map(of);
            assert!(0.0 < low && low <= median && median <= high, "{other}");
            // The steps of one repetition, and rows of 48 beside those of all.
            assert_eq!(first["calls"], other["calls"], "{other}");
            let [before, after] = [first, other].map(|one| one["bytes"].as_u64());
            if other["kernel"] == ATTENTION {
                assert!(before > after, "{first} {other}");
                assert_eq!(first["calls"], 6 * 7, "{first}");
            } else {
                assert_eq!(before, after, "{first} {other}");
            }
        }
    }
    let tables = weir(&line, &[]);
    let text = String::from_utf8_lossy(&tables.stdout);
    let heads: Vec<_> = text.lines().filter(|line| line.contains(" in kernels")).collect();
    let caches: Vec<_> =
        heads.iter().map(|line| line.contains("cache stream,rows=48 in f32")).collect();
    assert_eq!(caches, [false, false, true, true], "{text}");
    assert_eq!(text.matches("times the first (half of turns)").count(), 2, "{text}");
}

/// Rows of a short prompt are repeated, as many as the model has positions for.
#[test]
fn rows_are_taken_for_granted_in_short_contexts() {
    let line = format!(
        "bench {MODEL} --context 100 --kv full --decode 16 --assume-prompts --gen 4 --reps 1 \
         --threads 1 --json"
    );
    let figures = lines(&weir(&line, &[]));
    let metrics: Vec<_> = figures.iter().filter_map(|figure| figure["metric"].as_str()).collect();
    assert_eq!(metrics, ["decode"]);
}

/// A path without a folder is no name of one of the system's programs.
#[test]
fn a_program_is_started_from_where_it_lies() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let start = |arguments: &[&str], model: &Path| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
        program.current_dir(folder.path()).args(arguments).arg(model).output().expect("weir starts")
    };
    let compiled = start(&["compile", "-o", "true"], &root.join(MODEL));
    let error = String::from_utf8_lossy(&compiled.stderr);
    if !compiled.status.success() {
        assert!(error.contains("WEIR_STUB=skip"), "{error}");
        println!("skipped without the runtime (WEIR_STUB=skip)");
        return;
    }
    let output = start(&["bench", "--ttft", "--reps", "1", "--json"], Path::new("true"));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    assert_eq!(lines(&output)[0]["metric"], "ttft_cold");
}

#[test]
fn a_machine_needs_no_model() {
    let output = weir("bench --machine --json --threads 1", &[]);
    let figures = lines(&output);
    let metrics: Vec<_> = figures.iter().filter_map(|figure| figure["metric"].as_str()).collect();
    for metric in ["read", "f32-fma-256", "int8-maddubs-256"] {
        assert!(metrics.contains(&metric), "{metrics:?}");
    }
    assert!(figures.iter().all(|figure| figure["value"].as_f64() >= figure["median"].as_f64()));
    // So many threads have less than a page each of the smallest working set.
    let figures = lines(&weir("bench --machine --json --threads 5", &[]));
    let sets = |threads: u64| {
        let of = figures.iter().filter(|figure| figure["threads"] == threads);
        of.filter(|figure| figure["metric"] == "read").count()
    };
    assert_eq!((sets(1), sets(5)), (8, 7));
}

#[test]
fn step_times_of_a_model_predict_what_a_server_does() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("steps.json");
    let path = path.to_str().expect("a UTF-8 path");
    // A cache of 24 rows in each layer, so that prompts of 48 are long ones.
    let line = format!(
        "bench {MODEL} --context 128 --kv stream,rows=24 --batch 1,3 --batch-context 6,20,48 \
         --gen 4 --reps 2 --threads 1 --step-times"
    );
    weir(&line, &[path]);
    let text = std::fs::read_to_string(path).expect("step times");
    let times: Value = serde_json::from_str(&text).expect("a JSON object");
    let steps = times["steps"].as_array().expect("steps");
    let sum = |setup: u64, field: &str| -> f64 {
        let of_setup = steps.iter().filter(|step| step["setup"] == setup);
        of_setup.filter_map(|step| step[field].as_f64()).sum()
    };
    // One prompt of 20 rows, then three tokens behind the first; rows up to the row itself are read.
    assert_eq!((sum(1, "prompt_rows"), sum(1, "decode_rows"), sum(1, "tiles")), (20.0, 3.0, 0.0));
    assert_eq!((sum(1, "prompt_attended"), sum(1, "decode_attended")), (210.0, 21.0 + 22.0 + 23.0));
    // A long prompt runs tile by tile through six layers.
    assert_eq!((sum(2, "prompt_rows"), sum(2, "tile_rows")), (0.0, 6.0 * 48.0));
    assert_eq!(sum(2, "tile_attended"), 6.0 * 48.0 * 49.0 / 2.0);
    assert_eq!(sum(5, "tile_rows"), 3.0 * 6.0 * 48.0);
    assert!(steps.iter().all(|step| step["seconds"].as_array().is_some_and(|all| all.len() == 2)));
    let line = "simulate --slots 2 --rate 5 --requests 40 --prompt-tokens 4-60 --answer-tokens 9 \
                --queue 40 --json";
    let output = weir(line, &[path]);
    let prediction = &lines(&output)[0];
    assert_eq!(
        (&prediction["completed"], &prediction["total_output_tokens"]),
        (&40.into(), &360.into())
    );
    assert!(prediction["tiles"].as_u64() > Some(0), "{prediction}");
    for name in ["mean_ttft_ms", "p99_itl_ms", "busy", "rows_per_step", "slots_held"] {
        assert!(
            prediction[name].as_f64().is_some_and(|number| number > 0.0),
            "{name}: {prediction}"
        );
    }
    let kinds: Vec<_> =
        prediction["fit"].as_array().into_iter().flatten().map(|fit| &fit["steps"]).collect();
    assert_eq!(kinds, ["decode", "prompt", "tile"]);
}

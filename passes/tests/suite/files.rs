//! File tests: `tests/files/passes/<pass>/*.ir` hold a graph in front of the pass, a line
//! `; ---- after`, and the graph behind it. `BLESS=1` rewrites what stands behind the line.
//!
//! A header of directives comes first: `; context = 12`, `; kv = full`, `; max_rows = 4`,
//! `; weights = int4`, `; calibrate = 1 2 3 | 4 5` (windows of tokens; `; no_text = why`: nobody asked,
//! and there are none), `; text = 1 2 3 | 4 5` (that keys are measured on). Behind the line the pass's
//! notes come first, as comments. Beyond the text, both graphs are interpreted for a prompt and some
//! steps, and must give the same logits, to 1e-5 or the header's `; tolerance`.
//!
//! Of a graph that the pass must refuse the line is `; ---- refused`, and the error stands behind it, as
//! a comment. The graph is interpreted nevertheless: what is refused has a meaning.

use std::path::{Path, PathBuf};

use weir_ir::attribute::AttributeValue;
use weir_ir::interpret::Session;
use weir_ir::text::{parse, print};
use weir_ir::verify::verify;
use weir_ir::{CacheFormat, Graph, RowFormats};
use weir_passes::Options;
use weir_passes::kv::policy::KvOptions;
use weir_passes::registry::PASSES;
use weir_passes::weights::{Calibration, TextSource, Watch, WeightChoice};

const AFTER: &str = "; ---- after";
const REFUSED: &str = "; ---- refused";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/files/passes")
}

/// Windows of tokens: `1 2 3 | 4 5`.
fn windows(text: &str) -> Vec<Vec<u32>> {
    let window = |window: &str| window.split_whitespace().map(|id| id.parse().unwrap()).collect();
    text.split('|').map(window).collect()
}

fn directives(text: &str) -> (Options, f32) {
    let mut tolerance = 1e-5;
    let mut options = Options {
        context: 12,
        kv: KvOptions::parse("full").unwrap(),
        kv_dtype: None,
        max_rows: 4,
        weights: WeightChoice::default(),
        calibration: None,
        key_text: Vec::new(),
        activations: None,
        model_limit: None,
    };
    for line in text.lines().take_while(|line| line.starts_with(';')) {
        let Some((name, value)) = line.trim_start_matches(';').split_once(" = ") else {
            continue;
        };
        match (name.trim(), value.trim()) {
            ("context", value) => options.context = value.parse().unwrap(),
            ("tolerance", value) => tolerance = value.parse().unwrap(),
            ("max_rows", value) => options.max_rows = value.parse().unwrap(),
            ("kv", value) => options.kv = KvOptions::parse(value).unwrap(),
            ("text", value) => options.key_text = windows(value),
            ("calibrate", value) => {
                let text = TextSource::fixed(windows(value));
                let watch = Watch::default();
                options.calibration = Some(Calibration { text, is_asked_for: true, watch });
            }
            ("no_text", why) => {
                let why = why.to_owned();
                let text = TextSource::new(move |_| Err(why.clone().into()));
                let watch = Watch::default();
                options.calibration = Some(Calibration { text, is_asked_for: false, watch });
            }
            ("kv_dtype", value) => {
                // The ring's, then the block's.
                let mut formats = value.split('/').map(|name| CacheFormat::parse(name).unwrap());
                let ring = formats.next().unwrap();
                options.kv_dtype = Some(RowFormats { ring, block: formats.next() });
            }
            ("weights", value) => options.weights = WeightChoice::parse(value).unwrap(),
            (name, _) => panic!("unknown directive {name:?}"),
        }
    }
    (options, tolerance)
}

fn logits(graph: &Graph) -> Vec<f32> {
    let mut session = Session::new(graph).unwrap();
    let mut rows = session.prefill(&[1, 3, 0, 2, 1]).unwrap().concat();
    for id in [2, 3, 1] {
        rows.extend(session.step(id).unwrap());
    }
    rows
}

fn check(path: &Path, pass: &'static weir_passes::registry::Pass) -> Result<(), String> {
    let text = std::fs::read_to_string(path).unwrap();
    if let Some((before, expected)) = text.split_once(REFUSED) {
        return check_refused(path, pass, before, expected);
    }
    let (before, expected) = text.split_once(AFTER).ok_or("no line \"; ---- after\"")?;
    let mut graph = parse(before).map_err(|error| error.to_string())?;
    let golden = logits(&graph);
    let (options, tolerance) = directives(&text);
    let change = (pass.run)(&mut graph, &options).map_err(|error| error.to_string())?;
    verify(&graph, graph.stage).map_err(|errors| format!("{errors:?}"))?;
    let notes: String = change.notes.iter().map(|note| format!("; {note}\n")).collect();
    let result = notes + &print(&graph);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, format!("{before}{AFTER}\n{result}")).unwrap();
    } else if result.trim() != expected.trim() {
        return Err(format!("the graph behind the pass is another one:\n{result}"));
    }
    let worst = logits(&graph)
        .iter()
        .zip(&golden)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0f32, |worst, next| if next.is_nan() { f32::NAN } else { worst.max(next) });
    if worst <= tolerance { Ok(()) } else { Err(format!("logits differ by {worst:e}")) }
}

fn check_refused(
    path: &Path,
    pass: &'static weir_passes::registry::Pass,
    before: &str,
    expected: &str,
) -> Result<(), String> {
    let mut graph = parse(before).map_err(|error| error.to_string())?;
    verify(&graph, graph.stage).map_err(|errors| format!("{errors:?}"))?;
    logits(&graph);
    let (options, _) = directives(before);
    let Err(error) = (pass.run)(&mut graph, &options) else {
        return Err(format!("the pass does not refuse it:\n{}", print(&graph)));
    };
    let error: String = error.to_string().lines().map(|line| format!("; {line}\n")).collect();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, format!("{before}{REFUSED}\n{error}")).unwrap();
    } else if error.trim() != expected.trim() {
        return Err(format!("the pass refuses it with another error:\n{error}"));
    }
    Ok(())
}

#[test]
fn passes_turn_what_is_before_into_what_is_after() {
    let mut failures = Vec::new();
    for pass in PASSES {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder().join(pass.name))
            .unwrap_or_else(|error| panic!("tests/files/passes/{}: {error}", pass.name))
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "tests/files/passes/{} is empty", pass.name);
        for file in files {
            assert_eq!(file.extension().and_then(|text| text.to_str()), Some("ir"), "{file:?}");
            if let Err(message) = check(&file, pass) {
                failures.push(format!("{}: {message}", file.display()));
            }
        }
    }
    let known: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(&name.as_str()), "tests/files/passes/{name} is no pass");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// A file may hold a hundred thousand of them in a few megabytes.
#[test]
fn a_weight_behind_a_long_chain_is_declined() {
    const CHAIN: usize = 100_000;
    let mut text = String::from(
        "graph @Imported\n\
         const c0 \"embedding\": f32[2, 2] = [-0.625, 0.25, -0.25, 0.625]\n\
         const c1 \"head\": f32[2, 2] = [-0.5, 0.375, -0.125, 0.75]\n\
         main {\n  param v0: i64[1, sequence] \"input_ids\" tokens\n  \
         v1: f32[2, 2] = const() {constant=c0} @ \"embedding\"\n  \
         v2: f32[1, sequence, 2] = gather(v1, v0) {axis=0}\n  \
         v3: f32[2, 2] = const() {constant=c1} @ \"head\"\n",
    );
    for link in 0..CHAIN {
        let (value, from) = (4 + link, 3 + link);
        text += &format!("  v{value}: f32[2, 2] = transpose(v{from}) {{order=[1, 0]}}\n");
    }
    let (last, logits) = (3 + CHAIN, 4 + CHAIN);
    text += &format!("  v{logits}: f32[1, sequence, 2] = matmul(v2, v{last})\n");
    text += &format!("  return v{logits} logits\n}}\n");
    let mut graph = parse(&text).unwrap();
    let pass = PASSES.iter().find(|pass| pass.name == "recognise-linear").unwrap();
    let (options, _) = directives("");
    let change = (pass.run)(&mut graph, &options).unwrap();
    assert_eq!(change.count, 1, "the look-up alone: {:?}", change.notes);
}

/// A sequence whose set is the second reads a row behind the end of a table that has only the first.
#[test]
fn tables_of_different_lengths_are_no_graph() {
    let text = "graph @Canonical\n\
        rotary sets=2 switch=4\n\
        const c0 \"embedding\": f32[2, 2] = [-0.625, 0.25, -0.25, 0.625]\n\
        const c1 \"long\": f32[4, 1] = [0.5, 0.25, -0.25, 0.625]\n\
        const c2 \"short\": f32[2, 1] = [0.5, 0.25]\n\
        main {\n  param v0: i64[sequence] \"tokens\" tokens\n  \
        param v1: i64[sequence] \"positions\" positions\n  \
        v2: f32[2, 2] = const() {constant=c0}\n  v3: f32[4, 1] = const() {constant=c1}\n  \
        v4: f32[2, 1] = const() {constant=c2}\n  \
        v5: f32[sequence, 2] = embed(v0, v2) {to=f32}\n  \
        v6: f32[sequence, 1, 2] = reshape(v5) {shape=[sequence, 1, 2]}\n  \
        v7: f32[sequence, 1, 2] = rotary_rows(v6, v1, v3, v3) {width=2, interleaved=false}\n  \
        v8: f32[sequence, 1, 2] = rotary_rows(v7, v1, v4, v4) {width=2, interleaved=false}\n  \
        v9: f32[sequence, 2] = reshape(v8) {shape=[sequence, 2]}\n  return v9 logits\n}\n";
    let graph = parse(text).unwrap();
    let errors = verify(&graph, graph.stage).unwrap_err();
    let found: Vec<&str> = errors.iter().map(|error| error.message.as_str()).collect();
    assert_eq!(found, ["2 rows of angles, where others have 4"]);
}

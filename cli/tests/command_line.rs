//! The program as a person starts it: what it prints, where, and with which exit code.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use weir_abi::IsaLevel;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn weir(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    program.current_dir(root()).args(arguments).output().expect("weir starts")
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
fn times_are_told_where_inspect_stops() {
    for stop in ["imported", "insert-kv-cache"] {
        let output = weir(&["inspect", "models/tales/onnx", "--stop-after", stop, "--time"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && told.contains(" ms  import\n"), "{stop}: {told}");
        assert_eq!(told.contains(" ms  pass insert-kv-cache\n"), stop != "imported", "{told}");
    }
}

#[test]
fn inspect_says_formats_and_passes_to_programs_too() {
    let output = weir(&["inspect", "tests/fixtures/onnx/qwen2-genai-int8", "--json"]);
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let weights: Vec<_> = facts["weights"].as_array().expect("weights").iter().collect();
    let of = |part: &str| weights.iter().find(|group| group["part"] == part).expect("the part");
    assert_eq!(
        (of("embedding")["format"].as_str(), of("embedding")["bytes"].as_u64()),
        (Some("f32"), Some(512 * 64 * 4))
    );
    // One byte per code, four for the scale of each block of 32.
    let bytes = 512 * 64 + 512 * 2 * 4;
    assert_eq!(
        (of("head")["tensors"].as_u64(), of("head")["bytes"].as_u64()),
        (Some(1), Some(bytes))
    );
    assert_eq!(of("layers")["format"], "int8 in blocks of 32, f32 scales");
    let passes = facts["passes"].as_array().expect("passes");
    let cache = passes.iter().find(|pass| pass["name"] == "insert-kv-cache").expect("the pass");
    assert_eq!(cache["changes"], 2);
}

#[test]
fn code_is_emitted_for_the_levels_that_are_asked_for() {
    let levels = |options: &[&str]| {
        let call = ["compile", "models/tales/onnx-genai-int4", "--emit", "asm", "-o", "-"];
        let output = weir(&[&call, options].concat());
        assert!(output.status.success());
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        let emitted = IsaLevel::ALL.into_iter().map(IsaLevel::name);
        let emitted = emitted.filter(|name| listing.contains(&format!("layer-0-{name}")));
        emitted.collect::<Vec<_>>()
    };
    assert_eq!(levels(&[]), IsaLevel::ALL.map(IsaLevel::name));
    assert_eq!(levels(&["--isa", "avx512,avx2"]), ["portable", "avx2", "avx512"]);
    assert_eq!(levels(&["--isa", "portable"]), ["portable"]);
}

/// A narrowed executable says what it has, runs the best of it, and refuses the rest by name.
#[test]
fn a_narrowed_executable_has_no_other_levels() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("tales");
    let path = path.to_str().expect("a UTF-8 path");
    let model = "models/tales/onnx-genai-int4";
    let compiled = weir(&["compile", model, "--isa", "avx2", "-o", path]);
    if !compiled.status.success() {
        let error = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(error.contains("WEIR_STUB=skip"), "{error}");
        println!("skipped without the runtime (WEIR_STUB=skip)");
        return;
    }
    let start = |arguments: &[&str]| {
        Command::new(path).args(arguments).output().expect("the executable starts")
    };
    let facts = start(&["info", "--json"]).stdout;
    let facts: serde_json::Value = serde_json::from_slice(&facts).expect("JSON");
    assert_eq!(facts["isa_levels"], serde_json::json!(["portable", "avx2"]));
    assert_eq!(facts["isa"], "avx2");
    let told = String::from_utf8_lossy(&start(&["info"]).stdout).into_owned();
    assert!(told.contains("has code for portable, avx2\n"), "{told}");
    let call = ["generate", "--ids", "1,2", "--max-tokens", "2", "--isa"];
    assert!(start(&[&call[..], &["portable"]].concat()).status.success());
    let refused = start(&[&call[..], &["avx512"]].concat());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("this model has no code for avx512, only for portable, avx2"),
        "{error}"
    );
    assert_eq!(refused.status.code(), Some(2));
}

/// Every file in `rendered` begins with a command line; what follows is what it prints and its exit
/// code. OUT stands for an executable that weir has compiled. `BLESS=1` writes the files anew.
#[test]
fn rendered_texts_are_as_reviewed() {
    let compiled = Compiled::new();
    let folder = root().join("cli/tests/rendered");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder of expectations")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = Vec::new();
    for file in files {
        let expected = std::fs::read_to_string(&file).expect("a text");
        let line = expected.lines().next().and_then(|line| line.strip_prefix("$ "));
        let line = line.unwrap_or_else(|| panic!("{}: no command line", file.display()));
        let Some(rendered) = compiled.render(line) else {
            println!("skipped without the runtime (WEIR_STUB=skip): {line}");
            continue;
        };
        if rendered != expected {
            if std::env::var_os("BLESS").is_some() {
                std::fs::write(&file, &rendered).expect("the expectation is written");
            } else {
                wrong.push(format!("{}:\n{rendered}", file.display()));
            }
        }
        assert!(!root().join("x").exists(), "{line} left a file");
    }
    assert!(wrong.is_empty(), "not as reviewed (BLESS=1 rewrites):\n{}", wrong.join("\n"));
}

/// An executable that weir has compiled, if it was built with the runtime that one begins with.
/// What calibration gained is measured beside codes that no text has chosen, by however many tokens.
#[test]
fn calibration_by_a_few_tokens_tells_its_gain() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("tales");
    let path = path.to_str().expect("a UTF-8 path");
    let text = ["--weights", "int4", "--calibrate", "README.md", "--calibrate-tokens", "600"];
    let call = ["compile", "models/tales/onnx", "--context", "64", "-o", path];
    let output = weir(&[&call[..], &text].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("WEIR_STUB=skip") {
        println!("skipped without the runtime (WEIR_STUB=skip)");
        return;
    }
    assert!(output.status.success(), "{error}");
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &error;
    assert!(told.contains("rounded to nearest") && told.contains("calibrated"), "{told}");
}

struct Compiled {
    folder: tempfile::TempDir,
    is_there: bool,
}

impl Compiled {
    fn new() -> Compiled {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let output = folder.path().join("tales");
        let output = output.to_str().expect("a UTF-8 path");
        let compiled = weir(&["compile", "models/tales/onnx-genai-int4", "-o", output]);
        let error = String::from_utf8_lossy(&compiled.stderr);
        let is_there = compiled.status.success();
        assert!(is_there || error.contains("WEIR_STUB=skip"), "{error}");
        Compiled { folder, is_there }
    }

    /// The command line, what it writes to standard output and standard error, and its exit code.
    /// `None` if it needs the executable and there is none.
    fn render(&self, line: &str) -> Option<String> {
        let path = self.folder.path().join("tales");
        let path = path.to_str().expect("a UTF-8 path");
        if line.contains("OUT") && !self.is_there {
            return None;
        }
        let mut words = line.split_whitespace().map(|word| if word == "OUT" { path } else { word });
        let program = match words.next() {
            Some("weir") => env!("CARGO_BIN_EXE_weir"),
            other => other.expect("a program"),
        };
        let mut command = Command::new(program);
        // Help is as wide as this says.
        command.env_remove("COLUMNS");
        let output = command.current_dir(root()).args(words).output().expect("it starts");
        let mut rendered = format!("$ {line}\n");
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text).replace(path, "OUT");
            text.lines().for_each(|line| rendered += &format!("{}\n", line.trim_end()));
        }
        let code = output.status.code().expect("it ended by itself");
        Some(rendered + &format!("-> {code}\n"))
    }
}

#[test]
fn policies_are_measured_beside_a_cache_with_every_row() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (plot, answers) = (folder.path().join("plot.svg"), folder.path().join("answers.jsonl"));
    let output = weir(&[
        "eval",
        "models/tales/onnx",
        "--context=600",
        "--kv=full",
        "--kv=snapstream,rows=600",
        "--kv=stream,rows=64",
        "perplexity:README.md?window=300&prompt=200&limit=9",
        "needle:README.md?length=400&families=single,multikey&documents=3",
        "--json",
        "--plot",
        plot.to_str().expect("a UTF-8 path"),
        "--answers",
        answers.to_str().expect("a UTF-8 path"),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(found["stopped"].is_null());
    let text = &found["perplexity"][0];
    let [full, same, less] = [0, 1, 2].map(|policy| &text["policies"][policy]);
    assert_eq!(full["policy"], "full");
    // A cache with room for everything gives what one without a policy gives.
    assert_eq!(same["perplexity"], full["perplexity"]);
    assert_eq!(same["more_percent"]["high"], 0.0);
    assert_ne!(less["perplexity"], full["perplexity"]);
    let bytes = |policy: &serde_json::Value| policy["cache_bytes"].as_f64().expect("a number");
    assert!(bytes(less) < 0.12 * bytes(full), "{} of {}", bytes(less), bytes(full));
    assert_eq!(text["tokens"].as_u64(), text["passages"].as_u64().map(|passages| passages * 100));
    let answers = std::fs::read_to_string(answers).expect("the answers");
    let answers: Vec<serde_json::Value> =
        answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |policy: &str| -> Vec<&serde_json::Value> {
        answers.iter().filter(|answer| answer["policy"] == policy).collect()
    };
    let told = |policy: &str| -> Vec<&serde_json::Value> {
        of(policy).into_iter().map(|answer| &answer["answer"]).collect()
    };
    assert_eq!(told("full"), told("snapstream,rows=600"));
    assert!(
        told("full").len() >= 6 && of("full").iter().all(|answer| answer["kv_rows_dropped"] == 0)
    );
    assert!(of("stream,rows=64").iter().all(|answer| answer["kv_rows_kept"] == 64));
    let plot = std::fs::read_to_string(plot).expect("the plot");
    assert!(plot.contains("<svg") && plot.contains("stream"), "{plot}");
}

/// Sends a program a Ctrl-C once it has begun, and gives what it has written to its output and as errors. It
/// must end as one that was stopped.
fn stopped_when(mut program: Command, has_begun: impl Fn() -> bool) -> (Vec<u8>, String) {
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = program.spawn().expect("weir starts");
    while !has_begun() && run.try_wait().expect("its state").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let signal = Command::new("sh").args(["-c", &format!("kill -INT {}", run.id())]).status();
    assert!(signal.expect("a shell").success());
    let output = run.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{error}");
    (output.stdout, error)
}

/// A run that is told to stop says what it has measured, and ends as one that was stopped.
#[test]
fn a_stopped_run_says_what_it_has_measured() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let answers = folder.path().join("answers.jsonl");
    // Hours of work, if it were done.
    let tasks = [
        "needle:README.md?length=400&families=single&documents=10000",
        "needle:README.md?length=400&families=multikey&documents=10000",
    ];
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    program.current_dir(root()).args(["eval", "models/tales/onnx", "--context=600"]);
    program.args(["--kv=stream,rows=64", "--json", "--answers"]).arg(&answers).args(tasks);
    let told = || std::fs::read_to_string(&answers).unwrap_or_default().lines().count();
    let (told_at_end, error) = stopped_when(program, || told() > 0);
    let found: serde_json::Value = serde_json::from_slice(&told_at_end).expect("JSON");
    let [full, less] = [0, 1].map(|policy| &found["tasks"][policy]);
    assert_eq!(full["task"], "single");
    assert_eq!(found["tasks"].as_array().map(Vec::len), Some(2), "no task but the first");
    let questions = full["questions"].as_u64().expect("a number");
    assert!(questions > 0 && less["questions"] == questions);
    assert_eq!(told() as u64, 2 * questions, "answers of both caches");
    let stopped = found["stopped"].as_str().expect("a place");
    assert!(stopped.contains(&format!("questions: {questions} of ")), "{stopped}");
    assert!(error.contains(&format!("error: stopped at {stopped}")), "{error}");
}

/// A model that is half written goes when the user wants no more of it.
#[test]
fn a_stopped_model_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    // Gigabytes, if they were written.
    program.args(["make-model", "--shape", "llama-8b", "-o"]).arg(folder.path().join("model"));
    let begun = || {
        let mut within = folder.path().read_dir().expect("the folder").flatten();
        let files = |scratch: std::fs::DirEntry| scratch.path().read_dir().ok();
        let mut files = within.find_map(files).into_iter().flatten().flatten();
        files.any(|file| file.metadata().is_ok_and(|found| found.len() > 20 << 20))
    };
    let (_, error) = stopped_when(program, begun);
    assert!(error.contains("stopped, and nothing was written"), "{error}");
    assert_eq!(folder.path().read_dir().expect("the folder").count(), 0);
}

/// The model that was trained to recall finds its facts with an eighth of the rows, and an answer is
/// over once the value is there.
#[test]
fn facts_are_recalled_with_fewer_rows() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let answers = folder.path().join("answers.jsonl");
    let output = weir(&[
        "eval",
        "models/recall/onnx",
        "--context=2048",
        "--kv=snapstream,rows=256,recent=128",
        "--kv=stream,rows=256",
        "needle:docs/evaluation.md?wording=recall&match=contains&length=1800&families=multikey\
         &documents=2&questions=8&max_tokens=24&key=pair&value=number&noun=code\
         &statement=The%20{a}%20of%20{k}%20is%20{v}.\
         &question=What%20is%20the%20{a}%20of%20{k}%3F%20The%20{a}%20of%20{k}%20is",
        "--quiet",
        "--answers",
        answers.to_str().expect("a UTF-8 path"),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = std::fs::read_to_string(answers).expect("the answers");
    let answers: Vec<serde_json::Value> =
        answers.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let right = |policy: &str| {
        let own = answers.iter().filter(|answer| answer["policy"] == policy);
        own.filter(|answer| answer["score"] == 1.0).collect::<Vec<_>>()
    };
    let [all, few, recent] =
        ["full", "snapstream,rows=256,recent=128", "stream,rows=256"].map(right);
    assert!(all.len() >= 15 && few.len() >= 15, "{} and {} of 16", all.len(), few.len());
    assert!(recent.len() < 8, "{} of 16", recent.len());
    for answer in all.iter().chain(&few) {
        let (text, tokens) = (&answer["answer"], answer["tokens"].as_u64());
        let value = text.as_str().expect("a text").trim();
        assert!(tokens < Some(12) && value.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    }
}

#[test]
fn a_conversation_takes_commands() {
    let arguments = ["run", "models/tales/onnx", "chat", "--max-tokens", "3"];
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    program.current_dir(root()).args(arguments);
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = program.spawn().expect("weir starts");
    let lines = "/help\n/nothing\nHello\n\n/reset\nHello\n/exit\nnever read\n";
    let mut input = chat.stdin.take().expect("its standard input");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    let output = chat.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["/reset  forget", "there is no /nothing", "[cut after --max-tokens 3]"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers: Vec<&str> = answers.lines().collect();
    // The second conversation knows nothing of the first.
    assert!(matches!(answers[..], [first, second] if first == second), "{answers:?}");
}

#[test]
fn prompts_in_files_lose_their_last_line_end() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let ids = |text: &[u8]| {
        let file = folder.path().join("prompt");
        std::fs::write(&file, text).expect("the prompt is written");
        let file = file.to_str().expect("a UTF-8 path");
        let options = ["--prompt", "Once upon a time", "--max-tokens", "4", "--json"];
        weir(&[&["run", "models/tales/onnx", "--prompt-file", file], &options[..]].concat())
    };
    let same = ids(b"Once upon a time\n");
    let answers = String::from_utf8_lossy(&same.stdout).into_owned();
    let answers: Vec<&str> = answers.lines().collect();
    assert!(matches!(answers[..], [first, second] if first == second), "{answers:?}");
    let wrong = ids(b"Once\xff");
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(error.contains("byte 4 is not UTF-8"), "{error}");
}

#[test]
fn a_full_output_is_named() {
    let full = std::fs::File::create("/dev/full").expect("a device without room");
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = program.args(["completions", "bash"]).stdout(full).output().expect("weir starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.starts_with("error: standard output: "), "{error}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weir"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output =
        program.args(["completions", "bash"]).stdout(writer).output().expect("weir starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn completions_are_accepted_by_their_shell() {
    let script = weir(&["completions", "bash"]).stdout;
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("weir");
    std::fs::write(&file, script).expect("the script is written");
    match Command::new("bash").arg("-n").arg(&file).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => println!("skipped: there is no bash"),
    }
}

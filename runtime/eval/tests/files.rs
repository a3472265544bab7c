//! Every `tests/files/*.test` is a test: what a task's name opens to, and how answers score.
//!
//! Lines up to `----` are directives, the rest is what they give; `BLESS=1` rewrites it.
//!
//! * `spec:` the task, with a file beside the test.
//! * `context:` tokens of the context; a token is a word.
//! * `show:` how many cases are printed, all by default.
//! * `answer:` index of a question in the file's order, and an answer to it, `\n` for line breaks; the
//!   score of a settled one must stay whatever follows.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use weir_eval::{Case, Error, Setting, Spec, open};

fn main() {
    let folder = folder();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "test"));
    files.sort();
    let trials = files.into_iter().map(|path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Trial::test(name, move || check(&path))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files")
}

fn check(path: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(path)?;
    let (head, expected) = text.split_once("----\n").ok_or("no line of four dashes")?;
    let found = run(head)?;
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, format!("{head}----\n{found}"))?;
    } else if found != expected {
        return Err(format!("expected\n{expected}\nbut found\n{found}").into());
    }
    Ok(())
}

fn run(head: &str) -> Result<String, Failed> {
    let (mut spec, mut context, mut show, mut answers) = ("", None, usize::MAX, Vec::new());
    for line in head.lines() {
        match line.split_once(": ").ok_or("a directive is `name: value`")? {
            ("spec", value) => spec = value,
            ("context", value) => context = Some(value.parse()?),
            ("show", value) => show = value.parse()?,
            ("answer", value) => {
                let (index, answer) = value.split_once(' ').unwrap_or((value, ""));
                answers.push((index.parse::<usize>()?, answer.replace("\\n", "\n")));
            }
            (name, _) => return Err(format!("no directive `{name}`").into()),
        }
    }
    let (format, file) = spec.split_once(':').ok_or("no spec")?;
    let place = folder().join(file);
    let shorten = |error: Error| error.to_string().replace(&format!("{}/", folder().display()), "");
    let outcome = format!("{format}:{}", place.display()).parse::<Spec>().and_then(|spec| {
        let measure = |text: &str| text.split_whitespace().count();
        let cases = open(&spec, Setting { measure: &measure, context, sandbox: None })?;
        let (documents, questions) = (cases.documents(), cases.questions());
        let cases = cases.collect::<Result<Vec<Case>, Error>>()?;
        assert_eq!(documents, cases.len());
        assert_eq!(questions, cases.iter().map(|case| case.questions.len()).sum::<usize>());
        Ok(cases)
    });
    let cases = match outcome {
        Ok(cases) => cases,
        Err(error) => return Ok(format!("error: {}\n", shorten(error))),
    };
    let mut out = String::new();
    for case in cases.iter().take(show) {
        writeln!(out, "== {}\n{}", case.task, case.document)?;
        for question in &case.questions {
            let (id, tokens, stop) = (&question.id, question.max_tokens, &question.stop);
            writeln!(out, "-- {id}, {tokens} tokens, stop {stop:?}\n{}", question.text)?;
            if !question.begun.is_empty() {
                writeln!(out, "   begun: {:?}", question.begun)?;
            }
            writeln!(out, "   {:?}", question.judge)?;
        }
    }
    let questions: Vec<_> = cases.iter().flat_map(|case| &case.questions).collect();
    for (index, answer) in answers {
        let question = questions.get(index).ok_or("no such question")?;
        let score = question.judge.score(&answer)?;
        let settled = question.judge.is_settled(&answer);
        writeln!(out, "{score:.3} {answer:?}{}", if settled { ", settled" } else { "" })?;
        for more in ["7", "x", "Σ", " 7", "\n7", ".\nx"].into_iter().filter(|_| settled) {
            assert_eq!(score, question.judge.score(&format!("{answer}{more}"))?, "with {more:?}");
        }
    }
    Ok(out)
}

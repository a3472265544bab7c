//! Whatever a file or an answer holds: an error or a score, never a panic.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use weir_eval::{Case, Error, Judge, Setting, Spec, open};

/// Files in their published forms.
const FILES: [(&str, &str, &str); 18] = [
    ("needle", "harbour.txt", "?length=200&documents=1"),
    ("longbench", "longbench.jsonl", ""),
    ("longbench2", "longbench2.json", ""),
    ("ruler", "niah_multikey.jsonl", ""),
    ("gsm8k", "sums.jsonl", "?shots=1"),
    ("aime", "aime.jsonl", ""),
    ("infinitebench", "passkey.jsonl", "?task=passkey"),
    ("infinitebench", "number_string.jsonl", "?task=number_string"),
    ("infinitebench", "kv_retrieval.jsonl", "?task=kv_retrieval"),
    ("infinitebench", "longbook_sum_eng.jsonl", "?task=longbook_sum_eng"),
    ("infinitebench", "longbook_choice_eng.jsonl", "?task=longbook_choice_eng"),
    ("infinitebench", "longbook_qa_eng.jsonl", "?task=longbook_qa_eng"),
    ("infinitebench", "longbook_qa_chn.jsonl", "?task=longbook_qa_chn"),
    ("infinitebench", "longdialogue_qa_eng.jsonl", "?task=longdialogue_qa_eng"),
    ("infinitebench", "math_find.jsonl", "?task=math_find"),
    ("infinitebench", "math_calc.jsonl", "?task=math_calc"),
    ("infinitebench", "code_run.jsonl", "?task=code_run"),
    ("infinitebench", "code_debug.jsonl", "?task=code_debug"),
];

fn place(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(file)
}

fn cases(format: &str, path: &Path, options: &str) -> Result<Vec<Case>, Error> {
    let spec: Spec = format!("{format}:{}{options}", path.display()).parse()?;
    let measure = |text: &str| text.split_whitespace().count();
    let setting = Setting { measure: &measure, context: Some(60_000), sandbox: None };
    open(&spec, setting)?.collect()
}

fn judges() -> Vec<Judge> {
    let all = FILES.iter().flat_map(|(format, file, options)| {
        cases(format, &place(file), options).expect("a file in order")
    });
    all.flat_map(|case| case.questions).map(|question| question.judge).collect()
}

/// Pieces that the rules look for, among any characters.
fn answers() -> impl Strategy<Value = String> {
    let marks = prop::sample::select(vec![
        "The correct answer is ",
        "(",
        ")",
        "A",
        "B",
        "answer is",
        "is:",
        "\\boxed{",
        "}",
        "####",
        "12",
        ".",
        ",",
        "-",
        "é",
        "段落",
        "\n",
        " ",
        "`",
        "😀",
    ]);
    let pieces = prop_oneof![marks.prop_map(str::to_owned), any::<String>()];
    prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn scores_lie_between_wrong_and_right(answer in answers()) {
        for judge in judges() {
            let score = judge.score(&answer).expect("no program is run");
            prop_assert!((0.0..=1.0).contains(&score), "{score} by {judge:?}");
        }
    }

    #[test]
    fn damaged_files_are_refused_or_read(
        index in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let (format, file, options) = FILES[index];
        let mut bytes = std::fs::read(place(file)).expect("a file");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Half of the time the end is missing, too.
        let keep = cut.index(2 * bytes.len());
        bytes.truncate(keep.max(1));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).expect("a file");
        // Either is in order; what is not is a panic.
        let _ = cases(format, &path, options);
    }

    #[test]
    fn task_names_are_refused_or_read(text in "(needle|gsm8k|aime)?:?[a-z/?&=%]{0,20}") {
        let _ = text.parse::<Spec>();
    }
}

//! Published files, where a folder `shared` lies beside the checkout.

use std::path::{Path, PathBuf};

use weir_eval::{Case, Setting, Spec, open};

/// A published file, if it is there.
fn shared(file: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3)?;
    let path = root.join("shared/data").join(file);
    if !path.is_file() {
        println!("no {file} beside the checkout: skipped");
        return None;
    }
    Some(path)
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Opens a file and checks how many documents and questions it has.
fn check(format: &str, file: &str, options: &str, documents: usize, questions: usize) {
    let Some(path) = shared(file) else { return };
    let spec: Spec = format!("{format}:{}{options}", path.display()).parse().expect("a task");
    let cases = open(&spec, Setting { measure: &words, context: None, sandbox: None })
        .expect("a published file");
    assert_eq!((cases.documents(), cases.questions()), (documents, questions), "{file}");
    let cases: Vec<Case> = cases.collect::<Result<_, _>>().expect("all cases");
    assert!(cases.iter().all(|case| !case.document.is_empty() && !case.questions.is_empty()));
}

#[test]
fn longbench() {
    check("longbench", "longbench-v1/multi_news.jsonl", "", 200, 200);
    check("longbench", "longbench-v1/multifieldqa_zh.jsonl", "", 142, 200);
    check("longbench", "longbench-v1/passage_retrieval_zh.jsonl", "", 200, 200);
}

#[test]
fn ruler() {
    check("ruler", "ruler-4k/niah_multikey_3.jsonl", "", 500, 500);
}

#[test]
fn sums() {
    check("gsm8k", "gsm8k/test.jsonl", "?shots=5", 1314, 1314);
    check("gsm8k", "gsm8k/test.jsonl", "?shots=8&limit=20", 20, 20);
    check("aime", "aime24/test.jsonl", "", 30, 30);
}

#[test]
fn needles_in_a_novel() {
    let Some(path) = shared("gutenberg-war-and-peace/war_and_peace.txt") else { return };
    let text = format!("needle:{}?length=3000&documents=2&questions=3", path.display());
    let spec: Spec = text.parse().expect("a task");
    let open =
        || open(&spec, Setting { measure: &words, context: None, sandbox: None }).expect("a text");
    let cases: Vec<Case> = open().collect::<Result<_, _>>().expect("all cases");
    assert_eq!(cases.len(), 18);
    for case in &cases {
        let length = words(&case.document);
        assert!((2900..=3000).contains(&length), "{}: {length} words", case.task);
    }
    let again: Vec<Case> = open().collect::<Result<_, _>>().expect("all cases");
    assert_eq!(cases, again);
}

//! RULER (Hsieh et al., *RULER: what's the real context size of your long-context language models?*,
//! 2024), as its generator writes files: `input` is the whole prompt, `outputs` are what must occur
//! in the answer, `answer_prefix`, where it is split off, follows the prompt.
//!
//! A prompt's last line is the question, what stands in front of it the document: all thirteen tasks
//! are laid out so. Files are named by task, or are called `validation.jsonl` in a folder that is.

use std::path::Path;

use crate::cases::{Item, Loader};
use crate::records::Record;
use crate::spec::Options;
use crate::{Error, Judge, Question, Spec};

pub(crate) fn loader(spec: &Spec, options: &Options<'_>) -> (usize, Loader) {
    let task = options.text("task").map_or_else(|| task_of(&spec.path), str::to_owned);
    (0, Box::new(move |record| item(record, &task)))
}

fn task_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().and_then(Path::file_name);
    match folder {
        Some(folder) if stem == "validation" || stem == "test" => {
            folder.to_string_lossy().into_owned()
        }
        _ => stem,
    }
}

fn item(record: &Record<'_>, task: &str) -> Result<Item, Error> {
    let input = record.text("input")?;
    let prefix = match record.find("answer_prefix") {
        Some(_) => record.text("answer_prefix")?,
        None => "",
    };
    let end = input.trim_end().rfind('\n').unwrap_or(0);
    let (document, question) = input.split_at(end);
    if question.is_empty() && prefix.is_empty() {
        return Err(record.wrong("input", "empty"));
    }
    let truths = record.texts("outputs")?;
    let judge = if task.starts_with("qa") {
        Judge::ContainsAny(truths)
    } else {
        Judge::ContainsAll(truths)
    };
    Ok(Item {
        task: task.to_owned(),
        document: document.to_owned(),
        question: Question {
            id: record.id(&["index"]),
            text: format!("{question}{prefix}"),
            begun: String::new(),
            judge,
            max_tokens: tokens(task),
            stop: Vec::new(),
        },
    })
}

/// Tokens that the published runs generate.
fn tokens(task: &str) -> usize {
    match task.split('_').next() {
        Some("vt" | "variable") => 30,
        Some("cwe" | "common") => 120,
        Some("fwe" | "freq") => 50,
        Some("qa") => 32,
        _ => 128,
    }
}

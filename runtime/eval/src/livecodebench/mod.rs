//! LiveCodeBench (Jain et al., *LiveCodeBench: holistic and contamination free evaluation of large
//! language models for code*, 2024), code generation: `question_title`, `question_content`,
//! `platform`, `question_id`, `starter_code`, `difficulty`, `public_test_cases`,
//! `private_test_cases`, `metadata`.
//!
//! The prompt is the published generic one. A program is right if it passes all public and private
//! tests; each runs in a process of its own ([`crate::Sandbox`]), for six seconds at most as in the
//! published runner.

mod checks;

pub use checks::Program;
use checks::checks;

use std::sync::Arc;

use serde_json::Value;

use crate::cases::{Item, Loader};
use crate::records::Record;
use crate::{Error, Judge, Question, Sandbox};

const SYSTEM: &str = "You are an expert Python programmer. You will be given a question (problem \
                      specification) and will generate a correct Python program that matches the \
                      specification and passes all tests. You will NOT return anything except for \
                      the program.";
const WITH_STARTER: &str = "You will use the following starter code to write the solution to the \
                            problem and enclose your code within delimiters.";
const WITHOUT_STARTER: &str = "Read the inputs from stdin solve the problem and write the answer \
                               to stdout (do not directly test on the sample inputs). Enclose \
                               your code within delimiters as follows.";

pub(crate) fn loader(sandbox: Option<&Sandbox>) -> Result<(usize, Loader), Error> {
    let sandbox = Arc::new(sandbox.ok_or(Error::ProgramsNotAllowed)?.clone());
    Ok((0, Box::new(move |record| item(record, &sandbox))))
}

fn item(record: &Record<'_>, sandbox: &Arc<Sandbox>) -> Result<Item, Error> {
    let content = record.text("question_content")?;
    let starter = record.text("starter_code")?;
    let (format, code) = match starter {
        "" => (WITHOUT_STARTER, "# YOUR CODE HERE"),
        starter => (WITH_STARTER, starter),
    };
    let mut all = checks(record, "public_test_cases")?;
    all.extend(checks(record, "private_test_cases")?);
    if all.is_empty() {
        return Err(record.wrong("private_test_cases", "no tests, private or public"));
    }
    let function = function(record)?;
    if let (Some(check), None) = (all.iter().find(|check| check.calls), &function) {
        let reason = format!("no func_name for the test with input {:?}", check.input);
        return Err(record.wrong("metadata", reason));
    }
    let program = Program { checks: all, function, sandbox: sandbox.clone() };
    Ok(Item {
        task: "livecodebench".into(),
        document: format!("{SYSTEM}\n\n### Question:\n{content}\n\n"),
        question: Question {
            id: record.id(&["question_id", "question_title"]),
            text: format!(
                "### Format: {format}\n```python\n{code}\n```\n\n### Answer: (use the provided \
                 format with backticks)\n\n"
            ),
            begun: String::new(),
            judge: Judge::Program(Arc::new(program)),
            max_tokens: 2000,
            stop: Vec::new(),
        },
    })
}

/// The function that tests call, if they call one.
fn function(record: &Record<'_>) -> Result<Option<String>, Error> {
    let metadata: Value = serde_json::from_str(record.text("metadata")?)
        .map_err(|error| record.wrong("metadata", error.to_string()))?;
    Ok(metadata.get("func_name").and_then(Value::as_str).map(str::to_owned))
}

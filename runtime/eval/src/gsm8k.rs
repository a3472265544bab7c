//! GSM8K (Cobbe et al., *Training verifiers to solve math word problems*, 2021): `question` and
//! `answer`, the solution ending with `#### ` and the number.
//!
//! The file comes without a prompt. Ours is the usual one: worked examples, `Question:`, `Answer:`.
//! The examples are the file's first records, which are then not asked; the test file serves for
//! both, since nothing is trained.

use crate::cases::{Item, Loader};
use crate::records::{Record, Records};
use crate::spec::Options;
use crate::{Error, Judge, Question};

/// The first record to be asked, and what makes items.
pub(crate) fn loader(records: &Records, options: &Options<'_>) -> Result<(usize, Loader), Error> {
    let shots = options.number("shots", 5, 0..=64)?.min(records.len());
    let mut examples = String::new();
    for index in 0..shots {
        let record = records.get(index)?;
        let (question, answer) = (record.text("question")?, record.text("answer")?);
        number(&record)?;
        examples += &format!("Question: {question}\nAnswer: {}\n\n", without_marks(answer));
    }
    if shots == 0 {
        examples =
            "Solve the problem step by step. Write #### and the number at the end.\n\n".into();
    }
    Ok((shots, Box::new(move |record| item(record, &examples))))
}

fn item(record: &Record<'_>, examples: &str) -> Result<Item, Error> {
    let question = record.text("question")?;
    Ok(Item {
        task: "gsm8k".into(),
        document: format!("{examples}Question: {question}\n"),
        question: Question {
            id: record.id(&["idx"]),
            text: "Answer:".into(),
            begun: String::new(),
            judge: Judge::LastNumber(number(record)?),
            max_tokens: 512,
            stop: vec!["\nQuestion:".into(), "\n\n".into()],
        },
    })
}

/// What stands behind `####`.
fn number(record: &Record<'_>) -> Result<String, Error> {
    let answer = record.text("answer")?;
    let behind = answer.rsplit_once("####").map(|(_, number)| number.trim().replace(',', ""));
    behind
        .filter(|number| number.parse::<f64>().is_ok())
        .ok_or_else(|| record.wrong("answer", "no number behind `####`"))
}

/// Solutions carry the calculator's marks, `<<48/2=24>>`, which models are not meant to write.
fn without_marks(answer: &str) -> String {
    let mut parts = answer.split("<<");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(">>").map_or(part, |(_, rest)| rest))
}

//! AIME: problems of the American Invitational Mathematics Examination, whose answers are integers
//! from 0 to 999. Files of several publishers are read: the problem is `problem`, `question` or
//! `Problem`, the answer `answer` or `Answer`, as text with or without leading zeros or as a number.

use serde_json::Value;

use crate::cases::Item;
use crate::records::Record;
use crate::{Error, Judge, Question};

pub(crate) fn item(record: &Record<'_>) -> Result<Item, Error> {
    let problem = record.text_of(&["problem", "question", "Problem"])?;
    Ok(Item {
        task: "aime".into(),
        document: format!("{problem}\n"),
        question: Question {
            id: record.id(&["id", "ID"]),
            text: "Please reason step by step, and put your final answer within \\boxed{}.\n"
                .into(),
            begun: String::new(),
            judge: Judge::Boxed(answer(record)?),
            // Chains of thought are long; `max_tokens` makes them shorter.
            max_tokens: 32_768,
            stop: Vec::new(),
        },
    })
}

fn answer(record: &Record<'_>) -> Result<u32, Error> {
    let field = if record.find("answer").is_some() { "answer" } else { "Answer" };
    let number = match record.value(field)? {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    number
        .filter(|number| *number < 1000)
        .ok_or_else(|| record.wrong(field, "not an integer from 0 to 999"))
}

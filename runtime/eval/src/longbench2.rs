//! LongBench v2 (Bai et al., *LongBench v2: towards deeper understanding and reasoning on realistic
//! long-context multitasks*, 2024): `_id`, `domain`, `sub_domain`, `difficulty`, `length`,
//! `question`, `choice_A` to `choice_D`, `answer`, `context`.
//!
//! Prompt and answer form are those of the published zero-shot run (`0shot.txt`, MIT, THUDM). Tasks
//! are the domains, or with `by=difficulty` or `by=length` what these fields say.

use crate::cases::{Item, Loader};
use crate::records::Record;
use crate::spec::Options;
use crate::{Error, Judge, Question};

pub(crate) fn loader(options: &Options<'_>) -> Result<(usize, Loader), Error> {
    let fields = [("domain", "domain"), ("difficulty", "difficulty"), ("length", "length")];
    let by = options.choice("by", "domain", &fields)?;
    Ok((0, Box::new(move |record| item(record, by))))
}

fn item(record: &Record<'_>, by: &str) -> Result<Item, Error> {
    let choice = |letter: char| {
        let text = record.text(&format!("choice_{letter}"))?;
        Ok::<String, Error>(format!("({letter}) {}\n", text.trim()))
    };
    let choices = "ABCD".chars().map(choice).collect::<Result<String, Error>>()?;
    let mut answer = record.text("answer")?.chars();
    let letter = match (answer.next(), answer.next()) {
        (Some(letter @ 'A'..='D'), None) => letter,
        _ => return Err(record.wrong("answer", "not a letter from A to D")),
    };
    Ok(Item {
        task: record.text(by)?.to_owned(),
        document: format!(
            "Please read the following text and answer the question below.\n\n<text>\n{}\n</text>",
            record.text("context")?.trim()
        ),
        question: Question {
            id: record.id(&["_id"]),
            text: format!(
                "\n\nWhat is the correct answer to this question: {}\nChoices:\n{choices}\nFormat \
                 your response as follows: \"The correct answer is (insert answer here)\".",
                record.text("question")?.trim()
            ),
            begun: String::new(),
            judge: Judge::StatedLetter(letter),
            max_tokens: 128,
            stop: Vec::new(),
        },
    })
}

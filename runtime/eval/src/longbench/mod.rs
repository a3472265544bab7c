//! LongBench (Bai et al., *LongBench: a bilingual, multitask benchmark for long context
//! understanding*, 2023): `input`, `context`, `answers`, `all_classes`, `dataset`, `_id`.
//!
//! The subset named in `dataset` decides on prompt, length of the answer and metric. `_e` subsets
//! are those of LongBench-E with the same of everything.

mod subsets;

use subsets::{Metric, SUBSETS, Subset};

use crate::cases::Item;
use crate::records::Record;
use crate::{Error, Judge, Question};

pub(crate) fn item(record: &Record<'_>) -> Result<Item, Error> {
    let dataset = record.text("dataset")?;
    let name = dataset.strip_suffix("_e").unwrap_or(dataset);
    let subset = SUBSETS
        .iter()
        .find(|subset| subset.name == name)
        .ok_or_else(|| record.wrong("dataset", format!("no subset `{dataset}`")))?;
    let (before, after) = subset.prompt.split_once("{context}").unwrap_or(("", subset.prompt));
    Ok(Item {
        task: dataset.to_owned(),
        document: format!("{before}{}", record.text("context")?),
        question: Question {
            id: record.id(&["_id"]),
            text: after.replace("{input}", record.text("input")?),
            begun: String::new(),
            judge: judge(record, subset)?,
            max_tokens: subset.tokens,
            // The published program ends only these at a line break.
            stop: if name == "samsum" { vec!["\n".into()] } else { Vec::new() },
        },
    })
}

fn judge(record: &Record<'_>, subset: &Subset) -> Result<Judge, Error> {
    let truths = record.texts("answers")?;
    let judge = match subset.metric {
        Metric::WordF1 => Judge::WordF1(truths),
        Metric::CharacterF1 => Judge::CharacterF1(truths),
        Metric::RougeL => Judge::RougeL(truths),
        Metric::CharacterRougeL => Judge::CharacterRougeL(truths),
        Metric::CodeLine => Judge::CodeLine(truths),
        Metric::Class => Judge::Class { truths, classes: record.texts("all_classes")? },
        Metric::Number => Judge::Number(number(record, &truths, "")?),
        Metric::Paragraph => Judge::Number(number(record, &truths, "Paragraph ")?),
        Metric::ParagraphZh => Judge::Number(number(record, &truths, "段落")?),
    };
    Ok(if subset.first_line { Judge::FirstLine(Box::new(judge)) } else { judge })
}

/// The number in the first answer, behind a word.
fn number(record: &Record<'_>, truths: &[String], word: &str) -> Result<String, Error> {
    let digits = truths[0].trim().strip_prefix(word).filter(|digits| digits.parse::<u32>().is_ok());
    digits
        .map(str::to_owned)
        .ok_or_else(|| record.wrong("answers", format!("`{}` is not `{word}NUMBER`", truths[0])))
}

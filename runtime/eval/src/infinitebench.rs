//! ∞Bench (Zhang et al., *∞Bench: extending long context evaluation beyond 100K tokens*, 2024):
//! `id`, `context`, `input`, `answer`, `options`; the file's name is the task's.
//!
//! Prompts are those published for models that continue text (the set `yarn_mistral`, MIT,
//! OpenBMB), which lead into the answer; lengths of answers are the published ones. `math_find`'s
//! prompt is written for one list at a time and begins with the question, as the published program
//! does it.

use serde_json::Value;

use crate::cases::{Item, Loader};
use crate::records::Record;
use crate::spec::Options;
use crate::{Error, Judge, Question, Spec};

/// A task of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    PassKey,
    NumberString,
    KvRetrieval,
    BookSummary,
    BookChoice,
    BookQuestion,
    BookQuestionZh,
    Dialogue,
    MathFind,
    MathCalc,
    CodeRun,
    CodeDebug,
}

/// Name, task and tokens of an answer.
const TASKS: [(&str, Task, usize); 12] = [
    ("passkey", Task::PassKey, 6),
    ("number_string", Task::NumberString, 12),
    ("kv_retrieval", Task::KvRetrieval, 50),
    ("longbook_sum_eng", Task::BookSummary, 1200),
    ("longbook_choice_eng", Task::BookChoice, 40),
    ("longbook_qa_eng", Task::BookQuestion, 40),
    ("longbook_qa_chn", Task::BookQuestionZh, 40),
    ("longdialogue_qa_eng", Task::Dialogue, 40),
    ("math_find", Task::MathFind, 3),
    ("math_calc", Task::MathCalc, 30_000),
    ("code_run", Task::CodeRun, 5),
    ("code_debug", Task::CodeDebug, 5),
];

const PASS_KEY: &str = "There is an important info hidden inside a lot of irrelevant text. Find it \
                        and memorize them. I will quiz you about the important information \
                        there.\n\n";
const NUMBER_STRING: &str = "There is an important info hidden inside a lot of irrelevant text. \
                             Find it. I will quiz you about the important information there.\n\n";
const KV: &str =
    "Extract the value corresponding to the specified key in the JSON object below.\n\n";
const CALC: &str = "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + \
                    3 + 4\nValues: [1, 4, 8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, \
                    3]\n\nExpression: ";
const DIALOGUE: &str = "Below is a dialogue script where one random occurrence of a character name \
                        is replaced with \"$$MASK$$\", and you should try to guess who that \
                        character is.\n\n";
const DEBUG: &str = "Following is a Python code where exactly one of the functions/methods has a \
                     deliberate error that makes it crash.\n\n";
const BOOK: &str = "Read the book and answer the question.\n\n";

pub(crate) fn loader(spec: &Spec, options: &Options<'_>) -> Result<(usize, Loader), Error> {
    let stem = spec.path.file_stem().unwrap_or_default().to_string_lossy();
    let name = options.text("task").unwrap_or(&stem);
    let (name, task, tokens) =
        *TASKS.iter().find(|(known, ..)| *known == name).ok_or_else(|| {
            let known: Vec<&str> = TASKS.iter().map(|(known, ..)| *known).collect();
            options.wrong(format!("no task `{name}`; task=NAME, one of {}", known.join(", ")))
        })?;
    Ok((0, Box::new(move |record| item(record, name, task, tokens))))
}

fn item(record: &Record<'_>, name: &str, task: Task, tokens: usize) -> Result<Item, Error> {
    let context = record.text("context")?;
    let (before, after) = prompt(record, task)?;
    Ok(Item {
        task: name.to_owned(),
        document: format!("{before}{context}"),
        question: Question {
            id: record.id(&["id"]),
            text: after,
            begun: String::new(),
            judge: judge(record, task)?,
            max_tokens: tokens,
            stop: Vec::new(),
        },
    })
}

/// What stands in front of the context and behind it.
fn prompt(record: &Record<'_>, task: Task) -> Result<(String, String), Error> {
    let input = record.text("input")?;
    let (before, after) = match task {
        Task::PassKey => (PASS_KEY, format!("{input}\n\nThe pass key is")),
        Task::NumberString => (NUMBER_STRING, format!("{input}\n\nThe sequence of digits is")),
        Task::KvRetrieval => (KV, input.to_owned()),
        Task::BookSummary => ("Summarize the book below.\n\n", "Summary:".into()),
        Task::BookChoice => {
            let options = lettered(record)?;
            (BOOK, format!("Question: {input}\n{options}\n\nThe letter of the correct answer is"))
        }
        Task::BookQuestion => (
            "Read the book and answer the question. Be very concise in your answer.\n\n",
            format!("Question: {input}\nAnswer:"),
        ),
        Task::BookQuestionZh => {
            ("阅读以下书籍然后回答问题。\n\n", format!("问题：{input}\n答案："))
        }
        Task::Dialogue => {
            (DIALOGUE, "The name that has been replaced with $$MASK$$ is likely".into())
        }
        Task::MathFind => {
            let wanted = input.split_once("The ").and_then(|(_, rest)| rest.split_once(" of"));
            let (wanted, _) = wanted.ok_or_else(|| lost(record, "The … of"))?;
            let before = format!("What is the {wanted} in the following list?\n\n");
            return Ok((before, format!("\n\n{input}")));
        }
        Task::MathCalc => return Ok((CALC.into(), "\nValues:".into())),
        Task::CodeRun => {
            let call = call(input).ok_or_else(|| lost(record, "func_…(…)"))?;
            let function = call.split('(').next().unwrap_or_default();
            return Ok((
                format!("There is a function called {function} in the following Python code.\n\n"),
                format!("\n\nPlease compute the exact value of {call}. The value of {call} is"),
            ));
        }
        Task::CodeDebug => {
            (DEBUG, format!("Options:\n{}\n\nThe correct option is:", lettered(record)?))
        }
    };
    Ok((before.to_owned(), format!("\n\n{after}")))
}

fn lost(record: &Record<'_>, what: &str) -> Error {
    record.wrong("input", format!("no `{what}` in it"))
}

/// The first call like `func_12(-3)`.
fn call(input: &str) -> Option<&str> {
    let starts = input.match_indices("func_").map(|(at, _)| &input[at..]);
    starts.into_iter().find_map(|rest| {
        let open = rest.find('(')?;
        let close = open + rest[open..].find(')')?;
        let name = rest["func_".len()..open].bytes().all(|byte| byte.is_ascii_digit());
        let argument = rest[open + 1..close].parse::<i64>().is_ok();
        (name && argument).then(|| &rest[..=close])
    })
}

fn options_of(record: &Record<'_>) -> Result<Vec<String>, Error> {
    let options = record.texts("options")?;
    match options.len() {
        4 => Ok(options),
        count => Err(record.wrong("options", format!("{count} of them, not 4"))),
    }
}

fn lettered(record: &Record<'_>) -> Result<String, Error> {
    let options = options_of(record)?;
    let lines =
        options.iter().zip("ABCD".chars()).map(|(text, letter)| format!("{letter}. {text}"));
    Ok(lines.collect::<Vec<String>>().join("\n"))
}

fn judge(record: &Record<'_>, task: Task) -> Result<Judge, Error> {
    Ok(match task {
        Task::PassKey | Task::NumberString => Judge::FirstInteger(one(record)?),
        Task::KvRetrieval => Judge::Word { truths: vec![one(record)?], exact_case: true },
        Task::BookSummary => Judge::RougeL(answers(record)?),
        Task::BookQuestion => Judge::WordF1(answers(record)?),
        Task::BookQuestionZh => Judge::CharacterF1(answers(record)?),
        Task::Dialogue => Judge::Word { truths: vec![one(record)?], exact_case: false },
        Task::MathFind => {
            let number = one(record)?.parse::<f64>().ok().filter(|number| number.is_finite());
            Judge::FirstNumber(number.ok_or_else(|| record.wrong("answer", "not a number"))?)
        }
        Task::MathCalc => {
            let numbers = answers(record)?.iter().map(|n| n.parse::<i64>().ok()).collect();
            let numbers: Option<Vec<i64>> = numbers;
            let wrong = || record.wrong("answer", "not a list of integers");
            // Signs are lost in the published comparison, so they are here.
            Judge::Sequence(numbers.ok_or_else(wrong)?.iter().map(|n| n.unsigned_abs()).collect())
        }
        Task::CodeRun => {
            let number = one(record)?.parse().ok();
            Judge::FinalInteger(number.ok_or_else(|| record.wrong("answer", "not an integer"))?)
        }
        Task::BookChoice | Task::CodeDebug => {
            let (options, answer) = (options_of(record)?, one(record)?);
            let place = options.iter().position(|option| *option == answer);
            let place = place.or_else(|| ["A", "B", "C", "D"].iter().position(|l| *l == answer));
            let place = place.ok_or_else(|| record.wrong("answer", "not among the options"))?;
            let letter = ['A', 'B', 'C', 'D'][place];
            Judge::Option { letter, text: options[place].clone() }
        }
    })
}

/// `answer` as texts: one or an array of texts and numbers.
fn answers(record: &Record<'_>) -> Result<Vec<String>, Error> {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let value = record.value("answer")?;
    let texts = match value.as_array() {
        Some(entries) => entries.iter().map(plain).collect::<Option<Vec<String>>>(),
        None => plain(value).map(|text| vec![text]),
    };
    let texts = texts.filter(|texts| !texts.is_empty());
    texts.ok_or_else(|| record.wrong("answer", "neither text, number nor an array of these"))
}

fn one(record: &Record<'_>) -> Result<String, Error> {
    Ok(answers(record)?.swap_remove(0))
}

//! Documents and questions: every policy answers, every answer is scored.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;
use weir_eval::{Case, Cases, Policy, Question, Setting, Spec, Summary, Tally};

use super::Ticker;
use super::stop::Stop;
use crate::comparison::{Answered, Asked, Comparison};
use crate::text::TextStream;
use crate::{Model, RuntimeError};

/// Where every answer is written, if anybody wants to read them.
pub(super) struct Answers<'p> {
    path: &'p Path,
    file: BufWriter<File>,
}

/// What the user wants of the answers.
pub(super) struct How<'p> {
    /// Where every answer is written.
    pub answers: Option<Answers<'p>>,
    /// When there are enough.
    pub stop: &'p Stop,
}

/// Reads a task's file.
pub(super) fn open<'s>(spec: &Spec, setting: Setting<'s>) -> Result<Cases<'s>, RuntimeError> {
    weir_eval::open(spec, setting).map_err(wrong)
}

/// Asks all questions of all tasks, or as many as the user waits for.
pub(super) fn measure(
    model: &Model,
    comparison: &mut Comparison,
    policies: &[Policy],
    tasks: Vec<(&Spec, Cases<'_>)>,
    how: How<'_>,
) -> Result<Summary, RuntimeError> {
    let How { mut answers, stop } = how;
    let mut tally = Tally::new(policies.to_vec());
    'tasks: for (spec, cases) in tasks {
        let mut ticker = Ticker::new(format!("{spec}, questions"), cases.questions());
        let mut done = 0;
        for case in cases {
            if stop.ends(|| ticker.place(done)) {
                break 'tasks;
            }
            let case = case.map_err(wrong)?;
            let scores = ask(model, comparison, &case, answers.as_mut())?;
            done += scores.len();
            tally.add(&case.task, &scores);
            answers.as_mut().map_or(Ok(()), Answers::flush)?;
            ticker.at(done);
        }
    }
    Ok(tally.summary())
}

/// Asks all questions of a document; per question and policy a score.
fn ask(
    model: &Model,
    comparison: &mut Comparison,
    case: &Case,
    mut answers: Option<&mut Answers<'_>>,
) -> Result<Vec<Vec<f64>>, RuntimeError> {
    let tokenizer = model.need_tokenizer()?;
    let mut asked = Vec::with_capacity(case.questions.len());
    for question in &case.questions {
        let prompt = model.encode(&format!("{}{}", case.document, question.text))?;
        let begun = model.encode_plain(&question.begun)?;
        asked.push(Asked { prompt, begun, max_tokens: question.max_tokens as u32 });
    }
    let eos = &model.facts().eos_token_ids;
    let arms = comparison.arms().len();
    let mut texts: Vec<Vec<(TextStream, String)>> = case
        .questions
        .iter()
        .map(|question| {
            let stream = TextStream::new(tokenizer, question.stop.clone(), Vec::new());
            vec![(stream, String::new()); arms]
        })
        .collect();
    let answered = comparison.answer(&asked, &mut |question, arm, token| {
        let (stream, text) = &mut texts[question][arm];
        eos.contains(&token)
            || stream.push(token, text).is_some()
            || case.questions[question].judge.is_settled(text)
    })?;
    let mut scores = Vec::with_capacity(case.questions.len());
    for ((question, texts), answered) in case.questions.iter().zip(&mut texts).zip(&answered) {
        let mut own = Vec::with_capacity(arms);
        for (arm, (stream, text)) in texts.iter_mut().enumerate() {
            stream.finish(text);
            let score = question.judge.score(text).map_err(wrong)?;
            if let Some(answers) = answers.as_deref_mut() {
                let name = &comparison.arms()[arm].name;
                answers.write(case, question, name, text, score, &answered[arm])?;
            }
            own.push(score);
        }
        scores.push(own);
    }
    Ok(scores)
}

/// What is wrong with a task, its file or a program.
fn wrong(error: weir_eval::Error) -> RuntimeError {
    match error {
        weir_eval::Error::ProgramsNotAllowed => {
            RuntimeError::Options(format!("{error}; --run-programs does"))
        }
        error => RuntimeError::Options(error.to_string()),
    }
}

impl<'p> Answers<'p> {
    pub(super) fn create(path: &'p Path) -> Result<Answers<'p>, RuntimeError> {
        let place = |source| RuntimeError::File { path: path.to_owned(), source };
        Ok(Answers { path, file: BufWriter::new(File::create(path).map_err(place)?) })
    }

    fn write(
        &mut self,
        case: &Case,
        question: &Question,
        policy: &str,
        answer: &str,
        score: f64,
        answered: &Answered,
    ) -> Result<(), RuntimeError> {
        let line = json!({
            "task": case.task,
            "id": question.id,
            "question": question.text,
            "begun": question.begun,
            "policy": policy,
            "answer": answer,
            "score": score,
            "tokens": answered.ids.len(),
            "kv_rows_kept": answered.rows.kept,
            "kv_rows_dropped": answered.rows.dropped,
        });
        writeln!(self.file, "{line}").map_err(|error| self.place(error))
    }

    /// Whoever reads along sees whole documents.
    fn flush(&mut self) -> Result<(), RuntimeError> {
        self.file.flush().map_err(|error| self.place(error))
    }

    fn place(&self, source: std::io::Error) -> RuntimeError {
        RuntimeError::File { path: self.path.to_owned(), source }
    }
}

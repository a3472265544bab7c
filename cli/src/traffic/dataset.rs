//! What is asked: one prompt, the prompts of a file, or passages of a text.
//!
//! The file's name says its format: `.jsonl` has a JSON object a line, `.json` an array of them, and
//! anything else is text. An object has a `prompt`, `messages`, or `conversations` as ShareGPT has
//! them, of which the first turn is asked. Files are read and checked as a whole before the first
//! request, and prompts are taken in order, over and over, through all rates of a run: a server that
//! keeps what it has computed would be measured asking the same again.

use std::path::Path;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::Value;

use super::Draws;
use super::arrivals::Wanted;
use crate::failure::Failure;

/// Tokens of a word of English prose, roughly, for passages of a given number of tokens: there is no
/// tokenizer here. Results count what the server says.
const TOKENS_PER_WORD: f64 = 1.3;

/// What a request is.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A conversation, through the model's template
    Chat,
    /// A text to continue, as it is
    Completions,
}

impl Endpoint {
    /// Its name behind the version.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat/completions",
            Endpoint::Completions => "completions",
        }
    }
}

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text to continue, or what a user says.
    Text(String),
    /// A conversation.
    Messages(Value),
}

/// A prompt with what is known of its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The prompt.
    pub prompt: Prompt,
    /// Most tokens of the answer, if the file says so.
    pub max_tokens: Option<u32>,
}

/// Where prompts come from.
pub struct Prompts {
    source: Source,
    taken: usize,
}

enum Source {
    Same(String),
    Listed(Vec<Question>),
    Passages { passages: Box<Passages>, words: usize },
}

/// Passages of a text.
struct Passages {
    text: String,
    /// Where its words begin.
    starts: Vec<usize>,
    draws: Draws,
}

/// An object of a file.
#[derive(Deserialize)]
struct Record {
    prompt: Option<String>,
    messages: Option<Value>,
    conversations: Option<Vec<Turn>>,
    max_tokens: Option<u32>,
}

/// A turn as ShareGPT writes it.
#[derive(Deserialize)]
struct Turn {
    from: String,
    value: String,
}

impl Prompts {
    /// One prompt for all.
    pub fn same(prompt: String) -> Prompts {
        Prompts { source: Source::Same(prompt), taken: 0 }
    }

    /// The prompts of a file. Passages of a text have so many words and are cut at places that `draws`
    /// gives.
    pub fn read(
        path: &Path,
        endpoint: Endpoint,
        words: usize,
        draws: Draws,
    ) -> Result<Prompts, Failure> {
        let place = |reason: &dyn std::fmt::Display| {
            Failure::usage(format!("--dataset {}: {reason}", path.display()))
        };
        let content = std::fs::read_to_string(path).map_err(|error| place(&error))?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        let source = match extension {
            Some("jsonl") => listed(lines(&content, endpoint)),
            Some("json") => listed(array(&content, endpoint)),
            _ => Passages::new(content, draws).and_then(|passages| {
                passages.check(words).map_err(|reason| format!("--prompt-words: {reason}"))?;
                Ok(Source::Passages { passages: Box::new(passages), words })
            }),
        };
        Ok(Prompts { source: source.map_err(|reason| place(&reason))?, taken: 0 })
    }

    /// Whether passages of about so many tokens can be cut.
    pub fn check_tokens(&self, tokens: u32) -> Result<(), String> {
        match &self.source {
            Source::Passages { passages, .. } => passages.check(words_of(tokens)),
            _ => Err("passages are cut from a text: give one with --dataset".to_owned()),
        }
    }

    /// How many different prompts there are; nothing for passages, of which there is no end.
    pub fn count(&self) -> Option<usize> {
        match &self.source {
            Source::Same(_) => Some(1),
            Source::Listed(questions) => Some(questions.len()),
            Source::Passages { .. } => None,
        }
    }

    /// Prompts of the file that were taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// What an arrival asks.
    pub fn take(&mut self, wanted: Wanted) -> Question {
        let text = match (wanted, &mut self.source) {
            (Wanted::Text(text), _) => text,
            (Wanted::Tokens(tokens), Source::Passages { passages, .. }) => {
                passages.cut(words_of(tokens)).to_owned()
            }
            (Wanted::Tokens(_) | Wanted::Next, Source::Same(text)) => text.clone(),
            (Wanted::Next, Source::Passages { passages, words }) => passages.cut(*words).to_owned(),
            (Wanted::Tokens(_) | Wanted::Next, Source::Listed(questions)) => {
                let question = questions[self.taken % questions.len()].clone();
                self.taken += 1;
                return question;
            }
        };
        Question { prompt: Prompt::Text(text), max_tokens: None }
    }
}

/// Tokens of a prompt, roughly: what its words have. At least 1.
pub fn tokens_of(prompt: &Prompt) -> u32 {
    let words = |text: &str| text.split_whitespace().count();
    let all = match prompt {
        Prompt::Text(text) => words(text),
        Prompt::Messages(messages) => {
            let messages = messages.as_array().into_iter().flatten();
            let contents = messages.flat_map(|message| match &message["content"] {
                Value::Array(parts) => parts.iter().map(|part| &part["text"]).collect(),
                content => vec![content],
            });
            contents.filter_map(Value::as_str).map(words).sum()
        }
    };
    // A conversion of a float that is too large gives the largest integer.
    ((all as f64 * TOKENS_PER_WORD).round() as u32).max(1)
}

fn words_of(tokens: u32) -> usize {
    ((f64::from(tokens) / TOKENS_PER_WORD).round() as usize).max(1)
}

fn listed(questions: Result<Vec<Question>, String>) -> Result<Source, String> {
    match questions? {
        questions if questions.is_empty() => Err("there is no prompt".to_owned()),
        questions => Ok(Source::Listed(questions)),
    }
}

fn lines(content: &str, endpoint: Endpoint) -> Result<Vec<Question>, String> {
    let mut questions = Vec::new();
    for (number, line) in numbered(content) {
        let place = |reason: String| format!("line {number}: {reason}");
        let record = serde_json::from_str(line).map_err(|error| place(in_line(&error)))?;
        questions.extend(question(record, endpoint).map_err(place)?);
    }
    Ok(questions)
}

fn array(content: &str, endpoint: Endpoint) -> Result<Vec<Question>, String> {
    let records: Vec<Record> = serde_json::from_str(content).map_err(|error| error.to_string())?;
    let mut questions = Vec::new();
    for (index, record) in records.into_iter().enumerate() {
        let place = |reason| format!("entry {}: {reason}", index + 1);
        questions.extend(question(record, endpoint).map_err(place)?);
    }
    Ok(questions)
}

/// Lines with something in them, and their numbers.
pub fn numbered(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = content.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.trim().is_empty())
}

/// What is wrong with a line; the library would call each of them line 1.
pub fn in_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("{} at column {}", text.strip_suffix(&place).unwrap_or(&text), error.column())
}

/// What an object asks; nothing where a conversation begins with an answer, as some of ShareGPT do.
fn question(record: Record, endpoint: Endpoint) -> Result<Option<Question>, String> {
    if record.max_tokens == Some(0) {
        return Err("max_tokens must be at least 1".to_owned());
    }
    let prompt = match record {
        Record { prompt: Some(text), messages: None, conversations: None, .. } => {
            Prompt::Text(text)
        }
        Record { prompt: None, messages: Some(messages), conversations: None, .. } => {
            if messages.as_array().is_none_or(Vec::is_empty) {
                return Err("messages must be an array with something in it".to_owned());
            }
            if endpoint == Endpoint::Completions {
                return Err("messages need --endpoint chat".to_owned());
            }
            Prompt::Messages(messages)
        }
        Record { prompt: None, messages: None, conversations: Some(turns), .. } => {
            let first = turns.into_iter().next();
            match first.filter(|turn| ["human", "user"].contains(&turn.from.as_str())) {
                Some(turn) => Prompt::Text(turn.value),
                None => return Ok(None),
            }
        }
        _ => return Err("there must be one of prompt, messages and conversations".to_owned()),
    };
    Ok(Some(Question { prompt, max_tokens: record.max_tokens }))
}

impl Passages {
    fn new(text: String, draws: Draws) -> Result<Passages, String> {
        let mut starts = Vec::new();
        let mut within = false;
        for (place, letter) in text.char_indices() {
            if !within && !letter.is_whitespace() {
                starts.push(place);
            }
            within = !letter.is_whitespace();
        }
        if starts.is_empty() {
            return Err("there is no word in it".to_owned());
        }
        Ok(Passages { text, starts, draws })
    }

    /// Whether it has so many words.
    fn check(&self, words: usize) -> Result<(), String> {
        if words > self.starts.len() {
            let there = self.starts.len();
            return Err(format!("the text has {there} words, and {words} are needed"));
        }
        Ok(())
    }

    /// So many words, as far as there are, beginning with a random one.
    fn cut(&mut self, words: usize) -> &str {
        let words = words.min(self.starts.len());
        let first = self.draws.below(self.starts.len() - words + 1);
        let end = self.starts.get(first + words).copied().unwrap_or(self.text.len());
        self.text[self.starts[first]..end].trim_end()
    }
}

#[cfg(test)]
mod tests;

//! Answers that keep to a grammar: a JSON schema, a regular expression, a choice, calls of tools, or a
//! grammar in Lark.
//!
//! A [`Constraint`] is what is asked for. [`Grammars`] reads it, once for all requests that ask alike,
//! into a [`Grammar`], and each sequence follows that with a matcher of its own: before a token is chosen
//! it takes the logits of all tokens away that cannot go on. So an answer keeps to its grammar in every
//! byte, and is a beginning of something that does where it is cut short.
//!
//! ```no_run
//! use weir_runtime::{Constraint, Model, Request};
//!
//! # fn main() -> Result<(), weir_runtime::RuntimeError> {
//! let model = Model::open("tales")?;
//! let answers = Constraint::Choice(vec!["yes".into(), "no".into()]);
//! let constraint = Some(model.grammar(&answers)?);
//! let prompt = model.encode("Did they live happily ever after?")?;
//! let request = Request { prompt, constraint, ..Request::default() };
//! # drop(request);
//! # Ok(())
//! # }
//! ```
//!
//! Automata and masks are those of `llguidance` (derivatives of regular expressions under an Earley
//! parser). What it may spend on a grammar and on a step is bounded by counts ([`limits`], `weight`), so
//! that the same is refused on every machine; reading has a limit in time besides, for what those miss.

mod grammars;
mod joins;
mod lark;
mod lead;
pub mod limits;
mod matcher;
mod normal;
mod numbers;
#[cfg(test)]
mod tests;
mod vocabulary;
mod weight;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::regex_to_lark;
use serde_json::{Value, json};

pub use grammars::{Grammar, Grammars};
pub use matcher::ConstraintFault;
pub(crate) use matcher::Matcher;

use crate::notation::forced::{self, ForcedCalls};
use limits::{READING_TIME, SOURCE_BYTES};
use weight::Weight;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by a schema (draft 2020-12 unless it says another).
    JsonSchema(Value),
    /// A text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a grammar in llguidance's dialect of Lark. Its rule `start` is the whole answer.
    Lark(String),
    /// Calls of tools in a model's notation, whose arguments keep to the tools' schemas.
    Calls(ForcedCalls),
}

/// Why no answer can be held to a constraint: the user's choice, but for [`ConstraintError::Model`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// More source than is read.
    #[error("it has {bytes} bytes, and {SOURCE_BYTES} are read at most")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Nothing to choose from.
    #[error("there is nothing to choose from")]
    NoChoice,
    /// A text of a choice that no token writes.
    #[error("text {index} of the choice is empty")]
    EmptyChoice {
        /// Its place, from 0.
        index: usize,
    },
    /// A key of a schema that changes how it is read.
    #[error("x-guidance is not supported")]
    Guidance,
    /// Malformed, or something in it is not supported, or it takes more time or memory than there is.
    #[error("{0}")]
    Refused(String),
    /// The parameters of a tool are no schema that arguments could keep to.
    #[error("{reason}")]
    Tool {
        /// Its place among the tools, from 0.
        index: usize,
        /// What is wrong with them.
        reason: String,
    },
    /// There is no tool to call.
    #[error("there is no tool that could be called")]
    NoTool,
    /// Reading it takes too long.
    #[error("it takes longer to read than the {} ms that there are", READING_TIME.as_millis())]
    TooSlow,
    /// Another one is being read, and takes its time.
    #[error("another grammar is being read; try again later")]
    Busy,
    /// Nothing but the empty text keeps to it.
    #[error("no text but the empty one keeps to it")]
    Empty,
    /// The model's tokens do not write texts that could be followed.
    #[error("this model's answers cannot be held to a grammar: {0}")]
    Model(&'static str),
}

/// Space between the parts of JSON: none, one, or a new line with what it is indented by. Models that
/// are free to may write space without end.
const JSON_SPACE: &str = r"\x20|\r?\n[\x20\t]{0,20}";

/// Letters behind a backslash in texts. With the last one the library has only control characters spelled,
/// but for names that are not declared.
const JSON_ESCAPES: &str = "nrbtf\\\"u";
/// The same without it.
const NAMES_ESCAPES: &str = "nrbtf\\\"";

impl Constraint {
    /// Whether another one is written alike, in the order of its properties too: an answer's are in the
    /// schema's, and equality passes over it.
    fn is_alike(&self, other: &Constraint) -> bool {
        let texts = |constraint: &Constraint| -> Vec<String> {
            constraint.schemas().into_iter().map(Value::to_string).collect()
        };
        self == other && texts(self) == texts(other)
    }

    fn schemas(&self) -> Vec<&Value> {
        match self {
            Constraint::JsonSchema(schema) => vec![schema],
            Constraint::Calls(calls) => calls.tools.iter().map(|tool| &tool.parameters).collect(),
            Constraint::JsonObject
            | Constraint::Regex(_)
            | Constraint::Choice(_)
            | Constraint::Lark(_) => Vec::new(),
        }
    }

    /// The grammar that llguidance is given, for a model whose special tokens `special` knows by their
    /// names.
    fn top_level(
        &self,
        special: impl Fn(&str) -> Option<u32>,
    ) -> Result<TopLevelGrammar, ConstraintError> {
        let bytes = self.bytes();
        if bytes > SOURCE_BYTES {
            return Err(ConstraintError::TooLong { bytes });
        }
        match self {
            Constraint::JsonObject => json_grammar(json!({"type": "object"}), JSON_ESCAPES),
            Constraint::JsonSchema(schema) => Ok(schema_grammar(schema)?.0),
            Constraint::Regex(expression) => {
                weight::check_expressions([expression.as_str()].into_iter())?;
                Ok(TopLevelGrammar::from_regex(expression))
            }
            Constraint::Lark(grammar) => {
                lark::check(grammar)?;
                Ok(TopLevelGrammar::from_lark(grammar.clone()))
            }
            Constraint::Choice(texts) => {
                if texts.is_empty() {
                    return Err(ConstraintError::NoChoice);
                }
                if let Some(index) = texts.iter().position(String::is_empty) {
                    return Err(ConstraintError::EmptyChoice { index });
                }
                let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                Ok(TopLevelGrammar::from_lark(format!("start: /{}/", quoted.join("|"))))
            }
            Constraint::Calls(calls) => calls_grammar(calls, special),
        }
    }

    /// Bytes of its source, as it is to be read.
    fn bytes(&self) -> usize {
        match self {
            Constraint::JsonObject => 0,
            Constraint::JsonSchema(schema) => schema.to_string().len(),
            Constraint::Regex(text) | Constraint::Lark(text) => text.len(),
            Constraint::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
            Constraint::Calls(calls) => {
                let bytes = |tool: &forced::CallableTool| {
                    tool.name.len() + tool.parameters.to_string().len()
                };
                calls.tools.iter().map(bytes).sum()
            }
        }
    }
}

/// A text as the regular expression that matches nothing else, inside of slashes.
fn quoted(text: &str) -> String {
    let mut expression = String::with_capacity(text.len() + 2);
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    regex_to_lark(&expression, "")
}

/// The grammar of a schema, and its weight.
fn schema_grammar(schema: &Value) -> Result<(TopLevelGrammar, Weight), ConstraintError> {
    let schema = normal::normal(schema)?;
    let weight = Weight::of(&schema)?;
    // Where properties may be added to those that are declared, the name of one could be spelled that is
    // declared: it would not have to keep to its schema.
    if weight.has_further_names {
        normal::check_letters(&schema)?;
        return Ok((json_grammar(schema, NAMES_ESCAPES)?, weight));
    }
    Ok((json_grammar(schema, JSON_ESCAPES)?, weight))
}

/// The grammar of a schema in its normal form.
fn json_grammar(schema: Value, escapes: &str) -> Result<TopLevelGrammar, ConstraintError> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        // What allows everything, or nothing, as an object that does.
        Value::Bool(_) => serde_json::Map::from_iter([("allOf".to_owned(), json!([schema]))]),
        _ => {
            let reason = "a schema must be an object, true or false";
            return Err(ConstraintError::Refused(reason.to_owned()));
        }
    };
    // Its options could have keywords passed over in silence.
    if schema.contains_key("x-guidance") {
        return Err(ConstraintError::Guidance);
    }
    let options = json!({"whitespace_pattern": JSON_SPACE, "json_allowed_escapes": escapes});
    schema.insert("x-guidance".to_owned(), options);
    let mut schema = Value::Object(schema);
    numbers::tighten(&mut schema);
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// The grammar of calls, and behind it those of each tool's arguments.
fn calls_grammar(
    calls: &ForcedCalls,
    special: impl Fn(&str) -> Option<u32>,
) -> Result<TopLevelGrammar, ConstraintError> {
    if calls.tools.is_empty() {
        return Err(ConstraintError::NoTool);
    }
    let mut grammars = vec![GrammarWithLexer::from_lark(forced::lark(calls, special))];
    let mut all = Weight::default();
    for (index, tool) in calls.tools.iter().enumerate() {
        let (grammar, weight) =
            schema_grammar(&tool.parameters).map_err(|error| of_tool(index, error))?;
        all.add(&weight);
        for grammar in grammar.grammars {
            grammars
                .push(GrammarWithLexer { name: Some(forced::arguments_name(index)), ..grammar });
        }
    }
    // Each is light, and all together may not be.
    all.check()?;
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

/// What is wrong with a tool's parameters.
fn of_tool(index: usize, error: ConstraintError) -> ConstraintError {
    ConstraintError::Tool { index, reason: error.to_string() }
}

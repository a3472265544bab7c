//! Fields that hold an answer to a form: OpenAI's `response_format` and `text.format`, Anthropic's
//! `output_config.format`, and those of vLLM.
//!
//! One of them at most. Schemas stay the text that they came as until their length is known: read, the
//! smallest of JSON takes forty times as much memory.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::lists::{Choices, object};
use super::unsupported;
use crate::constraint::limits::SOURCE_BYTES;
use crate::serve::failure::Failure;
use crate::serve::json::parse;
use crate::{Constraint, ConstraintError, Grammar, Model, RuntimeError};

/// OpenAI's field.
#[derive(Debug, Deserialize)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    name: String,
    #[serde(default, deserialize_with = "object")]
    json_schema: Option<NamedSchema>,
    /// What llama.cpp takes beside `json_object`.
    schema: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct NamedSchema {
    schema: Option<Box<RawValue>>,
}

/// vLLM's field since version 0.10.
#[derive(Debug, Deserialize)]
pub struct StructuredOutputs {
    json: Option<Box<RawValue>>,
    regex: Option<String>,
    choice: Option<Choices>,
    grammar: Option<String>,
    json_object: Option<bool>,
    structural_tag: Option<Box<RawValue>>,
    whitespace_pattern: Option<Box<RawValue>>,
    disable_any_whitespace: Option<bool>,
    disable_additional_properties: Option<bool>,
}

/// What OpenAI's responses and Anthropic's messages have: the schema stands beside the type.
#[derive(Debug, Deserialize)]
pub struct FlatFormat {
    #[serde(rename = "type")]
    name: String,
    schema: Option<Box<RawValue>>,
}

/// All of these fields.
#[derive(Clone, Copy, Debug)]
pub struct ConstraintFields<'f> {
    pub response_format: Option<&'f ResponseFormat>,
    pub structured_outputs: Option<&'f StructuredOutputs>,
    /// vLLM's fields before that.
    pub guided_json: Option<&'f RawValue>,
    pub guided_regex: Option<&'f str>,
    pub guided_choice: Option<&'f Choices>,
    pub guided_grammar: Option<&'f str>,
}

/// The level of JSON up to which schemas are read.
pub(super) const DEPTH: usize = 64;

impl ConstraintFields<'_> {
    /// What an answer is to keep to, if anything.
    pub fn resolve(&self, model: &Model) -> Result<Option<Grammar>, Failure> {
        let mut asked = self.asked()?.into_iter();
        let Some((field, constraint)) = asked.next() else { return Ok(None) };
        if let Some((other, _)) = asked.next() {
            let message = format!("an answer keeps to one form, and {field} gives another one");
            return Err(Failure::field(other, message));
        }
        grammar(model, field, &constraint).map(Some)
    }

    /// All that is asked for, each with the field that says so.
    fn asked(&self) -> Result<Vec<(&'static str, Constraint)>, Failure> {
        let mut asked = Vec::new();
        if let Some(format) = self.response_format {
            asked.extend(format.constraint()?);
        }
        if let Some(schema) = self.guided_json {
            asked.push(("guided_json", schema_of("guided_json", schema)?));
        }
        asked.extend(text("guided_regex", self.guided_regex, Constraint::Regex));
        asked.extend(texts("guided_choice", self.guided_choice));
        asked.extend(text("guided_grammar", self.guided_grammar, Constraint::Lark));
        if let Some(outputs) = self.structured_outputs {
            outputs.add_to(&mut asked)?;
        }
        Ok(asked)
    }
}

impl ResponseFormat {
    fn constraint(&self) -> Result<Option<(&'static str, Constraint)>, Failure> {
        if self.json_schema.is_some() && self.name != "json_schema" {
            let message = "json_schema belongs to the type json_schema";
            return Err(Failure::field("response_format.json_schema", message));
        }
        if self.schema.is_some() && self.name != "json_object" {
            let message = "schema belongs to the type json_object, or inside of json_schema";
            return Err(Failure::field("response_format.schema", message));
        }
        match (self.name.as_str(), &self.schema) {
            ("text", _) => Ok(None),
            ("json_object", None) => Ok(Some(("response_format", Constraint::JsonObject))),
            ("json_object", Some(schema)) => {
                let field = "response_format.schema";
                Ok(Some((field, schema_of(field, schema)?)))
            }
            ("json_schema", _) => {
                let field = "response_format.json_schema.schema";
                let schema = self.json_schema.as_ref().and_then(|named| named.schema.as_ref());
                let schema = schema.ok_or_else(|| Failure::field(field, "there is no schema"))?;
                Ok(Some((field, schema_of(field, schema)?)))
            }
            (other, _) => {
                let message = format!(
                    "the type is {other:?}, but it must be text, json_object or json_schema"
                );
                Err(Failure::field("response_format.type", message))
            }
        }
    }
}

impl FlatFormat {
    /// What an answer is to keep to by the field `place`, or by what other fields have `given`: one of them
    /// at most.
    pub fn constrain(
        place: &str,
        format: Option<&RawValue>,
        model: &Model,
        given: Option<Grammar>,
    ) -> Result<Option<Grammar>, Failure> {
        let Some(format) = format else { return Ok(given) };
        let format: Option<FlatFormat> = serde_json::from_str(format.get())
            .map_err(|error| Failure::field(place, format!("this is no form: {error}")))?;
        let Some(format) = format else { return Ok(given) };
        let Some((field, constraint)) = format.constraint(place)? else { return Ok(given) };
        if given.is_some() {
            let message = "an answer keeps to one form, and another field gives another one";
            return Err(Failure::field(place, message));
        }
        grammar(model, &field, &constraint).map(Some)
    }

    fn constraint(&self, place: &str) -> Result<Option<(String, Constraint)>, Failure> {
        let field = format!("{place}.schema");
        match (self.name.as_str(), &self.schema) {
            ("json_schema", Some(schema)) => {
                let constraint = schema_of(&field, schema)?;
                Ok(Some((field, constraint)))
            }
            ("json_schema", None) => Err(Failure::field(field, "there is no schema")),
            (_, Some(_)) => Err(Failure::field(field, "schema belongs to the type json_schema")),
            ("text", None) => Ok(None),
            ("json_object", None) => Ok(Some((place.to_owned(), Constraint::JsonObject))),
            (other, None) => {
                let message = format!(
                    "the type is {other:?}, but it must be text, json_object or json_schema"
                );
                Err(Failure::field(format!("{place}.type"), message))
            }
        }
    }
}

impl StructuredOutputs {
    fn add_to(&self, asked: &mut Vec<(&'static str, Constraint)>) -> Result<(), Failure> {
        let undone = [
            ("structured_outputs.structural_tag", self.structural_tag.is_some()),
            ("structured_outputs.whitespace_pattern", self.whitespace_pattern.is_some()),
            (
                "structured_outputs.disable_any_whitespace",
                self.disable_any_whitespace == Some(true),
            ),
            (
                "structured_outputs.disable_additional_properties",
                self.disable_additional_properties == Some(true),
            ),
        ];
        if let Some((field, _)) = undone.into_iter().find(|(_, given)| *given) {
            return Err(unsupported(field));
        }
        if let Some(schema) = &self.json {
            let field = "structured_outputs.json";
            asked.push((field, schema_of(field, schema)?));
        }
        if self.json_object == Some(true) {
            asked.push(("structured_outputs.json_object", Constraint::JsonObject));
        }
        let regex = self.regex.as_deref();
        asked.extend(text("structured_outputs.regex", regex, Constraint::Regex));
        asked.extend(texts("structured_outputs.choice", self.choice.as_ref()));
        let grammar = self.grammar.as_deref();
        asked.extend(text("structured_outputs.grammar", grammar, Constraint::Lark));
        Ok(())
    }
}

fn text(
    field: &'static str,
    source: Option<&str>,
    constraint: fn(String) -> Constraint,
) -> Option<(&'static str, Constraint)> {
    source.map(|source| (field, constraint(source.to_owned())))
}

fn texts(field: &'static str, choice: Option<&Choices>) -> Option<(&'static str, Constraint)> {
    choice.map(|choices| (field, Constraint::Choice(choices.entries.clone())))
}

/// A schema that is an object, or a text that is one, as vLLM takes it.
fn schema_of(field: &str, schema: &RawValue) -> Result<Constraint, Failure> {
    let within = |text: &str| match text.len() {
        bytes if bytes > SOURCE_BYTES => Err(refused(field, &ConstraintError::TooLong { bytes })),
        _ => Ok(()),
    };
    let read = |text: &str| -> Result<Value, Failure> {
        parse(text.as_bytes(), DEPTH)
            .map_err(|failure| Failure { param: Some(field.to_owned()), ..failure })
    };
    within(schema.get())?;
    let value = match read(schema.get())? {
        Value::String(text) => read(&text)?,
        value => value,
    };
    Ok(Constraint::JsonSchema(value))
}

/// The grammar that a field asks for.
fn grammar(model: &Model, field: &str, constraint: &Constraint) -> Result<Grammar, Failure> {
    match model.grammar(constraint) {
        Ok(grammar) => Ok(grammar),
        Err(RuntimeError::Constraint(error)) => Err(refused(field, &error)),
        Err(error) => Err(error.into()),
    }
}

/// The field whose constraint no answer can be held to.
pub(super) fn refused(field: &str, error: &ConstraintError) -> Failure {
    match error {
        ConstraintError::Busy => Failure {
            param: Some(field.to_owned()),
            ..Failure::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, error.to_string())
                .coded("busy")
                .later(1)
        },
        ConstraintError::EmptyChoice { index } => {
            Failure::field(format!("{field}[{index}]"), error.to_string())
        }
        _ => Failure::field(field, format!("{field}: {error}")).coded("invalid_constraint"),
    }
}

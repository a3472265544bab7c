//! `tool_choice`: which tools a model sees, and whether it must call one of them.
//!
//! A call that is forced is held to its tool's schema, so schemas are read here, and only then: shown
//! tools are text for the template and nothing else.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::constraints::{DEPTH, refused};
use super::lists::{AtMost, object};
use crate::constraint::limits::SOURCE_BYTES;
use crate::notation::CallNotation;
use crate::notation::forced::{CallableTool, ForcedCalls};
use crate::serve::failure::Failure;
use crate::serve::json::parse;
use crate::serve::limits::TOOLS;
use crate::{Constraint, ConstraintError, Grammar, Model, RuntimeError};

/// A tool that was read.
#[derive(Debug)]
pub(super) struct ReadTool {
    pub name: String,
    /// An object as OpenAI's completions have it, which is how templates know tools.
    pub definition: String,
    /// The schema of its arguments, as it was sent.
    pub parameters: Option<Box<RawValue>>,
    /// The field that this schema stands in.
    pub field: String,
}

/// Tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Those that the template shows, each an object as OpenAI's API has it; none where none may be
    /// called.
    pub definitions: Vec<String>,
    /// Whether only the first call of an answer counts.
    pub one_call: bool,
    /// What must be called, if something must.
    pub forced: Option<ForcedTools>,
}

/// Tools one of which must be called.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedTools {
    tools: Vec<CallableTool>,
    /// The fields that their schemas stand in.
    fields: Vec<String>,
    /// Whether there is one call and no more.
    pub is_one: bool,
    /// Whether the request names the one that is called.
    pub is_named: bool,
}

/// What an answer does with tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolChoice {
    pub what: Called,
    /// The only ones that count, if not all do.
    pub allowed: Option<Vec<String>>,
}

/// Which call an answer makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Called {
    /// What the model wants.
    #[default]
    Any,
    /// None.
    None,
    /// At least one.
    Some,
    /// One of this tool.
    Named(String),
}

/// OpenAI's field where it is an object: completions have what it says in a further object, responses
/// beside its type.
#[derive(Deserialize)]
struct ChoiceFields {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default, deserialize_with = "object")]
    function: Option<NameFields>,
    name: Option<String>,
    #[serde(default, deserialize_with = "object")]
    allowed_tools: Option<AllowedFields>,
    mode: Option<String>,
    tools: Option<AtMost<AllowedTool, TOOLS>>,
}

#[derive(Deserialize)]
struct NameFields {
    name: Option<String>,
}

#[derive(Deserialize)]
struct AllowedFields {
    mode: Option<String>,
    tools: Option<AtMost<AllowedTool, TOOLS>>,
}

#[derive(Deserialize)]
struct AllowedTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default, deserialize_with = "object")]
    function: Option<NameFields>,
    name: Option<String>,
}

impl ToolChoice {
    /// OpenAI's field.
    pub fn read(field: Option<&RawValue>) -> Result<ToolChoice, Failure> {
        let wrong = |message: String| Err(Failure::field("tool_choice", message));
        let Some(text) = field.map(RawValue::get).filter(|text| *text != "null") else {
            return Ok(ToolChoice::default());
        };
        if !text.starts_with('{') {
            let what = match text {
                "\"auto\"" => Called::Any,
                "\"none\"" => Called::None,
                "\"required\"" => Called::Some,
                _ => {
                    return wrong(
                        "tool_choice must be none, auto, required, or an object that names tools"
                            .to_owned(),
                    );
                }
            };
            return Ok(ToolChoice { what, allowed: None });
        }
        let fields: ChoiceFields = match serde_json::from_str(text) {
            Ok(fields) => fields,
            Err(error) => return wrong(format!("this is no choice of tools: {error}")),
        };
        match fields.kind.as_deref() {
            Some("function") => {
                match fields.function.and_then(|named| named.name).or(fields.name) {
                    Some(name) => Ok(ToolChoice { what: Called::Named(name), allowed: None }),
                    None => wrong("the choice names no function".to_owned()),
                }
            }
            Some("allowed_tools") => {
                let AllowedFields { mode, tools } = fields
                    .allowed_tools
                    .unwrap_or(AllowedFields { mode: fields.mode, tools: fields.tools });
                let what = match mode.as_deref() {
                    Some("auto") => Called::Any,
                    Some("required") => Called::Some,
                    _ => return wrong("the mode must be auto or required".to_owned()),
                };
                let tools = tools.map(|list| list.entries).unwrap_or_default();
                let names: Option<Vec<String>> = tools.into_iter().map(AllowedTool::name).collect();
                match names.filter(|names| !names.is_empty()) {
                    Some(names) => Ok(ToolChoice { what, allowed: Some(names) }),
                    None => wrong("tools must be a list of functions, each with its name".into()),
                }
            }
            kind => {
                let message = format!(
                    "tool_choice of type {:?} is not supported: function and allowed_tools only",
                    kind.unwrap_or_default()
                );
                Err(Failure::field("tool_choice.type", message).coded("unsupported"))
            }
        }
    }

    /// What it makes of a request's tools.
    pub fn apply(self, tools: Vec<ReadTool>, one_call: bool) -> Result<Tools, Failure> {
        let ToolChoice { what, allowed } = self;
        let named = match &what {
            Called::Named(name) => std::slice::from_ref(name),
            _ => allowed.as_deref().unwrap_or_default(),
        };
        if let Some(name) = named.iter().find(|name| tools.iter().all(|tool| tool.name != **name)) {
            let message = format!("there is no tool {name:?} among the request's tools");
            return Err(Failure::field("tool_choice", message));
        }
        let is_allowed =
            |tool: &&ReadTool| allowed.as_ref().is_none_or(|names| names.contains(&tool.name));
        let shown: Vec<&ReadTool> = match what {
            Called::None => Vec::new(),
            _ => tools.iter().filter(is_allowed).collect(),
        };
        let forced = match &what {
            Called::Any | Called::None => None,
            Called::Some => Some(ForcedTools::read(&shown, one_call, false)?),
            Called::Named(name) => {
                let named: Vec<&ReadTool> =
                    shown.iter().filter(|tool| tool.name == *name).copied().collect();
                Some(ForcedTools::read(&named, true, true)?)
            }
        };
        let definitions = shown.into_iter().map(|tool| tool.definition.clone()).collect();
        Ok(Tools { definitions, one_call, forced })
    }
}

impl AllowedTool {
    fn name(self) -> Option<String> {
        let is_function = self.kind.as_deref().is_none_or(|kind| kind == "function");
        self.function.and_then(|named| named.name).or(self.name).filter(|_| is_function)
    }
}

impl ForcedTools {
    fn read(tools: &[&ReadTool], is_one: bool, is_named: bool) -> Result<ForcedTools, Failure> {
        if tools.is_empty() {
            let message = "tool_choice wants a call, and there are no tools that could be called";
            return Err(Failure::field("tool_choice", message));
        }
        let lengths = tools.iter().flat_map(|tool| &tool.parameters).map(|text| text.get().len());
        let bytes: usize = lengths.sum();
        if bytes > SOURCE_BYTES {
            let message = format!(
                "the parameters of all tools that may be called have {bytes} bytes, and \
                 {SOURCE_BYTES} are read at most where a call is forced"
            );
            return Err(Failure::field("tools", message).coded("invalid_constraint"));
        }
        let callable = |tool: &&ReadTool| {
            let parameters = object_schema(&tool.field, tool.parameters.as_deref())?;
            Ok(CallableTool { name: tool.name.clone(), parameters })
        };
        Ok(ForcedTools {
            tools: tools.iter().map(callable).collect::<Result<_, Failure>>()?,
            fields: tools.iter().map(|tool| tool.field.clone()).collect(),
            is_one,
            is_named,
        })
    }

    /// Their names.
    #[cfg(test)]
    pub fn names(&self) -> Vec<&str> {
        self.tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    /// What holds an answer to a call, in a model's notation.
    pub fn grammar(&self, model: &Model, notation: CallNotation) -> Result<Grammar, Failure> {
        let calls = ForcedCalls { notation, tools: self.tools.clone(), is_one: self.is_one };
        match model.grammar(&Constraint::Calls(calls)) {
            Ok(grammar) => Ok(grammar),
            Err(RuntimeError::Constraint(error)) => Err(match &error {
                ConstraintError::Tool { index, .. } => {
                    refused(self.fields.get(*index).map_or("tools", String::as_str), &error)
                }
                _ => refused("tool_choice", &error),
            }),
            Err(error) => Err(error.into()),
        }
    }
}

/// The schema of a tool's arguments, which are an object whatever it says besides.
fn object_schema(field: &str, parameters: Option<&RawValue>) -> Result<Value, Failure> {
    let wrong = |message: &str| {
        Err(Failure::field(field, format!("{field}: {message}")).coded("invalid_constraint"))
    };
    let Some(text) = parameters.map(RawValue::get).filter(|text| *text != "null") else {
        return Ok(json!({"type": "object", "properties": {}, "additionalProperties": false}));
    };
    let schema: Value = parse(text.as_bytes(), DEPTH)
        .map_err(|failure| Failure { param: Some(field.to_owned()), ..failure })?;
    let Value::Object(schema) = schema else {
        return wrong("a tool's parameters must be a schema that is an object");
    };
    let is_object = match schema.get("type") {
        None => true,
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        Some(_) => false,
    };
    if !is_object {
        return wrong("the schema of a tool's parameters must have the type object");
    }
    let mut of_object = Map::from_iter([("type".to_owned(), json!("object"))]);
    of_object.extend(schema.into_iter().filter(|(name, _)| name != "type"));
    Ok(Value::Object(of_object))
}

//! What `/v1/responses` is sent: a list of items (messages, calls, what they gave, thoughts) to messages.

use std::fmt::Formatter;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::choice::{ReadTool, ToolChoice, Tools};
use super::constraints::FlatFormat;
use super::lists::{AtMost, object};
use super::messages::{Content, check_arguments, no_tools, with_more};
use super::tools::{ToolList, check_name};
use super::unsupported;
use crate::serve::failure::Failure;
use crate::serve::limits::{CALLS, MESSAGES};
use crate::template::{ChatMessage, ChatTemplate, ToolCall};
use crate::{Grammar, Model};

/// Fields of a request besides those of every generation.
#[derive(Debug, Default, Deserialize)]
pub struct ResponsesFields {
    input: Option<Input>,
    /// Text in front of the conversation.
    pub instructions: Option<String>,
    /// Most tokens of the answer.
    pub max_output_tokens: Option<u32>,
    tools: Option<ToolList>,
    tool_choice: Option<Box<RawValue>>,
    /// Whether an answer may make several calls.
    pub parallel_tool_calls: Option<bool>,
    #[serde(default, deserialize_with = "object")]
    reasoning: Option<ReasoningFields>,
    #[serde(default, deserialize_with = "object")]
    text: Option<TextFields>,
    truncation: Option<String>,
    store: Option<bool>,
    background: Option<bool>,
    previous_response_id: Option<IgnoredAny>,
    conversation: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    include: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
struct ReasoningFields {
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TextFields {
    format: Option<Box<RawValue>>,
}

#[derive(Debug)]
enum Input {
    Text(String),
    Items(AtMost<Item, MESSAGES>),
}

#[derive(Debug, Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

#[derive(Deserialize)]
struct FlatTool<'a> {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Input;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or a list of items")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Input, A::Error> {
                AtMost::from_list(list).map(Input::Items)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl ResponsesFields {
    /// Refuses what cannot be done.
    pub fn refuse_unsupported(&self) -> Result<(), Failure> {
        let refused = [
            // Nothing is kept, which is what a client may not rely on if it asks for it.
            ("store", self.store == Some(true)),
            ("previous_response_id", self.previous_response_id.is_some()),
            ("conversation", self.conversation.is_some()),
            ("background", self.background == Some(true)),
            ("prompt", self.prompt.is_some()),
            ("include", self.include.as_ref().is_some_and(|list| !list.is_empty())),
            ("truncation", self.truncation.as_deref().is_some_and(|how| how != "disabled")),
        ];
        match refused.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(unsupported(field)),
            None => Ok(()),
        }
    }

    /// Variables of the template.
    pub fn variables(&self) -> Vec<(String, String)> {
        let effort = self.reasoning.as_ref().and_then(|fields| fields.effort.as_ref());
        let variable = |effort: &String| {
            ("reasoning_effort".to_owned(), serde_json::json!(effort).to_string())
        };
        effort.map(variable).into_iter().collect()
    }

    /// The messages that a template sees.
    pub fn messages(&self, template: &ChatTemplate) -> Result<Vec<ChatMessage>, Failure> {
        let mut messages = Vec::new();
        messages.extend(self.instructions.as_ref().map(|text| ChatMessage::new("system", text)));
        match &self.input {
            None => return Err(Failure::field("input", "there is no input")),
            Some(Input::Text(text)) => messages.push(ChatMessage::new("user", text)),
            Some(Input::Items(AtMost { entries })) => {
                if entries.is_empty() {
                    return Err(Failure::field("input", "there is no input"));
                }
                let mut thoughts = None;
                for (number, item) in entries.iter().enumerate() {
                    let place = format!("input[{number}]");
                    read_item(&place, item, template, &mut messages, &mut thoughts)?;
                }
            }
        }
        Ok(messages)
    }

    /// The tools as they were sent.
    pub fn shown_tools(&self) -> Vec<Value> {
        let given = self.tools.as_ref().map_or(&[][..], |list| &list.entries);
        given.iter().filter_map(|tool| serde_json::from_str(tool.get()).ok()).collect()
    }

    /// What is to be called, as it was sent.
    pub fn shown_choice(&self) -> Value {
        shown(self.tool_choice.as_deref()).unwrap_or_else(|| json!("auto"))
    }

    /// The form of the answer, as it was sent.
    pub fn shown_format(&self) -> Value {
        shown(self.format()).unwrap_or_else(|| json!({"type": "text"}))
    }

    /// What the answer's text keeps to, if anything; `given` is what other fields say.
    pub fn constrain(
        &self,
        model: &Model,
        given: Option<Grammar>,
    ) -> Result<Option<Grammar>, Failure> {
        FlatFormat::constrain("text.format", self.format(), model, given)
    }

    fn format(&self) -> Option<&RawValue> {
        self.text.as_ref().and_then(|text| text.format.as_deref())
    }

    /// The tools, and what an answer does with them.
    pub fn tools(&self, template: &ChatTemplate) -> Result<Tools, Failure> {
        let given = self.tools.as_ref().map_or(&[][..], |list| &list.entries);
        if !given.is_empty() && !template.uses_tools() {
            return Err(no_tools("tools"));
        }
        let tools: Result<Vec<ReadTool>, Failure> =
            given.iter().enumerate().map(|(number, tool)| read_tool(number, tool)).collect();
        let tools = tools?;
        let choice = ToolChoice::read(self.tool_choice.as_deref())?;
        choice.apply(tools, self.parallel_tool_calls == Some(false))
    }
}

/// A field as it was sent; nothing if it says nothing.
fn shown(field: Option<&RawValue>) -> Option<Value> {
    field
        .and_then(|field| serde_json::from_str(field.get()).ok())
        .filter(|value| *value != Value::Null)
}

fn read_item(
    place: &str,
    item: &Item,
    template: &ChatTemplate,
    messages: &mut Vec<ChatMessage>,
    thoughts: &mut Option<String>,
) -> Result<(), Failure> {
    let field = |name: &str| format!("{place}.{name}");
    let need = |name: &str, value: &Option<String>| match value {
        Some(value) => Ok(value.clone()),
        None => Err(Failure::field(field(name), format!("the item has no {name}"))),
    };
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = match item.role.as_deref() {
                Some("system" | "developer") => "system",
                Some("user") => "user",
                Some("assistant") => "assistant",
                _ => {
                    let message = "the role must be system, developer, user or assistant";
                    return Err(Failure::field(field("role"), message));
                }
            };
            let Some(content) = &item.content else {
                return Err(Failure::field(field("content"), "the message has no content"));
            };
            let mut message = ChatMessage::new(role, content.text(&field("content"))?);
            if role == "assistant" {
                message.reasoning = thoughts.take();
            }
            messages.push(message);
        }
        "function_call" | "function_call_output" if !template.uses_calls() => {
            return Err(no_tools(&field("type")));
        }
        "function_call" => {
            let arguments = item.arguments.as_deref().unwrap_or_default();
            let call = ToolCall {
                id: Some(need("call_id", &item.call_id)?),
                name: need("name", &item.name)?,
                arguments: check_arguments(&field("arguments"), arguments)?,
            };
            match messages.last_mut() {
                // Text and calls of one turn are items by themselves.
                Some(last) if last.role == "assistant" => {
                    if last.tool_calls.len() == CALLS {
                        let message = format!("there may be {CALLS} calls at most in one turn");
                        return Err(Failure::field(place, message));
                    }
                    if let Some(more) = thoughts.take() {
                        last.reasoning = with_more(last.reasoning.take(), more);
                    }
                    last.tool_calls.push(call);
                }
                _ => {
                    let mut message = ChatMessage::new("assistant", "");
                    message.reasoning = thoughts.take();
                    message.tool_calls.push(call);
                    messages.push(message);
                }
            }
        }
        "function_call_output" => {
            let Some(output) = &item.output else {
                return Err(Failure::field(field("output"), "the item has no output"));
            };
            let mut message = ChatMessage::new("tool", output.text(&field("output"))?);
            message.tool_call_id = Some(need("call_id", &item.call_id)?);
            messages.push(message);
        }
        // Thoughts without a text are somebody else's secret.
        "reasoning" => {
            if let Some(content) = &item.content {
                *thoughts = with_more(thoughts.take(), content.thoughts());
            }
        }
        kind => {
            let message = format!("items of type {kind:?} are not supported");
            return Err(Failure::field(field("type"), message).coded("unsupported"));
        }
    }
    Ok(())
}

/// A tool as completions have it, which is how templates know them.
fn read_tool(number: usize, tool: &RawValue) -> Result<ReadTool, Failure> {
    let place = format!("tools[{number}]");
    let flat: FlatTool = serde_json::from_str(tool.get())
        .map_err(|error| Failure::field(&*place, format!("this is no tool: {error}")))?;
    if flat.kind != "function" {
        let message = format!("tools of type {:?} are not supported: functions only", flat.kind);
        return Err(Failure::field(format!("{place}.type"), message).coded("unsupported"));
    }
    let name = check_name(&format!("{place}.name"), flat.name)?;
    let definition = super::tools::definition(&name, flat.description, flat.parameters);
    let (parameters, field) =
        (flat.parameters.map(RawValue::to_owned), format!("{place}.parameters"));
    Ok(ReadTool { name, definition, parameters, field })
}

//! Messages of a conversation.

use std::fmt::Formatter;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::lists::AtMost;
use super::unsupported;
use crate::serve::failure::Failure;
use crate::serve::limits::{CALLS, MESSAGES};
use crate::template::{ChatMessage, ChatTemplate, ToolCall};

/// Messages as they are sent.
pub type MessageList = AtMost<MessageFields, MESSAGES>;

/// A message as it is sent.
#[derive(Debug, Default, Deserialize)]
pub struct MessageFields {
    role: String,
    content: Option<Content>,
    tool_calls: Option<AtMost<CallFields, CALLS>>,
    tool_call_id: Option<String>,
    name: Option<String>,
    /// The older of its two names, which most clients send.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CallFields {
    id: Option<String>,
    function: FunctionFields,
}

#[derive(Debug, Deserialize)]
struct FunctionFields {
    name: String,
    arguments: Option<String>,
}

#[derive(Debug)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Content;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or a list of parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = list.next_element()? {
                    parts.push(part);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl Content {
    /// The text of its parts; `place` is the field that it stands in.
    pub(super) fn text(&self, place: &str) -> Result<String, Failure> {
        let parts = match self {
            Content::Text(text) => return Ok(text.clone()),
            Content::Parts(parts) => parts,
        };
        let mut texts = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let place = || format!("{place}[{number}]");
            match (part.kind.as_str(), &part.text) {
                ("text" | "input_text" | "output_text", Some(text)) => texts.push(text.as_str()),
                ("text" | "input_text" | "output_text", None) => {
                    return Err(Failure::field(place(), "it has no text"));
                }
                (kind, _) => {
                    let message = format!("parts of type {kind:?} are not supported: text only");
                    return Err(Failure::field(place(), message).coded("unsupported"));
                }
            }
        }
        Ok(texts.join("\n"))
    }
}

impl Content {
    /// The text of its parts, which are thoughts.
    pub(super) fn thoughts(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                parts.iter().filter_map(|part| part.text.as_deref()).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// The messages that a template sees. One that writes no calls of tools would lose them, and is given none.
pub fn read_messages(
    MessageList { entries: messages }: &MessageList,
    template: &ChatTemplate,
) -> Result<Vec<ChatMessage>, Failure> {
    if messages.is_empty() {
        return Err(Failure::field("messages", "there is no message"));
    }
    let read = |(index, message)| read_message(index, message, template.uses_calls());
    (0..).zip(messages).map(read).collect()
}

fn read_message(
    index: usize,
    message: &MessageFields,
    uses_calls: bool,
) -> Result<ChatMessage, Failure> {
    let field = |name: &str| format!("messages[{index}].{name}");
    let role = match message.role.as_str() {
        // Newer clients call it so; templates know the older name.
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" if uses_calls => "tool",
        "tool" => return Err(no_tools(&field("role"))),
        "function" => return Err(unsupported(&field("role"))),
        other => {
            let message = format!(
                "{other:?} is no role; it must be system, developer, user, assistant or tool"
            );
            return Err(Failure::field(field("role"), message));
        }
    };
    let calls = message.tool_calls.as_ref().map_or(&[][..], |calls| &calls.entries);
    if !calls.is_empty() && !uses_calls {
        return Err(no_tools(&field("tool_calls")));
    }
    if !calls.is_empty() && role != "assistant" {
        let message = "only the assistant calls tools";
        return Err(Failure::field(field("tool_calls"), message));
    }
    let read = |(number, call)| read_call(&field(&format!("tool_calls[{number}]")), call);
    let content = match &message.content {
        Some(content) => content.text(&field("content"))?,
        None if role == "assistant" => String::new(),
        None => return Err(Failure::field(field("content"), "the message has no content")),
    };
    Ok(ChatMessage {
        role: role.to_owned(),
        content,
        reasoning: message.reasoning.as_ref().or(message.reasoning_content.as_ref()).cloned(),
        tool_calls: (0..).zip(calls).map(read).collect::<Result<_, _>>()?,
        tool_call_id: message.tool_call_id.clone(),
        name: message.name.clone(),
    })
}

fn read_call(place: &str, call: &CallFields) -> Result<ToolCall, Failure> {
    let FunctionFields { name, arguments } = &call.function;
    if name.is_empty() {
        return Err(Failure::field(format!("{place}.function.name"), "a tool has a name"));
    }
    let arguments = arguments.as_deref().unwrap_or_default();
    let arguments = check_arguments(&format!("{place}.function.arguments"), arguments)?;
    Ok(ToolCall { id: call.id.clone(), name: name.clone(), arguments })
}

/// Arguments of a call, which are the text of an object. None are as good as an empty one.
pub(super) fn check_arguments(place: &str, arguments: &str) -> Result<String, Failure> {
    if arguments.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::field(place, format!("the arguments must be a JSON object in a text: {reason}"))
    };
    serde_json::from_str::<serde::de::IgnoredAny>(arguments).map_err(|error| wrong(&error))?;
    match arguments.trim_start().starts_with('{') {
        true => Ok(arguments.to_owned()),
        false => Err(wrong(&"this is none")),
    }
}

/// Thoughts of one turn that were told in several parts.
pub(super) fn with_more(before: Option<String>, more: String) -> Option<String> {
    Some(match before {
        Some(before) => format!("{before}\n{more}"),
        None => more,
    })
}

/// A field that only models with tools have a use for.
pub fn no_tools(field: &str) -> Failure {
    let message = format!("{field} is not supported: the model's chat template knows no tools");
    Failure::field(field, message).coded("unsupported")
}

//! Messages of a conversation.

use std::fmt::Formatter;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::unsupported;
use crate::serve::failure::Failure;
use crate::serve::limits::MESSAGES;
use crate::template::ChatMessage;

/// A message as it is sent.
#[derive(Debug, Deserialize)]
pub struct MessageFields {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
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

/// The messages that a template sees.
pub fn read_messages(messages: &[MessageFields]) -> Result<Vec<ChatMessage>, Failure> {
    if messages.is_empty() {
        return Err(Failure::field("messages", "there is no message"));
    }
    if messages.len() > MESSAGES {
        let message = format!("{} messages, but there may be {MESSAGES} at most", messages.len());
        return Err(Failure::field("messages", message));
    }
    (0..).zip(messages).map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, message: &MessageFields) -> Result<ChatMessage, Failure> {
    let field = |name: &str| format!("messages[{index}].{name}");
    let role = match message.role.as_str() {
        // Newer clients call it so; templates know the older name.
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" | "function" => return Err(unsupported(&field("role"))),
        other => {
            let message =
                format!("{other:?} is no role; it must be system, developer, user or assistant");
            return Err(Failure::field(field("role"), message));
        }
    };
    if message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()) {
        return Err(unsupported(&field("tool_calls")));
    }
    let content = match &message.content {
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (number, part) in parts.iter().enumerate() {
                let place = || field(&format!("content[{number}]"));
                match (part.kind.as_str(), &part.text) {
                    ("text" | "input_text" | "output_text", Some(text)) => {
                        texts.push(text.as_str())
                    }
                    ("text", None) => return Err(Failure::field(place(), "it has no text")),
                    (kind, _) => {
                        let message =
                            format!("parts of type {kind:?} are not supported: text only");
                        return Err(Failure::field(place(), message).coded("unsupported"));
                    }
                }
            }
            texts.join("\n")
        }
        None if role == "assistant" => String::new(),
        None => return Err(Failure::field(field("content"), "the message has no content")),
    };
    Ok(ChatMessage::new(role, content))
}

//! Messages of a conversation.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::unsupported;
use crate::serve::failure::Failure;
use crate::template::ChatMessage;

/// A message as it is sent.
#[derive(Debug, Deserialize)]
pub struct MessageFields {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts")]
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

/// The messages that a template sees.
pub fn read_messages(messages: &[MessageFields]) -> Result<Vec<ChatMessage>, Failure> {
    if messages.is_empty() {
        return Err(Failure::field("messages", "there is no message"));
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

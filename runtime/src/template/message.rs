//! Conversations as templates see them: messages with calls of tools, tools, and further variables.
//!
//! What comes from elsewhere as JSON text (arguments, tools, variables) is kept as text and becomes a
//! value only while a template is rendered: values take many times the space.

use minijinja::value::Value;
use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said. Where nothing was, and tools were called, a template sees `none`.
    pub content: String,
    /// What the assistant thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tools that the assistant called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who speaks: the tool that answers, or one of several participants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// By which an answer refers to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// A JSON object. Templates see the object, not its text.
    pub arguments: String,
}

/// All that a template makes a prompt of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// Its turns.
    pub messages: &'a [ChatMessage],
    /// Tools that may be called, each a JSON object as OpenAI's API has them.
    pub tools: &'a [String],
    /// Further variables: names, and values as JSON.
    pub variables: &'a [(String, String)],
    /// Whether the prompt ends with the beginning of the model's turn.
    pub add_generation_prompt: bool,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), ..ChatMessage::default() }
    }

    /// The message as a template sees it. Keys that mean nothing here are absent, for templates ask
    /// whether they are there.
    pub(super) fn value(&self) -> serde_json::Result<Value> {
        let mut fields: Vec<(&str, Value)> = Vec::new();
        let mut set = |name, value| fields.push((name, value));
        set("role", self.role.as_str().into());
        let says_nothing = self.content.is_empty() && !self.tool_calls.is_empty();
        set("content", if says_nothing { ().into() } else { self.content.as_str().into() });
        if let Some(reasoning) = &self.reasoning {
            // Newer templates have the shorter name.
            set("reasoning_content", reasoning.as_str().into());
            set("reasoning", reasoning.as_str().into());
        }
        if !self.tool_calls.is_empty() {
            let calls: serde_json::Result<Vec<Value>> =
                self.tool_calls.iter().map(ToolCall::value).collect();
            set("tool_calls", calls?.into());
        }
        if let Some(id) = &self.tool_call_id {
            set("tool_call_id", id.as_str().into());
        }
        if let Some(name) = &self.name {
            set("name", name.as_str().into());
        }
        Ok(Value::from_pairs(fields))
    }
}

impl ToolCall {
    fn value(&self) -> serde_json::Result<Value> {
        let function = Value::from_pairs([
            ("name", Value::from(self.name.as_str())),
            ("arguments", serde_json::from_str(&self.arguments)?),
        ]);
        let kind = [("type", Value::from("function")), ("function", function)];
        let id = self.id.iter().map(|id| ("id", Value::from(id.as_str())));
        Ok(Value::from_pairs(id.chain(kind)))
    }
}

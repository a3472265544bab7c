//! What Anthropic's `/v1/messages` is sent: messages of blocks (texts, thoughts, uses of tools and what
//! they gave) to messages.

use std::fmt::Formatter;

use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::choice::{Called, ReadTool, ToolChoice, Tools};
use super::constraints::FlatFormat;
use super::lists::{AtMost, object};
use super::messages::{Content, check_arguments, no_tools, with_more};
use super::tools::{ToolList, check_name, definition};
use super::unsupported;
use crate::serve::failure::Failure;
use crate::serve::limits::{CALLS, MESSAGES, STOP_BYTES, STOPS};
use crate::template::{ChatMessage, ChatTemplate, ToolCall};
use crate::{Grammar, Model};

/// Fields of a request besides those of every generation.
#[derive(Debug, Deserialize)]
pub struct AnthropicFields {
    messages: AtMost<Message, MESSAGES>,
    system: Option<Content>,
    /// Most tokens of the answer.
    pub max_tokens: Option<u32>,
    stop_sequences: Option<AtMost<String, STOPS>>,
    tools: Option<ToolList>,
    #[serde(default, deserialize_with = "object")]
    tool_choice: Option<ChoiceFields>,
    #[serde(default, deserialize_with = "object")]
    thinking: Option<Typed>,
    #[serde(default, deserialize_with = "object")]
    output_config: Option<OutputFields>,
    /// The same by its older name.
    output_format: Option<Box<RawValue>>,
    mcp_servers: Option<Vec<IgnoredAny>>,
    container: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct ChoiceFields {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct OutputFields {
    format: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Blocks,
}

#[derive(Debug)]
enum Blocks {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Debug, Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Box<RawValue>>,
    tool_use_id: Option<String>,
    content: Option<Content>,
}

#[derive(Deserialize)]
struct ToolFields<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    input_schema: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blocks, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Blocks;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or a list of blocks")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Blocks, E> {
                Ok(Blocks::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Blocks, A::Error> {
                AtMost::<Block, MESSAGES>::from_list(list).map(|list| Blocks::Blocks(list.entries))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl AnthropicFields {
    /// Refuses what cannot be done.
    pub fn refuse_unsupported(&self) -> Result<(), Failure> {
        let servers = self.mcp_servers.as_ref().is_some_and(|list| !list.is_empty());
        match [("mcp_servers", servers), ("container", self.container.is_some())]
            .into_iter()
            .find(|(_, given)| *given)
        {
            Some((field, _)) => Err(unsupported(field)),
            None => Ok(()),
        }
    }

    /// Texts that end the answer.
    pub fn stops(&self) -> Result<Vec<String>, Failure> {
        let stops = self.stop_sequences.as_ref().map_or(&[][..], |list| &list.entries);
        if stops.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
            let message = format!("a stop text has between 1 and {STOP_BYTES} bytes");
            return Err(Failure::field("stop_sequences", message));
        }
        Ok(stops.to_vec())
    }

    /// Variables of the template: that by which most of them turn thoughts on and off.
    pub fn variables(&self) -> Vec<(String, String)> {
        let thinks = self.thinking.as_ref().map(|thinking| thinking.kind != "disabled");
        thinks
            .map(|thinks| ("enable_thinking".to_owned(), thinks.to_string()))
            .into_iter()
            .collect()
    }

    /// The messages that a template sees.
    pub fn messages(&self, template: &ChatTemplate) -> Result<Vec<ChatMessage>, Failure> {
        if self.messages.entries.is_empty() {
            return Err(Failure::field("messages", "there is no message"));
        }
        if self.messages.entries.last().is_some_and(|last| last.role == "assistant") {
            let message =
                "the last message is the assistant's, whose text an answer cannot go on with";
            return Err(Failure::field("messages", message).coded("unsupported"));
        }
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(ChatMessage::new("system", system.text("system")?));
        }
        for (number, message) in self.messages.entries.iter().enumerate() {
            read_message(&format!("messages[{number}]"), message, template, &mut messages)?;
        }
        Ok(messages)
    }

    /// What the answer's text keeps to, if anything; `given` is what other fields say.
    pub fn constrain(
        &self,
        model: &Model,
        given: Option<Grammar>,
    ) -> Result<Option<Grammar>, Failure> {
        let newer = self.output_config.as_ref().and_then(|output| output.format.as_deref());
        let given = FlatFormat::constrain("output_config.format", newer, model, given)?;
        FlatFormat::constrain("output_format", self.output_format.as_deref(), model, given)
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
        let choice = self.tool_choice.as_ref();
        let what = match choice.map(|choice| (choice.kind.as_str(), &choice.name)) {
            None | Some(("auto", _)) => Called::Any,
            Some(("none", _)) => Called::None,
            Some(("any", _)) => Called::Some,
            Some(("tool", Some(name))) => Called::Named(name.clone()),
            Some(("tool", None)) => {
                return Err(Failure::field("tool_choice.name", "the choice names no tool"));
            }
            Some((kind, _)) => {
                let message = format!("{kind:?} is no choice; it may be auto, any, tool or none");
                return Err(Failure::field("tool_choice.type", message));
            }
        };
        let one_call = choice.is_some_and(|choice| choice.disable_parallel_tool_use == Some(true));
        ToolChoice { what, allowed: None }.apply(tools, one_call)
    }
}

fn read_message(
    place: &str,
    message: &Message,
    template: &ChatTemplate,
    messages: &mut Vec<ChatMessage>,
) -> Result<(), Failure> {
    let role = message.role.as_str();
    if role != "user" && role != "assistant" {
        let message = format!("{role:?} is no role; it must be user or assistant");
        return Err(Failure::field(format!("{place}.role"), message));
    }
    let blocks = match &message.content {
        Blocks::Text(text) => {
            messages.push(ChatMessage::new(role, text));
            return Ok(());
        }
        Blocks::Blocks(blocks) => blocks,
    };
    let mut read = ChatMessage::new(role, "");
    let mut texts = Vec::new();
    let mut has_results = false;
    for (number, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{number}]");
        let field = |name: &str| format!("{place}.{name}");
        let need = |name: &str, value: &Option<String>| match value {
            Some(value) => Ok(value.clone()),
            None => Err(Failure::field(field(name), format!("the block has no {name}"))),
        };
        match (block.kind.as_str(), role) {
            ("text", _) => texts.push(need("text", &block.text)?),
            ("thinking", "assistant") => {
                read.reasoning =
                    with_more(read.reasoning.take(), need("thinking", &block.thinking)?);
            }
            ("tool_use" | "tool_result", _) if !template.uses_calls() => {
                return Err(no_tools(&field("type")));
            }
            ("tool_use", "assistant") => {
                if read.tool_calls.len() == CALLS {
                    let message = format!("there may be {CALLS} calls at most in a message");
                    return Err(Failure::field(place, message));
                }
                let input = block.input.as_deref().map_or("", RawValue::get);
                read.tool_calls.push(ToolCall {
                    id: Some(need("id", &block.id)?),
                    name: need("name", &block.name)?,
                    arguments: check_arguments(&field("input"), input)?,
                });
            }
            ("tool_result", "user") => {
                let content = block.content.as_ref();
                let content = content.map(|content| content.text(&field("content")));
                let mut result = ChatMessage::new("tool", content.transpose()?.unwrap_or_default());
                result.tool_call_id = Some(need("tool_use_id", &block.tool_use_id)?);
                messages.push(result);
                has_results = true;
            }
            (kind, role) => {
                let message = format!("blocks of type {kind:?} are not supported here ({role})");
                return Err(Failure::field(place, message).coded("unsupported"));
            }
        }
    }
    read.content = texts.join("\n");
    // What tools gave is a turn of its own.
    if !(has_results && read.content.is_empty()) {
        messages.push(read);
    }
    Ok(())
}

/// A tool as completions have it, which is how templates know them.
fn read_tool(number: usize, tool: &RawValue) -> Result<ReadTool, Failure> {
    let place = format!("tools[{number}]");
    let fields: ToolFields = serde_json::from_str(tool.get())
        .map_err(|error| Failure::field(&*place, format!("this is no tool: {error}")))?;
    if let Some(kind) = fields.kind.as_deref().filter(|kind| *kind != "custom") {
        let message = format!("tools of type {kind:?} are not supported: the client's own only");
        return Err(Failure::field(format!("{place}.type"), message).coded("unsupported"));
    }
    let name = check_name(&format!("{place}.name"), fields.name)?;
    let definition = definition(&name, fields.description, fields.input_schema);
    let (parameters, field) =
        (fields.input_schema.map(RawValue::to_owned), format!("{place}.input_schema"));
    Ok(ReadTool { name, definition, parameters, field })
}

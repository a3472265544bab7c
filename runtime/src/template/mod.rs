//! Chat templates: Jinja as Hugging Face's libraries render it.
//!
//! `trim_blocks` and `lstrip_blocks` are set, Python's string, list and dict methods exist,
//! `tojson` writes what Python's `json.dumps` writes (by default with `ensure_ascii=False`), the tests
//! `iterable` and `sequence` are Jinja's, and `raise_exception` and `strftime_now` (in UTC: a static
//! program has no time zones) are functions. The block tag
//! `generation`, which marks training targets, is read as a block that is always true. A message is what
//! Hugging Face's users pass: arguments of calls are objects, `tools` is `none` where there are none.

mod json;
mod message;
mod python;
mod strings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

pub use message::{ChatMessage, Conversation, ToolCall};

use crate::RuntimeError;

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: BTreeMap<String, String>,
    uses_tools: bool,
    uses_calls: bool,
}

const NAME: &str = "chat template";

/// Instructions that a template may take: a hundred thousand messages at a hundred each. One that never
/// ends is refused instead.
const FUEL: u64 = 10_000_000;

fn part(error: Error) -> RuntimeError {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    RuntimeError::Part { part: NAME, reason }
}

impl ChatTemplate {
    /// Compiles a template. `special` are the special tokens by role, which templates see as
    /// variables (`bos_token`, …).
    pub fn compile(
        source: &str,
        special: &BTreeMap<String, String>,
    ) -> Result<ChatTemplate, RuntimeError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(syntax.map_err(part)?);
        environment.set_unknown_method_callback(strings::call_method);
        environment.add_filter("tojson", json::to_json);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            python::strftime(&format, now)
        });
        // Jinja reads any end of a line as a newline, inside of texts as well.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        environment.add_template_owned(NAME, replace_generation_tags(&source)).map_err(part)?;
        let variables = environment.get_template(NAME).map_err(part)?.undeclared_variables(false);
        Ok(ChatTemplate {
            uses_tools: variables.contains("tools"),
            uses_calls: source.contains("tool_calls"),
            environment,
            special: special.clone(),
        })
    }

    /// Whether the template shows the model tools that it may call.
    pub fn uses_tools(&self) -> bool {
        self.uses_tools
    }

    /// Whether the template writes calls of tools and their answers.
    pub fn uses_calls(&self) -> bool {
        self.uses_calls
    }

    /// The prompt for a conversation of texts. `add_generation_prompt` ends it with the beginning of the
    /// model's turn.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, RuntimeError> {
        let plain = Conversation { messages, add_generation_prompt, ..Conversation::default() };
        self.render_conversation(&plain)
    }

    /// The prompt for a conversation.
    pub fn render_conversation(
        &self,
        conversation: &Conversation<'_>,
    ) -> Result<String, RuntimeError> {
        let json = |error: serde_json::Error| RuntimeError::Part {
            part: NAME,
            reason: format!("arguments, tools and variables must be JSON: {error}"),
        };
        let mut variables: BTreeMap<&str, Value> =
            self.special.iter().map(|(name, token)| (name.as_str(), token.into())).collect();
        // Absent, and not undefined, unless a variable has this name.
        variables.insert("documents", ().into());
        for (name, value) in conversation.variables {
            variables.insert(name, serde_json::from_str(value).map_err(json)?);
        }
        let messages: serde_json::Result<Vec<Value>> =
            conversation.messages.iter().map(ChatMessage::value).collect();
        variables.insert("messages", messages.map_err(json)?.into());
        let tools: serde_json::Result<Vec<Value>> =
            conversation.tools.iter().map(|tool| serde_json::from_str(tool)).collect();
        let tools = tools.map_err(json)?;
        // Templates ask whether there are any, and not only whether the variable is there.
        variables.insert("tools", if tools.is_empty() { ().into() } else { tools.into() });
        variables.insert("add_generation_prompt", conversation.add_generation_prompt.into());
        let template = self.environment.get_template(NAME).map_err(part)?;
        template.render(variables).map_err(part)
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Replaces the tags `generation` and `endgeneration` by a condition that holds.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let inside = start + 2;
        let Some(length) = rest[inside..].find("%}") else { break };
        let (tag, end) = (&rest[inside..inside + length], inside + length);
        out.push_str(&rest[..inside]);
        match tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replace("generation", " if true ")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", " endif ")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

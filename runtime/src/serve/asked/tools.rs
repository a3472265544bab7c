//! Tools that a model may call, and variables of its template.
//!
//! What a template shows of them is JSON that clients write, so it is kept as text, and bounded: values
//! take many times the space.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::choice::{ReadTool, ToolChoice, Tools};
use super::lists::AtMost;
use super::messages::no_tools;
use super::unsupported;
use crate::serve::failure::Failure;
use crate::serve::limits::{TEMPLATE_JSON, TOOL_NAME, TOOLS, VARIABLES};
use crate::template::{ChatMessage, ChatTemplate};

/// Tools as they are sent.
pub type ToolList = AtMost<Box<RawValue>, TOOLS>;

/// Variables of the template, as vLLM takes them.
pub type Variables = super::lists::Entries<Box<RawValue>, VARIABLES>;

#[derive(Debug, Deserialize)]
struct ToolFields {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<FunctionFields>,
}

#[derive(Debug, Deserialize)]
struct FunctionFields {
    name: Option<String>,
    parameters: Option<Box<RawValue>>,
}

/// What a request says about tools.
#[derive(Debug, Default, Deserialize)]
pub struct ToolFieldsOfRequest {
    tools: Option<ToolList>,
    tool_choice: Option<Box<RawValue>>,
    parallel_tool_calls: Option<bool>,
    functions: Option<IgnoredAny>,
    function_call: Option<IgnoredAny>,
}

impl ToolFieldsOfRequest {
    /// The tools, and what an answer does with them.
    pub fn resolve(&self, template: &ChatTemplate) -> Result<Tools, Failure> {
        let older = [
            ("functions", self.functions.is_some()),
            ("function_call", self.function_call.is_some()),
        ];
        if let Some((field, _)) = older.into_iter().find(|(_, given)| *given) {
            return Err(unsupported(field));
        }
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

fn read_tool(number: usize, tool: &RawValue) -> Result<ReadTool, Failure> {
    let place = format!("tools[{number}]");
    let fields: ToolFields = serde_json::from_str(tool.get())
        .map_err(|error| Failure::field(&*place, format!("this is no tool: {error}")))?;
    match fields.kind.as_deref() {
        None | Some("function") => {}
        Some(kind) => {
            let message = format!("tools of type {kind:?} are not supported: functions only");
            return Err(Failure::field(format!("{place}.type"), message).coded("unsupported"));
        }
    }
    let Some(function) = fields.function else {
        return Err(Failure::field(format!("{place}.function"), "the tool has no function"));
    };
    Ok(ReadTool {
        name: check_name(&format!("{place}.function.name"), function.name)?,
        definition: tool.get().to_owned(),
        parameters: function.parameters,
        field: format!("{place}.function.parameters"),
    })
}

/// Refuses names that OpenAI's API refuses.
pub(super) fn check_name(place: &str, name: Option<String>) -> Result<String, Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    match name {
        Some(name) if !name.is_empty() && name.len() <= TOOL_NAME && name.bytes().all(is_plain) => {
            Ok(name)
        }
        _ => {
            let message = format!(
                "a tool's name has between 1 and {TOOL_NAME} letters, digits, dots, underscores and \
                 dashes"
            );
            Err(Failure::field(place, message))
        }
    }
}

/// A tool as completions have it, from its parts.
pub(super) fn definition(
    name: &str,
    description: Option<&RawValue>,
    parameters: Option<&RawValue>,
) -> String {
    let mut function = format!("{{\"name\": {}", serde_json::json!(name));
    for (field, value) in [("description", description), ("parameters", parameters)] {
        if let Some(value) = value {
            function.push_str(&format!(", \"{field}\": {}", value.get()));
        }
    }
    format!("{{\"type\": \"function\", \"function\": {function}}}}}")
}

/// Variables for the template, those that are its own excepted.
pub fn read_variables(given: Option<&Variables>) -> Result<Vec<(String, String)>, Failure> {
    let entries = given.map_or(&[][..], |given| &given.entries);
    let own = ["messages", "tools", "add_generation_prompt"];
    if let Some((name, _)) = entries.iter().find(|(name, _)| own.contains(&name.as_str())) {
        let message = format!("{name} cannot be set here: the request has it");
        return Err(Failure::field(format!("chat_template_kwargs.{name}"), message));
    }
    Ok(entries.iter().map(|(name, value)| (name.clone(), value.get().to_owned())).collect())
}

/// Refuses more JSON than may become values of a template at once.
pub fn check_size(
    messages: &[ChatMessage],
    tools: &[String],
    variables: &[(String, String)],
) -> Result<(), Failure> {
    let arguments = messages.iter().flat_map(|message| &message.tool_calls);
    let sizes = [
        ("messages", arguments.map(|call| call.arguments.len()).sum::<usize>()),
        ("tools", tools.iter().map(String::len).sum()),
        ("chat_template_kwargs", variables.iter().map(|(_, value)| value.len()).sum()),
    ];
    match sizes.into_iter().find(|(_, bytes)| *bytes > TEMPLATE_JSON) {
        Some((field, bytes)) => {
            let what = if field == "messages" { "arguments of calls in messages" } else { field };
            let message =
                format!("{what}: {bytes} bytes of JSON, but there may be {TEMPLATE_JSON} at most");
            Err(Failure::field(field, message))
        }
        None => Ok(()),
    }
}

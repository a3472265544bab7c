//! The grammar of answers that call tools and say nothing else, in llguidance's dialect of Lark.
//!
//! It allows what [`super::Reader`] reads as calls, in the ways that models are taught to write them;
//! where a notation has two ways, the model chooses. Thoughts in front of them are no matter of the
//! grammar. Marks that are tokens of their own are named by their number, for special tokens write nothing
//! that a grammar of texts could ask for. Arguments are grammars of their own, called `arguments_0`,
//! `arguments_1` and so on.

use std::fmt::Write;

use serde_json::{Value, json};

use super::CallNotation;
use super::calls::{
    DEEPSEEK_CALL, DEEPSEEK_CALL_END, DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_SEPARATOR,
    FENCE, HERMES_BEGIN, HERMES_END, MISTRAL_ARGUMENTS, MISTRAL_CALLS, MISTRAL_ID,
};

/// An answer that calls tools and says nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedCalls {
    /// How calls are written.
    pub notation: CallNotation,
    /// What may be called.
    pub tools: Vec<CallableTool>,
    /// Whether there is one call and no more.
    pub is_one: bool,
}

/// A tool whose arguments are known.
#[derive(Clone, Debug, PartialEq)]
pub struct CallableTool {
    /// Its name: letters, digits, dots, underscores and dashes.
    pub name: String,
    /// The schema of its arguments, which must be that of an object.
    pub parameters: Value,
}

/// The grammar of arguments that belongs to tool number `index`.
pub fn arguments_name(index: usize) -> String {
    format!("arguments_{index}")
}

/// White space between the parts of JSON is that of all constraints; between calls and around them models
/// write a character or two.
const TERMINALS: &str = "SPACE: /\\x20|\\r?\\n[\\x20\\t]{0,20}/\nWHITE: /[\\x20\\n]{1,2}/\n";

/// The grammar, but for arguments. `special` says which token a mark is, if it is a special one.
pub fn lark(calls: &ForcedCalls, special: impl Fn(&str) -> Option<u32>) -> String {
    let mark = |text: &str| match special(text) {
        Some(id) => format!("<[{id}]>"),
        None => literal(text),
    };
    let mut rules = format!("start: WHITE? calls\n{TERMINALS}");
    rules.push_str(&match calls.notation {
        CallNotation::Llama => llama(calls),
        CallNotation::Hermes => hermes(calls, &mark),
        CallNotation::Mistral => mistral(calls, &mark),
        CallNotation::DeepSeek => deepseek(calls, &mark),
    });
    rules
}

fn llama(calls: &ForcedCalls) -> String {
    let further = further(calls, "(\";\" \"\\x20\"? object)*");
    // Llama 3.3 repeats the type of its tools' definitions.
    let kind = "(\"\\\"type\\\"\" SPACE? \":\" SPACE? \"\\\"function\\\"\" SPACE? \",\" SPACE?)?";
    format!("calls: object {further}\n{}", object(calls, kind, "parameters"))
}

fn hermes(calls: &ForcedCalls, mark: &impl Fn(&str) -> String) -> String {
    let further = further(calls, "(WHITE? call)*");
    let (begin, end) = (mark(HERMES_BEGIN), mark(HERMES_END));
    let call = format!("call: {begin} WHITE? object WHITE? {end}\n");
    format!("calls: call {further}\n{call}{}", object(calls, "", "arguments"))
}

fn mistral(calls: &ForcedCalls, mark: &impl Fn(&str) -> String) -> String {
    let begin = mark(MISTRAL_CALLS);
    let (listed, named) =
        (further(calls, "(SPACE? \",\" SPACE? object)*"), format!("({begin} named)*"));
    let named = further(calls, &named);
    let mut rules = format!(
        "calls: {begin} (SPACE? \"[\" SPACE? object {listed} SPACE? \"]\" | named {named})\n\
         identifier: ({} /[a-zA-Z0-9]{{9}}/)?\n",
        mark(MISTRAL_ID)
    );
    let arguments = mark(MISTRAL_ARGUMENTS);
    each_tool(calls, "named", &mut rules, |name, values| {
        format!("{} identifier {arguments} {values}", literal(name))
    });
    rules + &object(calls, "", "arguments")
}

fn deepseek(calls: &ForcedCalls, mark: &impl Fn(&str) -> String) -> String {
    let further = further(calls, "(WHITE? call)*");
    let (begin, end) = (mark(DEEPSEEK_CALLS), mark(DEEPSEEK_CALLS_END));
    let separator = mark(DEEPSEEK_SEPARATOR);
    let mut rules = format!(
        "calls: {begin} call {further} {end}\n\
         call: {} (\"function\" {separator} fenced | plain) {}\n",
        mark(DEEPSEEK_CALL),
        mark(DEEPSEEK_CALL_END)
    );
    // As V3 and R1 write them, and as V3.1 does.
    each_tool(calls, "fenced", &mut rules, |name, values| {
        let opened = literal(&format!("{name}\n{FENCE}json\n"));
        format!("{opened} {values} {}", literal(&format!("\n{FENCE}")))
    });
    each_tool(calls, "plain", &mut rules, |name, values| {
        format!("{} {separator} {values}", literal(name))
    });
    rules
}

/// The rule `object`: a call in JSON. What all tools have in common stands in front of the choice, which
/// keeps the parser's rows short.
fn object(calls: &ForcedCalls, kind: &str, arguments: &str) -> String {
    let mut rules = format!(
        "object: \"{{\" SPACE? {kind} \"\\\"name\\\"\" SPACE? \":\" SPACE? called SPACE? \"}}\"\n"
    );
    let key = literal(&json!(arguments).to_string());
    each_tool(calls, "called", &mut rules, |name, values| {
        let name = literal(&json!(name).to_string());
        format!("{name} SPACE? \",\" SPACE? {key} SPACE? \":\" SPACE? {values}")
    });
    rules
}

/// The rule `name`: what `write` makes of one of the tools, by its name and its arguments.
fn each_tool(
    calls: &ForcedCalls,
    name: &str,
    rules: &mut String,
    write: impl Fn(&str, &str) -> String,
) {
    for (index, tool) in calls.tools.iter().enumerate() {
        let begin = if index == 0 { format!("{name}: ") } else { "    | ".to_owned() };
        let written = write(&tool.name, &format!("@{}", arguments_name(index)));
        let _ = writeln!(rules, "{begin}{written}");
    }
}

/// What may follow the first call.
fn further<'r>(calls: &ForcedCalls, rule: &'r str) -> &'r str {
    if calls.is_one { "" } else { rule }
}

/// A text that is written as it is.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

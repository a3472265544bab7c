//! The marks of each notation, and what stands between them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::CallNotation;
use crate::template::ToolCall;

pub(super) const HERMES_BEGIN: &str = "<tool_call>";
pub(super) const HERMES_END: &str = "</tool_call>";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
pub(super) const MISTRAL_CALLS: &str = "[TOOL_CALLS]";
pub(super) const MISTRAL_ARGUMENTS: &str = "[ARGS]";
pub(super) const MISTRAL_ID: &str = "[CALL_ID]";
pub(super) const DEEPSEEK_CALLS: &str = "<｜tool▁calls▁begin｜>";
pub(super) const DEEPSEEK_CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const DEEPSEEK_CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const DEEPSEEK_CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const FENCE: &str = "```";

/// Bytes between the mark of a call and its JSON, at most.
const LONGEST_HEAD: usize = 512;

/// Bytes of a tool's name, at most.
const LONGEST_NAME: usize = 256;

/// What a character in front of a call's JSON means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The JSON may follow yet.
    More,
    /// It begins with this character.
    Json,
    /// This is no call.
    Bad,
}

/// A call in JSON.
#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
    id: Option<String>,
}

impl CallNotation {
    /// Every mark.
    pub(super) fn marks(self) -> &'static [&'static str] {
        match self {
            CallNotation::Llama => &[PYTHON_TAG],
            CallNotation::Hermes => &[HERMES_BEGIN, HERMES_END],
            CallNotation::Mistral => &[MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_ID],
            CallNotation::DeepSeek => &[
                DEEPSEEK_CALLS,
                DEEPSEEK_CALLS_END,
                DEEPSEEK_CALL,
                DEEPSEEK_CALL_END,
                DEEPSEEK_SEPARATOR,
            ],
        }
    }

    /// Marks that a call may begin with.
    pub(super) fn openings(self) -> &'static [&'static str] {
        match self {
            CallNotation::Llama => &[PYTHON_TAG],
            CallNotation::Hermes => &[HERMES_BEGIN],
            CallNotation::Mistral => &[MISTRAL_CALLS],
            CallNotation::DeepSeek => &[DEEPSEEK_CALLS, DEEPSEEK_CALL],
        }
    }

    /// What may follow a call and says nothing.
    pub(super) fn closings(self) -> &'static [&'static str] {
        match self {
            CallNotation::Llama | CallNotation::Mistral => &[],
            CallNotation::Hermes => &[HERMES_END],
            CallNotation::DeepSeek => &[FENCE, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END],
        }
    }

    /// Whether an answer may begin with a call without a mark.
    pub(super) fn is_bare(self) -> bool {
        self == CallNotation::Llama
    }

    /// Whether a character separates calls.
    pub(super) fn separates(self, character: char) -> bool {
        character.is_whitespace() || (self == CallNotation::Llama && character == ';')
    }

    /// What the next character behind a call's mark means, when `head` stands between them.
    pub(super) fn head(self, head: &str, next: char) -> Head {
        let blank = head.trim().is_empty();
        match (self, next) {
            _ if head.len() > LONGEST_HEAD => Head::Bad,
            (CallNotation::Llama | CallNotation::Hermes, '{') => Head::Json,
            (CallNotation::Llama | CallNotation::Hermes, _) if next.is_whitespace() => Head::More,
            (CallNotation::Llama | CallNotation::Hermes, _) => Head::Bad,
            (CallNotation::Mistral, '[') if blank => Head::Json,
            (CallNotation::Mistral, '{') if head.trim_end().ends_with(MISTRAL_ARGUMENTS) => {
                Head::Json
            }
            (CallNotation::Mistral, '{') => Head::Bad,
            (CallNotation::DeepSeek, '{') if head.contains(DEEPSEEK_SEPARATOR) => Head::Json,
            (CallNotation::DeepSeek, '{') => Head::Bad,
            _ => Head::More,
        }
    }

    /// The calls that `json` behind `head` makes; `None` if it is none. `is_bare` says that no mark stands
    /// in front of it.
    pub(super) fn read(self, head: &str, json: &str, is_bare: bool) -> Option<Vec<ToolCall>> {
        match self {
            CallNotation::Llama | CallNotation::Hermes => {
                let written: Written = serde_json::from_str(json).ok()?;
                // Without a mark it takes both names to tell a call from an answer in JSON.
                let is_call = !is_bare || written.arguments.is_some();
                is_call.then(|| call(written)).flatten().map(|call| vec![call])
            }
            CallNotation::Mistral if json.starts_with('[') => {
                let written: Vec<Written> = serde_json::from_str(json).ok()?;
                let calls: Option<Vec<ToolCall>> = written.into_iter().map(call).collect();
                calls.filter(|calls| !calls.is_empty())
            }
            CallNotation::Mistral => {
                let head = head.trim().strip_suffix(MISTRAL_ARGUMENTS)?;
                let (name, id) = match head.split_once(MISTRAL_ID) {
                    Some((name, id)) => (name, Some(id.trim().to_owned())),
                    None => (head, None),
                };
                Some(vec![named(name, json, id.filter(|id| !id.is_empty()))?])
            }
            CallNotation::DeepSeek => {
                let head = head.trim_start();
                let head = head.strip_prefix(DEEPSEEK_CALL).unwrap_or(head);
                let (before, behind) = head.split_once(DEEPSEEK_SEPARATOR)?;
                // V3.1 has the name in front of the separator; those before it have a type there, and the
                // name behind it, and the arguments as a block of code.
                let name = match behind.trim().split_once('\n') {
                    None if behind.trim().is_empty() => before,
                    None => return None,
                    Some((name, fence)) => match fence.trim().strip_prefix(FENCE) {
                        Some("" | "json") => name,
                        _ => return None,
                    },
                };
                Some(vec![named(name, json, None)?])
            }
        }
    }
}

fn call(written: Written<'_>) -> Option<ToolCall> {
    let arguments = match written.arguments.map(RawValue::get) {
        None | Some("null") => "{}".to_owned(),
        // Some models write the object's text.
        Some(text) if text.starts_with('"') => serde_json::from_str(text).ok()?,
        Some(text) => text.to_owned(),
    };
    named(&written.name, &arguments, written.id)
}

fn named(name: &str, arguments: &str, id: Option<String>) -> Option<ToolCall> {
    let name = name.trim();
    let is_name = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.contains(char::is_whitespace)
        && !name.contains(['<', '>', '[', ']', '{', '}']);
    let is_object = arguments.trim_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
    (is_name && is_object).then(|| ToolCall {
        id,
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    })
}

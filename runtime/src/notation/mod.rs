//! How a model writes what is no plain answer: its thoughts, and calls of tools.
//!
//! A model writes calls as its template has shown them to it, so the template tells the notation; the
//! vocabulary tells whether the model thinks. [`Reader`] takes an answer apart as it grows.
//!
//! | notation | a call |
//! |---|---|
//! | [`Llama`](CallNotation::Llama) | `{"name": …, "parameters": {…}}`, possibly behind `<\|python_tag\|>` |
//! | [`Hermes`](CallNotation::Hermes) | `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, also Qwen's |
//! | [`Mistral`](CallNotation::Mistral) | `[TOOL_CALLS][{…}]`, or `[TOOL_CALLS]name[ARGS]{…}` |
//! | [`DeepSeek`](CallNotation::DeepSeek) | the name and an object between tokens of their own |

mod calls;
pub mod forced;
mod reader;
#[cfg(test)]
mod tests;

use weir_tokenizer::Tokenizer;

pub use reader::{Reader, Spoken};

/// How calls of tools are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallNotation {
    /// JSON that is the whole answer, as Llama 3.1 and 3.2 write it.
    Llama,
    /// JSON between tags.
    Hermes,
    /// A list in JSON behind a token, or names with arguments.
    Mistral,
    /// Tokens of their own around name and arguments.
    DeepSeek,
}

/// The marks around thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    /// In front of them.
    pub begin: &'static str,
    /// Behind them.
    pub end: &'static str,
}

const THINK: ThoughtMarks = ThoughtMarks { begin: "<think>", end: "</think>" };
const MISTRAL_THINK: ThoughtMarks = ThoughtMarks { begin: "[THINK]", end: "[/THINK]" };

/// What a model's answers may contain besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notation {
    /// Calls of tools, if it is known how they are written.
    pub calls: Option<CallNotation>,
    /// Thoughts, if the model has any.
    pub thoughts: Option<ThoughtMarks>,
}

impl Notation {
    /// The notation of a model, by its template and its vocabulary.
    pub fn of(template: &str, has_token: impl Fn(&str) -> bool) -> Notation {
        let writes = |text: &str| template.contains(text);
        // Other notations between the same tags, which are not JSON.
        let is_xml = writes("<function=") || writes("<arg_key>");
        let calls = if writes(calls::DEEPSEEK_CALL) {
            Some(CallNotation::DeepSeek)
        } else if writes(calls::MISTRAL_CALLS) {
            Some(CallNotation::Mistral)
        } else if writes(calls::HERMES_BEGIN) {
            (!is_xml).then_some(CallNotation::Hermes)
        } else if writes(calls::PYTHON_TAG) || (writes("{\"name\": ") && writes("\"parameters\": "))
        {
            Some(CallNotation::Llama)
        } else {
            None
        };
        let has = |marks: &ThoughtMarks| {
            writes(marks.begin)
                || writes(marks.end)
                || (has_token(marks.begin) && has_token(marks.end))
        };
        let thoughts = [THINK, MISTRAL_THINK].into_iter().find(has);
        Notation { calls, thoughts }
    }

    /// Special tokens that are marks of this notation. Their text must be seen where answers are read.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let thoughts = self.thoughts.iter().flat_map(|marks| [marks.begin, marks.end]);
        let calls = self.calls.map_or(&[][..], CallNotation::marks);
        thoughts
            .chain(calls.iter().copied())
            .filter_map(|mark| tokenizer.token_id(mark))
            .filter(|id| tokenizer.is_special(*id))
            .collect()
    }

    /// Whether a prompt ends where thoughts have begun.
    pub fn opens_thoughts(&self, prompt: &str) -> bool {
        self.thoughts.is_some_and(|marks| prompt.trim_end().ends_with(marks.begin))
    }

    /// Whether a prompt ends behind thoughts, as templates write it for answers without any.
    pub fn closes_thoughts(&self, prompt: &str) -> bool {
        self.thoughts.is_some_and(|marks| prompt.trim_end().ends_with(marks.end))
    }
}

//! One answer as it comes from the engine, read as what it means: thoughts, text, calls of tools.

use std::sync::Arc;

use super::app::Ids;
use super::mailbox::{ChosenToken, Delivery, End};
use crate::notation::{CallNotation, Notation, Reader, Spoken};
use crate::template::ToolCall;
use crate::{FinishReason, Usage};

/// How the answers of a request are read.
#[derive(Clone)]
pub struct ReadingRules {
    /// What is told apart; nothing if absent.
    pub notation: Option<Notation>,
    /// Whether the prompt has opened thoughts.
    pub in_thoughts: bool,
    /// Whether only the first call of an answer counts.
    pub one_call: bool,
    /// Names for calls that have none.
    pub ids: Arc<Ids>,
    /// The request's stop texts where it is told which one has ended an answer, else none.
    pub stops: Vec<String>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub reason: FinishReason,
    /// Counts.
    pub usage: Usage,
    /// Tokens of thoughts.
    pub thought_tokens: u32,
    /// Whether tools were called.
    pub called: bool,
    /// The stop text that has ended it, where that is told.
    pub stop: Option<String>,
}

/// One answer that is being read.
pub struct Reading {
    rules: ReadingRules,
    reader: Option<Reader>,
    thought_tokens: u32,
    calls: usize,
}

/// What a token, or the end, has brought.
pub struct Heard<'a> {
    /// The token, unless it is what was held back until the end.
    pub token: Option<&'a ChosenToken>,
    /// What is certain with it.
    pub spoken: Vec<Spoken>,
}

impl Reading {
    /// An answer of which nothing has come.
    pub fn new(rules: &ReadingRules) -> Reading {
        let reader = rules.notation.map(|notation| Reader::new(notation, rules.in_thoughts));
        let rules = rules.clone();
        Reading { rules, reader, thought_tokens: 0, calls: 0 }
    }

    /// Reads what is new, token by token, and says how the answer ended, if it has as it should.
    pub fn take<'a>(
        &mut self,
        delivery: &'a Delivery,
        mut hear: impl FnMut(Heard<'a>),
    ) -> Option<Ending> {
        let mut begin = 0;
        for token in &delivery.tokens {
            let is_thought = self.reader.as_ref().is_some_and(Reader::is_thinking);
            self.thought_tokens += u32::from(is_thought);
            let spoken = self.read(&delivery.text[begin..token.text_end]);
            hear(Heard { token: Some(token), spoken });
            begin = token.text_end;
        }
        let mut spoken = self.read(&delivery.text[begin..]);
        let Some(End::Finished { reason, stop, usage }) = delivery.end else {
            if !spoken.is_empty() {
                hear(Heard { token: None, spoken });
            }
            return None;
        };
        if let Some(mut reader) = self.reader.take() {
            let mut rest = Vec::new();
            reader.finish(&mut rest);
            self.name_calls(&mut rest);
            spoken.append(&mut rest);
        }
        if !spoken.is_empty() {
            hear(Heard { token: None, spoken });
        }
        Some(Ending {
            reason,
            usage,
            thought_tokens: self.thought_tokens,
            called: self.calls > 0,
            stop: stop.and_then(|stop| self.rules.stops.get(stop).cloned()),
        })
    }

    fn read(&mut self, text: &str) -> Vec<Spoken> {
        let mut spoken = Vec::new();
        match &mut self.reader {
            _ if text.is_empty() => {}
            Some(reader) => reader.push(text, &mut spoken),
            None => spoken.push(Spoken::Text(text.to_owned())),
        }
        self.name_calls(&mut spoken);
        spoken
    }

    fn name_calls(&mut self, spoken: &mut Vec<Spoken>) {
        let ReadingRules { one_call, ids, notation, .. } = &self.rules;
        let calls = notation.and_then(|notation| notation.calls);
        spoken.retain_mut(|part| {
            let Spoken::Call(ToolCall { id, .. }) = part else { return true };
            self.calls += 1;
            id.get_or_insert_with(|| match calls {
                // Its templates take no others.
                Some(CallNotation::Mistral) => ids.nine(),
                _ => ids.next("call_"),
            });
            !one_call || self.calls == 1
        });
    }
}

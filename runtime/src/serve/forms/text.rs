//! `/v1/completions`.

use std::borrow::Cow;

use serde::Serialize;

use super::logprobs::TextLogprobs;
use super::{Counts, Events, Form, Letterhead, Sheet, TokenTexts, WholeAnswer, finish_name};
use crate::notation::Spoken;
use crate::serve::failure::Failure;
use crate::serve::json::written;
use crate::serve::mailbox::ChosenToken;
use crate::serve::reading::{Ending, Heard};

/// Continuations of texts.
pub struct TextForm {
    letterhead: Letterhead,
    logprobs: Option<TokenTexts>,
    include_usage: bool,
    /// Characters that each answer has so far.
    characters: Vec<usize>,
}

impl TextForm {
    /// For so many answers.
    pub fn new(
        letterhead: Letterhead,
        answers: usize,
        logprobs: Option<TokenTexts>,
        include_usage: bool,
    ) -> TextForm {
        TextForm { letterhead, logprobs, include_usage, characters: vec![0; answers] }
    }

    fn sheet<C>(&self, choices: C, usage: Option<&Counts>) -> Sheet<'_, C> {
        self.letterhead.sheet("text_completion", choices, usage)
    }
}

/// An answer, or a piece of it.
#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: usize,
    text: Cow<'a, str>,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Form for TextForm {
    fn reports_tokens(&self) -> bool {
        self.logprobs.is_some()
    }

    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Vec<u8> {
        let choice = |(index, answer): (usize, &WholeAnswer)| {
            let text = answer.text();
            let logprobs = self.logprobs.as_ref();
            let logprobs = logprobs.map(|texts| texts.text(&text, 0, &answer.tokens));
            let finish_reason = answer.ending.as_ref().map(finish_name);
            Choice { index, text: text.into(), logprobs, finish_reason }
        };
        let choices: Vec<Choice<'_>> = answers.iter().enumerate().map(choice).collect();
        written(&self.sheet(choices, Some(counts)))
    }

    fn hear(&mut self, index: usize, heard: &Heard<'_>, out: &mut Events) {
        let mut text = String::new();
        for part in &heard.spoken {
            if let Spoken::Text(part) = part {
                text.push_str(part);
            }
        }
        if text.is_empty() && self.logprobs.is_none() {
            return;
        }
        let token = heard.token.map(|token| ChosenToken { text_end: text.len(), ..token.clone() });
        let logprobs = self.logprobs.as_ref();
        let logprobs =
            logprobs.map(|texts| texts.text(&text, self.characters[index], token.as_slice()));
        self.characters[index] += text.chars().count();
        let choice = Choice { index, text: text.into(), logprobs, finish_reason: None };
        out.push(&self.sheet([choice], None));
    }

    fn end(&mut self, index: usize, ending: &Ending, out: &mut Events) {
        let finish_reason = Some(finish_name(ending));
        let last = Choice { index, text: "".into(), logprobs: None, finish_reason };
        out.push(&self.sheet([last], None));
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        if self.include_usage {
            out.push(&self.sheet([(); 0], Some(counts)));
        }
        out.push_text("[DONE]");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        out.push(&failure.body());
    }
}

//! `/v1/completions`.

use serde_json::{Value, json};

use super::{Counts, Events, Form, Letterhead, TokenTexts, UsageForm, WholeAnswer, finish_name};
use crate::notation::Spoken;
use crate::serve::failure::Failure;
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

    fn base(&self, choices: Vec<Value>) -> Value {
        let Letterhead { id, created, model } = &self.letterhead;
        let object = "text_completion";
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }

    fn choice(index: usize, text: &str, logprobs: Option<Value>, reason: Option<&str>) -> Value {
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}

impl Form for TextForm {
    fn reports_tokens(&self) -> bool {
        self.logprobs.is_some()
    }

    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Value {
        let choice = |(index, answer): (usize, &WholeAnswer)| {
            let text = answer.text();
            let logprobs = self.logprobs.as_ref();
            let logprobs = logprobs.map(|texts| texts.text(&text, 0, &answer.tokens));
            TextForm::choice(index, &text, logprobs, answer.ending.as_ref().map(finish_name))
        };
        let mut whole = self.base(answers.iter().enumerate().map(choice).collect());
        whole["usage"] = json!(UsageForm::from(counts));
        whole
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
        out.push(&self.base(vec![TextForm::choice(index, &text, logprobs, None)]));
    }

    fn end(&mut self, index: usize, ending: &Ending, out: &mut Events) {
        let last = TextForm::choice(index, "", None, Some(finish_name(ending)));
        out.push(&self.base(vec![last]));
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        if self.include_usage {
            let mut piece = self.base(Vec::new());
            piece["usage"] = json!(UsageForm::from(counts));
            out.push(&piece);
        }
        out.push_text("[DONE]");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        out.push(&failure.body());
    }
}

//! What an engine is asked for and what it answers.

use crate::constraint::Grammar;
use crate::error::RequestError;
use crate::forward::StepFault;
use crate::sampling::{SamplingOptions, TokenLogprobs};

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Whether the answer goes on with the text of the prompt, so that a space at its beginning is part of it
    /// with tokenizers that take the first one from a text, rather than be a turn of its own.
    pub goes_on: bool,
    /// Most tokens of the answer; absent: as many as the model's context allows.
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Number of this answer among several to one prompt: their draws differ.
    pub choice: u32,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Special tokens whose text is part of the answer, unlike that of others.
    pub shown_tokens: Vec<u32>,
    /// Further tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own end tokens are tokens like any other; under a constraint they are none at
    /// all then, and the answer ends where nothing can follow.
    pub ignore_eos: bool,
    /// What the answer keeps to ([`crate::Model::grammar`]). It may end where the grammar may, and ends
    /// where nothing can follow. Probabilities that are reported are the model's own, without it.
    pub constraint: Option<Grammar>,
    /// How a prompt goes on with a conversation of which the cache has dropped rows.
    pub history: History,
    /// Report how probable each token was, beside so many of the most probable ones.
    pub logprobs: Option<u32>,
    /// Who asks. Rows that a request has left serve those of the same owner alone: how fast an answer
    /// begins would tell one owner what another has asked. Owners who wait share the slots fairly.
    pub owner: u32,
    /// Requests of a lower priority wait less: those of a higher one wait until none of them does.
    pub priority: i32,
}

/// What requests an engine can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// Positions of the model.
    pub context: u32,
    /// Entries of the vocabulary.
    pub vocabulary: u32,
    /// Whether tokens have a text.
    pub has_tokenizer: bool,
}

impl RequestRules {
    /// Why a prompt of so many tokens cannot be served, whatever they are, if so.
    pub fn check_length(&self, tokens: usize) -> Result<(), RequestError> {
        let context = self.context;
        match tokens {
            0 => Err(RequestError::Empty),
            rows if rows > context as usize => Err(RequestError::TooLong { rows, context }),
            _ => Ok(()),
        }
    }

    /// Why a request cannot be served, if so.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        let RequestRules { vocabulary, has_tokenizer, .. } = *self;
        let Request { prompt, sampling, stop, constraint, .. } = request;
        self.check_length(prompt.len())?;
        if let Some(index) = prompt.iter().position(|token| *token >= vocabulary) {
            return Err(RequestError::UnknownToken { index, token: prompt[index], vocabulary });
        }
        sampling.check()?;
        if let Some((token, _)) = sampling.logit_bias.iter().find(|(id, _)| *id >= vocabulary) {
            return Err(RequestError::UnknownBias { token: *token, vocabulary });
        }
        if let Some(grammar) = constraint
            && grammar.vocabulary() != vocabulary
        {
            let read_for = grammar.vocabulary();
            return Err(RequestError::ForeignGrammar { read_for, vocabulary });
        }
        if stop.iter().any(String::is_empty) {
            return Err(RequestError::EmptyStop);
        }
        if !stop.is_empty() && !has_tokenizer {
            return Err(RequestError::StopWithoutTokenizer);
        }
        Ok(())
    }
}

/// How a prompt that goes on with an earlier request, its answer included, is computed when the cache
/// has dropped rows of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// From its first token on: nothing that was dropped is missed. Takes the time of the whole prompt.
    #[default]
    Exact,
    /// The new tokens alone, behind the rows that are left; dropped ones stay dropped.
    Incremental,
}

impl History {
    /// Both ways.
    pub const ALL: [History; 2] = [History::Exact, History::Incremental];

    /// Name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            History::Exact => "exact",
            History::Incremental => "incremental",
        }
    }
}

/// Names a request in its engine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

impl RequestId {
    /// The number by which other languages know it.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The id with this number. One that no request has is ignored wherever it is used.
    pub fn from_number(number: u64) -> RequestId {
        RequestId(number)
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop token or a stop string.
    Stop,
    /// The most tokens asked for, or the model's context.
    Length,
    /// Somebody cancelled the request.
    Cancelled,
}

impl FinishReason {
    /// Name in output.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens chosen, an end token included.
    pub completion_tokens: u32,
    /// Tokens of the prompt whose rows were in the cache: an earlier request had left them there, or the
    /// first of several samples had computed them.
    pub reused_tokens: u32,
    /// Tokens that were guessed ahead of the answer, each at the cost of a row of a step. Unlike the
    /// others this depends on who else is served.
    pub drafted_tokens: u32,
    /// Tokens of the answer that had been guessed.
    pub accepted_tokens: u32,
    /// How the prompt was computed: incremental if rows of what it goes on with had been dropped.
    pub history: History,
    /// Rows per layer and head that the cache held at the end.
    pub kv_rows_kept: u32,
    /// Rows that were computed and no longer held.
    pub kv_rows_dropped: u32,
}

/// What happened to a request in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A token was chosen.
    Token {
        /// Its id.
        token: u32,
        /// Text that is now certain; often that of an earlier token, possibly empty.
        text: &'a str,
        /// How probable it was, where the request asks.
        logprobs: Option<&'a TokenLogprobs>,
    },
    /// The embedding of the prompt, of length 1. No tokens follow.
    Embedding {
        /// As many as the model's hidden rows have.
        values: &'a [f32],
    },
    /// The answer is complete. It follows the last token.
    Finished {
        /// Text that was held back until now.
        text: &'a str,
        /// Why it ended.
        reason: FinishReason,
        /// Which of [`Request::stop`] has ended it, if one has.
        stop: Option<usize>,
        /// Counts.
        usage: Usage,
    },
    /// The request failed.
    Failed(StepFault),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Tokens chosen.
    pub ids: Vec<u32>,
    /// Their text, without special tokens and without the stop string; empty if the model has no
    /// tokenizer.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// Which of [`Request::stop`] has ended it, if one has.
    pub stop: Option<usize>,
    /// Counts.
    pub usage: Usage,
}

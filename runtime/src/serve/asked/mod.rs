//! What a request asks for: JSON fields to what the engine understands.
//!
//! Fields are those of OpenAI's API, and the further ones that vLLM takes. Unknown fields are ignored,
//! as clients send many; known ones that cannot be done are refused by name, and never ignored.

mod blocks;
mod choice;
mod constraints;
mod items;
mod lists;
mod messages;
#[cfg(test)]
mod tests;
mod tools;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

pub use blocks::AnthropicFields;
pub use choice::Tools;
use constraints::{ConstraintFields, ResponseFormat, StructuredOutputs};
pub use items::ResponsesFields;
pub use lists::Prompts;
use lists::{AtMost, Biases, Choices, Stops, object};
pub use messages::{MessageList, read_messages};
pub use tools::{ToolFieldsOfRequest, Variables, check_size, read_variables};

use super::failure::Failure;
use super::limits::{SAMPLES, STOP_BYTES, STOP_TOKENS};
use crate::sampling::random_seed;
use crate::{Model, Request, SamplingOptions};

/// Fields that requests for text have in common.
#[derive(Debug, Default, Deserialize)]
pub struct GenerationFields {
    /// Name of the model.
    pub model: Option<String>,
    stream: Option<bool>,
    #[serde(default, deserialize_with = "object")]
    stream_options: Option<StreamOptions>,
    n: Option<u32>,
    stop: Option<Stops>,
    stop_token_ids: Option<AtMost<u32, STOP_TOKENS>>,
    seed: Option<i64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Biases>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    ignore_eos: Option<bool>,
    priority: Option<i32>,
    #[serde(default, deserialize_with = "object")]
    response_format: Option<ResponseFormat>,
    guided_json: Option<Box<RawValue>>,
    guided_regex: Option<String>,
    guided_grammar: Option<String>,
    guided_choice: Option<Choices>,
    guided_whitespace_pattern: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "object")]
    structured_outputs: Option<StructuredOutputs>,
    audio: Option<IgnoredAny>,
    prompt_logprobs: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// What is wanted, but for the prompt.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Without a prompt.
    pub request: Request,
    /// Answers to each prompt.
    pub samples: u32,
    /// Whether the answer comes in pieces.
    pub streams: bool,
    /// Whether counts follow the pieces.
    pub include_usage: bool,
}

impl GenerationFields {
    /// What they mean for this model.
    pub fn resolve(&self, model: &Model) -> Result<Generation, Failure> {
        self.refuse_unsupported()?;
        let samples = self.n.unwrap_or(1);
        if samples == 0 || samples > SAMPLES {
            let message = format!("n is {samples}, but it must be between 1 and {SAMPLES}");
            return Err(Failure::field("n", message));
        }
        let max_tokens = match (self.max_completion_tokens, self.max_tokens) {
            (Some(0), _) => return Err(Failure::field("max_completion_tokens", NO_TOKENS)),
            (_, Some(0)) => return Err(Failure::field("max_tokens", NO_TOKENS)),
            (newer, older) => newer.or(older),
        };
        if self.stream != Some(true) && self.stream_options.is_some() {
            let message = "stream_options may only be given where stream is true";
            return Err(Failure::field("stream_options", message));
        }
        let stop_tokens =
            self.stop_token_ids.as_ref().map_or(Vec::new(), |list| list.entries.clone());
        let request = Request {
            max_tokens,
            sampling: self.sampling(model)?,
            stop: self.stops()?,
            stop_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            priority: self.priority.unwrap_or(i32::MIN),
            constraint: self.constraint().resolve(model)?,
            ..Request::default()
        };
        let include_usage =
            self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
        Ok(Generation { request, samples, streams: self.stream.unwrap_or(false), include_usage })
    }

    fn refuse_unsupported(&self) -> Result<(), Failure> {
        let fields = [
            ("guided_whitespace_pattern", self.guided_whitespace_pattern.is_some()),
            ("audio", self.audio.is_some()),
            ("prompt_logprobs", self.prompt_logprobs.is_some()),
        ];
        match fields.into_iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(unsupported(field)),
            None => Ok(()),
        }
    }

    fn constraint(&self) -> ConstraintFields<'_> {
        ConstraintFields {
            response_format: self.response_format.as_ref(),
            structured_outputs: self.structured_outputs.as_ref(),
            guided_json: self.guided_json.as_deref(),
            guided_regex: self.guided_regex.as_deref(),
            guided_choice: self.guided_choice.as_ref(),
            guided_grammar: self.guided_grammar.as_deref(),
        }
    }

    fn sampling(&self, model: &Model) -> Result<SamplingOptions, Failure> {
        let own = served_defaults(model);
        let options = SamplingOptions {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: match self.top_k {
                None => own.top_k,
                // Both mean all of them, the former in vLLM.
                Some(-1 | 0) => 0,
                Some(k) => u32::try_from(k).map_err(|_| {
                    Failure::field("top_k", format!("top_k is {k}, but it must be -1 or more"))
                })?,
            },
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.biases()?,
            // A negative seed is as good as any.
            seed: self.seed.map_or_else(random_seed, i64::cast_unsigned),
        };
        options.check()?;
        Ok(options)
    }

    fn biases(&self) -> Result<Vec<(u32, f32)>, Failure> {
        let Some(Biases { entries: given }) = &self.logit_bias else { return Ok(Vec::new()) };
        let bias = |(token, bias): &(String, f32)| {
            let field = || format!("logit_bias.{token}");
            let id = token.parse().map_err(|_| {
                Failure::field(field(), format!("{token:?} is not the number of a token"))
            })?;
            if !(-100.0..=100.0).contains(bias) {
                let message = format!("the bias is {bias}, but it must be between -100 and 100");
                return Err(Failure::field(field(), message));
            }
            Ok((id, *bias))
        };
        given.iter().map(bias).collect()
    }

    fn stops(&self) -> Result<Vec<String>, Failure> {
        let Some(Stops(stops)) = &self.stop else { return Ok(Vec::new()) };
        match stops.iter().find(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
            Some(stop) => {
                let message = format!(
                    "a stop text has {} bytes, but it must have between 1 and {STOP_BYTES}",
                    stop.len()
                );
                Err(Failure::field("stop", message))
            }
            None => Ok(stops.clone()),
        }
    }
}

const NO_TOKENS: &str = "at least one token must be allowed";

/// A field that cannot be done.
pub fn unsupported(field: &str) -> Failure {
    Failure::field(field, format!("{field} is not supported by this server")).coded("unsupported")
}

/// How tokens are chosen where a request does not say: as the model's authors want it, and with the
/// API's temperature of 1 where they say nothing.
pub fn served_defaults(model: &Model) -> SamplingOptions {
    let own = model.sampling_defaults();
    let says_nothing = model.facts().sampling.do_sample.is_none();
    let temperature = match model.facts().sampling.temperature {
        Some(temperature) if says_nothing => temperature,
        None if says_nothing => 1.0,
        _ => own.temperature,
    };
    SamplingOptions { temperature, ..own }
}

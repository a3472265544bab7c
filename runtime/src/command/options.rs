//! Options that several commands share.

use clap::Args;
use weir_abi::IsaLevel;

use super::numbers::{sampling, whole};
use super::say;
use crate::forward::{MAX_SLOTS, MAX_THREADS};
use crate::sampling::random_seed;
use crate::{Model, RuntimeError, RuntimeOptions, SamplingOptions, Usage};

/// The level of a name, or a sentence with all names.
pub fn parse_isa(text: &str) -> Result<IsaLevel, String> {
    IsaLevel::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| {
        format!("it must be one of {}", IsaLevel::ALL.map(IsaLevel::name).join(", "))
    })
}

fn stop_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty text would stop every answer at once".to_owned());
    }
    Ok(text.to_owned())
}

/// Most tokens that can be guessed ahead: with the next one they are rows of one step.
const MAX_DRAFT: u32 = 1023;

/// Most samples of a prompt that can be asked for.
pub(super) const MAX_SAMPLES: u32 = 4096;

/// How the model runs.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Running")]
pub struct RuntimeArguments {
    /// Compute threads; results do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_THREADS), allow_hyphen_values = true)]
    pub threads: Option<usize>,
    /// Sequences at once [default: what the model was compiled for]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_SLOTS), allow_hyphen_values = true)]
    pub slots: Option<u32>,
    /// Instruction set: portable, avx2, avx-vnni, avx512, avx512-pairs, amx [default: the best here]
    #[arg(long, value_name = "LEVEL", value_parser = parse_isa)]
    pub isa: Option<IsaLevel>,
}

impl RuntimeArguments {
    /// The options of the library.
    pub fn resolve(&self) -> RuntimeOptions {
        let RuntimeArguments { slots, threads, isa } = *self;
        RuntimeOptions { slots, threads, isa, ..RuntimeOptions::default() }
    }
}

/// How many prompts the cache has room for.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Running")]
pub struct BlockArguments {
    /// Prompts in the cache at once: of the slots, as many have room for the sinks and selected rows of a
    /// prompt, and the others for a ring beside them, for further samples of it. Samples of a prompt
    /// that is shorter than an elastic cache need such room each [default: one per slot]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_SLOTS), allow_hyphen_values = true)]
    pub blocks: Option<u32>,
}

impl BlockArguments {
    /// The options of the library with these.
    pub fn over(&self, options: RuntimeOptions) -> RuntimeOptions {
        RuntimeOptions { blocks: self.blocks, ..options }
    }
}

/// How tokens are guessed ahead.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Running")]
pub struct DraftArguments {
    /// Guess up to N tokens ahead, from what followed the last ones before, and check them in one step:
    /// the same text, in fewer steps where it repeats its prompt or itself. A program has to be compiled
    /// with as many, by draft= in --kv [default: 0]
    #[arg(long, value_name = "N", value_parser = whole(0, MAX_DRAFT), allow_hyphen_values = true)]
    pub draft: Option<u32>,
}

impl DraftArguments {
    /// Tokens to guess; 0 for none.
    pub fn resolve(&self) -> u32 {
        self.draft.unwrap_or(0)
    }

    /// The options of the library with these.
    pub fn over(&self, options: RuntimeOptions) -> RuntimeOptions {
        RuntimeOptions { draft: self.resolve(), ..options }
    }

    /// Says how many guesses were right, if any were asked for.
    pub fn announce(&self, usage: impl IntoIterator<Item = Usage>) {
        if self.resolve() == 0 {
            return;
        }
        let (mut drafted, mut accepted, mut chosen) = (0_u64, 0_u64, 0_u64);
        for usage in usage {
            drafted += u64::from(usage.drafted_tokens);
            accepted += u64::from(usage.accepted_tokens);
            chosen += u64::from(usage.completion_tokens);
        }
        say(format_args!(
            "[{drafted} tokens drafted, {accepted} of them accepted, of {chosen} in all]"
        ));
    }
}

/// How tokens are chosen. What is absent comes from the model.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArguments {
    /// Divisor of the logits, 0 for the most likely token [default: 0, unless the model's
    /// generation_config.json says do_sample, then its temperature]
    #[arg(long, value_name = "X", value_parser = sampling(|o| &mut o.temperature), allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Sample from the K most likely tokens, 0 for all [default: the model's, or all]
    #[arg(long, value_name = "K", value_parser = whole(0, u32::MAX), allow_hyphen_values = true)]
    pub top_k: Option<u32>,
    /// Sample from the most likely tokens that sum to this probability [default: the model's, or 1]
    #[arg(long, value_name = "P", value_parser = sampling(|o| &mut o.top_p), allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Drop tokens under this share of the best one's probability [default: the model's, or 0]
    #[arg(long, value_name = "P", value_parser = sampling(|o| &mut o.min_p), allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens in prompt and answer by this [default: the model's, or 1]
    #[arg(long, value_name = "X", value_parser = sampling(|o| &mut o.repetition_penalty), allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtract this from the logits of tokens in the answer
    #[arg(long, value_name = "X", value_parser = sampling(|o| &mut o.presence_penalty), allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract this from the logits of tokens in the answer, once per occurrence
    #[arg(long, value_name = "X", value_parser = sampling(|o| &mut o.frequency_penalty), allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// Seed of the draws; the same seed gives the same text [default: random]
    #[arg(long, value_name = "N", value_parser = whole(0, u64::MAX), allow_hyphen_values = true)]
    pub seed: Option<u64>,
    /// End the answer before this text (repeatable)
    #[arg(long, value_name = "TEXT", value_parser = stop_text, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Go on after the model's end token
    #[arg(long)]
    pub ignore_eos: bool,
    /// Most tokens of an answer [default: what the model's context allows]
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX), allow_hyphen_values = true)]
    pub max_tokens: Option<u32>,
}

impl SamplingArguments {
    /// These options over the model's own.
    pub fn resolve(&self, model: &Model) -> SamplingOptions {
        let own = model.sampling_defaults();
        SamplingOptions {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            logit_bias: own.logit_bias,
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

/// Token ids on the command line: numbers with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

impl std::str::FromStr for TokenIds {
    type Err = String;

    fn from_str(text: &str) -> Result<TokenIds, String> {
        text.split(',')
            .map(|id| {
                let wrong = || format!("{id:?} is not a token id; write numbers as in 5,17,300");
                id.trim().parse().map_err(|_| wrong())
            })
            .collect::<Result<_, _>>()
            .map(TokenIds)
    }
}

/// Prints the memory ceiling where it does not mix with the answer.
pub fn announce(model: &Model, options: &RuntimeOptions) -> Result<(), RuntimeError> {
    say(format_args!("{}", model.memory_ceiling(options)?));
    Ok(())
}

//! Counts of a request, over all of its answers.

use serde::Serialize;

use crate::Usage;
use crate::serve::reading::Ending;

/// Counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Those of them whose rows lay in a slot already.
    pub cached_tokens: u32,
    /// Tokens of the answers.
    pub completion_tokens: u32,
    /// Those of them that are thoughts.
    pub thought_tokens: u32,
    /// Rows per layer and head that the cache held at the end.
    pub kv_rows_kept: u32,
    /// Rows that were computed and no longer held.
    pub kv_rows_dropped: u32,
}

impl Counts {
    /// Of the answers to prompts, `samples` to each.
    pub fn new(answers: &[&Ending], samples: usize) -> Counts {
        let mut counts = Counts::default();
        for of_prompt in answers.chunks(samples.max(1)) {
            // The others found the prompt's rows that the first one computed.
            if let Some(first) = of_prompt.first() {
                counts.prompt_tokens += first.usage.prompt_tokens;
                counts.cached_tokens += first.usage.reused_tokens;
            }
        }
        for Ending { usage, thought_tokens, .. } in answers {
            let Usage { completion_tokens, kv_rows_kept, kv_rows_dropped, .. } = usage;
            counts.completion_tokens += completion_tokens;
            counts.thought_tokens += thought_tokens;
            counts.kv_rows_kept += kv_rows_kept;
            counts.kv_rows_dropped += kv_rows_dropped;
        }
        counts
    }
}

/// Counts as completions have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageForm {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: CachedTokens,
    completion_tokens_details: ThoughtTokens,
    kv_rows_kept: u32,
    kv_rows_dropped: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct CachedTokens {
    cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct ThoughtTokens {
    reasoning_tokens: u32,
}

impl From<&Counts> for UsageForm {
    fn from(counts: &Counts) -> UsageForm {
        UsageForm {
            prompt_tokens: counts.prompt_tokens,
            completion_tokens: counts.completion_tokens,
            total_tokens: counts.prompt_tokens + counts.completion_tokens,
            prompt_tokens_details: CachedTokens { cached_tokens: counts.cached_tokens },
            completion_tokens_details: ThoughtTokens { reasoning_tokens: counts.thought_tokens },
            kv_rows_kept: counts.kv_rows_kept,
            kv_rows_dropped: counts.kv_rows_dropped,
        }
    }
}

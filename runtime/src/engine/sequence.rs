//! A request while it is served.

use super::left::Beginning;
use super::request::History;
use crate::constraint::Matcher;
use crate::drafts::Drafter;
use crate::forward::Past;
use crate::sampling::Sampler;
use crate::text::TextStream;

/// Its tokens, and what decides the next one.
pub(super) struct Sequence {
    /// The prompt's tokens, then those chosen.
    pub tokens: Vec<u32>,
    pub prompt_rows: u32,
    /// Rows up to the end of what was computed as a prompt last, by which rows lie in the slot.
    pub laid_out: u32,
    /// Where its own last tokens begin as a prompt, while rows are selected anew by them.
    pub anew: Option<Past>,
    pub history: History,
    /// How the prompt began in its slot.
    pub beginning: Beginning,
    pub max_tokens: u32,
    /// What may follow the tokens; computed with them in the next step as far as there is room.
    pub draft: Vec<u32>,
    /// Guesses that were computed, and those of them that were right.
    pub drafted: u32,
    pub accepted: u32,
    pub sampler: Sampler,
    pub text: Option<TextStream>,
    /// Which stop text has ended it, if one has.
    pub stopped_by: Option<usize>,
    pub stop_tokens: Vec<u32>,
    /// Where the answer is in the grammar that it keeps to, if it has to.
    pub matcher: Option<Matcher>,
    pub rotary_set: u32,
    /// How many of the most probable tokens are reported with each, if any are.
    pub logprobs: Option<u32>,
    pub owner: u32,
}

impl Sequence {
    /// Tokens chosen.
    pub fn chosen(&self) -> u32 {
        self.tokens.len() as u32 - self.prompt_rows
    }

    /// Whether its next token is chosen from logits that another sample has penalised: those of the prompt,
    /// which is all that either of them has until then.
    pub fn is_penalised(&self) -> bool {
        self.chosen() == 0 && matches!(self.beginning, Beginning::Copied(_))
    }

    /// Rows in the cache: the last chosen token has none yet. Nothing before the first is chosen, and
    /// while they are being selected anew.
    pub fn past(&self) -> Option<Past> {
        let rows = self.tokens.len() as u32 - 1;
        let is_whole = self.chosen() > 0 && self.anew.is_none();
        is_whole.then_some(Past { rows, prompt_rows: self.laid_out })
    }

    /// Guesses what follows, no further than the answer may go: the last token of the step is chosen and
    /// not guessed. Returns how many tokens that are.
    pub fn guess(&mut self, guesses: &mut Guesses) -> u32 {
        self.draft.clear();
        let most = guesses.most.min(self.max_tokens - self.chosen() - 1) as usize;
        guesses.drafter.draft(&self.tokens, most, &mut self.draft);
        self.draft.truncate(most);
        self.draft.len() as u32
    }

    /// What its prompt, or its own last tokens, go on behind.
    pub fn behind(&self) -> Option<Past> {
        self.anew.or(match self.beginning {
            Beginning::Alike(_) | Beginning::Copied(_) => None,
            Beginning::Behind(past) | Beginning::BehindSome(past) => Some(past),
        })
    }
}

/// What a sequence's next token turned out to be.
pub(super) enum Choice {
    /// The one that was guessed: the next row's logits are right.
    Guessed,
    /// Another one, or nothing was guessed.
    Other,
    /// The last one, or none.
    Last,
}

/// Who guesses tokens ahead, and how many.
pub(super) struct Guesses {
    pub most: u32,
    pub drafter: Box<dyn Drafter + Send>,
}

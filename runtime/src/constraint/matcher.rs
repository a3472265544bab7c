//! Follows one answer through its grammar.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{SimpleVob, TokTrie};
use rustix::time::{ClockId, clock_gettime};

use super::Grammar;
use super::lead::{Lead, Place};
use super::limits::{ANSWER_TIME, AUTOMATON_BYTES, PARSER_BYTES, PARSER_TOKEN_BYTES, TOKEN_TIME};

/// Bytes that a parser holds for each of its items, for each row of them, which ends a terminal of the
/// grammar, and for each byte of the answer.
const ITEM_BYTES: usize = 16;
const ROW_BYTES: usize = 256;
const BYTE_BYTES: usize = 32;

/// Why an answer cannot be held to its grammar any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintFault {
    /// The grammar wants something that no token writes, or none that the model could choose.
    #[error("no token that the model can choose keeps to the grammar of the answer")]
    NoToken,
    /// A step, or the answer so far, takes more work or memory than there is for it.
    #[error("the grammar of the answer takes more work or memory than a step has")]
    TooComplex,
}

/// Where an answer is in its grammar.
pub(crate) struct Matcher {
    grammar: Grammar,
    /// Made with the first token, so that answers that wait hold none.
    parser: Option<TokenParser>,
    /// Where it is with its thoughts.
    place: Place,
    /// Bytes that the parser has come to hold.
    held: usize,
    /// Time of the processor that it has taken, and tokens that it has taken it for.
    spent: Duration,
    tokens: u32,
}

impl Matcher {
    /// At the beginning of an answer.
    pub fn new(grammar: Grammar) -> Matcher {
        let place = grammar.lead().map_or(Place::Behind, Lead::place);
        Matcher { grammar, parser: None, place, held: 0, spent: Duration::ZERO, tokens: 0 }
    }

    /// Takes the logits of all tokens away that the answer cannot go on with. `ends` are tokens that end
    /// it, which is where the grammar may end.
    pub fn mask(&mut self, logits: &mut [f32], ends: &[u32]) -> Result<(), ConstraintFault> {
        self.timed(|matcher| matcher.keep_allowed(logits, ends))
    }

    /// The answer goes on with a token. `true` if nothing can follow it.
    pub fn take(&mut self, token: u32) -> Result<bool, ConstraintFault> {
        self.tokens += 1;
        self.timed(|matcher| matcher.advance(token))
    }

    fn timed<T>(
        &mut self,
        work: impl FnOnce(&mut Matcher) -> Result<T, ConstraintFault>,
    ) -> Result<T, ConstraintFault> {
        let begin = time_of_thread();
        let outcome = work(self);
        self.spent += time_of_thread().saturating_sub(begin);
        match self.spent > ANSWER_TIME + TOKEN_TIME * self.tokens {
            true => Err(ConstraintFault::TooComplex),
            false => outcome,
        }
    }

    fn keep_allowed(&mut self, logits: &mut [f32], ends: &[u32]) -> Result<(), ConstraintFault> {
        if let Place::Within(_) = self.place {
            let ends = ends.iter().chain(self.grammar.eos());
            ends.for_each(|end| forbid_logit(logits, *end));
            return Ok(());
        }
        let parser = self.parser.get_or_insert_with(|| self.grammar.begin());
        let (mut mask, may_end) = match self.place {
            Place::Before { keeps: false, .. } => {
                (parser.token_env.tok_trie().alloc_token_set(), false)
            }
            _ => {
                let mask = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
                let mut mask = mask.map_err(|_| fault(parser))?;
                for eos in self.grammar.eos().iter().filter(|eos| !ends.contains(eos)) {
                    forbid(&mut mask, *eos);
                }
                (mask, parser.is_accepting())
            }
        };
        if let (Place::Before { written, .. }, Some(lead)) = (&self.place, self.grammar.lead()) {
            let opening = lead.opening(written, parser.token_env.tok_trie());
            opening.into_iter().for_each(|token| allow(&mut mask, token));
        }
        // A request's own ends may be texts that the grammar goes on with: whoever chooses one ends there.
        match may_end {
            true => ends.iter().for_each(|end| allow(&mut mask, *end)),
            false => ends.iter().for_each(|end| forbid(&mut mask, *end)),
        }
        if mask.is_zero() {
            return Err(ConstraintFault::NoToken);
        }
        keep(&mask, logits);
        Ok(())
    }

    fn advance(&mut self, token: u32) -> Result<bool, ConstraintFault> {
        let parser = self.parser.get_or_insert_with(|| self.grammar.begin());
        let environment = Arc::clone(&parser.token_env);
        let trie = environment.tok_trie();
        let (next, taken) = match (&mut self.place, self.grammar.lead()) {
            (Place::Before { written, keeps }, Some(lead)) => {
                let opens = lead.opening(written, trie).contains(&token);
                let keeps = *keeps && (!opens || keeps_to(parser, token)?);
                written.extend_from_slice(text_of(token, trie));
                let taken = if keeps { vec![token] } else { Vec::new() };
                (lead.after(std::mem::take(written), keeps), taken)
            }
            (Place::Within(tail), Some(lead)) => match lead.end(tail, text_of(token, trie)) {
                Some(rest) => (Place::Behind, trie.greedy_tokenize(&rest)),
                None => return Ok(false),
            },
            _ => (Place::Behind, vec![token]),
        };
        self.place = next;
        if let Place::Within(_) = self.place {
            // What it has taken of their mark was none of the answer.
            self.parser = None;
            return Ok(false);
        }
        let before = parser.parser_stats().clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for token in &taken {
                parser.consume_token(*token)?;
            }
            parser.check_stop()
        }));
        let ends = outcome.map_err(|_| fault(parser))?;
        let grown = parser.parser_stats().delta(&before);
        let bytes: usize = taken.iter().map(|token| trie.token_len(*token)).sum();
        self.held += grown.all_items * ITEM_BYTES + grown.rows * ROW_BYTES + bytes * BYTE_BYTES;
        let automaton = parser.parser.lexer_stats().num_bytes;
        let most = PARSER_BYTES + self.tokens as usize * PARSER_TOKEN_BYTES;
        match self.held > most || automaton > AUTOMATON_BYTES {
            true => Err(ConstraintFault::TooComplex),
            false => Ok(ends),
        }
    }
}

/// Whether a grammar takes a token.
fn keeps_to(parser: &mut TokenParser, token: u32) -> Result<bool, ConstraintFault> {
    let valid = catch_unwind(AssertUnwindSafe(|| parser.validate_tokens_raw(&[token])));
    Ok(valid.map_err(|_| fault(parser))? == 1)
}

/// The text of a token. Special ones have a byte in front of their names here, which texts do not have.
fn text_of(token: u32, trie: &TokTrie) -> &[u8] {
    let text = trie.token(token);
    text.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(text)
}

/// Time that this thread has had of a processor.
fn time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Why a parser goes no further.
fn fault(parser: &TokenParser) -> ConstraintFault {
    match parser.stop_reason() {
        StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence => {
            ConstraintFault::NoToken
        }
        // One of its limits, or a panic, behind which nothing more is known.
        _ => ConstraintFault::TooComplex,
    }
}

fn allow(mask: &mut SimpleVob, token: u32) {
    if (token as usize) < mask.len() {
        mask.allow_token(token);
    }
}

fn forbid_logit(logits: &mut [f32], token: u32) {
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = f32::NEG_INFINITY;
    }
}

fn forbid(mask: &mut SimpleVob, token: u32) {
    if (token as usize) < mask.len() {
        mask.disallow_token(token);
    }
}

/// Keeps the logits of a mask's tokens.
fn keep(mask: &SimpleVob, logits: &mut [f32]) {
    let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in (0..).zip(logits) {
                    if word & (1 << bit) == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

//! Reads constraints into grammars, each once for all requests that ask alike.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use llguidance::api::GrammarInit;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use weir_tokenizer::Tokenizer;

use super::lead::Lead;
use super::limits::{GRAMMAR_BYTES, KEPT_GRAMMARS, READING_TIME, of_library};
use super::{Constraint, ConstraintError, vocabulary};
use crate::notation::ThoughtMarks;

/// Stack of the thread that reads a grammar: its library descends as deep as rules name one another. Only
/// what is used of it takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Texts without what JSON would have to write otherwise: tokens that are such a text are looked through
/// once, and not again for each place where a grammar takes them all.
const PLAIN_TEXT: &str = r#"[^"\\\x00-\x1F\x7F]+"#;

/// What a model's constraints have in common: the tree of its tokens, and grammars that have been read.
pub struct Grammars {
    shared: Arc<Reader>,
}

struct Reader {
    factory: ParserFactory,
    vocabulary: u32,
    eos: Vec<u32>,
    desk: Mutex<Desk>,
    /// Another grammar may be read.
    freed: Condvar,
}

/// Where one grammar at a time is read.
#[derive(Default)]
struct Desk {
    /// The last that were asked for come first.
    kept: Vec<(Constraint, Grammar)>,
    is_taken: bool,
}

/// Frees the desk, whatever happens to whoever sits there.
struct Seat(Arc<Reader>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.desk().is_taken = false;
        self.0.freed.notify_one();
    }
}

/// A constraint that has been read for a model's vocabulary. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    shared: Arc<Shared>,
    /// Thoughts that may come first.
    lead: Option<Lead>,
}

struct Shared {
    /// At the beginning of an answer. In a mutex for its library's sake, whose parsers may be sent to
    /// another thread and not be shared with it.
    parser: Mutex<TokenParser>,
    vocabulary: u32,
    eos: Vec<u32>,
}

impl Grammars {
    /// Builds the tree of a tokenizer's tokens, for a model with `vocabulary` entries whose answers `eos`
    /// end. Takes 0.1 s for 32,000 tokens.
    pub fn new(
        tokenizer: &Tokenizer,
        vocabulary: u32,
        eos: &[u32],
    ) -> Result<Grammars, ConstraintError> {
        let tokens = vocabulary::tokens(tokenizer, vocabulary, eos)?;
        let slices = [PLAIN_TEXT.to_owned()];
        let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices)
            .map_err(refused)?;
        let (desk, freed) = (Mutex::default(), Condvar::new());
        let reader = Reader { factory, vocabulary, eos: eos.to_vec(), desk, freed };
        Ok(Grammars { shared: Arc::new(reader) })
    }

    /// The grammar of a constraint. Returns within two times [`READING_TIME`]: a grammar that takes longer
    /// is refused, and while its thread goes on others that have not been read before wait or are refused.
    pub fn read(&self, constraint: &Constraint) -> Result<Grammar, ConstraintError> {
        let seat = match self.shared.take_seat(constraint)? {
            Taken::Kept(grammar) => return Ok(grammar),
            Taken::Seat(seat) => seat,
        };
        let (sender, receiver) = sync_channel(1);
        let source = constraint.clone();
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let read = move || {
            let grammar = seat.0.grammar(&source);
            // Free before the outcome is known, for whoever asks next. Nobody hears if it took too long.
            drop(seat);
            let _ = sender.send(grammar);
        };
        let internal = || ConstraintError::Refused("it cannot be read: an internal error".into());
        thread.spawn(read).map_err(|_| internal())?;
        let grammar = receiver.recv_timeout(READING_TIME).map_err(|reason| match reason {
            RecvTimeoutError::Timeout => ConstraintError::TooSlow,
            RecvTimeoutError::Disconnected => internal(),
        })??;
        let kept = &mut self.shared.desk().kept;
        kept.truncate(KEPT_GRAMMARS - 1);
        kept.insert(0, (constraint.clone(), grammar.clone()));
        Ok(grammar)
    }
}

#[cfg(test)]
impl Grammars {
    /// As if a grammar were being read, until what is returned is dropped.
    pub(super) fn take_seat(&self) -> impl Drop + use<> {
        self.shared.desk().is_taken = true;
        Seat(Arc::clone(&self.shared))
    }
}

/// Who asks for a grammar gets it, or may read it.
enum Taken {
    Kept(Grammar),
    Seat(Seat),
}

impl Reader {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_seat(self: &Arc<Reader>, constraint: &Constraint) -> Result<Taken, ConstraintError> {
        let until = Instant::now() + READING_TIME;
        let mut desk = self.desk();
        loop {
            let mut kept = desk.kept.iter();
            if let Some(place) = kept.position(|(source, _)| source.is_alike(constraint)) {
                desk.kept[..=place].rotate_right(1);
                return Ok(Taken::Kept(desk.kept[0].1.clone()));
            }
            if !desk.is_taken {
                desk.is_taken = true;
                return Ok(Taken::Seat(Seat(Arc::clone(self))));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConstraintError::Busy);
            }
            let waited = self.freed.wait_timeout(desk, left);
            desk = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn grammar(&self, constraint: &Constraint) -> Result<Grammar, ConstraintError> {
        let mut parser = self.parser(constraint).map_err(|error| self.blame(constraint, error))?;
        if parser.parser.lexer_stats().num_bytes > GRAMMAR_BYTES {
            return Err(ConstraintError::Refused("it is too large once it has been read".into()));
        }
        parser.start_without_prompt();
        // A first step shows what is too much for every one, and what nothing keeps to.
        let mut tried = parser.deep_clone();
        let tried = catch_unwind(AssertUnwindSafe(|| {
            let is_over = tried.check_stop()?;
            if !is_over {
                tried.compute_mask()?;
            }
            Ok(is_over)
        }));
        match tried {
            Ok(false) => {}
            Ok(true) => return Err(ConstraintError::Empty),
            Err(reason) if reason.to_string().contains("NoExtension") => {
                return Err(ConstraintError::Refused("nothing keeps to it".into()));
            }
            Err(reason) => return Err(refused(reason)),
        }
        let (vocabulary, eos) = (self.vocabulary, self.eos.clone());
        let shared = Shared { parser: Mutex::new(parser), vocabulary, eos };
        Ok(Grammar { shared: Arc::new(shared), lead: None })
    }

    fn parser(&self, constraint: &Constraint) -> Result<TokenParser, ConstraintError> {
        let tokens = self.factory.tok_env().tok_trie();
        let grammar = constraint.top_level(|name| tokens.get_special_token(name))?;
        self.factory
            .create_parser_from_init_ext(
                GrammarInit::Serialized(grammar),
                Logger::new(0, 0),
                InferenceCapabilities::default(),
                of_library(),
            )
            .map_err(refused)
    }

    /// An error's tool, where one tool alone is to blame: the library does not tell which it is. Takes as
    /// long again as what has failed.
    fn blame(&self, constraint: &Constraint, error: ConstraintError) -> ConstraintError {
        let (Constraint::Calls(calls), ConstraintError::Refused(_)) = (constraint, &error) else {
            return error;
        };
        let wrong = calls.tools.iter().enumerate().find_map(|(index, tool)| {
            let alone = self.parser(&Constraint::JsonSchema(tool.parameters.clone()));
            alone.err().map(|error| super::of_tool(index, error))
        });
        wrong.unwrap_or(error)
    }
}

impl Grammar {
    /// Entries of the vocabulary that it was read for.
    pub fn vocabulary(&self) -> u32 {
        self.shared.vocabulary
    }

    /// The same for answers of a model that may think first, as long as it likes and whatever it likes, or
    /// whose prompt has opened thoughts already (`are_open`), so that it must end them.
    #[must_use]
    pub fn behind_thoughts(self, marks: ThoughtMarks, are_open: bool) -> Grammar {
        Grammar { lead: Some(Lead::new(marks, are_open)), ..self }
    }

    /// Whether it is another one's clone.
    #[cfg(test)]
    pub(super) fn is(&self, other: &Grammar) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Tokens of the model that end an answer.
    pub(super) fn eos(&self) -> &[u32] {
        &self.shared.eos
    }

    /// Thoughts that may stand in front of an answer.
    pub(super) fn lead(&self) -> Option<&Lead> {
        self.lead.as_ref()
    }

    /// A parser at the beginning of an answer, which shares nothing that changes with any other: what an
    /// answer may spend does not depend on what others have spent.
    pub(super) fn begin(&self) -> TokenParser {
        self.shared.parser.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("vocabulary", &self.vocabulary()).finish_non_exhaustive()
    }
}

/// The library's reason, without what follows its first lines: positions in dumps of its own, and a
/// backtrace where it has panicked.
fn refused(reason: impl std::fmt::Display) -> ConstraintError {
    let reason = reason.to_string();
    if reason.starts_with("panic:") {
        return ConstraintError::Refused("it cannot be read".into());
    }
    // Its own words name an option that there is not here.
    if reason.contains("coerce_one_of") {
        let reason = "oneOf is supported only where it can be seen that no value fits two of its \
                      schemas, by their types or by a required property with a text of its own in \
                      each; use anyOf";
        return ConstraintError::Refused(reason.into());
    }
    let lines: Vec<&str> =
        reason.lines().take_while(|line| !line.starts_with('<')).take(4).collect();
    let mut reason = lines.join("\n");
    if let Some((end, _)) = reason.char_indices().nth(400) {
        reason.truncate(end);
    }
    ConstraintError::Refused(reason)
}

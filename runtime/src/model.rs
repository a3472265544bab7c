//! A compiled model with its tokenizer, template and facts: where the library begins.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use weir_abi::HeadResult;
use weir_tokenizer::{Tokenizer, TokenizerError};

use crate::constraint::limits;
use crate::constraint::{Constraint, ConstraintError, Grammar, Grammars};
use crate::drafts::PromptLookup;
use crate::engine::Engine;
use crate::facts::Facts;
use crate::forward::Forward;
use crate::memory::MemoryCeiling;
use crate::notation::Notation;
use crate::sampling::SamplingOptions;
use crate::template::{ChatMessage, ChatTemplate};
use crate::{CompiledModel, RuntimeError, RuntimeOptions};

/// A compiled model, ready to build engines.
pub struct Model {
    compiled: Arc<CompiledModel>,
    facts: Facts,
    /// Opened on first use: `--ids` and `info` do not need it.
    tokenizer: OnceLock<Tokenizer>,
    /// Compiled on first use: only chats need it.
    template: OnceLock<ChatTemplate>,
    /// Built on first use: only constrained answers need them.
    grammars: OnceLock<Result<Grammars, ConstraintError>>,
}

/// The packed tokenizer inside a model; keeps the model mapped.
struct TokenizerBytes(Arc<CompiledModel>);

impl AsRef<[u8]> for TokenizerBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.tokenizer()
    }
}

/// A conversation as a model has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenChat {
    /// What the template made of it, and the text of the answer.
    pub text: String,
    /// The tokens, those of the answer as they were chosen.
    pub ids: Vec<u32>,
}

impl Model {
    /// Opens the file that `weir compile` wrote.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, RuntimeError> {
        Model::new(CompiledModel::open(path.as_ref())?)
    }

    /// Takes a compiled model, wherever it lies.
    pub fn new(compiled: CompiledModel) -> Result<Model, RuntimeError> {
        let facts = Facts::parse(compiled.facts())
            .map_err(|error| RuntimeError::Part { part: "facts", reason: error.to_string() })?;
        Ok(Model {
            compiled: Arc::new(compiled),
            facts,
            tokenizer: OnceLock::new(),
            template: OnceLock::new(),
            grammars: OnceLock::new(),
        })
    }

    /// Tables, code and weights.
    pub fn compiled(&self) -> &Arc<CompiledModel> {
        &self.compiled
    }

    /// What is known besides.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What it gives for a row.
    pub fn gives(&self) -> HeadResult {
        self.compiled.head_result()
    }

    /// An error unless it writes text.
    pub fn need_text(&self) -> Result<(), RuntimeError> {
        match self.gives() {
            HeadResult::Logits => Ok(()),
            HeadResult::Hidden => Err(RuntimeError::NoText),
        }
    }

    /// An error unless it gives embeddings.
    pub fn need_embeddings(&self) -> Result<(), RuntimeError> {
        match self.gives() {
            HeadResult::Hidden => Ok(()),
            HeadResult::Logits => Err(RuntimeError::NoEmbeddings),
        }
    }

    /// The tokenizer; `None` if the model was compiled without one.
    pub fn tokenizer(&self) -> Result<Option<&Tokenizer>, RuntimeError> {
        if self.compiled.tokenizer().is_empty() {
            return Ok(None);
        }
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(Some(tokenizer));
        }
        let tokenizer =
            Tokenizer::open(TokenizerBytes(Arc::clone(&self.compiled))).map_err(unreadable)?;
        Ok(Some(self.tokenizer.get_or_init(|| tokenizer)))
    }

    /// The tokenizer, or an error that says what is missing.
    pub fn need_tokenizer(&self) -> Result<&Tokenizer, RuntimeError> {
        self.tokenizer()?.ok_or(RuntimeError::Absent("tokenizer; give token ids"))
    }

    /// Ids of a prompt that is plain text, with the tokens that the model expects around it: those of the
    /// tokenizer's template, of which `add_bos_token: false` takes only the first token of a sequence.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        let add_bos = self.facts.add_bos;
        if add_bos == Some(false) {
            let tokenizer = self.need_tokenizer()?;
            let named = self.facts.special.get("bos_token");
            let named = named.and_then(|token| tokenizer.token_id(token));
            return tokenizer
                .encode_without_bos(text, named.or(self.facts.bos_token_id))
                .map_err(unreadable);
        }
        let mut ids = self.encode_with(text, true)?;
        if let (Some(true), Some(bos)) = (add_bos, self.facts.bos_token_id)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Ids of a text, with no token in front of it that is not its own.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, RuntimeError> {
        self.encode_with(text, false)
    }

    /// Bytes of the longest text that can fit into the context: longer ones have too many tokens, for none
    /// stands for more bytes than the vocabulary's longest.
    pub fn longest_text(&self) -> Result<usize, RuntimeError> {
        // An unknown character, or a run of spaces that the tokenizer drops, is longer than its token.
        const LEAST: usize = 32;
        let Some(tokenizer) = self.tokenizer()? else { return Ok(0) };
        let bytes = |id| tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len());
        let longest = (0..tokenizer.vocabulary()).map(bytes).max().unwrap_or(0).max(LEAST);
        Ok((self.compiled.header().context as usize).saturating_mul(longest))
    }

    /// Ids of a conversation. Its template writes all special tokens itself.
    pub fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, RuntimeError> {
        let text = self.template()?.render(messages, true)?;
        self.encode_with(&text, false)
    }

    /// Text and ids of a conversation that goes on with one that the model has seen. The last answer's ids
    /// are taken as they were chosen, where they end with a token that the template writes as well: its
    /// text could be divided into other tokens, and nothing that was computed for it would be of use.
    pub fn encode_chat_after(
        &self,
        seen: &SeenChat,
        messages: &[ChatMessage],
    ) -> Result<SeenChat, RuntimeError> {
        let text = self.template()?.render(messages, true)?;
        let rest = text.strip_prefix(seen.text.as_str()).filter(|_| !seen.ids.is_empty());
        if let Some(rest) = rest {
            let rest = self.encode_with(rest, false)?;
            if rest.first() == seen.ids.last() {
                let ids = [&seen.ids[..], &rest[1..]].concat();
                return Ok(SeenChat { text, ids });
            }
        }
        let ids = self.encode_with(&text, false)?;
        Ok(SeenChat { text, ids })
    }

    fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<u32>, RuntimeError> {
        self.need_tokenizer()?.encode(text, add_special).map_err(unreadable)
    }

    /// The chat template, or an error that says that there is none.
    pub fn template(&self) -> Result<&ChatTemplate, RuntimeError> {
        if let Some(template) = self.template.get() {
            return Ok(template);
        }
        let source = self.compiled.chat_template();
        if source.is_empty() {
            return Err(RuntimeError::Absent("chat template"));
        }
        let template = ChatTemplate::compile(source, &self.facts.special)?;
        Ok(self.template.get_or_init(|| template))
    }

    /// What [`crate::Request::constraint`] takes, for a constraint of this model's answers. Each is read
    /// once, and kept for a while.
    pub fn grammar(&self, constraint: &Constraint) -> Result<Grammar, RuntimeError> {
        let tokenizer = self.need_tokenizer()?;
        let vocabulary = self.compiled.header().vocabulary;
        let grammars = self
            .grammars
            .get_or_init(|| Grammars::new(tokenizer, vocabulary, &self.facts.eos_token_ids));
        let grammars = grammars.as_ref().map_err(ConstraintError::clone)?;
        Ok(grammars.read(constraint)?)
    }

    /// Bytes that constrained answers take at most, so many of which are given at once, for so many requests
    /// that are served or wait.
    pub fn constraint_memory(&self, slots: u32, places: u32) -> Result<u64, RuntimeError> {
        let Some(tokenizer) = self.tokenizer()? else { return Ok(0) };
        let bytes = |id| tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len() as u64);
        let bytes = (0..tokenizer.vocabulary()).map(bytes).sum();
        let header = self.compiled.header();
        Ok(limits::memory(header.vocabulary, bytes, header.context, slots, places))
    }

    /// How the model writes thoughts and calls of tools.
    pub fn notation(&self) -> Result<Notation, RuntimeError> {
        let tokenizer = self.tokenizer()?;
        let has = |text: &str| tokenizer.is_some_and(|known| known.token_id(text).is_some());
        Ok(Notation::of(self.compiled.chat_template(), has))
    }

    /// How tokens are chosen when nobody says: greedily, unless the model's authors ask for
    /// sampling (`do_sample`). Filters and penalty are theirs in either case.
    pub fn sampling_defaults(&self) -> SamplingOptions {
        let authors = &self.facts.sampling;
        let sample = authors.do_sample == Some(true);
        let plain = SamplingOptions::default();
        SamplingOptions {
            temperature: if sample { authors.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: authors.top_k.unwrap_or(plain.top_k),
            top_p: authors.top_p.unwrap_or(plain.top_p),
            min_p: authors.min_p.unwrap_or(plain.min_p),
            repetition_penalty: authors.repetition_penalty.unwrap_or(plain.repetition_penalty),
            ..plain
        }
    }

    /// What an engine with these options can use at most.
    pub fn memory_ceiling(&self, options: &RuntimeOptions) -> Result<MemoryCeiling, RuntimeError> {
        MemoryCeiling::new(&self.compiled, options)
    }

    /// Memory and threads to run steps with.
    pub fn forward(&self, options: &RuntimeOptions) -> Result<Forward, RuntimeError> {
        Forward::new(Arc::clone(&self.compiled), options)
    }

    /// An engine.
    pub fn engine(&self, options: &RuntimeOptions) -> Result<Engine<Forward>, RuntimeError> {
        let forward = self.forward(options)?;
        let eos = self.facts.eos_token_ids.clone();
        let mut engine = Engine::new(forward, self.tokenizer()?.cloned(), eos);
        if options.draft > 0 {
            engine.guess(options.draft, PromptLookup)?;
        }
        Ok(engine)
    }
}

/// What the packed tokenizer says of itself or of a text.
fn unreadable(error: TokenizerError) -> RuntimeError {
    RuntimeError::Part { part: "tokenizer", reason: error.to_string() }
}

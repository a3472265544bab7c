//! Several cache layouts on the same prompts: what `eval` and `perplexity` measure with.
//!
//! A prompt is computed once, with all its rows, for all arms whose rows have one number format; each
//! arm then takes over what its layouts keep and goes on by itself. What an arm gives is what an engine
//! with its model gives, bit for bit (`forward/staged.rs` names two exceptions, in which float sums have another order). Prompts that begin alike, as questions about one document do,
//! share the rows of their beginning.

use weir_abi::CacheLayout;

use crate::cache::KeptRows;
use crate::forward::{Forward, Past, StagedPrompt, StepFault, StepModel, StepRow};
use crate::sampling::greedy;
use crate::{RequestError, RuntimeError};

/// Something to compare.
pub struct Candidate {
    /// What it is called in tables.
    pub name: String,
    /// Number format of its rows: only rows of the same format can be taken over.
    pub format: String,
    /// What runs it.
    pub forward: Forward,
}

/// One of the things that are compared.
pub struct Arm {
    /// What it is called in tables.
    pub name: String,
    forward: Forward,
    /// Which of the staged prompts it takes over.
    group: usize,
}

/// Arms with the same number format of rows.
struct Group {
    format: String,
    /// The arm whose code computes prompts.
    lead: usize,
    staged: StagedPrompt,
    /// Logits of the prompt's last row.
    logits: Vec<f32>,
}

/// A prompt and how long its answer may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens that follow one by one, as if they had been chosen; what is chosen behind them is the
    /// answer.
    pub begun: Vec<u32>,
    /// Most tokens of the answer, at least 1.
    pub max_tokens: u32,
}

impl Asked {
    /// Most tokens of the answer.
    fn length(&self) -> usize {
        self.max_tokens.max(1) as usize
    }

    /// Rows of the prompt with what is given behind it and the longest answer, whose last token has
    /// none.
    fn rows(&self) -> usize {
        self.prompt.len() + self.begun.len() + self.length() - 1
    }
}

impl Running {
    /// Rows that lie in the slot.
    fn past(&self) -> Past {
        Past { rows: self.tokens.len() as u32 - 1, prompt_rows: self.prompt_rows }
    }

    /// The next one.
    fn row(&self) -> StepRow {
        let Running { slot, prompt_rows, rotary_set, .. } = *self;
        let position = self.tokens.len() as u32 - 1;
        let token = self.tokens[position as usize];
        StepRow { token, position, slot, prompt_rows, rotary_set }
    }
}

/// What an arm said to a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Tokens of the answer, the one that ended it included.
    pub ids: Vec<u32>,
    /// Rows at its end.
    pub rows: KeptRows,
}

/// A text whose end is asked of its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// Its tokens.
    pub tokens: &'a [u32],
    /// How many of them are the prompt, at least 1; the others are asked for one by one.
    pub prompt: usize,
}

/// Arms that answer the same prompts.
pub struct Comparison {
    arms: Vec<Arm>,
    groups: Vec<Group>,
    /// Prompts that are answered at once.
    slots: usize,
    context: u32,
    logits: Vec<f32>,
}

/// Gets the logits of a slot and says which token follows, if any does.
type Take<'t> = dyn FnMut(usize, &[f32]) -> Result<Option<u32>, StepFault> + 't;

/// A sequence of an arm while it is being continued.
struct Running {
    slot: u32,
    prompt_rows: u32,
    rotary_set: u32,
    /// The prompt, what was chosen or asked for behind it, and the token whose row is next.
    tokens: Vec<u32>,
}

impl Comparison {
    /// Compares these, with prompts and answers of at most `context` rows.
    ///
    /// Errors if they differ in more than how rows are kept, or one has too short a context.
    pub fn new(arms: Vec<Candidate>, context: u32) -> Result<Comparison, RuntimeError> {
        let wrong = |name: &str, what: &str| RuntimeError::Options(format!("{name}: {what}"));
        let mut comparison = Comparison {
            arms: Vec::new(),
            groups: Vec::new(),
            slots: usize::MAX,
            context,
            logits: Vec::new(),
        };
        let observed = arms.iter().map(|arm| most_observed(&arm.forward)).max().unwrap_or(0);
        for Candidate { name, format, forward } in arms {
            let shape = forward.shape();
            if shape.context < context {
                let reason = format!("its context ends after {} rows", shape.context);
                return Err(wrong(&name, &reason));
            }
            let alike = |group: &Group| {
                let lead = &comparison.arms[group.lead].forward;
                group.format == format && lead.has_layers_of(&forward)
            };
            let group = match comparison.groups.iter().position(alike) {
                Some(group) => group,
                None => {
                    let staged = StagedPrompt::new(&forward, context, observed)?;
                    let logits = vec![0.0; shape.vocabulary as usize];
                    let lead = comparison.arms.len();
                    comparison.groups.push(Group { format, lead, staged, logits });
                    comparison.groups.len() - 1
                }
            };
            let at_once = (shape.slots.min(shape.max_rows)) as usize;
            comparison.slots = comparison.slots.min(at_once);
            let room = at_once * shape.vocabulary as usize;
            comparison.logits.resize(comparison.logits.len().max(room), 0.0);
            comparison.arms.push(Arm { name, forward, group });
        }
        if comparison.arms.is_empty() {
            return Err(RuntimeError::Options("nothing to compare".into()));
        }
        Ok(comparison)
    }

    /// The arms, in the order in which they were given.
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// Prompts that are answered at once; more are answered in turns.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Rows of a prompt with its answer, at most.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Answers prompts greedily: per prompt what each arm says. `ends` is told every token, with the
    /// places of its prompt and its arm, and says whether the answer is over with it.
    pub fn answer(
        &mut self,
        asked: &[Asked],
        ends: &mut dyn FnMut(usize, usize, u32) -> bool,
    ) -> Result<Vec<Vec<Answered>>, RuntimeError> {
        for asked in asked {
            self.check(&[&asked.prompt, &asked.begun], asked.rows())?;
        }
        let mut answers = vec![vec![Answered::default(); self.arms.len()]; asked.len()];
        let slots = self.slots;
        for (turn, asked) in asked.chunks(slots).enumerate() {
            let first = turn * slots;
            for (slot, asked) in asked.iter().enumerate() {
                self.prefill(slot as u32, &asked.prompt, asked.rows() as u32)?;
                if !asked.begun.is_empty() {
                    continue;
                }
                for (arm, answered) in self.arms.iter().zip(&mut answers[first + slot]) {
                    answered.ids.push(chosen(&self.groups[arm.group].logits)?);
                }
            }
            for index in self.arms_in_turn() {
                let mut next = |slot: usize, ids: &[u32]| {
                    let token = ids.last().copied()?;
                    let over = ends(first + slot, index, token);
                    (!over && ids.len() < asked[slot].length()).then_some(token)
                };
                let mut running = Vec::new();
                let mut given: Vec<_> = asked.iter().map(|asked| asked.begun.iter()).collect();
                for (slot, asked) in asked.iter().enumerate() {
                    let begun = given[slot].next().copied();
                    let token = begun.or_else(|| next(slot, &answers[first + slot][index].ids));
                    if let Some(token) = token {
                        let rows = asked.rows();
                        running.push(self.running(index, slot, &asked.prompt, rows, token));
                    }
                }
                let laid_out = self.decode(index, running, &mut |slot, row| {
                    if let Some(token) = given[slot].next() {
                        return Ok(Some(*token));
                    }
                    let ids = &mut answers[first + slot][index].ids;
                    ids.push(chosen(row)?);
                    Ok(next(slot, ids))
                })?;
                for (slot, asked) in asked.iter().enumerate() {
                    let answered = &mut answers[first + slot][index];
                    let rows = asked.prompt.len() + asked.begun.len() + answered.ids.len() - 1;
                    let rows = rows as u32;
                    let laid_out = laid_out.iter().find(|(other, _)| *other == slot);
                    let prompt_rows = laid_out.map_or(asked.prompt.len() as u32, |(_, rows)| *rows);
                    let past = Past { rows, prompt_rows };
                    answered.rows = self.arms[index].forward.kept(slot as u32, past);
                }
            }
        }
        Ok(answers)
    }

    /// Asks for the end of each passage token by token: per passage and arm -ln p of each token.
    pub fn surprise(
        &mut self,
        passages: &[Passage<'_>],
    ) -> Result<Vec<Vec<Vec<f64>>>, RuntimeError> {
        for passage in passages {
            let (prompt, rest) = passage.tokens.split_at(passage.prompt);
            self.check(&[prompt, rest], passage.tokens.len())?;
        }
        let mut surprises = vec![vec![Vec::new(); self.arms.len()]; passages.len()];
        let slots = self.slots;
        for (turn, passages) in passages.chunks(slots).enumerate() {
            let first = turn * slots;
            for (slot, passage) in passages.iter().enumerate() {
                let (prompt, rest) = passage.tokens.split_at(passage.prompt);
                self.prefill(slot as u32, prompt, passage.tokens.len() as u32)?;
                let Some(asked) = rest.first() else { continue };
                for (arm, surprises) in self.arms.iter().zip(&mut surprises[first + slot]) {
                    surprises.push(surprise(&self.groups[arm.group].logits, *asked));
                }
            }
            for index in self.arms_in_turn() {
                let mut running = Vec::new();
                for (slot, passage) in passages.iter().enumerate() {
                    let (prompt, rest) = passage.tokens.split_at(passage.prompt);
                    if rest.len() > 1 {
                        let rows = passage.tokens.len();
                        running.push(self.running(index, slot, prompt, rows, rest[0]));
                    }
                }
                self.decode(index, running, &mut |slot, row| {
                    let rest = &passages[slot].tokens[passages[slot].prompt..];
                    let surprises = &mut surprises[first + slot][index];
                    let asked = rest[surprises.len()];
                    surprises.push(surprise(row, asked));
                    Ok((surprises.len() < rest.len()).then_some(asked))
                })?;
            }
        }
        Ok(surprises)
    }

    fn arms_in_turn(&self) -> std::ops::Range<usize> {
        0..self.arms.len()
    }

    /// Refuses a prompt and what is given behind it, of `rows` rows with the answer, if it cannot be
    /// computed.
    fn check(&self, [prompt, given]: &[&[u32]; 2], rows: usize) -> Result<(), RequestError> {
        let vocabulary = self.arms[0].forward.shape().vocabulary;
        if prompt.is_empty() {
            return Err(RequestError::Empty);
        }
        if rows > self.context as usize {
            return Err(RequestError::TooLong { rows, context: self.context });
        }
        let mut tokens = prompt.iter().chain(*given).copied().enumerate();
        match tokens.find(|(_, token)| *token >= vocabulary) {
            Some((index, token)) => Err(RequestError::UnknownToken { index, token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Computes a prompt once a group and lets every arm take it over.
    fn prefill(&mut self, slot: u32, prompt: &[u32], rows: u32) -> Result<(), StepFault> {
        for group in &mut self.groups {
            let forward = &mut self.arms[group.lead].forward;
            forward.stage(&mut group.staged, prompt, rows, &mut group.logits)?;
        }
        for arm in &mut self.arms {
            arm.forward.adopt(&mut self.groups[arm.group].staged, slot)?;
        }
        Ok(())
    }

    /// A sequence of `rows` rows in all that goes on with a token behind its prompt.
    fn running(&self, arm: usize, slot: usize, prompt: &[u32], rows: usize, next: u32) -> Running {
        let rotary_set = self.arms[arm].forward.shape().rotary_set(rows as u32);
        let mut tokens = Vec::with_capacity(rows);
        tokens.extend_from_slice(prompt);
        tokens.push(next);
        Running { slot: slot as u32, prompt_rows: prompt.len() as u32, rotary_set, tokens }
    }

    /// Steps of an arm until every sequence is over. Returns for each slot how many rows were computed
    /// as a prompt, the last time that one was.
    fn decode(
        &mut self,
        arm: usize,
        mut running: Vec<Running>,
        take: &mut Take<'_>,
    ) -> Result<Vec<(usize, u32)>, StepFault> {
        let forward = &mut self.arms[arm].forward;
        let vocabulary = forward.shape().vocabulary as usize;
        let mut laid_out = Vec::with_capacity(running.len());
        while !running.is_empty() {
            let is_full = |running: &Running| forward.reselects(running.slot, running.past());
            // By a prompt each.
            let (anew, steps): (Vec<_>, Vec<_>) =
                running.into_iter().partition(|running| is_full(running).is_some());
            let logits = &mut self.logits[..(anew.len() + steps.len()) * vocabulary];
            let (step_logits, anew_logits) = logits.split_at_mut(steps.len() * vocabulary);
            if !steps.is_empty() {
                let rows: Vec<StepRow> = steps.iter().map(Running::row).collect();
                let head_rows: Vec<u32> = (0..rows.len() as u32).collect();
                forward.step(&rows, &head_rows, step_logits)?;
            }
            running = steps;
            for (mut sequence, logits) in anew.into_iter().zip(anew_logits.chunks_mut(vocabulary)) {
                let Running { slot, rotary_set, .. } = sequence;
                let past = sequence.past();
                forward.reselect(&sequence.tokens, slot, rotary_set, past, logits)?;
                sequence.prompt_rows = past.rows + 1;
                running.push(sequence);
            }
            let mut left = Vec::with_capacity(running.len());
            for (mut sequence, row) in running.into_iter().zip(logits.chunks_exact(vocabulary)) {
                match take(sequence.slot as usize, row)? {
                    Some(next) => {
                        sequence.tokens.push(next);
                        left.push(sequence);
                    }
                    None => laid_out.push((sequence.slot as usize, sequence.prompt_rows)),
                }
            }
            running = left;
        }
        Ok(laid_out)
    }
}

impl Arm {
    /// Bytes of its cache for one sequence.
    pub fn slot_bytes(&self) -> u64 {
        self.forward.cache_bytes() / u64::from(self.forward.shape().slots)
    }

    /// What runs it.
    pub fn forward(&self) -> &Forward {
        &self.forward
    }
}

/// The most likely token.
fn chosen(row: &[f32]) -> Result<u32, StepFault> {
    greedy(row).ok_or(StepFault::NotFinite)
}

/// Queries that the layouts of a model observe, at most.
fn most_observed(forward: &Forward) -> u32 {
    let layouts = forward.shape().layouts.iter();
    let selecting = layouts.filter(|layout| layout.selected > 0 || layout.further > 0);
    selecting.map(CacheLayout::kept_queries).max().unwrap_or(0)
}

/// -ln p of a token by a row of logits, in double precision.
pub fn surprise(row: &[f32], id: u32) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let total: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
    total.ln() - f64::from(row[id as usize] - largest)
}

//! Several cache layouts on the same prompts: what `eval` and `perplexity` measure with.
//!
//! A prompt is computed once, with all its rows, for all arms whose rows have one number format; each
//! arm then takes over what its layouts keep and goes on by itself. What an arm gives is what an engine
//! with its model gives, bit for bit (`forward/staged.rs` names two exceptions, in which float sums have another order). Prompts that begin alike, as questions about one document do,
//! share the rows of their beginning.

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
    /// Most tokens of the answer, at least 1.
    pub max_tokens: u32,
}

impl Asked {
    /// Most tokens of the answer.
    fn length(&self) -> usize {
        self.max_tokens.max(1) as usize
    }

    /// Rows of the prompt with the longest answer, whose last token has none.
    fn rows(&self) -> usize {
        self.prompt.len() + self.length() - 1
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
    /// The token that has no row yet, and the position of its row.
    next: u32,
    position: u32,
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
            self.check(&asked.prompt, asked.rows())?;
        }
        let mut answers = vec![vec![Answered::default(); self.arms.len()]; asked.len()];
        let slots = self.slots;
        for (turn, asked) in asked.chunks(slots).enumerate() {
            let first = turn * slots;
            for (slot, asked) in asked.iter().enumerate() {
                self.prefill(slot as u32, &asked.prompt, asked.rows() as u32)?;
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
                for (slot, asked) in asked.iter().enumerate() {
                    if let Some(token) = next(slot, &answers[first + slot][index].ids) {
                        let rows = asked.rows();
                        running.push(self.running(index, slot, asked.prompt.len(), rows, token));
                    }
                }
                self.decode(index, running, &mut |slot, row| {
                    let ids = &mut answers[first + slot][index].ids;
                    ids.push(chosen(row)?);
                    Ok(next(slot, ids))
                })?;
                for (slot, asked) in asked.iter().enumerate() {
                    let answered = &mut answers[first + slot][index];
                    let prompt_rows = asked.prompt.len() as u32;
                    let rows = prompt_rows + answered.ids.len() as u32 - 1;
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
            self.check(&passage.tokens[..passage.prompt], passage.tokens.len())?;
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
                        running.push(self.running(index, slot, prompt.len(), rows, rest[0]));
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

    fn check(&self, prompt: &[u32], rows: usize) -> Result<(), RequestError> {
        let vocabulary = self.arms[0].forward.shape().vocabulary;
        if prompt.is_empty() {
            return Err(RequestError::Empty);
        }
        if rows > self.context as usize {
            return Err(RequestError::TooLong { rows, context: self.context });
        }
        match prompt.iter().copied().enumerate().find(|(_, token)| *token >= vocabulary) {
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
    fn running(&self, arm: usize, slot: usize, prompt: usize, rows: usize, next: u32) -> Running {
        let rotary_set = self.arms[arm].forward.shape().rotary_set(rows as u32);
        let prompt_rows = prompt as u32;
        Running { slot: slot as u32, prompt_rows, rotary_set, next, position: prompt_rows }
    }

    /// Steps of an arm until every sequence is over.
    fn decode(
        &mut self,
        arm: usize,
        mut running: Vec<Running>,
        take: &mut Take<'_>,
    ) -> Result<(), StepFault> {
        let forward = &mut self.arms[arm].forward;
        let vocabulary = forward.shape().vocabulary as usize;
        while !running.is_empty() {
            let rows: Vec<StepRow> = running
                .iter()
                .map(|running| StepRow {
                    token: running.next,
                    position: running.position,
                    slot: running.slot,
                    prompt_rows: running.prompt_rows,
                    rotary_set: running.rotary_set,
                })
                .collect();
            let head_rows: Vec<u32> = (0..rows.len() as u32).collect();
            let logits = &mut self.logits[..rows.len() * vocabulary];
            forward.step(&rows, &head_rows, logits)?;
            let mut left = Vec::with_capacity(running.len());
            for (mut sequence, row) in running.into_iter().zip(logits.chunks_exact(vocabulary)) {
                if let Some(next) = take(sequence.slot as usize, row)? {
                    sequence.next = next;
                    sequence.position += 1;
                    left.push(sequence);
                }
            }
            running = left;
        }
        Ok(())
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
    greedy(row).ok_or(StepFault::LogitsNotFinite)
}

/// Queries that the layouts of a model observe, at most.
fn most_observed(forward: &Forward) -> u32 {
    let layouts = forward.shape().layouts.iter();
    layouts.filter(|layout| layout.selected > 0).map(|layout| layout.observed).max().unwrap_or(0)
}

/// -ln p of a token by a row of logits, in double precision.
pub fn surprise(row: &[f32], id: u32) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let total: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
    total.ln() - f64::from(row[id as usize] - largest)
}

//! A whole model run for one sequence, at any stage: the same calls compare a graph with itself
//! one stage later, or with golden logits.

use std::collections::HashMap;

use super::{Bindings, CacheState, EvalError, EvalFault, Interpreter, Rounding, Tensor};
use crate::entity::Value;
use crate::graph::{Graph, InputRole, OutputRole, Param};

/// One sequence of a model.
#[derive(Debug)]
pub struct Session<'g> {
    interpreter: Interpreter<'g>,
    /// Present keys (false) and values (true) of the layers, until stage `Canonical`.
    present: HashMap<(bool, u32), Tensor>,
    caches: Vec<CacheState>,
    past: usize,
    /// All tokens so far.
    tokens: Vec<i64>,
}

impl<'g> Session<'g> {
    /// An empty sequence.
    pub fn new(graph: &'g Graph) -> Result<Session<'g>, EvalError> {
        let caches = graph
            .caches
            .iter()
            .map(|(id, decl)| {
                CacheState::new(decl).map_err(|fault| EvalError { place: id.to_string(), fault })
            })
            .collect::<Result<_, _>>()?;
        let interpreter = Interpreter::new(graph);
        Ok(Session { interpreter, present: HashMap::new(), caches, past: 0, tokens: Vec::new() })
    }

    /// Declares the greatest length that the sequence may reach: models with factors that depend
    /// on the length choose them by it. Without it each call goes by its own length.
    pub fn set_longest(&mut self, longest: usize) {
        self.interpreter.longest = Some(longest as i64);
    }

    /// Rounds the rows that enter products as a compiled model does.
    pub fn set_rounding(&mut self, rounding: Rounding) {
        self.interpreter.rounding = Some(rounding);
    }

    /// States of the caches, from stage `Cached` on.
    pub fn caches(&self) -> &[CacheState] {
        &self.caches
    }

    /// Runs the prompt; logits of its rows (a model that prunes its head gives the last only), or what a
    /// model that gives embeddings makes of them.
    pub fn prefill(&mut self, ids: &[i64]) -> Result<Vec<Vec<f32>>, EvalError> {
        self.tokens.extend_from_slice(ids);
        self.run_prompt(ids)
    }

    fn run_prompt(&mut self, ids: &[i64]) -> Result<Vec<Vec<f32>>, EvalError> {
        let rows = self.run(ids)?;
        for (index, cache) in self.caches.iter_mut().enumerate() {
            cache
                .finish_prompt()
                .map_err(|fault| EvalError { place: format!("k{index}"), fault })?;
        }
        Ok(rows)
    }

    /// Runs one more token; logits of its row. Where a cache has no room for it that selects its rows
    /// anew, the token ends a short prompt of those that are observed, behind what is left in front of
    /// them.
    pub fn step(&mut self, id: i64) -> Result<Vec<f32>, EvalError> {
        self.tokens.push(id);
        let observed = self.caches.iter().filter_map(CacheState::reselects).max();
        let rows = match observed {
            None => self.run(&[id])?,
            Some(observed) => {
                let first = self.tokens.len().saturating_sub(observed.max(1));
                for (index, cache) in self.caches.iter_mut().enumerate() {
                    cache
                        .reopen(self.past - first)
                        .map_err(|fault| EvalError { place: format!("k{index}"), fault })?;
                }
                self.past = first;
                let ids = self.tokens[first..].to_vec();
                self.run_prompt(&ids)?
            }
        };
        rows.into_iter().next_back().ok_or(EvalError {
            place: "the logits".into(),
            fault: EvalFault::Operand("there is no row".into()),
        })
    }

    /// Runs tokens of which all but the first are guessed, with their rows in flight; logits of their
    /// rows. Caches that select rows anew have no such rows.
    pub fn guess(&mut self, ids: &[i64]) -> Result<Vec<Vec<f32>>, EvalError> {
        self.tokens.extend_from_slice(ids);
        self.run(ids)
    }

    /// Takes back the last `count` of them.
    pub fn take_back(&mut self, count: usize) -> Result<(), EvalError> {
        for (index, cache) in self.caches.iter_mut().enumerate() {
            let place = || format!("k{index}");
            cache.take_back(count).map_err(|fault| EvalError { place: place(), fault })?;
        }
        self.past -= count;
        self.tokens.truncate(self.past);
        Ok(())
    }

    fn run(&mut self, ids: &[i64]) -> Result<Vec<Vec<f32>>, EvalError> {
        let whole = |fault| EvalError { place: "the graph".into(), fault };
        let graph = self.interpreter.graph();
        let bindings = Bindings::one_sequence(self.past, ids.len());
        let mut wanted: Vec<Value> = Vec::new();
        let mut answer = None;
        let mut kept = Vec::new();
        for result in &graph.main.results {
            match result.role {
                OutputRole::Logits | OutputRole::Hidden => answer = Some(wanted.len()),
                OutputRole::PresentKey(layer) => kept.push(((false, layer), wanted.len())),
                OutputRole::PresentValue(layer) => kept.push(((true, layer), wanted.len())),
                OutputRole::Other => continue,
            }
            wanted.push(result.value);
        }
        let missing = || whole(EvalFault::Missing("a result of logits or hidden rows".into()));
        let answer = answer.ok_or_else(missing)?;
        // Made before the run: the closure that hands them out cannot report errors.
        let mut inputs: HashMap<Value, Tensor> = HashMap::new();
        for param in &graph.main.params {
            if let Some(tensor) = self.input(param, ids, &bindings).map_err(whole)? {
                inputs.insert(param.value, tensor);
            }
        }
        let mut tensors = self.interpreter.evaluate_with(
            &wanted,
            &bindings,
            &|param| inputs.get(&param.value).cloned(),
            &mut self.caches,
        )?;
        for (key, index) in kept {
            self.present.insert(key, tensors[index].clone());
        }
        self.past += ids.len();
        let answer = tensors.swap_remove(answer);
        let width = answer.sizes().last().copied().unwrap_or(1).max(1);
        Ok(answer.f32s().map_err(whole)?.chunks(width).map(<[f32]>::to_vec).collect())
    }

    /// The tensor of an input; `None` where only its known content tells.
    fn input(
        &self,
        param: &Param,
        ids: &[i64],
        bindings: &Bindings,
    ) -> Result<Option<Tensor>, EvalFault> {
        let body = &self.interpreter.graph().main;
        let data = body
            .values
            .get(param.value)
            .ok_or_else(|| EvalFault::Missing(param.value.to_string()))?;
        let ty = bindings.ty(&data.ty)?;
        let sizes = ty.sizes().ok_or_else(|| EvalFault::Unbound(ty.to_string()))?;
        let dtype =
            ty.dtype().ok_or_else(|| EvalFault::Operand(format!("an input is quantised: {ty}")))?;
        let count = super::checked_count(&sizes)?;
        let repeated = |row: &dyn Fn(usize) -> i64| {
            let values: Vec<i64> = (0..count).map(|index| row(index % ids.len().max(1))).collect();
            Tensor::from_i64(dtype, sizes.clone(), values)
        };
        Ok(match param.role {
            InputRole::Tokens | InputRole::Positions
                if !dtype.is_integer() || (count > 0 && ids.is_empty()) =>
            {
                return Err(EvalFault::Operand(format!("no rows, or an input of {ty}")));
            }
            InputRole::Tokens => Some(repeated(&|row| ids[row])),
            InputRole::Positions => Some(repeated(&|row| (self.past + row) as i64)),
            InputRole::AttentionMask => Some(Tensor::filled(dtype, sizes, 1)?),
            InputRole::PastKey(layer) | InputRole::PastValue(layer) => {
                let is_value = matches!(param.role, InputRole::PastValue(_));
                Some(match self.present.get(&(is_value, layer)) {
                    Some(present) => present.clone(),
                    None => Tensor::filled(dtype, sizes, 0)?,
                })
            }
            InputRole::Known | InputRole::Operand | InputRole::Other => None,
        })
    }
}

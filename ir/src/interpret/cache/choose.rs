//! Which candidates of a prompt a head keeps, by its policy (sections 4.2 to 4.4 of the method's
//! document, and [`second`]).

use std::ops::Range;

use super::super::EvalFault;
use super::super::second::{self, Asked, selected_by_both};
use super::super::select::{Observed, lot, pooled, redundancies, scores, selected, shares};
use super::CacheState;
use crate::graph::{CacheRows, KvPolicy, Pooling};

impl CacheState {
    /// Candidates that a head keeps, counted from the end of the sinks.
    pub(super) fn select(
        &self,
        head: usize,
        layout: &CacheRows,
        candidates: usize,
    ) -> Result<Vec<usize>, EvalFault> {
        let count = layout.selected_of(head) as usize;
        if count == 0 {
            return Ok(Vec::new());
        }
        let sinks = layout.sinks as usize;
        if layout.policy == KvPolicy::Random {
            let lot = |place| lot(layout.seed, self.decl.layer, head as u32, place as u32);
            return selected(&(sinks..sinks + candidates).map(lot).collect::<Vec<_>>(), count);
        }
        let members = self.members(head)?;
        let first_query = self.rows - self.observed.len();
        let window = self.rows - self.observed.len().min(layout.observed as usize);
        let rows = || (window..self.rows).map(|row| row - first_query);
        let observed = Observed {
            queries: members
                .clone()
                .map(|member| rows().map(|row| self.query(row, member)).collect())
                .collect(),
            sums: members
                .clone()
                .map(|member| rows().map(|row| self.observed[row].1[member]).collect())
                .collect(),
            score: self.score,
        };
        // Neighbours beyond the candidates count in SnapKV's pooling alone.
        let scored = match layout.scoring.pooling {
            Pooling::Reference => 0..window,
            Pooling::Average | Pooling::Max => sinks..sinks + candidates,
        };
        // Rows that may be asked are scored as well.
        let end = if layout.second > 0 { window } else { scored.end };
        let keys: Vec<Vec<f32>> =
            (scored.start..end).map(|row| self.keys.widened(row, head)).collect();
        let keys: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
        let candidates = sinks - scored.start..sinks + candidates - scored.start;
        let scores = scores(&observed, &keys, candidates.clone(), layout.scoring);
        let pooled = |scores: &[f32]| {
            let pooled = pooled(scores, layout.pool as usize, layout.scoring.pooling);
            pooled[candidates.clone()].to_vec()
        };
        let mut chosen_from = pooled(&scores[..scored.len()]);
        if self.is_reopened && layout.redundancy > 0 {
            let [of_score, of_redundancy] = shares(layout.redundancy);
            let redundancies = redundancies(&keys[candidates.clone()]);
            for (score, redundancy) in chosen_from.iter_mut().zip(redundancies) {
                *score = of_score * *score - of_redundancy * redundancy;
            }
        }
        if layout.second == 0 {
            return selected(&chosen_from, count);
        }
        let from = first_query.saturating_sub(sinks);
        let asked = second::asked(&scores[candidates.start..], from, layout.second as usize)?;
        if asked.is_empty() {
            return selected(&chosen_from, count);
        }
        let asked: Vec<Asked<'_>> = asked
            .into_iter()
            .map(|row| {
                let (row, query) = (sinks + row, sinks + row - first_query);
                Asked {
                    row,
                    queries: members.clone().map(|member| self.query(query, member)).collect(),
                    sums: members.clone().map(|member| self.observed[query].1[member]).collect(),
                }
            })
            .collect();
        let second = second::scores(&asked, &keys[..scored.len()], scored.start, self.score);
        selected_by_both([&chosen_from, &pooled(&second)], count, layout.second_share)
    }

    /// Query heads that read a key/value head.
    fn members(&self, head: usize) -> Result<Range<usize>, EvalFault> {
        let heads = self.observed.first().map_or(0, |(_, sums)| sums.len());
        match heads / (self.decl.kv_heads as usize).max(1) {
            0 => Err(EvalFault::Operand("no query was observed".into())),
            group => Ok(head * group..(head + 1) * group),
        }
    }

    /// A kept query of a head.
    fn query(&self, row: usize, head: usize) -> &[f32] {
        let width = self.decl.key_width as usize;
        &self.observed[row].0[head * width..][..width]
    }
}

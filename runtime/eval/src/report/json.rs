//! One object per task and policy.

use serde_json::{Value, json};

use crate::Summary;

impl Summary {
    /// One object per task and policy, in the table's order.
    ///
    /// `task`, `policy`, `kind`: names. `dense`: whether it is what others are compared with.
    /// `rows`, `bytes`: of a slot's cache; `share`: bytes over the dense cache's. `questions`,
    /// `documents`: counts. `score`, `score_low`, `score_high`: mean score from 0 to 1 with its 95 %
    /// interval. `difference`, `difference_low`, `difference_high`: mean of the paired difference
    /// to the dense cache with its interval; null for the dense cache itself. Ends of intervals are
    /// null where a task has one document.
    pub fn json(&self) -> Vec<Value> {
        let cells = self.rows.iter().flatten();
        cells
            .map(|cell| {
                let policy = &self.policies[cell.policy];
                let score = cell.score.interval;
                let difference = cell.difference.and_then(|difference| difference.interval);
                json!({
                    "task": cell.task,
                    "policy": policy.name,
                    "kind": policy.kind,
                    "dense": cell.policy == 0,
                    "rows": policy.rows,
                    "bytes": policy.bytes,
                    "share": self.share(cell.policy),
                    "questions": cell.questions,
                    "documents": cell.documents,
                    "score": cell.score.value,
                    "score_low": score.map(|score| score.low),
                    "score_high": score.map(|score| score.high),
                    "difference": cell.difference.map(|difference| difference.value),
                    "difference_low": difference.map(|difference| difference.low),
                    "difference_high": difference.map(|difference| difference.high),
                })
            })
            .collect()
    }
}

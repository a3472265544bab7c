//! Collects scores and sums them up.

use crate::statistics::{Cluster, Mean, estimate, mean_of};

/// A cache policy with its budget, one column of what is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The kind: policies of one kind with different budgets are one line in the chart.
    pub kind: String,
    /// All of it, as in `snapstream,rows=512`.
    pub name: String,
    /// Rows that a layer's cache holds at most.
    pub rows: u64,
    /// Bytes of a slot's cache.
    pub bytes: u64,
}

/// Scores of one task.
#[derive(Clone, Debug)]
struct Task {
    name: String,
    documents: Vec<Document>,
}

/// Of one document and for each policy: the sum of scores and of differences to the first policy.
#[derive(Clone, Debug)]
struct Document {
    questions: usize,
    scores: Vec<f64>,
    differences: Vec<f64>,
}

/// Scores while they come in.
#[derive(Clone, Debug)]
pub struct Tally {
    policies: Vec<Policy>,
    tasks: Vec<Task>,
}

impl Tally {
    /// The first policy is the dense cache, which all others are compared with.
    pub fn new(policies: Vec<Policy>) -> Tally {
        Tally { policies, tasks: Vec::new() }
    }

    /// Adds a document of a task: for each of its questions one score per policy, in their order.
    ///
    /// # Panics
    ///
    /// If a question has not one score per policy.
    pub fn add(&mut self, task: &str, questions: &[Vec<f64>]) {
        let mut document = Document {
            questions: questions.len(),
            scores: vec![0.0; self.policies.len()],
            differences: vec![0.0; self.policies.len()],
        };
        for scores in questions {
            assert_eq!(scores.len(), self.policies.len(), "one score per policy");
            for (policy, score) in scores.iter().enumerate() {
                document.scores[policy] += score;
                document.differences[policy] += score - scores[0];
            }
        }
        let known = self.tasks.iter().position(|known| known.name == task);
        let index = known.unwrap_or_else(|| {
            self.tasks.push(Task { name: task.to_owned(), documents: Vec::new() });
            self.tasks.len() - 1
        });
        self.tasks[index].documents.push(document);
    }

    /// Sums up what has come in so far.
    pub fn summary(&self) -> Summary {
        let tasks: Vec<Vec<Cell>> = self.tasks.iter().map(|task| self.row(task)).collect();
        let mean = (tasks.len() > 1).then(|| self.mean_row(&tasks));
        Summary { policies: self.policies.clone(), rows: tasks.into_iter().chain(mean).collect() }
    }

    fn row(&self, task: &Task) -> Vec<Cell> {
        let cell = |policy: usize| {
            let clusters = |sums: fn(&Document) -> &[f64]| -> Vec<Cluster> {
                let cluster = |document: &Document| Cluster {
                    count: document.questions,
                    sum: sums(document)[policy],
                };
                task.documents.iter().map(cluster).collect()
            };
            let difference = clusters(|document| &document.differences);
            Cell {
                task: task.name.clone(),
                policy,
                questions: task.documents.iter().map(|document| document.questions).sum(),
                documents: task.documents.len(),
                score: estimate(&clusters(|document| &document.scores), (0.0, 1.0)),
                difference: (policy > 0).then(|| estimate(&difference, (-1.0, 1.0))),
            }
        };
        (0..self.policies.len()).map(cell).collect()
    }

    /// Each task counts the same, however many questions it has.
    fn mean_row(&self, tasks: &[Vec<Cell>]) -> Vec<Cell> {
        let cell = |policy: usize| {
            let column: Vec<&Cell> = tasks.iter().map(|row| &row[policy]).collect();
            let scores: Vec<Mean> = column.iter().map(|cell| cell.score).collect();
            let differences: Vec<Mean> = column.iter().filter_map(|cell| cell.difference).collect();
            Cell {
                task: Summary::MEAN.to_owned(),
                policy,
                questions: column.iter().map(|cell| cell.questions).sum(),
                documents: column.iter().map(|cell| cell.documents).sum(),
                score: mean_of(&scores),
                difference: (policy > 0).then(|| mean_of(&differences)),
            }
        };
        (0..self.policies.len()).map(cell).collect()
    }
}

/// How a policy did in a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The task, or [`Summary::MEAN`].
    pub task: String,
    /// Index of the policy; 0 is the dense cache.
    pub policy: usize,
    /// Questions that were asked.
    pub questions: usize,
    /// Documents that they were about.
    pub documents: usize,
    /// Mean score, 0 to 1.
    pub score: Mean,
    /// Mean of the score minus that of the dense cache, question by question; none for itself.
    pub difference: Option<Mean>,
}

/// What a run found out.
#[derive(Clone, Debug)]
pub struct Summary {
    /// In the order of the tally.
    pub policies: Vec<Policy>,
    /// A row per task, a cell per policy; behind the tasks, if there are several, their mean.
    pub rows: Vec<Vec<Cell>>,
}

impl Summary {
    /// Name of the row that is the mean of all tasks.
    pub const MEAN: &'static str = "mean of tasks";

    /// A policy's bytes as a share of the dense cache's.
    pub fn share(&self, policy: usize) -> f64 {
        self.policies[policy].bytes as f64 / self.policies[0].bytes.max(1) as f64
    }
}

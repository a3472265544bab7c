//! Evaluation tasks without an engine: documents and their questions, scores, statistics, reports.
//!
//! [`open`] reads what a [`Spec`] names and gives [`Case`]s: a document and all questions about it,
//! so that one dense prefill of the document can serve every cache policy and every question. The
//! caller generates an answer to each [`Question`], [`Judge::score`] says how good it is, [`Tally`]
//! collects the scores, one per policy and question, and [`Summary`] prints them as a table, as JSON
//! and as a chart. `docs/evaluation.md` describes tasks, formats, metrics and statistics.
//!
//! ```
//! use weir_eval::{Policy, Setting, Spec, Tally, open};
//!
//! let spec: Spec = "needle:tests/files/harbour.txt?families=trace&length=300".parse()?;
//! let measure = |text: &str| text.split_whitespace().count();
//! let policy = |kind: &str, rows| Policy {
//!     kind: kind.into(),
//!     name: format!("{kind},rows={rows}"),
//!     rows,
//!     bytes: 2304 * rows,
//! };
//! let mut tally = Tally::new(vec![policy("full", 4096), policy("stream", 1024)]);
//! for case in open(&spec, Setting { measure: &measure, context: None, sandbox: None })? {
//!     let case = case?;
//!     let mut scores = Vec::new();
//!     for question in &case.questions {
//!         // An engine would continue `case.document` and `question.text` here.
//!         let answers = ["VAR ABCDE, VAR FGHIJ", "none"];
//!         let each = answers.map(|answer| question.judge.score(answer));
//!         scores.push(each.into_iter().collect::<Result<_, _>>()?);
//!     }
//!     tally.add(&case.task, &scores);
//! }
//! tally.summary().write_table(&mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here knows a model, a tokenizer or a cache: lengths come from a function of the caller's,
//! policies are names with numbers. Cases depend on the file, the options and that function only.

mod aime;
pub mod axis;
mod cases;
mod error;
mod gsm8k;
mod infinitebench;
mod judge;
mod livecodebench;
mod longbench;
mod longbench2;
mod needle;
pub mod random;
mod records;
mod report;
mod ruler;
mod sandbox;
mod similarity;
mod spec;
mod statistics;
mod tally;
mod text;

pub use cases::{Cases, Setting, check, open};
pub use error::Error;
pub use judge::Judge;
pub use livecodebench::Program;
pub use sandbox::{Sandbox, confined};
pub use spec::Spec;
pub use statistics::{Interval, Mean};
pub use tally::{Cell, Policy, Summary, Tally};

/// A document with its questions.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What is counted together: a family, a subset or a benchmark.
    pub task: String,
    /// What stands in front of every question.
    pub document: String,
    /// At least one.
    pub questions: Vec<Question>,
}

/// A question about a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Unique within its task's file.
    pub id: String,
    /// Follows the document without a gap: what separates them is part of it.
    pub text: String,
    /// What the answer begins with, as if the model had written it; how it goes on is scored.
    pub begun: String,
    /// How the answer is scored.
    pub judge: Judge,
    /// Tokens of the answer at most.
    pub max_tokens: usize,
    /// The answer ends in front of any of these.
    pub stop: Vec<String>,
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Any text, in which needles are hidden.
    Needle,
    /// LongBench, version 1.
    LongBench,
    /// LongBench, version 2.
    LongBench2,
    /// RULER's prompts.
    Ruler,
    /// ∞Bench.
    InfiniteBench,
    /// GSM8K.
    Gsm8k,
    /// AIME.
    Aime,
    /// LiveCodeBench.
    LiveCodeBench,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 8] = [
        Format::Needle,
        Format::LongBench,
        Format::LongBench2,
        Format::Ruler,
        Format::InfiniteBench,
        Format::Gsm8k,
        Format::Aime,
        Format::LiveCodeBench,
    ];

    /// As it is written in a [`Spec`].
    pub fn name(self) -> &'static str {
        match self {
            Format::Needle => "needle",
            Format::LongBench => "longbench",
            Format::LongBench2 => "longbench2",
            Format::Ruler => "ruler",
            Format::InfiniteBench => "infinitebench",
            Format::Gsm8k => "gsm8k",
            Format::Aime => "aime",
            Format::LiveCodeBench => "livecodebench",
        }
    }
}

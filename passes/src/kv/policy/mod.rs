//! Cache policies: how many sinks, selected rows and ring rows each keeps, and the text that chooses
//! one (`snapstream,rows=1024,sinks=4,recent=256,window=16,pool=21,agg=mean,mode=elastic`).
//!
//! Start values and constraints are those of the method's document, section 2. A policy or option
//! that nothing implements is not accepted.

mod budget;
mod full;
mod random;
mod snapkv;
mod snapstream;
mod stream;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;

use weir_ir::attribute::AttributeValue;
use weir_ir::graph::{CacheRows, KvPolicy, Scoring};

pub use budget::Budget;
pub use window::rows as window_rows;

/// A policy that a user can choose.
struct Policy {
    name: &'static str,
    /// Options that it understands.
    options: &'static [&'static str],
    /// Rows for a context.
    rows: fn(&KvOptions, u32) -> Result<CacheRows, KvError>,
}

/// All policies that a user can choose; a line each.
const POLICIES: &[Policy] =
    &[full::POLICY, stream::POLICY, snapstream::POLICY, snapkv::POLICY, random::POLICY];

/// What the user asked for; absent values get the document's start values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvOptions {
    policy: usize,
    /// C.
    pub rows: Option<u32>,
    /// S.
    pub sinks: Option<u32>,
    /// R.
    pub recent: Option<u32>,
    /// w.
    pub observed: Option<u32>,
    /// Rows whose queries are asked beside the last ones.
    pub second: Option<u32>,
    /// Percent of the selected rows that these choose.
    pub second_share: Option<u32>,
    /// Pooling width.
    pub pool: Option<u32>,
    /// How candidates are scored.
    pub scoring: Scoring,
    /// Elastic (default) or static mode.
    pub elastic: bool,
    /// Rows of a slot, generated ones included.
    pub limit: Option<u32>,
    /// N.
    pub reservoir: Option<u32>,
    /// T: generated rows after which rows are selected anew.
    pub reselect: Option<u32>,
    /// Percent of candidates' scores, then, that their redundancy is.
    pub redundancy: Option<u32>,
    /// Seed of lots.
    pub seed: Option<u32>,
    /// Tokens that may be guessed ahead.
    pub draft: Option<u32>,
    /// How layers share what is selected.
    pub budget: Budget,
}

/// Why a policy cannot be had: the user's options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// No such policy.
    #[error("unknown policy \"{name}\"; there are {known}")]
    Policy {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// No such option of the policy.
    #[error("policy {policy} has no option \"{option}\"; {known}")]
    Option {
        /// The policy.
        policy: &'static str,
        /// What was given.
        option: String,
        /// What there is.
        known: String,
    },
    /// An option is given twice.
    #[error("option \"{0}\" is given twice")]
    Twice(String),
    /// An option's value is not what it takes.
    #[error("option \"{option}\" takes {wanted}, not \"{value}\"")]
    Value {
        /// The option.
        option: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// What was given.
        value: String,
    },
    /// The numbers do not go together.
    #[error("{0}")]
    Numbers(String),
}

impl KvOptions {
    /// Reads the text of `--kv`.
    pub fn parse(text: &str) -> Result<KvOptions, KvError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let Some(policy) = POLICIES.iter().position(|policy| policy.name == name) else {
            let known = POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            return Err(KvError::Policy { name: name.to_owned(), known });
        };
        let mut options = KvOptions {
            policy,
            rows: None,
            sinks: None,
            recent: None,
            observed: None,
            second: None,
            second_share: None,
            pool: None,
            scoring: Scoring::default(),
            elastic: true,
            limit: None,
            reservoir: None,
            reselect: None,
            redundancy: None,
            seed: None,
            draft: None,
            budget: Budget::default(),
        };
        let mut seen: Vec<&str> = Vec::new();
        for part in parts {
            let (option, value) = part.split_once('=').unwrap_or((part, ""));
            let policy = &POLICIES[options.policy];
            if !policy.options.contains(&option) {
                let known = format!("it has {}", policy.options.join(", "));
                let option = option.to_owned();
                return Err(KvError::Option { policy: policy.name, option, known });
            }
            if seen.contains(&option) {
                return Err(KvError::Twice(option.to_owned()));
            }
            seen.push(option);
            match option {
                "rows" => options.rows = Some(number("rows", value, 1)?),
                "sinks" => options.sinks = Some(number("sinks", value, 0)?),
                "recent" => options.recent = Some(number("recent", value, 1)?),
                "window" => options.observed = Some(number("window", value, 1)?),
                "second" => options.second = Some(number("second", value, 0)?),
                "second_share" => options.second_share = Some(percent("second_share", value)?),
                "pool" => options.pool = Some(odd(value)?),
                "pooling" => options.scoring.pooling = named("pooling", value, POOLINGS)?,
                "agg" => options.scoring.aggregate = named("agg", value, AGGREGATES)?,
                "normalise" => {
                    options.scoring.normalise = named("normalise", value, NORMALISATIONS)?;
                }
                "limit" => options.limit = Some(number("limit", value, 1)?),
                "budget" => options.budget = Budget::parse(value)?,
                "reservoir" => options.reservoir = Some(number("reservoir", value, 1)?),
                "reselect" => options.reselect = Some(number("reselect", value, 1)?),
                "redundancy" => options.redundancy = Some(percent("redundancy", value)?),
                "draft" => options.draft = Some(number("draft", value, 1)?),
                "seed" => options.seed = Some(number("seed", value, 0)?),
                _ => options.elastic = mode(value)?,
            }
        }
        Ok(options)
    }

    /// Sets C from `--kv-rows`.
    pub fn with_rows(mut self, rows: u32) -> Result<KvOptions, KvError> {
        let policy = &POLICIES[self.policy];
        if !policy.options.contains(&"rows") {
            return Err(KvError::Numbers(format!(
                "policy {} keeps every row; it has no number of rows to choose",
                policy.name
            )));
        }
        if self.rows.replace(rows).is_some() {
            return Err(KvError::Twice("rows".to_owned()));
        }
        Ok(self)
    }

    /// Sets how layers share rows, from `--kv-budget`.
    pub fn with_budget(mut self, budget: Budget) -> Result<KvOptions, KvError> {
        let policy = &POLICIES[self.policy];
        if !policy.options.contains(&"budget") {
            return Err(KvError::Numbers(format!(
                "policy {} selects no rows that layers could share",
                policy.name
            )));
        }
        if self.budget != Budget::default() {
            return Err(KvError::Twice("budget".to_owned()));
        }
        self.budget = budget;
        Ok(self)
    }

    /// Sets how many tokens may be guessed ahead, unless the text says so.
    pub fn with_draft(mut self, draft: u32) -> KvOptions {
        self.draft.get_or_insert(draft);
        self
    }

    /// D: rows of a ring for the next token and for those that may be guessed behind it; none if none
    /// may be.
    pub fn in_flight(&self) -> u32 {
        self.draft.map_or(0, |draft| draft.saturating_add(1))
    }

    /// Rows of the caches of full-attention layers with so many key/value heads for a context, in order.
    pub fn rows(&self, context: u32, heads: &[u32]) -> Result<Vec<CacheRows>, KvError> {
        let mean = self.guessing((POLICIES[self.policy].rows)(self, context)?)?;
        let rows = self.budget.shared_out(mean, heads, context)?;
        rows.iter().try_for_each(check_compared)?;
        Ok(rows)
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        POLICIES[self.policy].name
    }

    /// C for a context: what was asked for, at most the context; else the start value.
    fn total(&self, context: u32) -> u32 {
        self.rows.unwrap_or((context / 4).max(1024)).min(context)
    }

    /// S for C rows.
    fn sink_rows(&self, total: u32) -> u32 {
        self.sinks.unwrap_or((total / 8).min(32))
    }

    /// R for C rows: less what a reservoir takes, as far as enough are left to observe by.
    fn recent_rows(&self, total: u32) -> u32 {
        let start = (total / 8).max(512).min(total / 4).max(1);
        let beside = start.saturating_sub(self.reservoir.unwrap_or(0)).max(start.min(OBSERVED));
        self.recent.unwrap_or(beside.max(self.observed.unwrap_or(0)))
    }

    /// The rows with a reservoir, if there is to be one.
    fn sampling(&self, rows: CacheRows) -> Result<CacheRows, KvError> {
        match (self.reservoir, self.seed) {
            (None, Some(_)) => Err(KvError::Numbers(format!(
                "policy {} draws lots for a reservoir only: seed= needs reservoir=",
                self.name()
            ))),
            (reservoir, seed) => {
                Ok(CacheRows { reservoir: reservoir.unwrap_or(0), seed: seed.unwrap_or(0), ..rows })
            }
        }
    }

    /// The rows with room for generated ones that are selected from in their turn, if asked for.
    fn reselecting(&self, rows: CacheRows, context: u32) -> Result<CacheRows, KvError> {
        let Some(every) = self.reselect else {
            return match self.redundancy {
                None => Ok(rows),
                Some(_) => Err(KvError::Numbers(
                    "redundancy= counts where rows are selected anew only: it needs reselect="
                        .to_owned(),
                )),
            };
        };
        if rows.reservoir > 0 {
            return Err(KvError::Numbers(
                "reselect= and reservoir= exclude each other: rows of a reservoir have lost the order \
                 of their positions"
                    .to_owned(),
            ));
        }
        // A slot never needs more rows than a sequence has.
        let growth = every.min(context.saturating_sub(rows.prompt_rows()));
        let redundancy = if growth > 0 { self.redundancy.unwrap_or(0) } else { 0 };
        Ok(CacheRows { growth, reselect: growth > 0, redundancy, ..rows })
    }

    /// The rows with those in flight, if tokens may be guessed ahead. A full cache overwrites none.
    fn guessing(&self, rows: CacheRows) -> Result<CacheRows, KvError> {
        let in_flight = match rows.policy {
            KvPolicy::Full => 0,
            _ => self.in_flight(),
        };
        let excluded = [
            ("reservoir", self.reservoir, "its rows move to the reservoir"),
            ("reselect", self.reselect, "rows are selected anew by it"),
        ];
        match excluded.into_iter().find(|(_, given, _)| in_flight > 0 && given.is_some()) {
            Some((option, _, why)) => Err(KvError::Numbers(format!(
                "draft= and {option}= exclude each other: a token that was guessed wrong is taken \
                 back, but not that {why}"
            ))),
            None => Ok(CacheRows { in_flight, ..rows }),
        }
    }

    /// C rows divided into S, K, R and N.
    fn divided(
        &self,
        policy: KvPolicy,
        total: u32,
        sinks: u32,
        recent: u32,
        context: u32,
    ) -> Result<CacheRows, KvError> {
        let parts = [sinks, recent, self.reservoir.unwrap_or(0)].map(u64::from);
        let selected = u64::from(total).checked_sub(parts.iter().sum());
        let Some(selected) = selected.and_then(|selected| u32::try_from(selected).ok()) else {
            let (parts, formula) = match self.reservoir {
                None => (format!("{sinks} sinks and {recent} recent rows"), ""),
                Some(reservoir) => (
                    format!("{sinks} sinks, {recent} recent rows and a reservoir of {reservoir}"),
                    " - reservoir",
                ),
            };
            return Err(KvError::Numbers(format!(
                "{parts} do not fit into {total} rows (context {context}): rows - sinks - \
                 recent{formula} must not be negative"
            )));
        };
        Ok(CacheRows { sinks, selected, ..CacheRows::ring(policy, recent) })
    }

    /// The same with the queries that score: where nobody says, so many of the last ones, and where rows
    /// are selected so many rows asked beside them.
    fn observing(&self, rows: CacheRows, last: u32, asked: u32) -> Result<CacheRows, KvError> {
        let recent = rows.recent;
        let observed = self.observed.unwrap_or(recent.min(last));
        if observed > recent {
            return Err(KvError::Numbers(format!(
                "the observed window of {observed} queries must lie within the {recent} recent rows"
            )));
        }
        let pool = self.pool.unwrap_or(POOL);
        let asked = if rows.selected > 0 { asked } else { 0 };
        let [second, second_share] = self.second_queries(asked)?;
        Ok(CacheRows { observed, second, second_share, pool, scoring: self.scoring, ..rows })
    }

    /// Rows that are asked beside the last ones, and percent of the selected rows that they choose.
    fn second_queries(&self, asked: u32) -> Result<[u32; 2], KvError> {
        match (self.second.unwrap_or(asked), self.second_share) {
            (0, None) => Ok([0; 2]),
            (0, Some(_)) => Err(KvError::Numbers(
                "second_share= is of the rows that second queries choose: it needs second="
                    .to_owned(),
            )),
            (second, share) => Ok([second, share.unwrap_or(SECOND_SHARE)]),
        }
    }
}

/// Most candidates that are compared with each other: with keys 128 wide 8.6 billion products are added
/// up for each layer's key/value head every time, and four times as many for twice the candidates.
const MOST_COMPARED: u64 = 8192;

/// An error where too many rows would be compared with each other.
fn check_compared(rows: &CacheRows) -> Result<(), KvError> {
    // Of the rows, T more and the next one all but the sinks and the recent ones.
    let candidates = u64::from(rows.selected) + u64::from(rows.growth) + 1;
    if rows.redundancy == 0 || candidates <= MOST_COMPARED {
        return Ok(());
    }
    Err(KvError::Numbers(format!(
        "redundancy= compares {candidates} candidates (rows - sinks - recent + reselect + 1) with \
         each other, and {MOST_COMPARED} are the most"
    )))
}

/// w where nobody says, if there are as many recent rows. Of 32 queries, SnapKV's number, most belong
/// to the text where a question is short, and outvote it; 16 lose less there, and elsewhere nothing more
/// (`docs/evaluation.md` has the figures).
const OBSERVED: u32 = 16;

/// Percent of the selected rows that second queries choose where nobody says.
const SECOND_SHARE: u32 = 25;

/// κ where nobody says. A question finds the beginning of what it asks for, and pooling keeps the rest:
/// with 5, SnapKV's, answers of several tokens lose their ends (`docs/evaluation.md` has the figures).
const POOL: u32 = 21;

const AGGREGATES: &str = "mean, max or defensive";
const NORMALISATIONS: &str = "all or candidates";
const POOLINGS: &str = "average, max or reference";

impl fmt::Display for KvOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let numbers = [
            ("rows", self.rows),
            ("sinks", self.sinks),
            ("recent", self.recent),
            ("window", self.observed),
            ("second", self.second),
            ("second_share", self.second_share),
            ("pool", self.pool),
            ("limit", self.limit),
            ("reservoir", self.reservoir),
            ("reselect", self.reselect),
            ("redundancy", self.redundancy),
            ("seed", self.seed),
            ("draft", self.draft),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                write!(f, ",{name}={value}")?;
            }
        }
        let (scoring, start) = (self.scoring, Scoring::default());
        let names = [
            ("pooling", scoring.pooling.name(), start.pooling.name()),
            ("agg", scoring.aggregate.name(), start.aggregate.name()),
            ("normalise", scoring.normalise.name(), start.normalise.name()),
        ];
        for (name, value, start) in names {
            if value != start {
                write!(f, ",{name}={value}")?;
            }
        }
        if self.budget != Budget::default() {
            write!(f, ",budget={}", self.budget)?;
        }
        if self.elastic { Ok(()) } else { f.write_str(",mode=static") }
    }
}

fn number(option: &'static str, value: &str, least: u32) -> Result<u32, KvError> {
    let wanted = if least == 0 { "a number" } else { "a number of at least 1" };
    match value.parse::<u32>() {
        Ok(number) if number >= least => Ok(number),
        _ => Err(KvError::Value { option, wanted, value: value.to_owned() }),
    }
}

fn percent(option: &'static str, value: &str) -> Result<u32, KvError> {
    let wanted = "a percentage from 1 to 100";
    match value.parse::<u32>() {
        Ok(number @ 1..=100) => Ok(number),
        _ => Err(KvError::Value { option, wanted, value: value.to_owned() }),
    }
}

fn named<T: AttributeValue>(
    option: &'static str,
    value: &str,
    wanted: &'static str,
) -> Result<T, KvError> {
    T::parse(value).ok_or_else(|| KvError::Value { option, wanted, value: value.to_owned() })
}

fn odd(value: &str) -> Result<u32, KvError> {
    match value.parse::<u32>() {
        Ok(number) if number % 2 == 1 => Ok(number),
        _ => {
            Err(KvError::Value { option: "pool", wanted: "an odd number", value: value.to_owned() })
        }
    }
}

fn mode(value: &str) -> Result<bool, KvError> {
    match value {
        "elastic" => Ok(true),
        "static" => Ok(false),
        _ => {
            let value = value.to_owned();
            Err(KvError::Value { option: "mode", wanted: "elastic or static", value })
        }
    }
}

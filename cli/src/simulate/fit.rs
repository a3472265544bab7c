//! What a step takes, as a function of what it has to do, fitted to steps that were measured.
//!
//! A sum of times that mean something: a step's own time, one for each row of it and for each cache row
//! that these attend to, apart for decoding and prompts, whose products run in other kernels; the same
//! for tiles of long prompts. None of them can be negative. Least squares of relative residuals: half a
//! millisecond matters in a short step and not in a long one. A setup's steps of a kind weigh as much
//! together as those of another, however many there are.
//!
//! Non-negative least squares of ten numbers is solved exactly: of all subsets of them, the best
//! solution without a constraint that has no negative number (the active set of the true solution is one
//! of the subsets; Lawson and Hanson, *Solving Least Squares Problems*, 1974, chapter 23).
//!
//! What a fit is worth is told by setups that it has not seen: they are held out in four parts, one
//! after the other.

use serde::Serialize;
use weir_runtime::command::bench::steps::{StepLoad, TimedStep};

use crate::traffic::measure::percentile;

/// Times that a step's time is the sum of.
const TIMES: usize = 10;

/// Parts in which setups are held out.
const PARTS: u32 = 4;

/// Least part of a column that must be left beside the columns before it, or it says the same as they.
const INDEPENDENT: f64 = 1e-9;

type Row = [f64; TIMES];

/// Seconds that things take. Rows that are attended to count as means over layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepCosts {
    /// A step with rows.
    pub step: f64,
    /// A row of a sequence that decodes.
    pub decode_row: f64,
    /// A cache row that such a row attends to.
    pub decode_attended: f64,
    /// A step with rows of prompts, beside its own time: products of many rows run in other kernels.
    pub prompt: f64,
    /// A row of a prompt.
    pub prompt_row: f64,
    /// A cache row that such a row attends to.
    pub prompt_attended: f64,
    /// A tile of a long prompt.
    pub tile: f64,
    /// A row of it.
    pub tile_row: f64,
    /// A row that such a row attends to.
    pub tile_attended: f64,
    /// A row of a long prompt that a layer has chosen its own from.
    pub chosen_from: f64,
}

impl StepCosts {
    /// Seconds of a step.
    pub fn seconds(&self, load: &StepLoad) -> f64 {
        self.times().iter().zip(amounts(load)).map(|(time, amount)| time * amount).sum()
    }

    fn times(&self) -> Row {
        let StepCosts { step, decode_row, decode_attended, prompt, prompt_row, .. } = *self;
        let StepCosts { prompt_attended, tile, tile_row, tile_attended, chosen_from, .. } = *self;
        let of_rows = [step, decode_row, decode_attended, prompt, prompt_row, prompt_attended];
        let of_tiles = [tile, tile_row, tile_attended, chosen_from];
        let mut times = [0.0; TIMES];
        times.iter_mut().zip(of_rows.into_iter().chain(of_tiles)).for_each(|(to, from)| *to = from);
        times
    }

    fn of_times(times: Row) -> StepCosts {
        let [step, decode_row, decode_attended, prompt, prompt_row, prompt_attended, ..] = times;
        let [.., tile, tile_row, tile_attended, chosen_from] = times;
        StepCosts {
            step,
            decode_row,
            decode_attended,
            prompt,
            prompt_row,
            prompt_attended,
            tile,
            tile_row,
            tile_attended,
            chosen_from,
        }
    }

    /// The times that fit these steps best.
    pub fn fit(steps: &[TimedStep]) -> StepCosts {
        StepCosts::fit_some(&steps.iter().collect::<Vec<_>>())
    }

    fn fit_some(steps: &[&TimedStep]) -> StepCosts {
        // Normal equations of relative residuals: a row is divided by its time, which leaves 1.
        let mut products = [[0.0; TIMES]; TIMES];
        let mut sums = [0.0; TIMES];
        for step in steps {
            let alike = |other: &&&TimedStep| {
                other.setup == step.setup && Kind::of(&other.load) == Kind::of(&step.load)
            };
            let weight = 1.0 / steps.iter().filter(alike).count() as f64;
            let seconds = median(step);
            let row = amounts(&step.load).map(|amount| amount / seconds);
            for (one, value) in row.iter().enumerate() {
                sums[one] += weight * value;
                for (other, of_other) in row.iter().enumerate() {
                    products[one][other] += weight * value * of_other;
                }
            }
        }
        let mut best = (0.0, [0.0; TIMES]);
        for subset in 1_u32..1 << TIMES {
            let Some(times) = solve(&products, &sums, subset) else { continue };
            // By how much these times make the sum of squares smaller than none do.
            let gain: f64 = times.iter().zip(&sums).map(|(time, sum)| time * sum).sum();
            if times.iter().all(|time| *time >= 0.0) && gain > best.0 {
                best = (gain, times);
            }
        }
        StepCosts::of_times(best.1)
    }
}

/// What each time is multiplied with.
fn amounts(load: &StepLoad) -> Row {
    let is_there = |rows: f64| f64::from(u8::from(rows > 0.0));
    [
        is_there(load.decode_rows + load.prompt_rows),
        load.decode_rows,
        load.decode_attended,
        is_there(load.prompt_rows),
        load.prompt_rows,
        load.prompt_attended,
        load.tiles,
        load.tile_rows,
        load.tile_attended,
        load.chosen_from,
    ]
}

/// Solves the normal equations for the columns of a subset, the others being 0, by Cholesky's
/// decomposition; nothing if columns say the same or nothing.
fn solve(products: &[Row; TIMES], sums: &Row, subset: u32) -> Option<Row> {
    let columns: Vec<usize> = (0..TIMES).filter(|column| subset >> column & 1 == 1).collect();
    let count = columns.len();
    let mut lower = [[0.0; TIMES]; TIMES];
    let mut solution = [0.0; TIMES];
    for one in 0..count {
        for other in 0..=one {
            let known: f64 = (0..other).map(|k| lower[one][k] * lower[other][k]).sum();
            let left = products[columns[one]][columns[other]] - known;
            if other < one {
                lower[one][other] = left / lower[other][other];
                continue;
            }
            let all = products[columns[one]][columns[one]];
            if left.is_nan() || left <= INDEPENDENT * all {
                return None;
            }
            lower[one][one] = left.sqrt();
        }
        let known: f64 = (0..one).map(|k| lower[one][k] * solution[k]).sum();
        solution[one] = (sums[columns[one]] - known) / lower[one][one];
    }
    for one in (0..count).rev() {
        let known: f64 = (one + 1..count).map(|k| lower[k][one] * solution[k]).sum();
        solution[one] = (solution[one] - known) / lower[one][one];
    }
    let mut times = [0.0; TIMES];
    columns.iter().zip(solution).for_each(|(column, time)| times[*column] = time);
    Some(times)
}

/// The middle repetition of a step; of an even number the shorter one of both.
fn median(step: &TimedStep) -> f64 {
    let mut seconds = step.seconds.clone();
    seconds.sort_unstable_by(f64::total_cmp);
    percentile(&seconds, 50)
}

/// Kinds of steps whose errors are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nothing but rows of sequences that decode.
    Decode,
    /// Rows of prompts among them.
    Prompt,
    /// A tile of a long prompt as well.
    Tile,
}

impl Kind {
    fn of(load: &StepLoad) -> Kind {
        if load.tiles > 0.0 {
            Kind::Tile
        } else if load.prompt_rows > 0.0 {
            Kind::Prompt
        } else {
            Kind::Decode
        }
    }
}

/// How far predictions of steps were from what these took that had been held out, as a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FitError {
    /// Which steps.
    pub kind: Kind,
    /// How many.
    pub steps: usize,
    /// Half of them are not farther off.
    pub median: f64,
    /// 95 of 100 are not farther off.
    pub p95: f64,
}

/// Holds setups out and predicts their steps from those of the others. Nothing of a single setup.
pub fn held_out_errors(steps: &[TimedStep]) -> Vec<FitError> {
    let mut setups: Vec<u32> = steps.iter().map(|step| step.setup).collect();
    setups.sort_unstable();
    setups.dedup();
    if setups.len() < 2 {
        return Vec::new();
    }
    // By place, so that the parts are of one size whatever the numbers are.
    let part = |step: &TimedStep| {
        setups.binary_search(&step.setup).map_or(0, |place| place as u32) % PARTS
    };
    let mut errors: Vec<(Kind, f64)> = Vec::new();
    for held_out in 0..PARTS {
        let seen: Vec<&TimedStep> = steps.iter().filter(|step| part(step) != held_out).collect();
        let costs = StepCosts::fit_some(&seen);
        let unseen = steps.iter().filter(|step| part(step) == held_out);
        errors.extend(unseen.map(|step| {
            let seconds = median(step);
            (Kind::of(&step.load), (costs.seconds(&step.load) - seconds).abs() / seconds)
        }));
    }
    let kinds = [Kind::Decode, Kind::Prompt, Kind::Tile].into_iter();
    let error = |kind: Kind| {
        let of_kind = errors.iter().filter(|(other, _)| *other == kind);
        let mut sorted: Vec<f64> = of_kind.map(|(_, error)| *error).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        (!sorted.is_empty()).then(|| FitError {
            kind,
            steps: sorted.len(),
            median: percentile(&sorted, 50),
            p95: percentile(&sorted, 95),
        })
    };
    kinds.filter_map(error).collect()
}

#[cfg(test)]
mod tests;

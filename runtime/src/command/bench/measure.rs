//! Runs requests through the engine and notes what each step took and had to do.

use std::time::Instant;

use weir_abi::{KEY_TILE, ModelHeader};

use super::sequences::Sequences;
use super::steps::{StepLoad, StepWatch};
use crate::cache::KeptRows;
use crate::forward::{
    Forward, LongPrompt, ModelShape, Past, StagedPrompt, StepFault, StepModel, StepRow,
};
use crate::probe::Peaks;
use crate::work::{Loads, Work, WorkCounter};
use crate::{Engine, RuntimeError};

/// Steps of all sequences together that do not count: the first ones after the prompts.
const WARM_STEPS: usize = 2;

/// A model that counts its work.
pub struct Counted {
    forward: Forward,
    counter: WorkCounter,
    /// Whether steps are passed over, while rows of prompts are taken for granted.
    passes_over: bool,
    /// Notes what steps had to do, where somebody wants to know.
    watch: Option<StepWatch>,
}

/// Rows of the prompt whose rows are repeated where prompts are not computed, if the model has positions
/// for them: whole tiles of rows.
const REPEATED_ROWS: u32 = 256;

impl Counted {
    pub(super) fn new(forward: Forward, counter: WorkCounter) -> Counted {
        Counted { forward, counter, passes_over: false, watch: None }
    }

    /// Has what steps have to do noted from now on.
    pub(super) fn watch(&mut self, watch: StepWatch) {
        self.watch = Some(watch);
    }

    /// What was done since this was last asked, if it is noted.
    pub(super) fn watched(&mut self) -> Option<StepLoad> {
        self.watch.as_mut().map(StepWatch::take)
    }

    /// Takes no rows for granted from now on.
    pub(super) fn compute(&mut self) {
        self.passes_over = false;
    }

    /// Fills all slots with rows, and takes for granted what comes until it is to compute again.
    pub(super) fn pass_over(&mut self, seed: u32) -> Result<(), RuntimeError> {
        let (context, tile) = (self.shape().context, KEY_TILE as u32);
        let rows = REPEATED_ROWS.min(context) / tile * tile;
        if rows == 0 {
            return Err(RuntimeError::Options(format!(
                "rows can be taken for granted from a context of {tile} on and the model has {context}"
            )));
        }
        let ids = prompt_ids(rows as usize, self.shape().vocabulary, seed);
        let mut staged = StagedPrompt::new(&self.forward, rows, 0)?;
        let mut logits = vec![0.0; self.shape().head_width as usize];
        self.forward.stage(&mut staged, &ids, rows, &mut logits)?;
        self.forward.fill_slots(&staged);
        self.passes_over = true;
        Ok(())
    }

    pub(super) fn counter(&self) -> &WorkCounter {
        &self.counter
    }

    pub(super) fn forward_mut(&mut self) -> &mut Forward {
        &mut self.forward
    }
}

impl StepModel for Counted {
    fn shape(&self) -> &ModelShape {
        self.forward.shape()
    }

    fn step(
        &mut self,
        rows: &[StepRow],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        if self.passes_over {
            logits.fill(0.0);
            return Ok(());
        }
        self.counter.step(rows, head_rows.len());
        self.watch.iter_mut().for_each(|watch| watch.step(rows));
        self.forward.step(rows, head_rows, logits)
    }

    fn copy_prompt(&mut self, prompt_rows: u32, from: u32, to: u32) {
        if !self.passes_over {
            self.forward.copy_prompt(prompt_rows, from, to);
        }
    }

    fn kept(&self, slot: u32, past: Past) -> KeptRows {
        self.forward.kept(slot, past)
    }

    fn reselects(&self, slot: u32, past: Past) -> Option<Past> {
        if self.passes_over { None } else { self.forward.reselects(slot, past) }
    }

    fn begin_prompt(&mut self, prompt: LongPrompt<'_>) {
        if self.passes_over {
            return;
        }
        self.counter.long_prompt(prompt.tokens.len() as u32, prompt.past);
        self.watch.iter_mut().for_each(|watch| watch.begin_prompt(&prompt));
        self.forward.begin_prompt(prompt);
    }

    fn advance_prompt(&mut self) -> Result<bool, StepFault> {
        if self.passes_over {
            return Ok(true);
        }
        self.watch.iter_mut().for_each(StepWatch::tile);
        self.forward.advance_prompt()
    }

    fn prompt_logits(&mut self, first: u32, logits: &mut [f32]) -> Result<(), StepFault> {
        if self.passes_over {
            logits.fill(0.0);
            return Ok(());
        }
        self.counter.head((logits.len() / self.shape().head_width as usize) as u64);
        self.forward.prompt_logits(first, logits)
    }
}

/// What one repetition does.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Tokens of each prompt.
    pub length: u32,
    /// Sequences.
    pub batch: u32,
    /// Tokens that all sequences decode together; the first comes with the prompt.
    pub tokens: u32,
    /// Whether the prompts' rows are taken for granted instead of computed.
    pub assumed: bool,
}

impl Setup {
    /// Tokens of an answer: sequences whose prompts are done early decode while others prefill.
    pub(super) fn answer(&self, max_rows: u32) -> u32 {
        if self.batch == 1 {
            return self.tokens;
        }
        let prompts = self.length.saturating_mul(self.batch).div_ceil(max_rows);
        prompts.saturating_add(self.batch).saturating_add(self.tokens)
    }

    /// Refuses what the model has no positions for.
    pub fn check(&self, header: &ModelHeader) -> Result<(), RuntimeError> {
        let rows = u64::from(self.length) + u64::from(self.answer(header.max_rows));
        if self.length > 0 && self.batch > 0 && rows <= u64::from(header.context) {
            return Ok(());
        }
        Err(RuntimeError::Options(format!(
            "{} sequences with prompts of {} tokens need {rows} positions and the model has {}; \
             compile it with a larger --context",
            self.batch, self.length, header.context
        )))
    }
}

/// Deterministic pseudo-random ids, the same that benchmarks of other runtimes use: a linear
/// congruential generator over the ids from 300 to 30,000, as far as the vocabulary has them.
pub fn prompt_ids(count: usize, vocabulary: u32, seed: u32) -> Vec<u32> {
    let end = vocabulary.min(30_000);
    let first = if end > 600 { 300 } else { 0 };
    let mut state = seed.wrapping_mul(2_654_435_761);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        first + (state >> 8) % (end - first)
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A span of time and what was done in it.
pub(super) struct Span {
    pub seconds: f64,
    pub work: Work,
}

/// One repetition.
pub struct Run {
    prefill: Span,
    steps: Vec<Span>,
}

/// Seconds after which the next engine has its turn: many short steps, of which the first finds
/// another's rows in the caches, or one long step.
const TURN: f64 = 0.05;

impl Run {
    /// Steps of the next turn, by the last one.
    fn steps_of_a_turn(&self) -> u32 {
        self.steps.last().map_or(1, |step| (TURN / step.seconds).ceil().clamp(1.0, 1e6) as u32)
    }

    /// Seconds of the prompts, and of all steps behind them.
    pub(super) fn seconds(&self) -> (f64, f64) {
        (self.prefill.seconds, self.steps.iter().map(|step| step.seconds).sum())
    }

    /// Seconds of the steps that count.
    fn decoded(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().skip(WARM_STEPS).map(|step| step.seconds)
    }
}

/// How many times as fast as another a model was in the same moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speedup {
    /// In the middle of all moments.
    pub median: f64,
    /// Half of all moments lie from here,
    pub low: f64,
    /// up to here.
    pub high: f64,
}

impl Speedup {
    /// `ratios` of one moment each; nothing without any.
    pub(super) fn of(mut ratios: Vec<f64>) -> Option<Speedup> {
        ratios.sort_by(f64::total_cmp);
        let quarter = ratios.len() / 4;
        let high = *ratios.get(ratios.len().checked_sub(1 + quarter)?)?;
        Some(Speedup { low: ratios[quarter], high, median: median(&mut ratios) })
    }
}

/// A short prompt of each sequence and a few steps: first touch of weights and buffers is no figure's.
pub(super) fn warm_up(engine: &mut Engine<Counted>, setup: &Setup) -> Result<(), RuntimeError> {
    let short = Setup { length: setup.length.min(16), tokens: 4, assumed: false, ..*setup };
    run(std::slice::from_mut(engine), &short, &mut |_, _| {})?;
    Ok(())
}

/// Runs a repetition of each engine, decoding by turns: the machine's slow moments are then all
/// engines'. `look` gets each engine, by its place, after its prompts and after every turn.
pub(super) fn run(
    engines: &mut [Engine<Counted>],
    setup: &Setup,
    look: &mut dyn FnMut(usize, &mut Engine<Counted>),
) -> Result<Vec<Run>, RuntimeError> {
    let mut runs = Vec::with_capacity(engines.len());
    let mut sequences = Vec::with_capacity(engines.len());
    for (index, engine) in engines.iter_mut().enumerate() {
        let (started, prefill) = Sequences::start(engine, setup, 0)?;
        look(index, engine);
        sequences.push(started);
        runs.push(Run { prefill, steps: Vec::new() });
    }
    let mut left = setup.tokens.saturating_sub(1);
    let mut turn = 1;
    while left > 0 {
        turn = left.min(turn);
        let of_each = engines.iter_mut().zip(&mut sequences).zip(&mut runs).enumerate();
        for (index, ((engine, sequences), run)) in of_each {
            run.steps.extend(sequences.decode(engine, turn)?);
            look(index, engine);
        }
        left -= turn;
        turn = runs.first().map_or(1, Run::steps_of_a_turn);
    }
    for (engine, sequences) in engines.iter_mut().zip(sequences) {
        sequences.end(engine);
    }
    Ok(runs)
}

/// What was done since `before`, and the time since `start`.
pub(super) fn span(engine: &Engine<Counted>, start: &Instant, before: &Loads) -> Span {
    let seconds = start.elapsed().as_secs_f64();
    let counter = engine.model().counter();
    Span { seconds, work: counter.work(&counter.loads().since(before)) }
}

/// Time, work, and what part of the machine's abilities the work took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds.
    pub seconds: f64,
    /// What had to be done.
    pub work: Work,
    /// Bytes over read bandwidth, in parts of the time.
    pub share_read: f64,
    /// Operations over peaks, in parts of the time.
    pub share_peak: f64,
    /// What the machine did just before and after, the better of both.
    pub peaks: Peaks,
}

impl Measured {
    /// Judges a time.
    pub fn new(seconds: f64, work: Work, peaks: &Peaks) -> Measured {
        let part = |amount: u64, rate: f64| if amount == 0 { 0.0 } else { amount as f64 / rate };
        let in_tiles = if peaks.tiles.best > 0.0 { work.tile_operations } else { 0 };
        let in_bf16 = if peaks.bf16.best > 0.0 { work.bf16_operations } else { 0 };
        let computing = part(work.integer_operations - in_tiles, peaks.integer.best)
            + part(in_tiles, peaks.tiles.best)
            + part(work.float_operations - in_bf16, peaks.float.best)
            + part(in_bf16, peaks.bf16.best);
        Measured {
            seconds,
            work,
            share_read: part(work.bytes, peaks.read.best) / seconds,
            share_peak: computing / seconds,
            peaks: *peaks,
        }
    }
}

/// All repetitions of a setup.
pub struct Runs {
    prefill: Vec<Measured>,
    /// Of each repetition the median time and work of its steps.
    decode: Vec<Measured>,
    /// Beside the model that took turns with this one, if any did.
    pub(super) prefill_speedup: Option<Speedup>,
    /// The same of steps.
    pub(super) decode_speedup: Option<Speedup>,
}

impl Runs {
    /// Judges a model's repetitions, beside those of the first model where it is another.
    pub(super) fn new(runs: &[Run], first: Option<&[Run]>, peaks: &Peaks) -> Runs {
        let pairs = || first.into_iter().flatten().zip(runs);
        let prefill_speedup =
            Speedup::of(pairs().map(|(a, b)| a.prefill.seconds / b.prefill.seconds).collect());
        let decode_speedup = Speedup::of(
            pairs().flat_map(|(a, b)| a.decoded().zip(b.decoded()).map(|(a, b)| a / b)).collect(),
        );
        let prefill = runs
            .iter()
            .map(|run| Measured::new(run.prefill.seconds, run.prefill.work, peaks))
            .collect();
        let decode = runs.iter().filter_map(|run| {
            let Span { seconds, work } = median_step(run.steps.get(WARM_STEPS..)?)?;
            Some(Measured::new(seconds, work, peaks))
        });
        Runs { prefill, decode: decode.collect(), prefill_speedup, decode_speedup }
    }

    /// The best prefill, and the median seconds of all.
    pub(super) fn prefill(&self) -> Option<(Measured, f64)> {
        best(&self.prefill)
    }

    /// The best decode step, and the median seconds of all.
    pub(super) fn decode(&self) -> Option<(Measured, f64)> {
        best(&self.decode)
    }
}

fn best(measured: &[Measured]) -> Option<(Measured, f64)> {
    let best = measured.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let mut seconds: Vec<f64> = measured.iter().map(|measured| measured.seconds).collect();
    Some((*best, median(&mut seconds)))
}

/// Median time and median work of steps. Both are medians, so that a few steps that do much more, as those
/// that select rows anew, change neither: by their mean work the others' share of reading would be too
/// high. Work is not that of the step whose time is the median, which differs from run to run.
fn median_step(steps: &[Span]) -> Option<Span> {
    if steps.is_empty() {
        return None;
    }
    let work = |of: fn(&Work) -> u64| {
        let mut amounts: Vec<u64> = steps.iter().map(|step| of(&step.work)).collect();
        amounts.sort_unstable();
        amounts[(amounts.len() - 1) / 2].midpoint(amounts[amounts.len() / 2])
    };
    let work = Work {
        bytes: work(|work| work.bytes),
        integer_operations: work(|work| work.integer_operations),
        tile_operations: work(|work| work.tile_operations),
        float_operations: work(|work| work.float_operations),
        bf16_operations: work(|work| work.bf16_operations),
    };
    let mut seconds: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    Some(Span { seconds: median(&mut seconds), work })
}

/// The middle of the numbers, or the mean of both that are.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len().is_multiple_of(2) {
        f64::midpoint(numbers[middle - 1], numbers[middle])
    } else {
        numbers[middle]
    }
}

/// Megabytes that were resident at most since [`reset_peak`]; nothing without /proc.
pub(super) fn peak_megabytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes / 1024)
}

/// Forgets the greatest resident size, where the system lets us.
pub(super) fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Rate;

    #[test]
    fn ids_are_those_of_other_benchmarks() {
        // The first ids that the generator's definition gives for seeds 1 and 2.
        let reference = |seed: u64| {
            let mut x = seed * 2_654_435_761 % (1 << 32);
            (0..3)
                .map(|_| {
                    x = (1_664_525 * x + 1_013_904_223) % (1 << 32);
                    (300 + (x >> 8) % 29_700) as u32
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(prompt_ids(3, 128_256, 1), reference(1));
        assert_eq!(prompt_ids(3, 30_000, 2), reference(2));
        assert!(prompt_ids(100, 320, 1).iter().all(|id| *id < 320));
    }

    #[test]
    fn shares_are_parts_of_the_time() {
        let rate = |best| Rate { best, median: best };
        let none = rate(0.0);
        let (read, float, integer) = (rate(10.0), rate(4.0), rate(8.0));
        let peaks = Peaks { read, float, integer, tiles: none, bf16: none };
        let work = Work {
            bytes: 5,
            integer_operations: 4,
            tile_operations: 2,
            float_operations: 1,
            bf16_operations: 1,
        };
        let measured = Measured::new(1.0, work, &peaks);
        assert_eq!((measured.share_read, measured.share_peak), (0.5, 0.75));
        let measured = Measured::new(1.0, work, &Peaks { tiles: rate(4.0), ..peaks });
        assert_eq!(measured.share_peak, 0.25 + 0.5 + 0.25);
        let measured = Measured::new(1.0, work, &Peaks { bf16: rate(8.0), ..peaks });
        assert_eq!(measured.share_peak, 0.5 + 0.125);
        assert_eq!(median(&mut [3.0, 1.0]), 2.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_speedup_is_the_middle_of_its_moments() {
        let of = |ratios: &[f64]| Speedup::of(ratios.to_vec()).map(|s| (s.low, s.median, s.high));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]), Some((2.0, 2.0, 2.0)));
        assert_eq!(of(&[4.0, 1.0]), Some((1.0, 2.5, 4.0)));
        // A quarter of the moments lies on either side.
        assert_eq!(of(&[8.0, 1.0, 3.0, 2.0, 7.0, 4.0, 6.0, 5.0]), Some((3.0, 4.5, 6.0)));
    }

    #[test]
    fn long_steps_change_neither_time_nor_work_of_the_median() {
        let step = |(seconds, bytes)| Span { seconds, work: Work { bytes, ..Work::default() } };
        let of = |steps: &[(f64, u64)]| {
            let steps: Vec<Span> = steps.iter().copied().map(step).collect();
            median_step(&steps).map(|step| (step.seconds, step.work.bytes))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(1.0, 10), (90.0, 900), (2.0, 12)]), Some((2.0, 12)));
        assert_eq!(of(&[(1.0, 10), (90.0, 900), (4.0, 12), (2.0, 14)]), Some((3.0, 13)));
        let rate = Rate { best: 10.0, median: 10.0 };
        let peaks = Peaks { read: rate, float: rate, integer: rate, tiles: rate, bf16: rate };
        let steps = [(9.0, 99), (9.0, 99), (2.0, 10), (2.0, 10), (90.0, 900)];
        let run = Run { prefill: step((1.0, 1)), steps: steps.into_iter().map(step).collect() };
        let (measured, _) = Runs::new(&[run], None, &peaks).decode().unwrap();
        assert_eq!((measured.seconds, measured.work.bytes, measured.share_read), (2.0, 10, 0.5));
    }

    #[test]
    fn moments_are_those_of_the_same_step_behind_the_first() {
        let span = |seconds| Span { seconds, work: Work::default() };
        let run = |prefill, steps: &[f64]| Run {
            prefill: span(prefill),
            steps: steps.iter().copied().map(span).collect(),
        };
        let first = [run(6.0, &[90.0, 80.0, 4.0, 8.0, 12.0])];
        let other = [run(2.0, &[1.0, 1.0, 2.0, 2.0, 2.0])];
        let rate = Rate { best: 1.0, median: 1.0 };
        let peaks = Peaks { read: rate, float: rate, integer: rate, tiles: rate, bf16: rate };
        let runs = Runs::new(&other, Some(&first), &peaks);
        let medians = [runs.prefill_speedup, runs.decode_speedup].map(|s| s.map(|s| s.median));
        assert_eq!(medians, [Some(3.0), Some(4.0)]);
        assert_eq!(Runs::new(&first, None, &peaks).decode_speedup, None);
    }
}

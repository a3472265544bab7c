//! `--step-times`: what steps of many kinds take, for whoever wants to predict others.
//!
//! Numbers of sequences and lengths of prompts are crossed; of each pair every step is noted with what
//! it had to do, in numbers that a scheduler knows beforehand ([`StepLoad`]). All pairs are gone through
//! `--reps` times, one after another, so that a disturbance of seconds does not hit one of them alone.
//! Nothing is fitted here: `weir simulate` does that, and a file keeps what was measured.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Bench;
use super::measure::{self, Counted, Setup};
use super::sequences::Sequences;
pub use super::step_load::{CacheRows, StepLoad, StepShape};
use crate::command::whole_file::WholeFile;
use crate::forward::{LongPrompt, StepModel, StepRow};
use crate::probe::Prober;
use crate::{Engine, Model, RuntimeError};

/// Most rows of prompts that are computed for one pair; beyond it they are taken for granted.
const COMPUTED_ROWS: u32 = 4096;

/// Least context of models whose prompts can be taken for granted.
const ASSUMED_CONTEXT: u32 = 1024;

/// Most that files may say: far above all models.
const MOST_ROWS: u32 = 1 << 16;
const MOST_CONTEXT: u32 = 1 << 24;
const MOST_LAYERS: u64 = 1 << 16;

/// The form of the file.
const VERSION: u32 = 1;

/// A step that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedStep {
    /// Which pair of sequences and prompt lengths it belongs to.
    pub setup: u32,
    /// What it had to do.
    #[serde(flatten)]
    pub load: StepLoad,
    /// Seconds in each repetition.
    pub seconds: Vec<f64>,
}

/// What was measured of a model on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The form of this.
    pub version: u32,
    /// Name of the model.
    pub model: String,
    /// Format of its weights.
    pub dtype: String,
    /// Cache policy.
    pub kv: String,
    /// Instruction set.
    pub isa: String,
    /// Compute threads.
    pub threads: usize,
    /// What the machine read, in GB/s, before or after.
    pub read_gb_s: f64,
    /// Numbers of the model.
    pub shape: StepShape,
    /// Steps, in the order in which they ran.
    pub steps: Vec<TimedStep>,
}

impl StepTimes {
    /// Reads what [`Bench::write_step_times`] has written, or says what is wrong with it.
    pub fn parse(text: &str) -> Result<StepTimes, String> {
        let times: StepTimes = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let StepShape { slots, step_rows, context, direct_rows, ref caches, .. } = times.shape;
        let layers: u64 = caches.iter().map(|cache| u64::from(cache.layers)).sum();
        let seconds = |step: &TimedStep| {
            let is_time = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
            !step.seconds.is_empty() && step.seconds.iter().all(is_time)
        };
        let is_amount = |amount: f64| amount.is_finite() && amount >= 0.0;
        if times.version != VERSION {
            return Err(format!("version {} is not {VERSION}", times.version));
        }
        for (name, value, most) in [
            ("slots", slots, super::MAX_SLOTS),
            ("step_rows", step_rows, MOST_ROWS),
            ("context", context, MOST_CONTEXT),
            ("direct_rows", direct_rows, MOST_CONTEXT),
        ] {
            if value == 0 || value > most {
                return Err(format!("shape: {name} must be from 1 to {most}"));
            }
        }
        if layers == 0 || layers > MOST_LAYERS {
            return Err(format!(
                "shape: caches of {layers} layers; from 1 to {MOST_LAYERS} can be"
            ));
        }
        if let Some(index) = times.steps.iter().position(|step| !step.load.all(is_amount)) {
            return Err(format!("step {}: what it had to do must be 0 or more", index + 1));
        }
        if let Some(index) = times.steps.iter().position(|step| !seconds(step)) {
            return Err(format!("step {}: seconds must be above 0", index + 1));
        }
        if times.steps.is_empty() {
            return Err("there is no step".into());
        }
        Ok(times)
    }
}

/// What a model does, step by step, in the numbers of a shape.
pub(super) struct StepWatch {
    shape: StepShape,
    load: StepLoad,
    prompt_rows: u32,
    tile: u64,
}

impl StepWatch {
    fn new(shape: StepShape) -> StepWatch {
        StepWatch { shape, load: StepLoad::default(), prompt_rows: 0, tile: 0 }
    }

    /// What was done since this was last asked.
    pub fn take(&mut self) -> StepLoad {
        std::mem::take(&mut self.load)
    }

    pub fn step(&mut self, rows: &[StepRow]) {
        for row in rows {
            let attended = self.shape.attended(row.position);
            if row.position < row.prompt_rows {
                self.load.prompt_rows += 1.0;
                self.load.prompt_attended += attended;
            } else {
                self.load.decode_rows += 1.0;
                self.load.decode_attended += attended;
            }
        }
    }

    pub fn begin_prompt(&mut self, prompt: &LongPrompt<'_>) {
        (self.prompt_rows, self.tile) = (prompt.tokens.len() as u32, 0);
    }

    pub fn tile(&mut self) {
        let StepLoad { tiles, tile_rows, tile_attended, chosen_from, .. } =
            self.shape.tile(self.prompt_rows, self.tile);
        self.tile += 1;
        self.load = StepLoad { tiles, tile_rows, tile_attended, chosen_from, ..self.load };
    }
}

impl Bench {
    /// Measures steps of many kinds and writes them into a file.
    pub fn write_step_times(&self, model: &Model, path: &Path) -> Result<(), RuntimeError> {
        let mut file = WholeFile::create(path)?;
        let times = self.step_times(model)?;
        let mut text = serde_json::to_string(&times)
            .map_err(|error| RuntimeError::Machine(format!("step times: {error}")))?;
        // A step a line: diffs and people want to read it.
        text = text.replace("{\"setup\"", "\n{\"setup\"");
        text.push('\n');
        file.write(text.as_bytes())?;
        file.finish()
    }

    fn step_times(&self, model: &Model) -> Result<StepTimes, RuntimeError> {
        let header = model.compiled().header();
        let setups = self.step_setups(header.slots, header.context, header.max_rows)?;
        for setup in &setups {
            setup.check(header)?;
        }
        let slots = setups.iter().map(|setup| setup.batch).max().unwrap_or(1);
        let mut engine = self.engine(model, slots)?;
        let shape = StepShape::new(engine.model().shape(), model);
        let label = self.label(model)?;
        let level = engine.model_mut().forward_mut().level();
        let probes = model.compiled().probes();
        let mut prober = Prober::new(&probes, self.threads())?;
        let before = prober.peaks(level)?;
        let length = header.context.min(16) / 2;
        measure::warm_up(&mut engine, &Setup { length, batch: slots, tokens: 4, assumed: false })?;
        let mut steps: Vec<TimedStep> = Vec::new();
        for repetition in 0..self.reps {
            let mut number = 0;
            for (index, setup) in (0_u32..).zip(&setups) {
                for (load, seconds) in timed(&mut engine, &shape, setup)? {
                    match steps.get_mut(number) {
                        Some(step) if step.setup == index && step.load == load => {
                            step.seconds.push(seconds);
                        }
                        _ if repetition == 0 => {
                            steps.push(TimedStep { setup: index, load, seconds: vec![seconds] });
                        }
                        _ => {
                            return Err(RuntimeError::Machine(
                                "internal error: repetitions ran different steps".into(),
                            ));
                        }
                    }
                    number += 1;
                }
            }
        }
        let peaks = before.better(prober.peaks(level)?);
        Ok(StepTimes {
            version: VERSION,
            model: label.model,
            dtype: label.dtype,
            kv: label.kv,
            isa: label.isa.name().to_owned(),
            threads: label.threads,
            read_gb_s: (peaks.read.best / 1e7).round() / 100.0,
            shape,
            steps,
        })
    }

    /// Numbers of sequences up to all slots, and prompts from few rows to most of the context, unless
    /// `--batch` and `--batch-context` say which.
    fn step_setups(
        &self,
        slots: u32,
        context: u32,
        step_rows: u32,
    ) -> Result<Vec<Setup>, RuntimeError> {
        let batches = match &self.batch {
            Some(batches) => batches.0.clone(),
            None => {
                let powers = (0..).map(|power| 1_u32 << power).take_while(|batch| *batch < slots);
                powers.chain([slots]).collect()
            }
        };
        if let Some(batch) = batches.iter().find(|batch| **batch > super::MAX_SLOTS) {
            let most = super::MAX_SLOTS;
            return Err(RuntimeError::Options(format!(
                "--batch {batch}: at most {most} sequences"
            )));
        }
        let lengths = match &self.batch_context {
            Some(lengths) => lengths.0.clone(),
            None => [32, 8, 4, 2].map(|part| (context / part).max(1)).to_vec(),
        };
        let mut setups = Vec::new();
        for batch in batches {
            for length in &lengths {
                let rows = length.saturating_mul(batch);
                let assumed = rows > COMPUTED_ROWS && batch > 1;
                let setup = Setup { length: *length, batch, tokens: self.tokens, assumed };
                let fits = length.saturating_add(setup.answer(step_rows)) <= context;
                let measurable = fits && (!assumed || context >= ASSUMED_CONTEXT);
                // What the user asked for is refused where it does not fit, not left out.
                if measurable || self.batch_context.is_some() {
                    setups.push(setup);
                }
            }
        }
        if setups.is_empty() {
            return Err(RuntimeError::Options(format!(
                "--gen {}: with it no prompt fits into a context of {context}",
                self.tokens
            )));
        }
        Ok(setups)
    }
}

/// The steps of a setup: what each had to do, and its seconds.
fn timed(
    engine: &mut Engine<Counted>,
    shape: &StepShape,
    setup: &Setup,
) -> Result<Vec<(StepLoad, f64)>, RuntimeError> {
    engine.model_mut().watch(StepWatch::new(shape.clone()));
    let mut sequences = Sequences::submit(engine, setup, 0)?;
    let mut steps = Vec::new();
    let mut left = setup.tokens.saturating_sub(1);
    while left > 0 {
        if sequences.all_decode() {
            engine.model_mut().compute();
            left -= 1;
        }
        let start = Instant::now();
        sequences.step(engine)?;
        let seconds = start.elapsed().as_secs_f64();
        // Nothing was done while prompts were taken for granted.
        let load = engine.model_mut().watched().unwrap_or_default();
        if load != StepLoad::default() {
            steps.push((load, seconds));
        }
    }
    sequences.end(engine);
    engine.model_mut().watched();
    Ok(steps)
}

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
use super::measure::{self, Counted, Sequences, Setup};
use crate::forward::{LongPrompt, ModelShape, StepModel, StepRow, tile_rows};
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

/// What a step had to do. Rows that are attended to are means over the model's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepLoad {
    /// Rows of sequences that decode.
    #[serde(default)]
    pub decode_rows: f64,
    /// Cache rows that these attended to.
    #[serde(default)]
    pub decode_attended: f64,
    /// Rows of prompts.
    #[serde(default)]
    pub prompt_rows: f64,
    /// Cache rows that these attended to.
    #[serde(default)]
    pub prompt_attended: f64,
    /// Tiles of long prompts, each of one layer.
    #[serde(default)]
    pub tiles: f64,
    /// Their rows.
    #[serde(default)]
    pub tile_rows: f64,
    /// Rows that these attended to.
    #[serde(default)]
    pub tile_attended: f64,
    /// Rows of the prompt whose last tile of a layer this was: the layer's rows are chosen from them.
    #[serde(default)]
    pub chosen_from: f64,
}

impl StepLoad {
    fn all(&self, is_right: impl Fn(f64) -> bool) -> bool {
        let StepLoad { decode_rows, decode_attended, prompt_rows, prompt_attended, .. } = *self;
        let StepLoad { tiles, tile_rows, tile_attended, chosen_from, .. } = *self;
        let rows = [decode_rows, decode_attended, prompt_rows, prompt_attended];
        let long = [tiles, tile_rows, tile_attended, chosen_from];
        rows.into_iter().chain(long).all(is_right)
    }
}

/// Layers whose caches are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRows {
    /// How many layers.
    pub layers: u32,
    /// Rows of a slot: no more are attended to.
    pub rows: u32,
    /// Rows that attention sees at most, whatever the cache holds; 0 for all.
    pub window: u32,
}

/// What decides about plans, and about what they have to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepShape {
    /// Slots that the model was compiled for.
    pub slots: u32,
    /// Rows of a step.
    pub step_rows: u32,
    /// Positions of a sequence.
    pub context: u32,
    /// Longest prompt that is no long one.
    pub direct_rows: u32,
    /// Values of a hidden row; tiles of long prompts are whole cache lines of them.
    pub hidden_width: u32,
    /// All layers.
    pub caches: Vec<CacheRows>,
}

impl StepShape {
    fn new(shape: &ModelShape, model: &Model) -> StepShape {
        let header = model.compiled().header();
        let mut caches: Vec<CacheRows> = Vec::new();
        for layer in model.compiled().layers() {
            let layout = &shape.layouts[layer.layout as usize];
            let (rows, window) = (layout.rows, layout.window);
            match caches.iter_mut().find(|cache| (cache.rows, cache.window) == (rows, window)) {
                Some(cache) => cache.layers += 1,
                None => caches.push(CacheRows { layers: 1, rows, window }),
            }
        }
        StepShape {
            slots: header.slots,
            step_rows: shape.max_rows,
            context: shape.context,
            direct_rows: shape.direct_rows,
            hidden_width: shape.hidden_width,
            caches,
        }
    }

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.caches.iter().map(|cache| cache.layers).sum()
    }

    /// The mean over layers of what `rows` makes of a layer.
    fn mean(&self, rows: impl Fn(&CacheRows) -> u32) -> f64 {
        let all: f64 =
            self.caches.iter().map(|cache| f64::from(cache.layers) * f64::from(rows(cache))).sum();
        all / f64::from(self.layers().max(1))
    }

    /// Cache rows that the row of a position attends to.
    pub fn attended(&self, position: u32) -> f64 {
        self.mean(|cache| match cache.window {
            0 => cache.rows.min(position + 1),
            window => window.min(position + 1),
        })
    }

    /// Tiles of a long prompt, over all layers.
    pub fn tiles(&self, prompt_rows: u32) -> u64 {
        u64::from(self.layers()) * u64::from(prompt_rows.div_ceil(self.rows_of_tile()))
    }

    fn rows_of_tile(&self) -> u32 {
        tile_rows(self.step_rows as usize, self.hidden_width as usize).max(1) as u32
    }

    /// What a tile of a long prompt has to do: the tile with this number, of all.
    pub fn tile(&self, prompt_rows: u32, number: u64) -> StepLoad {
        let rows = self.rows_of_tile();
        let first = (number % u64::from(prompt_rows.div_ceil(rows))) as u32 * rows;
        let end = prompt_rows.min(first + rows);
        // Rows that a layer will drop are still there while it is computed.
        let attended = |position: u32| {
            self.mean(|cache| match cache.window {
                0 => position + 1,
                window => window.min(position + 1),
            })
        };
        StepLoad {
            tiles: 1.0,
            tile_rows: f64::from(end - first),
            tile_attended: (first..end).map(attended).sum(),
            chosen_from: if end == prompt_rows { f64::from(prompt_rows) } else { 0.0 },
            ..StepLoad::default()
        }
    }
}

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
        let times = self.step_times(model)?;
        let mut text = serde_json::to_string(&times)
            .map_err(|error| RuntimeError::Machine(format!("step times: {error}")))?;
        // A step a line: diffs and people want to read it.
        text = text.replace("{\"setup\"", "\n{\"setup\"");
        text.push('\n');
        let place = |source| RuntimeError::File { path: path.to_owned(), source };
        std::fs::write(path, text).map_err(place)
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
        // First touch of weights and buffers is no step's.
        let warm =
            Setup { length: header.context.min(16) / 2, batch: slots, tokens: 4, assumed: false };
        measure::run(&mut engine, &warm, 0)?;
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

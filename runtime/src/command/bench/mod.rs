//! `bench`: how fast the model runs, beside what the machine could do.
//!
//! One JSON line per figure, with the names that benchmarks of other runtimes use: `prefill` is from
//! the request to its first token, `decode` the median step after it, `decode_total` and
//! `prefill_total` the same over several sequences at once. `value` is that of the best repetition,
//! `median` that of the middle one.

mod figure;
mod machine;
mod measure;
mod profile;
mod sequences;
mod step_load;
pub mod steps;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use weir_abi::IsaLevel;

use figure::write_table;
pub use figure::{Figure, Label};
pub use machine::{MachineFigure, measure_machine, write as write_machine};
pub use measure::{Runs, Speedup, prompt_ids};
pub use profile::{KernelTime, Profile, write_profiles};

use self::measure::{Counted, Setup, peak_megabytes, reset_peak};
use super::numbers::{numbers, whole};
use super::options::parse_isa;
use crate::cores::default_threads;
use crate::forward::{MAX_SLOTS, MAX_THREADS};
use crate::probe::{Peaks, Prober};
use crate::weights::Place;
use crate::work::WorkCounter;
use crate::{Engine, Model, RuntimeError, RuntimeOptions, machine as processor};

/// Tokens of the prompt whose first answer `--ttft` waits for.
const FIRST_TOKEN_PROMPT: usize = 16;

/// Rows of a repetition above which there is only one.
const LONG: usize = 8192;

/// What the help says at its end.
const NOTES: &str = "\
Without --prefill, --decode, --batch, --ttft and --machine: --prefill 512 --decode 128, as far as the \
context goes. share_read is the part of the measured read bandwidth that the bytes which must be read \
take; share_peak the same for operations and the measured peaks of their instructions.";

/// Measures how fast the model runs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Figures", after_help = NOTES)]
pub struct Bench {
    /// Prompt lengths, with commas between them
    #[arg(long, value_name = "N,…", value_parser = numbers, allow_hyphen_values = true)]
    pub prefill: Option<Numbers>,
    /// Rows before the tokens that are decoded, one sequence
    #[arg(long, value_name = "N,…", value_parser = numbers, allow_hyphen_values = true)]
    pub decode: Option<Numbers>,
    /// Sequences at once
    #[arg(long, value_name = "N,…", value_parser = numbers, allow_hyphen_values = true)]
    pub batch: Option<Numbers>,
    /// Prompt lengths of sequences at once [default: 512]
    #[arg(long, value_name = "N,…", value_parser = numbers, allow_hyphen_values = true)]
    pub batch_context: Option<Numbers>,
    /// Take the rows in front of what is decoded for granted: steps read rows of a short prompt, over
    /// and over, and long contexts need not be computed first
    #[arg(long, conflicts_with = "prefill")]
    pub assume_prompts: bool,
    /// From the start of a fresh process to its first token
    #[arg(long)]
    pub ttft: bool,
    /// Measure steps of many kinds, of all numbers of sequences up to the slots or those of --batch, and
    /// write their times, from which weir simulate predicts what a server does under load
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefill", "decode", "assume_prompts", "ttft", "machine", "json"])]
    pub step_times: Option<PathBuf>,
    /// The machine: read bandwidth by working set, operations by instruction
    #[arg(long)]
    pub machine: bool,
    /// Tokens decoded per repetition
    #[arg(long = "gen", value_name = "N", default_value_t = 32, value_parser = whole(4_u32, 4096))]
    pub tokens: u32,
    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1_u32, 100))]
    pub reps: u32,
    /// Name of the model in the output [default: that of the file]
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Weights' format in the output [default: that of most bytes]
    #[arg(long, value_name = "TEXT")]
    pub dtype: Option<String>,
    /// Write one JSON object a line
    #[arg(long, help_heading = None::<&str>)]
    pub json: bool,
    /// Compute threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_THREADS), help_heading = "Running")]
    pub threads: Option<usize>,
    /// Instruction set: portable, avx2, avx-vnni, avx512, avx512-pairs, amx [default: the best here]
    #[arg(long, value_name = "LEVEL", value_parser = parse_isa, help_heading = "Running")]
    pub isa: Option<IsaLevel>,
}

/// Whole numbers with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub Vec<u32>);

impl Bench {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        model.need_text()?;
        if let Some(path) = &self.step_times {
            return self.write_step_times(model, path);
        }
        let mut out = std::io::stdout().lock();
        if self.machine {
            let figures = measure_machine(&model.compiled().probes(), self.threads())?;
            machine::write(&mut out, &figures, self.json)?;
            if !self.wants_figures() {
                return Ok(());
            }
        }
        self.report(&[model], &mut out)?;
        Ok(())
    }

    /// Measures models, and writes their figures before it gives them back. Several take turns, and
    /// each figure of the others says how many times as fast as the first they are.
    pub fn report(
        &self,
        models: &[&Model],
        out: &mut dyn Write,
    ) -> Result<Vec<(Label, Vec<Figure>)>, RuntimeError> {
        let measured = self.measure(models, &mut |figure, label| {
            if self.json { Ok(writeln!(out, "{}", figure.json(label))?) } else { Ok(()) }
        })?;
        if !self.json {
            for (index, (label, figures)) in measured.iter().enumerate() {
                if index > 0 {
                    writeln!(out)?;
                }
                write_table(out, figures, label)?;
            }
        }
        Ok(measured)
    }

    fn wants_figures(&self) -> bool {
        self.wants_rates() || self.ttft
    }

    fn wants_rates(&self) -> bool {
        self.prefill.is_some() || self.decode.is_some() || self.batch.is_some()
    }

    /// Whether there will be a figure of prompts or steps: they are also what is measured where nothing
    /// is asked for.
    pub fn measures_rates(&self) -> bool {
        self.wants_rates() || !(self.ttft || self.machine)
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(default_threads)
    }

    /// What is the same for all figures, without the peaks.
    fn label(&self, model: &Model) -> Result<Label, RuntimeError> {
        let isa = processor::choose_level(model.compiled(), self.isa)?.level;
        let facts = model.facts();
        let largest = facts.weights.iter().max_by_key(|part| part.bytes);
        let format = largest.map_or("unknown", |part| part.format.as_str());
        let dtype = format.split([' ', ',']).next().unwrap_or(format).to_owned();
        Ok(Label {
            model: self.name.clone().unwrap_or_else(|| facts.name.clone()),
            dtype: self.dtype.clone().unwrap_or(dtype),
            threads: self.threads(),
            isa,
            kv: facts.build.kv.clone(),
            kv_dtype: facts.build.kv_dtype.clone(),
            peaks: Peaks::default(),
        })
    }

    /// Measures everything that is asked for, of all models by turns, and tells each figure when it is
    /// there. The first model's machine and context are those of all.
    fn measure(
        &self,
        models: &[&Model],
        tell: &mut dyn FnMut(&Figure, &Label) -> Result<(), RuntimeError>,
    ) -> Result<Vec<(Label, Vec<Figure>)>, RuntimeError> {
        let Some(first) = models.first() else { return Ok(Vec::new()) };
        if self.batch_context.is_some() && self.batch.is_none() {
            return Err(RuntimeError::Options(
                "--batch-context is for --batch and --step-times".to_owned(),
            ));
        }
        let labelled = models.iter().map(|model| Ok((self.label(model)?, Vec::new())));
        let mut measured: Vec<(Label, Vec<Figure>)> =
            labelled.collect::<Result<_, RuntimeError>>()?;
        let level = processor::choose_level(first.compiled(), self.isa)?.level;
        let probes = first.compiled().probes();
        let mut prober = Prober::new(&probes, self.threads())?;
        for (setup, metrics) in self.setups(first) {
            let (of_models, peaks, rss_mb) = self.repeat(models, level, &mut prober, setup)?;
            for ((label, figures), runs) in measured.iter_mut().zip(of_models) {
                label.peaks = label.peaks.better(peaks);
                for metric in &metrics {
                    let (spent, speedup, tokens) = match *metric {
                        "prefill" | "prefill_total" => {
                            let tokens = setup.length.saturating_mul(setup.batch);
                            (runs.prefill(), runs.prefill_speedup, tokens)
                        }
                        _ => (runs.decode(), runs.decode_speedup, setup.batch),
                    };
                    let too_few = "--gen: too few steps to find a median";
                    let spent = spent.ok_or_else(|| RuntimeError::Options(too_few.into()))?;
                    let rate = Figure::rate(metric, &setup, tokens, spent, rss_mb);
                    let figure = Figure { speedup, ..rate };
                    tell(&figure, label)?;
                    figures.push(figure);
                }
            }
        }
        if self.ttft {
            for (model, (label, figures)) in models.iter().zip(&mut measured) {
                let figure = self.first_token(model)?;
                tell(&figure, label)?;
                figures.push(figure);
            }
        }
        Ok(measured)
    }

    /// What is run, and the figures that each gives.
    fn setups(&self, model: &Model) -> Vec<(Setup, Vec<&'static str>)> {
        let half = model.compiled().header().context / 2;
        let usual = |length: u32| Some(Numbers(vec![length.min(half).max(1)]));
        let (prefill, decode) = match self.wants_figures() || self.machine {
            true => (self.prefill.clone(), self.decode.clone()),
            // What is taken for granted is not measured.
            false if self.assume_prompts => (None, usual(128)),
            false => (usual(512), usual(128)),
        };
        let (prefill, decode) = (prefill.unwrap_or_default().0, decode.unwrap_or_default().0);
        let mut lengths = [prefill.clone(), decode.clone()].concat();
        lengths.sort_unstable();
        lengths.dedup();
        let mut setups = Vec::new();
        for length in lengths {
            let decodes = decode.contains(&length);
            let tokens = if decodes { self.tokens } else { 1 };
            let mut metrics = Vec::new();
            metrics.extend(prefill.contains(&length).then_some("prefill"));
            metrics.extend(decodes.then_some("decode"));
            let assumed = self.assume_prompts;
            setups.push((Setup { length, batch: 1, tokens, assumed }, metrics));
        }
        let batches = self.batches();
        let metrics = match self.assume_prompts {
            true => vec!["decode_total"],
            false => vec!["decode_total", "prefill_total"],
        };
        setups.extend(batches.map(|setup| (setup, metrics.clone())));
        setups
    }

    /// Several sequences at once, of each length.
    fn batches(&self) -> impl Iterator<Item = Setup> {
        let contexts = self.batch_context.clone().unwrap_or_else(|| Numbers(vec![512]));
        let (batches, tokens) = (self.batch.clone().unwrap_or_default().0, self.tokens);
        let assumed = self.assume_prompts;
        contexts.0.into_iter().flat_map(move |length| {
            let batches = batches.clone().into_iter();
            batches.map(move |batch| Setup { length, batch, tokens, assumed })
        })
    }

    /// An engine that counts what it does.
    pub fn engine(&self, model: &Model, slots: u32) -> Result<Engine<Counted>, RuntimeError> {
        let options = RuntimeOptions {
            slots: Some(slots),
            threads: Some(self.threads()),
            isa: self.isa,
            ..RuntimeOptions::default()
        };
        let facts = model.facts().work.as_ref().ok_or(RuntimeError::Absent(
            "account of its work; compile it again with this version",
        ))?;
        let counter = WorkCounter::new(model.compiled(), facts)?;
        Ok(Engine::new(Counted::new(model.forward(&options)?, counter), None, Vec::new()))
    }

    /// Runs a setup several times on each model, between two looks at the machine. What was resident is
    /// told of one model alone.
    fn repeat(
        &self,
        models: &[&Model],
        level: IsaLevel,
        prober: &mut Prober<'_>,
        setup: Setup,
    ) -> Result<(Vec<Runs>, Peaks, Option<u64>), RuntimeError> {
        let mut engines = self.warm_engines(models, setup)?;
        let peaks = prober.peaks(level)?;
        reset_peak();
        let mut of_models: Vec<Vec<_>> = models.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.repetitions_of(&setup) {
            let by_turns = measure::run(&mut engines, &setup, &mut |_, _| {})?;
            of_models.iter_mut().zip(by_turns).for_each(|(runs, run)| runs.push(run));
        }
        let rss_mb = peak_megabytes().filter(|_| models.len() == 1);
        let peaks = peaks.better(prober.peaks(level)?);
        let first = of_models.first().map(Vec::as_slice);
        let judged = of_models.iter().enumerate().map(|(index, runs)| {
            let beside = first.filter(|_| index > 0);
            Runs::new(runs, beside, &peaks)
        });
        Ok((judged.collect(), peaks, rss_mb))
    }

    /// An engine of each model, as many slots as sequences, that has touched its weights and buffers.
    fn warm_engines(
        &self,
        models: &[&Model],
        setup: Setup,
    ) -> Result<Vec<Engine<Counted>>, RuntimeError> {
        if setup.batch > MAX_SLOTS {
            let batch = setup.batch;
            return Err(RuntimeError::Options(format!(
                "--batch {batch}: at most {MAX_SLOTS} sequences"
            )));
        }
        let mut engines = Vec::with_capacity(models.len());
        for model in models {
            setup.check(model.compiled().header())?;
            engines.push(self.engine(model, setup.batch)?);
        }
        for engine in &mut engines {
            measure::warm_up(engine, &setup)?;
        }
        Ok(engines)
    }

    /// How often a setup is run: once where its prompts take long.
    fn repetitions_of(&self, setup: &Setup) -> u32 {
        let rows = setup.length as usize * setup.batch as usize;
        if rows <= LONG || setup.assumed { self.reps } else { 1 }
    }

    /// From `exec` to the first byte of an answer, in processes of their own.
    fn first_token(&self, model: &Model) -> Result<Figure, RuntimeError> {
        let program = match model.compiled().place() {
            // Also where the file has no name any more.
            Place::ThisProgram => PathBuf::from("/proc/self/exe"),
            // A name alone would be looked for among the system's programs.
            Place::File(path) => std::path::absolute(path).map_err(RuntimeError::Input)?,
            Place::Linked | Place::Memory => {
                return Err(RuntimeError::Options(
                    "--ttft starts the compiled program: compile the model first".to_owned(),
                ));
            }
        };
        let vocabulary = model.compiled().header().vocabulary;
        let ids: Vec<String> =
            prompt_ids(FIRST_TOKEN_PROMPT, vocabulary, 1).iter().map(u32::to_string).collect();
        let threads = self.threads().to_string();
        let arguments =
            ["generate", "--max-tokens", "1", "--ignore-eos", "--json", "--threads", &threads];
        let mut seconds = Vec::new();
        for _ in 0..self.reps {
            let start = Instant::now();
            let mut child = Command::new(&program);
            child.args(arguments).args(["--ids", &ids.join(",")]);
            child.args(self.isa.iter().flat_map(|level| ["--isa", level.name()]));
            child.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
            let place = |source| RuntimeError::File { path: program.clone(), source };
            let mut child = child.spawn().map_err(place)?;
            let mut first = [0];
            let read = match &mut child.stdout {
                Some(stdout) => std::io::Read::read(stdout, &mut first).map_err(place)?,
                None => 0,
            };
            seconds.push(start.elapsed().as_secs_f64());
            let status = child.wait().map_err(place)?;
            if read == 0 || !status.success() {
                let program = program.display();
                return Err(RuntimeError::Options(format!("--ttft: {program} gave no token")));
            }
        }
        Ok(Figure::first_token(seconds, FIRST_TOKEN_PROMPT as u32))
    }
}

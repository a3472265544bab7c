//! Time per kernel, out of a model whose kernels all end in a barrier.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::measure::{Counted, Measured, Setup, warm_up};
use super::sequences::Sequences;
use super::{Bench, Label};
use crate::facts::SegmentFacts;
use crate::probe::{Peaks, Prober};
use crate::work::{Load, Work};
use crate::{Engine, Model, RuntimeError};

/// What one kernel took in all its calls.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// Segment and kernel.
    pub name: String,
    /// Calls.
    pub calls: u64,
    /// Part of the time of all kernels.
    pub part: f64,
    /// Seconds, work and shares.
    pub measured: Measured,
}

/// The kernels of one kind of steps.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Which steps: `prefill`, `decode` or `decode_total`.
    pub metric: &'static str,
    /// Sequences at once.
    pub batch: u32,
    /// Rows of the prompt, or before the step.
    pub context: u32,
    /// The kernels in the order in which they run.
    pub kernels: Vec<KernelTime>,
    /// Between kernels: scheduling, sampling, entering and leaving segments.
    pub outside: f64,
}

impl Bench {
    /// Measures kernel by kernel: a prompt of each `--prefill`, steps at each `--decode`, then steps of
    /// `--batch` sequences at once.
    pub fn profile(&self, model: &Model) -> Result<(Label, Vec<Profile>), RuntimeError> {
        let mut label = self.label(model)?;
        let probes = model.compiled().probes();
        label.peaks = Prober::new(&probes, self.threads())?.peaks(label.isa)?;
        let lengths = |given: &Option<super::Numbers>, usual: u32| match given {
            Some(numbers) => numbers.0.clone(),
            None if self.wants_figures() => Vec::new(),
            None => vec![usual.min(model.compiled().header().context / 2).max(1)],
        };
        let mut profiles = Vec::new();
        for length in lengths(&self.prefill, 512) {
            let setup = Setup { length, batch: 1, tokens: 1, assumed: false };
            profiles.push(self.profile_one(model, &label.peaks, setup, "prefill")?);
        }
        for length in lengths(&self.decode, 128) {
            let setup =
                Setup { length, batch: 1, tokens: self.tokens, assumed: self.assume_prompts };
            profiles.push(self.profile_one(model, &label.peaks, setup, "decode")?);
        }
        for setup in self.batches() {
            profiles.push(self.profile_one(model, &label.peaks, setup, "decode_total")?);
        }
        Ok((label, profiles))
    }

    fn profile_one(
        &self,
        model: &Model,
        peaks: &Peaks,
        setup: Setup,
        metric: &'static str,
    ) -> Result<Profile, RuntimeError> {
        setup.check(model.compiled().header())?;
        let mut engine = self.engine(model, setup.batch)?;
        warm_up(&mut engine, &setup)?;
        let watch = |engine: &mut Engine<Counted>| {
            let counted = engine.model_mut();
            counted.forward_mut().team_mut().watch();
            let times = counted.forward_mut().team_mut().take_times();
            (times, counted.counter().loads().clone())
        };
        let (_, mut before) = watch(&mut engine);
        let (mut sequences, prefill) = Sequences::start(&mut engine, &setup, 0)?;
        let mut whole = prefill.seconds;
        if metric != "prefill" {
            before = watch(&mut engine).1;
            let steps = sequences.decode(&mut engine, setup.tokens.saturating_sub(1))?;
            whole = steps.iter().map(|step| step.seconds).sum();
        }
        let (times, after) = watch(&mut engine);
        sequences.end(&mut engine);
        let loads = after.since(&before);
        let segments = engine.model_mut().forward_mut().segments().clone();
        let facts = engine.model().counter().facts();
        let mut kernels = Vec::new();
        let mut add = |facts: &SegmentFacts, load: &Load, address: usize| {
            let known = times.iter().find(|times| times.segment as usize == address);
            let phases = known.map_or(&[][..], |times| &times.phases);
            for (index, kernel) in facts.kernels.iter().enumerate() {
                let seconds = phases.get(index).map_or(0.0, Duration::as_secs_f64);
                kernels.push(KernelTime {
                    name: format!("{}/{}", facts.name, kernel.name),
                    calls: load.calls,
                    part: 0.0,
                    measured: Measured::new(seconds.max(1e-9), load.work(kernel), peaks),
                });
            }
        };
        add(&facts.embed, &loads.embed, segments.embed as usize);
        for ((facts, load), kind) in facts.kinds.iter().zip(&loads.kinds).zip(&segments.kinds) {
            add(facts, load, kind.layer as usize);
        }
        add(&facts.head, &loads.head, segments.head as usize);
        // What becomes of a long prompt's rows; their work is not counted.
        for (facts, kind) in facts.kinds.iter().zip(&segments.kinds) {
            for (what, segment) in [("observe", kind.observe), ("compact", kind.compact)] {
                let address = segment as usize;
                let Some(times) = times.iter().find(|times| times.segment as usize == address)
                else {
                    continue;
                };
                let seconds = times.phases.iter().sum::<Duration>().as_secs_f64();
                kernels.push(KernelTime {
                    name: format!("{}/{what}", facts.name),
                    calls: times.calls,
                    part: 0.0,
                    measured: Measured::new(seconds.max(1e-9), Work::default(), peaks),
                });
            }
        }
        let total: f64 = kernels.iter().map(|kernel| kernel.measured.seconds).sum();
        kernels.iter_mut().for_each(|kernel| kernel.part = kernel.measured.seconds / total);
        let Setup { length: context, batch, .. } = setup;
        Ok(Profile { metric, batch, context, kernels, outside: (whole - total).max(0.0) })
    }
}

/// Writes profiles for programs or for people.
pub fn write_profiles(
    out: &mut dyn Write,
    profiles: &[Profile],
    label: &Label,
    json: bool,
) -> Result<(), RuntimeError> {
    for profile in profiles {
        let Profile { metric, batch, context, .. } = profile;
        if json {
            for kernel in &profile.kernels {
                writeln!(out, "{}", kernel.json(profile, label))?;
            }
            continue;
        }
        let total: f64 = profile.kernels.iter().map(|kernel| kernel.measured.seconds).sum();
        writeln!(
            out,
            "{metric} at {context}, {batch} at once, {}, {} threads: {:.3} ms in kernels, {:.3} ms between them",
            label.isa.name(),
            label.threads,
            1e3 * total,
            1e3 * profile.outside
        )?;
        writeln!(
            out,
            "{:<44} {:>6} {:>9} {:>6} {:>9} {:>9} {:>8} {:>8}",
            "kernel", "calls", "ms", "part", "MB", "Mop", "of read", "of peak"
        )?;
        for kernel in &profile.kernels {
            let Measured { seconds, work, share_read, share_peak, .. } = kernel.measured;
            writeln!(
                out,
                "{:<44} {:>6} {:>9.3} {:>4.1} % {:>9.2} {:>9.1} {:>6.1} % {:>6.1} %",
                kernel.name,
                kernel.calls,
                1e3 * seconds,
                100.0 * kernel.part,
                work.bytes as f64 / 1e6,
                (work.integer_operations + work.float_operations) as f64 / 1e6,
                100.0 * share_read,
                100.0 * share_peak,
            )?;
        }
    }
    Ok(())
}

impl KernelTime {
    fn json(&self, profile: &Profile, label: &Label) -> Value {
        let Measured { seconds, work, share_read, share_peak, .. } = self.measured;
        json!({
            "peer": "weir",
            "version": env!("CARGO_PKG_VERSION"),
            "model": label.model,
            "dtype": label.dtype,
            "threads": label.threads,
            "isa": label.isa.name(),
            "metric": format!("profile_{}", profile.metric),
            "context": profile.context,
            "batch": profile.batch,
            "kernel": self.name,
            "calls": self.calls,
            "value": seconds,
            "unit": "s",
            "part": self.part,
            "bytes": work.bytes,
            "integer_operations": work.integer_operations,
            "float_operations": work.float_operations,
            "share_read": share_read,
            "share_peak": share_peak,
        })
    }
}

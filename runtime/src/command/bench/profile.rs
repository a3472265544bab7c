//! Time per kernel, out of a model whose kernels all end in a barrier.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::measure::{Counted, Measured, Run, Setup, Speedup, run};
use super::{Bench, Label};
use crate::facts::SegmentFacts;
use crate::probe::{Peaks, Prober};
use crate::team::SegmentTimes;
use crate::work::{Load, Loads, Work};
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
    /// How many times as fast as the same kernel of the first of several models that took turns.
    pub speedup: Option<Speedup>,
}

/// The kernels of one kind of steps.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Which figure's: `prefill`, `decode`, `prefill_total` or `decode_total`.
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

/// What a kernel did between two looks at an engine.
struct Kernel {
    name: String,
    calls: u64,
    seconds: f64,
    work: Work,
}

/// What the kernels of a model did in one repetition: with its prompts, then in turn after turn.
struct Repetition {
    looks: Vec<Vec<Kernel>>,
    run: Run,
}

impl Bench {
    /// Measures kernel by kernel what [`Bench::report`] measures as a whole. Several models take turns, and each kernel of the others says how
    /// many times as fast as the first model's of its name it is.
    pub fn profile(&self, models: &[&Model]) -> Result<Vec<(Label, Vec<Profile>)>, RuntimeError> {
        let Some(first) = models.first() else { return Ok(Vec::new()) };
        let probes = first.compiled().probes();
        let mut prober = Prober::new(&probes, self.threads())?;
        // One look at the machine for all, so that their shares can be compared.
        let peaks = prober.peaks(self.label(first)?.isa)?;
        let labelled = models.iter().map(|model| {
            let label = Label { peaks, ..self.label(model)? };
            Ok((label, Vec::new()))
        });
        let mut profiled: Vec<(Label, Vec<Profile>)> =
            labelled.collect::<Result<_, RuntimeError>>()?;
        for (setup, metrics) in self.setups(first) {
            let of_models = self.repetitions(models, setup)?;
            for ((_, profiles), repetitions) in profiled.iter_mut().zip(&of_models) {
                let first = of_models.first().filter(|first| !std::ptr::eq(*first, repetitions));
                let first = first.map(Vec::as_slice);
                profiles.extend(
                    metrics.iter().filter_map(|metric| {
                        Profile::of(repetitions, first, metric, setup, &peaks)
                    }),
                );
            }
        }
        Ok(profiled)
    }

    /// Runs a setup several times on each model, by turns, and looks at the kernels after the prompts
    /// and after every turn.
    fn repetitions(
        &self,
        models: &[&Model],
        setup: Setup,
    ) -> Result<Vec<Vec<Repetition>>, RuntimeError> {
        let mut engines = self.warm_engines(models, setup)?;
        let mut of_models: Vec<Vec<Repetition>> = models.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.repetitions_of(&setup) {
            let mut loads: Vec<Loads> = engines.iter_mut().map(|engine| look(engine).1).collect();
            let mut looks: Vec<Vec<Vec<Kernel>>> = models.iter().map(|_| Vec::new()).collect();
            let runs = run(&mut engines, &setup, &mut |index, engine| {
                let (times, now) = look(engine);
                looks[index].push(kernels(engine, &times, &now.since(&loads[index])));
                loads[index] = now;
            })?;
            for ((of_model, looks), run) in of_models.iter_mut().zip(looks).zip(runs) {
                of_model.push(Repetition { looks, run });
            }
        }
        Ok(of_models)
    }
}

/// Times of the segments since the last look, and all that was done so far.
fn look(engine: &mut Engine<Counted>) -> (Vec<SegmentTimes>, Loads) {
    let counted = engine.model_mut();
    let team = counted.forward_mut().team_mut();
    team.watch();
    (team.take_times(), counted.counter().loads().clone())
}

/// The kernels in the order in which they run, and behind them what becomes of a long prompt's rows,
/// whose work is not counted.
fn kernels(engine: &mut Engine<Counted>, times: &[SegmentTimes], loads: &Loads) -> Vec<Kernel> {
    let segments = engine.model_mut().forward_mut().segments().clone();
    let facts = engine.model().counter().facts();
    let of = |address: usize| times.iter().find(|times| times.segment as usize == address);
    let mut kernels = Vec::new();
    let mut add = |facts: &SegmentFacts, load: &Load, address: usize| {
        let phases = of(address).map_or(&[][..], |times| &times.phases);
        for (index, kernel) in facts.kernels.iter().enumerate() {
            kernels.push(Kernel {
                name: format!("{}/{}", facts.name, kernel.name),
                calls: load.calls,
                seconds: phases.get(index).map_or(0.0, Duration::as_secs_f64),
                work: load.work(kernel),
            });
        }
    };
    add(&facts.embed, &loads.embed, segments.embed as usize);
    for ((facts, load), kind) in facts.kinds.iter().zip(&loads.kinds).zip(&segments.kinds) {
        add(facts, load, kind.layer as usize);
    }
    add(&facts.head, &loads.head, segments.head as usize);
    for (facts, kind) in facts.kinds.iter().zip(&segments.kinds) {
        for (what, segment) in [("observe", kind.observe), ("compact", kind.compact)] {
            let times = of(segment as usize);
            kernels.push(Kernel {
                name: format!("{}/{what}", facts.name),
                calls: times.map_or(0, |times| times.calls),
                seconds: times
                    .map_or(0.0, |times| times.phases.iter().sum::<Duration>().as_secs_f64()),
                work: Work::default(),
            });
        }
    }
    kernels
}

impl Repetition {
    /// What is asked about: the prompts, or the turns behind them.
    fn moments(&self, of_prompts: bool) -> &[Vec<Kernel>] {
        let (prompts, turns) = self.looks.split_at(self.looks.len().min(1));
        if of_prompts { prompts } else { turns }
    }

    /// Seconds of a kernel in each moment, without the first turn: it is a step that finds nothing
    /// where it looks for it.
    fn seconds_of(&self, kernel: usize, of_prompts: bool) -> impl Iterator<Item = f64> {
        let moments = self.moments(of_prompts).iter().skip(usize::from(!of_prompts));
        moments.map(move |kernels| kernels[kernel].seconds)
    }

    /// Seconds of all kernels.
    fn seconds(&self, of_prompts: bool) -> f64 {
        self.moments(of_prompts).iter().flatten().map(|kernel| kernel.seconds).sum()
    }
}

impl Profile {
    /// The fastest repetition of a model, its kernels judged beside those of the first where it is
    /// another.
    fn of(
        repetitions: &[Repetition],
        first: Option<&[Repetition]>,
        metric: &'static str,
        setup: Setup,
        peaks: &Peaks,
    ) -> Option<Profile> {
        let of_prompts = metric.starts_with("prefill");
        let by_seconds = |a: &&Repetition, b: &&Repetition| {
            a.seconds(of_prompts).total_cmp(&b.seconds(of_prompts))
        };
        let best = repetitions.iter().min_by(by_seconds)?;
        let total = best.seconds(of_prompts);
        let (prefill, steps) = best.run.seconds();
        let whole = if of_prompts { prefill } else { steps };
        let names = |repetition: &Repetition| -> Vec<String> {
            let kernels = repetition.looks.first().into_iter().flatten();
            kernels.map(|kernel| kernel.name.clone()).collect()
        };
        let own = names(best);
        let firsts = first.and_then(<[_]>::first).map(names);
        let mut kernels = Vec::new();
        for (index, name) in own.iter().enumerate() {
            let (mut calls, mut seconds, mut work) = (0, 0.0, Work::default());
            for kernel in best.moments(of_prompts).iter().map(|kernels| &kernels[index]) {
                calls += kernel.calls;
                seconds += kernel.seconds;
                work += kernel.work;
            }
            if calls == 0 {
                continue;
            }
            // Kernels have names in common, and as many of a name in one model as in the other.
            let nth = own[..index].iter().filter(|other| *other == name).count();
            let beside = firsts.iter().flatten().enumerate().filter(|(_, other)| *other == name);
            let beside = beside.map(|(at, _)| at).nth(nth).zip(first);
            let ratios = beside.map_or(Vec::new(), |(at, first)| {
                let pairs = first.iter().zip(repetitions);
                let seconds = pairs.flat_map(|(a, b)| {
                    a.seconds_of(at, of_prompts).zip(b.seconds_of(index, of_prompts))
                });
                seconds.filter(|(a, b)| *a > 0.0 && *b > 0.0).map(|(a, b)| a / b).collect()
            });
            kernels.push(KernelTime {
                name: name.clone(),
                calls,
                part: seconds / total,
                measured: Measured::new(seconds.max(1e-9), work, peaks),
                speedup: Speedup::of(ratios),
            });
        }
        let Setup { length: context, batch, .. } = setup;
        Some(Profile { metric, batch, context, kernels, outside: (whole - total).max(0.0) })
    }
}

/// Writes the profiles of each model, for programs or for people.
pub fn write_profiles(
    out: &mut dyn Write,
    profiled: &[(Label, Vec<Profile>)],
    json: bool,
) -> Result<(), RuntimeError> {
    let each =
        profiled.iter().flat_map(|(label, profiles)| profiles.iter().map(move |one| (label, one)));
    for (label, profile) in each {
        if json {
            for kernel in &profile.kernels {
                writeln!(out, "{}", kernel.json(profile, label))?;
            }
        } else {
            profile.write_table(out, label)?;
        }
    }
    Ok(())
}

impl Profile {
    fn write_table(&self, out: &mut dyn Write, label: &Label) -> Result<(), RuntimeError> {
        let Profile { metric, batch, context, kernels, outside } = self;
        let Label { kv, kv_dtype, isa, threads, .. } = label;
        let total: f64 = kernels.iter().map(|kernel| kernel.measured.seconds).sum();
        writeln!(
            out,
            "{metric} at {context}, {batch} at once, cache {kv} in {kv_dtype}, {}, {threads} threads: \
             {:.3} ms in kernels, {:.3} ms between them",
            isa.name(),
            1e3 * total,
            1e3 * outside
        )?;
        let is_beside = kernels.iter().any(|kernel| kernel.speedup.is_some());
        writeln!(
            out,
            "{:<44} {:>6} {:>9} {:>6} {:>9} {:>9} {:>8} {:>8}{}",
            "kernel",
            "calls",
            "ms",
            "part",
            "MB",
            "Mop",
            "of read",
            "of peak",
            if is_beside { "   times the first (half of turns)" } else { "" },
        )?;
        for kernel in kernels {
            let Measured { seconds, work, share_read, share_peak, .. } = kernel.measured;
            let speedup = kernel.speedup.map_or(String::new(), |speedup| format!("   {speedup}"));
            writeln!(
                out,
                "{:<44} {:>6} {:>9.3} {:>4.1} % {:>9.2} {:>9.1} {:>6.1} % {:>6.1} %{speedup}",
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
        Ok(())
    }
}

impl KernelTime {
    fn json(&self, profile: &Profile, label: &Label) -> Value {
        let Measured { seconds, work, share_read, share_peak, .. } = self.measured;
        let mut line = json!({
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
            "kv": label.kv,
            "kv_dtype": label.kv_dtype,
        });
        self.speedup.iter().for_each(|speedup| speedup.tell(&mut line));
        line
    }
}

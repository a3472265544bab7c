//! `weir bench`: what a model, a compiled file or the machine alone can do.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use weir_abi::Probe;
use weir_codegen::jit::executable;
use weir_codegen::probes::probe_image;
use weir_runtime::command::bench::{measure_machine, write_machine, write_profiles};
use weir_runtime::weights::Probes;
use weir_runtime::{CompiledModel, Model, command, machine};

use crate::driver::{Emission, load_each, load_lowered, lower, measures_compiled};
use crate::failure::Failure;
use crate::options::{CalibrationSource, DEFAULT_SLOTS, Given, ModelOptions, ReportOptions};
use crate::places::refuse_overwriting;
use crate::progress::Progress;
use crate::roofline;

/// Measure how fast a model runs, beside what the machine could do.
#[derive(Args, Debug)]
#[group(skip)]
#[command(mut_arg("model", |model| {
    model
        .required(false)
        // A path may be empty here and means that there is no model.
        .value_parser(OsStringValueParser::new().map(PathBuf::from))
        .default_value("")
        .hide_default_value(true)
        .help("A .onnx file, a directory, or a compiled file; none with --machine alone")
}))]
pub struct Bench {
    #[command(flatten)]
    model: Given<ModelOptions>,

    #[command(flatten)]
    report: Given<ReportOptions>,

    #[command(flatten)]
    bench: command::Bench,

    /// Time per kernel of what --prefill, --decode and --batch measure
    #[arg(long, help_heading = "Figures", conflicts_with_all = ["ttft", "plot", "step_times", "machine"])]
    profile: bool,

    /// Draw the figures under the machine's roofline
    #[arg(long, value_name = "FILE.svg", help_heading = "Figures", conflicts_with_all = ["step_times", "machine"])]
    plot: Option<PathBuf>,
}

impl Bench {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        machine::check_processor()?;
        let mut out = std::io::stdout().lock();
        if self.model.options.model.as_os_str().is_empty() {
            if !self.bench.machine {
                return Err(Failure::usage("name a model, or give --machine alone"));
            }
            let figures = measure_machine(&probes()?, self.bench.threads())?;
            return Ok(write_machine(&mut out, &figures, self.bench.json)?);
        }
        if self.plot.is_some() && !self.bench.measures_rates() {
            return Err(Failure::usage(
                "--plot draws what --prefill, --decode and --batch measure",
            ));
        }
        let outputs = [("--plot", &self.plot), ("--step-times", &self.bench.step_times)];
        for (option, output) in outputs {
            let Some(output) = output else { continue };
            refuse_overwriting(option, output, &self.model.options.inputs())?;
        }
        let models = self.load()?.into_iter().map(Model::new).collect::<Result<Vec<_>, _>>()?;
        models.iter().try_for_each(Model::need_text)?;
        let each: Vec<&Model> = models.iter().collect();
        if self.profile {
            let profiled = self.bench.profile(&each)?;
            return Ok(write_profiles(&mut out, &profiled, self.bench.json)?);
        }
        let [model] = each[..] else {
            self.bench.report(&each, &mut out)?;
            return Ok(());
        };
        let Some(plot) = &self.plot else {
            drop(out);
            return Ok(self.bench.run(model)?);
        };
        for (label, figures) in self.bench.report(&[model], &mut out)? {
            let drawing = roofline::draw(&figures, &label).map_err(Failure::other)?;
            let place = |error| Failure::other(format!("{}: {error}", plot.display()));
            std::fs::write(plot, drawing).map_err(place)?;
        }
        Ok(())
    }

    /// The model, or what it becomes with each of several caches.
    fn load(&self) -> Result<Vec<CompiledModel>, Failure> {
        let (model, report) = (&self.model.options, &self.report.options);
        let given = self.model.names().chain(self.report.names());
        if measures_compiled(&model.model, given.chain(self.profile.then_some("--profile")))? {
            return Ok(vec![CompiledModel::open(&model.model)?]);
        }
        let progress = Progress::new(report.quiet);
        // Speed does not depend on which codes weights have.
        let calibrate = model.calibrate.clone().or(Some(CalibrationSource::Nothing));
        let options = ModelOptions { slots: DEFAULT_SLOTS, calibrate, ..model.clone() };
        let how = Emission { profile: self.profile, ..Emission::default() };
        let caches = options.each_cache();
        if caches.len() > 1 {
            self.refuse_what_is_of_one()?;
            return load_each(&caches, report, &progress, how);
        }
        let lowered = lower(&options, report, &progress)?;
        Ok(vec![load_lowered(lowered, &options, report, &progress, how)?])
    }

    fn refuse_what_is_of_one(&self) -> Result<(), Failure> {
        let of_one = [
            ("--plot", self.plot.is_some()),
            ("--step-times", self.bench.step_times.is_some()),
            ("--machine", self.bench.machine),
        ];
        match of_one.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                Err(Failure::usage(format!("{option} is for one --kv and --kv-dtype")))
            }
            None => Ok(()),
        }
    }
}

/// Probes without a model.
fn probes() -> Result<Probes, Failure> {
    let image = probe_image().map_err(Failure::other)?;
    let known = Probe::ALL.into_iter().filter_map(|probe| {
        let symbol = image.symbols.iter().find(|symbol| symbol.name == probe.symbol())?;
        Some((probe, symbol.offset))
    });
    let offsets: Vec<_> = known.collect();
    let code = executable(&image.bytes).map_err(Failure::other)?;
    Ok(Probes::from_parts(code, &offsets))
}

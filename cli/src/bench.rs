//! `weir bench`: what a model, a compiled file or the machine alone can do.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use weir_abi::Probe;
use weir_codegen::jit::executable;
use weir_codegen::probes::probe_image;
use weir_runtime::command::bench::{measure_machine, write_machine, write_profiles, write_table};
use weir_runtime::weights::Probes;
use weir_runtime::{CompiledModel, Model, command, machine};

use crate::driver::{Emission, is_compiled, load_lowered, lower};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
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
    model: ModelOptions,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    bench: command::Bench,

    /// Time per kernel, of a prompt of each --prefill and of steps at each --decode and --batch
    #[arg(long, help_heading = "Figures", conflicts_with_all = ["ttft", "plot", "step_times"])]
    profile: bool,

    /// Draw the figures under the machine's roofline
    #[arg(long, value_name = "FILE.svg", help_heading = "Figures", conflicts_with = "step_times")]
    plot: Option<PathBuf>,
}

impl Bench {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        machine::check_processor()?;
        let mut out = std::io::stdout().lock();
        if self.model.model.as_os_str().is_empty() {
            if !self.bench.machine || self.plot.is_some() || self.profile {
                return Err(Failure::usage("name a model, or give --machine alone"));
            }
            let figures = measure_machine(&probes()?, self.bench.threads())?;
            return Ok(write_machine(&mut out, &figures, self.bench.json)?);
        }
        let model = Model::new(self.load()?)?;
        model.need_text()?;
        if self.profile {
            let (label, profiles) = self.bench.profile(&model)?;
            return Ok(write_profiles(&mut out, &profiles, &label, self.bench.json)?);
        }
        drop(out);
        let Some(plot) = &self.plot else { return Ok(self.bench.run(&model)?) };
        let mut out = std::io::stdout().lock();
        let (label, figures) = self.bench.measure(&model, &mut |figure, label| {
            if self.bench.json { Ok(writeln!(out, "{}", figure.json(label))?) } else { Ok(()) }
        })?;
        if !self.bench.json {
            write_table(&mut out, &figures, &label)?;
        }
        let drawing = roofline::draw(&figures, &label).map_err(Failure::other)?;
        let place = |error| Failure::other(format!("{}: {error}", plot.display()));
        std::fs::write(plot, drawing).map_err(place)
    }

    fn load(&self) -> Result<CompiledModel, Failure> {
        let path = &self.model.model;
        if is_compiled(path) {
            let mut given = [self.model.given(), self.report.given()].concat();
            given.extend(self.profile.then_some("--profile"));
            if !given.is_empty() {
                return Err(Failure::usage(format!(
                    "{} is compiled already; {} needs the model that it was compiled from",
                    path.display(),
                    given.join(", "),
                )));
            }
            return Ok(CompiledModel::open(path)?);
        }
        let progress = Progress::new(self.report.quiet);
        let options = ModelOptions { slots: DEFAULT_SLOTS, ..self.model.clone() };
        let lowered = lower(&options, &self.report, &progress)?;
        let how = Emission { profile: self.profile, ..Emission::default() };
        load_lowered(lowered, &options, &self.report, &progress, how)
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

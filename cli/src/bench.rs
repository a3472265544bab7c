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

use crate::driver::{Emission, is_compiled, load_each, load_lowered, lower};
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
        if self.model.kv.len() > 1 || self.model.kv_dtype.len() > 1 {
            return self.compare(&mut out);
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
        let measured = self.bench.measure(&[&model], &mut |figure, label| {
            if self.bench.json { Ok(writeln!(out, "{}", figure.json(label))?) } else { Ok(()) }
        })?;
        let (label, figures) =
            measured.into_iter().next().ok_or_else(|| Failure::other("nothing was measured"))?;
        if !self.bench.json {
            write_table(&mut out, &figures, &label)?;
        }
        let drawing = roofline::draw(&figures, &label).map_err(Failure::other)?;
        let place = |error| Failure::other(format!("{}: {error}", plot.display()));
        std::fs::write(plot, drawing).map_err(place)
    }

    /// Several caches by turns.
    fn compare(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let of_one = [
            ("--profile", self.profile),
            ("--plot", self.plot.is_some()),
            ("--step-times", self.bench.step_times.is_some()),
            ("--machine", self.bench.machine),
        ];
        if let Some((option, _)) = of_one.into_iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!("{option} is for one --kv and --kv-dtype")));
        }
        self.refuse_options_of_compiled()?;
        let options = ModelOptions { slots: DEFAULT_SLOTS, ..self.model.clone() };
        let progress = Progress::new(self.report.quiet);
        let loaded = load_each(&options.each_cache(), &self.report, &progress)?;
        let models = loaded.into_iter().map(Model::new).collect::<Result<Vec<_>, _>>()?;
        let models: Vec<&Model> = models.iter().collect();
        models.iter().try_for_each(|model| model.need_text())?;
        Ok(self.bench.report(&models, out)?)
    }

    /// Refuses what only compiling heeds where the model is compiled.
    fn refuse_options_of_compiled(&self) -> Result<(), Failure> {
        let mut given = [self.model.given(), self.report.given()].concat();
        given.extend(self.profile.then_some("--profile"));
        if given.is_empty() || !is_compiled(&self.model.model) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} is compiled already; {} needs the model that it was compiled from",
            self.model.model.display(),
            given.join(", "),
        )))
    }

    fn load(&self) -> Result<CompiledModel, Failure> {
        let path = &self.model.model;
        self.refuse_options_of_compiled()?;
        if is_compiled(path) {
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

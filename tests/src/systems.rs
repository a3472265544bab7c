//! The systems under test behind one trait: interpreter, JIT and static binary take the same
//! prompts and must give the same answers.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use safetensors::SafeTensors;
use weir_ir::Graph;
use weir_ir::interpret::{Rounding, Session};
use weir_runtime::command::Program;

use crate::golden::{self, Rows};

/// How a model is compiled for a test.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `--context`.
    pub context: u32,
    /// `--kv`.
    pub kv: String,
    /// `--kv-dtype`, or what suits the products.
    pub kv_dtype: Option<weir::KvTypeOption>,
    /// `--compute`, or the format's own.
    pub compute: Option<weir::ComputeOption>,
    /// `--weights`, or as in the file.
    pub weights: Option<String>,
    /// `--calibrate` and `--calibrate-tokens`; without them codes are rounded to nearest.
    pub calibrate: Option<(weir::CalibrationSource, u32)>,
    /// `--slots`.
    pub slots: u32,
}

impl Setup {
    /// Float32 arithmetic and every row kept: what the golden files are compared with.
    pub fn exact(context: u32) -> Setup {
        let compute = Some(weir::ComputeOption::F32);
        Setup {
            context,
            kv: "full".to_owned(),
            kv_dtype: None,
            compute,
            weights: None,
            calibrate: None,
            slots: 2,
        }
    }

    /// A model compiled into this process.
    pub fn load(&self, model: &Path) -> Result<weir_runtime::Model> {
        let report = weir::ReportOptions { quiet: true, ..Default::default() };
        let compiled = weir::load(&self.options(model), &report, &weir::Progress::new(true))?;
        Ok(weir_runtime::Model::new(compiled)?)
    }

    /// The driver's options for a model.
    pub fn options(&self, model: &Path) -> weir::ModelOptions {
        let (calibrate, tokens) = self.calibrate.clone().unzip();
        weir::ModelOptions {
            model: model.to_path_buf(),
            slots: self.slots,
            context: Some(self.context),
            kv: vec![self.kv.clone()],
            kv_rows: None,
            draft: 0,
            kv_budget: None,
            kv_dtype: self.kv_dtype.into_iter().collect(),
            weights: self.weights.clone(),
            calibrate: calibrate.or(Some(weir::CalibrationSource::Nothing)),
            calibrate_tokens: tokens.unwrap_or(weir::DEFAULT_CALIBRATE_TOKENS),
            compute: self.compute,
            step_rows: 64,
            links_under: None,
        }
    }
}

/// Logits of a prompt and of what was fed after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// One row per prompt token.
    pub prefill: Rows,
    /// Row i is the distribution from which token i of the continuation is chosen.
    pub steps: Rows,
}

/// Something that computes a model.
pub trait System {
    /// Name in messages.
    fn name(&self) -> &'static str;
    /// Logits of a prompt and of the given continuation, fed through the decode path.
    fn logits(&mut self, prompt: &[u32], forced: &[u32]) -> Result<Logits>;
}

/// Starts a program that may just have been written. While a file is written another thread may fork;
/// until its child has become another program, which closes what it inherited, the system calls the
/// file busy.
fn start(program: &mut Command) -> std::io::Result<Child> {
    const TRIES: usize = 1000;
    for _ in 1..TRIES {
        match program.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
    program.spawn()
}

/// Runs a program that may just have been written, and collects what it says.
pub fn output(program: &mut Command) -> std::io::Result<Output> {
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    start(program)?.wait_with_output()
}

/// The executable that `weir compile` writes, as a process.
pub struct Binary {
    folder: tempfile::TempDir,
    options: Vec<String>,
}

impl Binary {
    /// Compiles a model into a scratch folder. It has run once when it is returned: nobody holds it
    /// open for writing then, or can come to, so those who start it need not try again.
    pub fn compile(model: &Path, setup: &Setup) -> Result<Binary> {
        let folder = tempfile::tempdir()?;
        weir::compile_executable(&setup.options(model), &folder.path().join("model"))?;
        let binary = Binary { folder, options: Vec::new() };
        binary.run(&["--version"])?;
        Ok(binary)
    }

    /// Options that every command gets (`--threads 2`, `--isa portable`).
    pub fn with(mut self, options: &[&str]) -> Binary {
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// Runs a command of the program and returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut program = Command::new(self.path());
        program.args(arguments).args(&self.options).current_dir(self.folder.path());
        let output = output(&mut program).context("the compiled program did not start")?;
        if !output.status.success() {
            bail!("{arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).context("the output is not UTF-8")
    }
}

impl System for Binary {
    fn name(&self) -> &'static str {
        "static binary"
    }

    fn logits(&mut self, prompt: &[u32], forced: &[u32]) -> Result<Logits> {
        let file = self.folder.path().join("logits.safetensors");
        let file_name = file.to_string_lossy();
        let (prompt, forced) = (list(prompt), list(forced));
        self.run(&["logits", "--ids", &prompt, "--force", &forced, "-o", &file_name])?;
        read_logits(&file)
    }
}

/// Reads what `OUT logits` writes.
pub fn read_logits(file: &Path) -> Result<Logits> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).context("the logits file")?;
    Ok(Logits {
        prefill: golden::rows(&tensors, "prefill_logits")?,
        steps: golden::rows(&tensors, "step_logits")?,
    })
}

/// Ids as the command line takes them.
pub fn list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

/// The same code in this process, without a file.
pub struct Jit {
    options: weir::ModelOptions,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Jit {
    /// Prepares a model.
    pub fn compile(model: &Path, setup: &Setup) -> Result<Jit> {
        let folder = tempfile::tempdir()?;
        Ok(Jit { options: setup.options(model), folder, arguments: Vec::new() })
    }

    /// Options that every command gets.
    pub fn with(mut self, options: &[&str]) -> Jit {
        self.arguments = options.iter().map(|option| (*option).to_owned()).collect();
        self
    }
}

impl System for Jit {
    fn name(&self) -> &'static str {
        "JIT"
    }

    fn logits(&mut self, prompt: &[u32], forced: &[u32]) -> Result<Logits> {
        let report = weir::ReportOptions { quiet: true, ..Default::default() };
        let model = weir::load(&self.options, &report, &weir::Progress::new(true))?;
        let file = self.folder.path().join("logits.safetensors");
        let file_name = file.to_string_lossy().into_owned();
        let (prompt, forced) = (list(prompt), list(forced));
        let mut arguments =
            vec!["jit", "logits", "--ids", &prompt, "--force", &forced, "-o", &file_name];
        arguments.extend(self.arguments.iter().map(String::as_str));
        let program = Program::try_parse_from(arguments)?;
        program.command.run(model)?;
        read_logits(&file)
    }
}

/// The scalar references of the ops, over the graph at stage `Fixed`.
pub struct Oracle {
    graph: Graph,
    rounding: Option<Rounding>,
}

impl Oracle {
    /// Imports a model and runs the passes.
    pub fn lower(model: &Path, setup: &Setup) -> Result<Oracle> {
        let report = weir::ReportOptions { quiet: true, ..Default::default() };
        let lowered = weir::lower(&setup.options(model), &report, &weir::Progress::new(true))?;
        Ok(Oracle { graph: lowered.graph, rounding: None })
    }

    /// The graph at stage `Fixed`.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Rounds activations before products.
    pub fn with_rounding(mut self, rounding: Rounding) -> Oracle {
        self.rounding = Some(rounding);
        self
    }
}

impl System for Oracle {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn logits(&mut self, prompt: &[u32], forced: &[u32]) -> Result<Logits> {
        let mut session = Session::new(&self.graph)?;
        session.set_longest(prompt.len() + forced.len().saturating_sub(1));
        if let Some(rounding) = self.rounding {
            session.set_rounding(rounding);
        }
        let ids: Vec<i64> = prompt.iter().map(|id| i64::from(*id)).collect();
        let prefill = session.prefill(&ids)?;
        let width = prefill.first().map_or(0, Vec::len);
        let mut steps = prefill.last().cloned().unwrap_or_default();
        for id in &forced[..forced.len().saturating_sub(1)] {
            steps.extend(session.step(i64::from(*id))?);
        }
        Ok(Logits {
            prefill: Rows { width, values: prefill.concat() },
            steps: Rows { width, values: steps },
        })
    }
}

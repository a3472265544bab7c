//! `weir make-model`: a model with the shape of a real one and random weights.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Result as IoResult, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use weir_frontend::synthetic::{SHAPES, Shape};
use weir_runtime::command::{Interrupt, whole};

use crate::failure::Failure;
use crate::progress::Progress;

/// Write a model with random weights, to measure speed with.
#[derive(Args, Debug)]
pub struct MakeModel {
    /// Sizes of the model
    #[arg(
        long,
        value_name = "SHAPE",
        value_parser = PossibleValuesParser::new(SHAPES.map(|shape| shape.name))
    )]
    shape: String,

    /// Seed of the weights; the same seed gives the same files
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = whole(0, u64::MAX),
        allow_hyphen_values = true
    )]
    seed: u64,

    /// Directory to write: model.onnx with its data, tokenizer.json and settings
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,

    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
}

impl MakeModel {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let known = Shape::named(&self.shape);
        let shape = known.ok_or_else(|| Failure::usage(format!("no shape {}", self.shape)))?;
        let progress = Progress::new(self.quiet);
        // The end is told with the error.
        let interrupt = Interrupt::watch(|| {})?;
        write(&shape, self.seed, &self.output, &progress, &interrupt)?;
        let output = self.output.display();
        progress.tell(format_args!("wrote {output}; next: weir compile {output} -o OUT"));
        Ok(())
    }
}

/// Writes a model, which appears by rename when it is whole.
pub fn write_model(
    shape: &Shape,
    seed: u64,
    output: &Path,
    progress: &Progress,
) -> Result<(), Failure> {
    write(shape, seed, output, progress, &Interrupt::default())
}

fn write(
    shape: &Shape,
    seed: u64,
    output: &Path,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let name = output.display();
    let taken = || Failure::usage(format!("-o {name} is there already; name another directory"));
    // An empty directory is as good as none, and a rename takes its place.
    let is_free = match output.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    if !is_free {
        return Err(taken());
    }
    let beside = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    if !beside.is_dir() {
        let beside = beside.display();
        return Err(Failure::usage(format!(
            "-o {name}: there is no directory {beside}; make it first"
        )));
    }
    let place = |error: std::io::Error| Failure::other(format!("{name}: {error}"));
    let scratch = tempfile::Builder::new()
        .prefix(".weir-")
        .suffix(".tmp")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir_in(beside)
        .map_err(place)?;
    for (file, bytes) in shape.files() {
        std::fs::write(scratch.path().join(file), bytes).map_err(place)?;
    }
    let file = File::create(scratch.path().join(shape.weights_file())).map_err(place)?;
    let work = progress.start_bytes("writing", shape.weights_bytes());
    let mut file = Stoppable { file: BufWriter::new(file), interrupt };
    let written = shape.write_weights(seed, &mut file, &mut |done| work.at(done));
    drop(work);
    if interrupt.is_asked() {
        return Err(Failure::stopped(format!("{name}: stopped, and nothing was written")));
    }
    written.map_err(place)?;
    std::fs::rename(scratch.path(), output).map_err(place)?;
    // What it names is elsewhere now; nothing is left to remove.
    let _ = scratch.keep();
    Ok(())
}

/// A file that takes no more once the user wants no more, so that its folder is removed.
struct Stoppable<'i> {
    file: BufWriter<File>,
    interrupt: &'i Interrupt,
}

impl Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        if self.interrupt.is_asked() {
            return Err(std::io::Error::other("stopped"));
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> IoResult<()> {
        self.file.flush()
    }
}

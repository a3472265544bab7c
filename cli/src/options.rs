//! Options that shape a compiled model, shared by the commands that compile one.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_runtime::command::whole;

/// Slots unless the user says otherwise.
pub const DEFAULT_SLOTS: u32 = 8;

/// Which model, and what it is made into.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Compiling")]
pub struct ModelOptions {
    /// A .onnx file, or the directory that a model was exported to
    #[arg(help_heading = "Arguments")]
    pub model: PathBuf,

    /// Sequences that can be served at once; each command has its own option for it
    #[arg(skip = DEFAULT_SLOTS)]
    pub slots: u32,

    /// Rows that a sequence may have, prompt and answer together [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX), allow_hyphen_values = true)]
    pub context: Option<u32>,

    /// Rows of attention state that a slot keeps
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "snapstream",
        long_help = "Rows of attention state that a slot keeps: full, stream or snapstream, with \
                     options after commas, as in\nsnapstream,rows=1024,sinks=4,recent=256,\
                     window=32,pool=5,agg=mean,mode=elastic"
    )]
    pub kv: String,

    /// Rows of a slot; short for rows= in --kv
    #[arg(long, value_name = "C", value_parser = whole(1, u32::MAX), allow_hyphen_values = true)]
    pub kv_rows: Option<u32>,

    /// Arithmetic of the matrix products [default: int8 for int4 and int8 weights, bf16 for bf16
    /// weights, else f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub compute: Option<ComputeOption>,

    /// Rows of one step: prompt tiles and decode rows together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        value_parser = whole(1_u32, 1024),
        allow_hyphen_values = true
    )]
    pub step_rows: u32,

    /// Allow external data files that are links to files beneath this directory
    #[arg(long, value_name = "DIR")]
    pub links_under: Option<PathBuf>,
}

/// Arithmetic of the matrix products.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeOption {
    /// Weights widened or dequantised, activations in f32
    F32,
    /// Activations (and float weights) rounded to bf16
    Bf16,
    /// Activations quantised per block; for int4 and int8 weights
    Int8,
}

/// How much the driver tells about its work.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Reports")]
pub struct ReportOptions {
    /// Print the graph after a pass (repeatable); "imported" prints what was read
    #[arg(long, value_name = "PASS")]
    pub dump: Vec<String>,

    /// End after a pass and write nothing
    #[arg(long, value_name = "PASS")]
    pub stop_after: Option<String>,

    /// Print how long each phase took
    #[arg(long)]
    pub time: bool,

    /// Print what each pass changed and why it declined
    #[arg(long)]
    pub explain: bool,

    /// No progress bars
    #[arg(long, short)]
    pub quiet: bool,
}

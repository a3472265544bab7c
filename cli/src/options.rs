//! Options that shape a compiled model, shared by the commands that compile one.

mod given;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{
    EnumValueParser, OsStringValueParser, PossibleValue, StringValueParser, TypedValueParser,
};
use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use weir_codegen::kernels::matmul::Compute;
use weir_ir::{CacheFormat, RowFormats};
use weir_runtime::command::whole;

pub use given::Given;

use crate::places::Input;

/// Slots unless the user says otherwise.
pub const DEFAULT_SLOTS: u32 = 8;

/// Tokens of the calibration text unless the user says otherwise.
pub const DEFAULT_CALIBRATE_TOKENS: u32 = 32_768;

/// Most tokens of the calibration text: all of them are in memory at once.
const MAX_CALIBRATE_TOKENS: u32 = 1 << 20;

/// Rows of a step unless the user says otherwise.
const DEFAULT_STEP_ROWS: u32 = 128;

/// Most rows of a step: more would enlarge buffers and no longer speed up the products.
const MAX_STEP_ROWS: u32 = 1024;

/// Most positions of a sequence: above what any model was made for, and few enough that rotary tables
/// of all positions fit into memory.
const MAX_CONTEXT: u32 = 1 << 24;

/// The policy unless the user says otherwise.
const DEFAULT_KV: &str = "snapstream";

const KV_HELP: &str = "Rows of attention state that a slot keeps: a policy, with options after commas, \
as in
snapstream,rows=1024,sinks=4,recent=256,window=16,pool=21,agg=mean,mode=elastic

full        every row
stream      the first rows (sinks=) and the most recent ones (recent=), rows= in all
snapstream  the same and, of a longer prompt, the rows between that its last queries (window=) \
attend to most
snapkv      as snapstream without sinks; what is generated is kept beside rows=, up to limit=
random      as snapstream, with the rows between drawn by lot (seed=), for comparison

second=N asks N earlier rows of a longer prompt as well, those near what its last queries attend to, \
and second_share= percent of the selected rows are what these attend to, for questions that lead from \
one place to another; it takes memory while a longer prompt is computed [default: 64 of snapstream, 0 \
of snapkv, and 25 percent]

Scores of rows: agg=mean|max|defensive over queries and heads, normalise=all|candidates, pool= \
neighbours pooled by pooling=average|max|reference; mode=elastic|static: whether rows that a prompt \
leaves free serve the answer

draft=N makes room for guessing N tokens ahead (generate --draft N): N + 1 rows more of a slot, and \
none with full [default: none]

stream and snapstream: reservoir=N of the rows hold a sample of those that the answer has pushed out \
of the recent ones, drawn by lot (seed=) for each head [default: none]
snapstream: reselect=T makes room for T more rows; when the answer has taken it, rows= of all are \
selected anew [default: never]; redundancy=P counts against a row, then, how much its key repeats \
others, as P percent of its score (R-KV: 90) [default: none]";

/// Which model, and what it is made into.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Compiling")]
pub struct ModelOptions {
    /// A .onnx file, or the directory that a model was exported to
    #[arg(help_heading = None::<&str>)]
    pub model: PathBuf,

    /// Sequences that can be served at once; each command has its own option for it
    #[arg(skip = DEFAULT_SLOTS)]
    pub slots: u32,

    /// Rows that a sequence may have, prompt and answer together [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_CONTEXT), allow_hyphen_values = true)]
    pub context: Option<u32>,

    /// Rows of attention state that a slot keeps
    #[arg(
        long,
        value_name = "POLICY",
        default_value = DEFAULT_KV,
        long_help = KV_HELP
    )]
    pub kv: Vec<String>,

    /// Rows of a slot; short for rows= in --kv
    #[arg(long, value_name = "C", value_parser = whole(1, MAX_CONTEXT), allow_hyphen_values = true)]
    pub kv_rows: Option<u32>,

    /// Tokens that may be guessed ahead, unless --kv says so; commands that guess have an option for it
    #[arg(skip)]
    pub draft: u32,

    /// How layers share the rows that are selected; short for budget= in --kv [default: uniform]
    #[arg(
        long,
        value_name = "BUDGET",
        long_help = "How layers share the rows that are selected, rows= being their mean: uniform, \
                     pyramid (fewer from layer to layer, the last with a twentieth of the mean; \
                     pyramid:N for an N-th), or a file with the rows of every layer that has no \
                     window, in order, with white space between them; rows of each key/value head \
                     of a layer have : between them. Short for budget= in --kv, which takes rows as \
                     in 900/700/500 or 900:300/700/500:200 [default: uniform]"
    )]
    pub kv_budget: Option<String>,

    /// Number format of the attention state that a slot keeps; rounded once, when it is written
    /// [default: as products round their activations: int8, bf16 (f16 if keys have biases, or for int8
    /// if heads are narrower than 32), else f32]
    ///
    /// block=TYPE,ring=TYPE gives sinks and selected rows a format of their own, int4 or int8, below
    /// that of the ring: int4 with any other, int8 with f16, bf16 or f32. Layers that are one ring have
    /// the ring's.
    #[arg(long, value_parser = KvTypeParser, value_name = "TYPE")]
    pub kv_dtype: Vec<KvTypeOption>,

    /// Number formats of the weights [default: as in the file]
    #[arg(
        long,
        value_name = "FORMAT",
        long_help = "Number formats of the weights: int4, int8, bf16, f16, f32 or file, for \
                     all of them or by part, as in int4,head=int8 (parts are embedding, head, \
                     layers). Behind int4 and int8: block=32, 64, 128 or channel, and \
                     symmetric or zeros; 32 and symmetric if not given. Weights that have \
                     codes in the file keep them [default: file]"
    )]
    pub weights: Option<String>,

    /// Text to choose the codes of int4 and int8 weights by; self: what the model writes; none
    /// [default: self for int4 of small models]
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = OsStringValueParser::new().map(CalibrationSource::from),
        value_hint = ValueHint::FilePath,
        long_help = "Text to choose the codes of int4 and int8 weights by: UTF-8, like what the \
                     model was trained on, documents separated by <|endoftext|>. self takes what \
                     the model writes with float weights, at temperature 1; none rounds to \
                     nearest (./self and ./none are files of these names). The text's end is held \
                     out; compile says the perplexity on it [default: self for int4 of models \
                     with up to 33 million such weights, which lose most by rounding, with fewer \
                     tokens from 4 million on; else none. bench, which asks for speed alone: none]"
    )]
    pub calibrate: Option<CalibrationSource>,

    /// Tokens of the text that are used
    #[arg(
        long,
        value_name = "N",
        requires = "calibrate",
        default_value_t = DEFAULT_CALIBRATE_TOKENS,
        value_parser = whole(1, MAX_CALIBRATE_TOKENS),
        allow_hyphen_values = true
    )]
    pub calibrate_tokens: u32,

    /// Arithmetic of the matrix products [default: int8 for int4 and int8 weights, bf16 for bf16
    /// weights, else f32]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub compute: Option<ComputeOption>,

    /// Rows of one step: prompt tiles and decode rows together
    #[arg(
        long,
        value_name = "N",
        default_value_t = DEFAULT_STEP_ROWS,
        value_parser = whole(1, MAX_STEP_ROWS),
        allow_hyphen_values = true
    )]
    pub step_rows: u32,

    /// Allow external data files that are links to files beneath this directory
    #[arg(long, value_name = "DIR")]
    pub links_under: Option<PathBuf>,
}

impl ModelOptions {
    /// The same model with the file's weights and float32 arithmetic: what rounded weights are compared
    /// with.
    pub fn in_float(&self) -> ModelOptions {
        let compute = Some(ComputeOption::F32);
        ModelOptions { weights: None, calibrate: None, compute, ..self.clone() }
    }

    /// Files that are read, if they are there. Of a model in several files it is the one that was named.
    pub fn inputs(&self) -> Vec<Input<'_>> {
        let mut inputs = vec![Input { what: "the model", path: &self.model }];
        if let Some(CalibrationSource::Text(path)) = &self.calibrate {
            inputs.push(Input { what: "the text of --calibrate", path });
        }
        if let Some(text) = &self.kv_budget {
            inputs.push(Input { what: "the file of --kv-budget", path: Path::new(text) });
        }
        inputs
    }

    /// The same options for each policy in each number format of the cache, one of them alone.
    pub fn each_cache(&self) -> Vec<ModelOptions> {
        let one =
            |kv: &String, kv_dtype| ModelOptions { kv: vec![kv.clone()], kv_dtype, ..self.clone() };
        let mut each = Vec::new();
        for kv in &self.kv {
            match &self.kv_dtype[..] {
                [] => each.push(one(kv, Vec::new())),
                dtypes => each.extend(dtypes.iter().map(|dtype| one(kv, vec![*dtype]))),
            }
        }
        each
    }
}

/// What codes are chosen by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalibrationSource {
    /// Nothing: they are rounded to nearest.
    Nothing,
    /// What the model itself writes.
    Own,
    /// A file of text.
    Text(PathBuf),
}

impl From<OsString> for CalibrationSource {
    fn from(argument: OsString) -> CalibrationSource {
        match argument.to_str() {
            Some("self") => CalibrationSource::Own,
            Some("none") => CalibrationSource::Nothing,
            _ => CalibrationSource::Text(argument.into()),
        }
    }
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
    /// Activations quantised with one scale a row, as dynamic quantisation elsewhere does: a larger
    /// error where few values outweigh the others, and no faster; kept to compare accuracy with
    Int8Row,
}

impl ComputeOption {
    /// The arithmetic of products that it asks for.
    pub fn arithmetic(self) -> Compute {
        match self {
            ComputeOption::F32 => Compute::F32,
            ComputeOption::Bf16 => Compute::Bf16,
            ComputeOption::Int8 => Compute::Int8,
            ComputeOption::Int8Row => Compute::Int8Row,
        }
    }
}

/// Number formats of attention state.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvTypeOption {
    /// Single precision
    F32,
    /// IEEE half precision; values beyond 65504 become 65504
    F16,
    /// The upper half of single precision
    Bf16,
    /// Codes with a scale per row and head; attention computes with codes too
    Int8,
    /// The same with one of 16 levels for each number of a key or value
    Int4,
    /// Different ones for the immutable block (sinks and selected rows) and for the ring
    #[value(skip)]
    Parts {
        /// The block's, int4 or int8.
        block: CacheFormat,
        /// The ring's.
        ring: CacheFormat,
    },
}

impl KvTypeOption {
    /// The number formats of the graph's caches.
    pub fn formats(self) -> RowFormats {
        let ring = match self {
            KvTypeOption::F32 => CacheFormat::F32,
            KvTypeOption::F16 => CacheFormat::F16,
            KvTypeOption::Bf16 => CacheFormat::BF16,
            KvTypeOption::Int8 => CacheFormat::I8,
            KvTypeOption::Int4 => CacheFormat::I4,
            KvTypeOption::Parts { block, ring } => {
                return RowFormats { ring, block: Some(block) };
            }
        };
        ring.into()
    }

    /// Reads `block=TYPE,ring=TYPE`, in either order.
    fn parts(text: &str) -> Result<KvTypeOption, String> {
        let (mut block, mut ring) = (None, None);
        for part in text.split(',') {
            let (name, ty) = part
                .split_once('=')
                .ok_or_else(|| format!("{part} is neither block=TYPE nor ring=TYPE"))?;
            let place = match name {
                "block" => &mut block,
                "ring" => &mut ring,
                _ => return Err(format!("{name} is no part of a cache; block and ring are")),
            };
            let ty = KvTypeOption::from_str(ty, false)
                .map_err(|_| format!("{name}={ty}: the types are f32, f16, bf16, int8 and int4"))?;
            if place.replace(ty).is_some() {
                return Err(format!("{name}= is there twice"));
            }
        }
        let given = |part: Option<KvTypeOption>, name: &str, other: &str| {
            part.ok_or_else(|| format!("{other}= is there without {name}="))
        };
        let (one, other) = (given(block, "block", "ring")?, given(ring, "ring", "block")?);
        let [block, ring] = [one, other].map(|part| part.formats().ring);
        if block == ring {
            return Ok(one);
        }
        if !block.suits_block_of(ring) {
            let [block, ring] = [block, ring].map(format_name);
            return Err(format!(
                "a block of {block} with a ring of {ring}: the block is int4, or int8 with a ring of \
                 f16, bf16 or f32"
            ));
        }
        Ok(KvTypeOption::Parts { block, ring })
    }
}

/// A number format as the command line names it.
fn format_name(format: CacheFormat) -> &'static str {
    match format {
        CacheFormat::I8 => "int8",
        CacheFormat::I4 => "int4",
        format => format.name(),
    }
}

/// The number formats of a cache as the command line names them.
pub fn formats_name(formats: RowFormats) -> String {
    let ring = format_name(formats.ring);
    match formats.block {
        Some(block) => format!("block={},ring={ring}", format_name(block)),
        None => ring.to_owned(),
    }
}

/// Reads one number format for all rows, or one for each part.
#[derive(Clone)]
pub struct KvTypeParser;

impl TypedValueParser for KvTypeParser {
    type Value = KvTypeOption;

    fn parse_ref(
        &self,
        command: &Command,
        option: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KvTypeOption, clap::Error> {
        match value.to_str().filter(|text| text.contains('=')) {
            Some(_) => {
                let parts = StringValueParser::new().try_map(|text| KvTypeOption::parts(&text));
                parts.parse_ref(command, option, value)
            }
            None => EnumValueParser::<KvTypeOption>::new().parse_ref(command, option, value),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let types = KvTypeOption::value_variants();
        Some(Box::new(types.iter().filter_map(KvTypeOption::to_possible_value)))
    }
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
    #[arg(long, short, help_heading = None::<&str>)]
    pub quiet: bool,
}

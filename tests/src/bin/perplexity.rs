//! Perplexity of a model on the last documents of a text, a line per weight format and number format
//! of the cache: `cargo run -p weir-tests --bin perplexity -- MODEL TEXT f32 int8 int4 --calibrate`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use weir::CalibrationSource;
use weir_tests::perplexity::{documents, perplexity};
use weir_tests::systems::Setup;

#[derive(Parser)]
#[command(about = "Perplexity of a model on the last documents of a text, by weight format")]
struct Arguments {
    /// The directory that a model was exported to
    model: PathBuf,
    /// A text; documents are separated by <|endoftext|>
    text: PathBuf,
    /// Formats as --weights takes them; the first is what the others are compared with
    #[arg(required = true)]
    formats: Vec<String>,
    /// Documents to measure on, counted from the text's end
    #[arg(long, default_value_t = 148)]
    documents: usize,
    /// Positions of a sequence; at least 256
    #[arg(long, default_value_t = 256)]
    context: u32,
    /// Write a document's lines behind each other
    #[arg(long)]
    one_line: bool,
    /// Measure formats with codes a second time, calibrated with the documents in front of those
    #[arg(long)]
    calibrate: bool,
    /// And once more, calibrated with what the model writes itself
    #[arg(long)]
    calibrate_self: bool,
    /// Tokens to calibrate with
    #[arg(long, default_value_t = weir::DEFAULT_CALIBRATE_TOKENS)]
    calibrate_tokens: u32,
    /// Number formats of the cache; what suits the products unless given
    #[arg(long, value_enum, value_delimiter = ',')]
    kv_dtype: Vec<weir::KvTypeOption>,
    /// Arithmetic of the products; what suits the weights unless given
    #[arg(long, value_enum)]
    compute: Option<weir::ComputeOption>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let text = std::fs::read_to_string(&arguments.text)?;
    let mut documents: Vec<String> = documents(&text, arguments.one_line).collect();
    let measured = documents.split_off(documents.len().saturating_sub(arguments.documents));
    let folder = tempfile::tempdir()?;
    let others = folder.path().join("text");
    std::fs::write(&others, documents.join("<|endoftext|>"))?;
    let kv_dtypes: Vec<Option<weir::KvTypeOption>> = match &arguments.kv_dtype[..] {
        [] => vec![None],
        given => given.iter().copied().map(Some).collect(),
    };
    let mut first = None;
    for (format, kv_dtype) in
        arguments.formats.iter().flat_map(|format| kv_dtypes.iter().map(move |kv| (format, *kv)))
    {
        let others = arguments.calibrate.then(|| CalibrationSource::Text(others.clone()));
        let own = arguments.calibrate_self.then_some(CalibrationSource::Own);
        let sources = others.into_iter().chain(own).filter(|_| format.contains("int"));
        for calibrate in std::iter::once(None).chain(sources.map(Some)) {
            let how = match calibrate {
                None | Some(CalibrationSource::Nothing) => "",
                Some(CalibrationSource::Text(_)) => "calibrated",
                Some(CalibrationSource::Own) => "by itself",
            };
            let setup = Setup {
                compute: arguments.compute,
                kv_dtype,
                weights: Some(format.clone()),
                calibrate: calibrate.map(|source| (source, arguments.calibrate_tokens)),
                ..Setup::exact(arguments.context)
            };
            let model = setup.load(&arguments.model)?;
            let found = perplexity(&model, measured.iter().cloned())?;
            let base = *first.get_or_insert(found.value);
            let more = 100.0 * (found.value / base - 1.0);
            let (value, tokens) = (found.value, found.tokens);
            let cache = kv_dtype.and_then(|kv| Some(kv.to_possible_value()?.get_name().to_owned()));
            let cache = cache.unwrap_or_default();
            println!("{format:24} {cache:5} {how:10} {value:9.4} {more:+7.3} %  {tokens} tokens");
        }
    }
    Ok(())
}

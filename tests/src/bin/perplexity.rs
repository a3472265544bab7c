//! Perplexity of a model on a text, a line per weight format:
//! `cargo run -p weir-tests --bin perplexity -- MODEL TEXT f32 int8 int4`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use weir_tests::perplexity::perplexity;
use weir_tests::systems::Setup;

#[derive(Parser)]
#[command(about = "Perplexity of a model on a text, by weight format")]
struct Arguments {
    /// The directory that a model was exported to
    model: PathBuf,
    /// A text; documents are separated by <|endoftext|>
    text: PathBuf,
    /// Formats as --weights takes them; the first is what the others are compared with
    #[arg(required = true)]
    formats: Vec<String>,
    /// Documents to read
    #[arg(long, default_value_t = 60)]
    documents: usize,
    /// Positions of a sequence; at least 256
    #[arg(long, default_value_t = 256)]
    context: u32,
    /// Write a document's lines behind each other
    #[arg(long)]
    one_line: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let text = std::fs::read_to_string(&arguments.text)?;
    let mut first = None;
    for format in &arguments.formats {
        let setup = Setup {
            compute: None,
            weights: Some(format.clone()),
            ..Setup::exact(arguments.context)
        };
        let model = setup.load(&arguments.model)?;
        let found = perplexity(&model, &text, arguments.documents, arguments.one_line)?;
        let base = *first.get_or_insert(found.value);
        let more = 100.0 * (found.value / base - 1.0);
        println!("{format:24} {:9.4} {more:+7.2} %  {} tokens", found.value, found.tokens);
    }
    Ok(())
}

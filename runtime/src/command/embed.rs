//! `embed`: texts to vectors.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use super::options::{RuntimeArguments, announce};
use crate::{Model, Request, RuntimeError};

/// What the help says at its end.
const NOTES: &str = "\
Writes a line for each text, in their order: its embedding as a list of numbers, which is valid JSON. It is the row \
of the text's last token behind the last norm, divided by its length, so the product of two is their cosine. Texts \
are tokenized as they are: an instruction that the model wants in front of a query is part of the text.";

/// Texts that are read before they are computed.
const AT_ONCE: usize = 64;

/// Gives the embeddings of texts.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("texts").required(true).multiple(true)), after_help = NOTES)]
pub struct Embed {
    /// A text (repeatable)
    #[arg(long, value_name = "TEXT", group = "texts", allow_hyphen_values = true)]
    pub text: Vec<String>,
    /// A file with a text in each line; - for standard input
    #[arg(long, value_name = "FILE", group = "texts")]
    pub lines: Option<PathBuf>,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

impl Embed {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        model.need_embeddings()?;
        let options = self.runtime.resolve();
        let mut engine = model.engine(&options)?;
        let mut texts = self.texts()?;
        announce(model, &options)?;
        let mut out = std::io::stdout().lock();
        let mut before = 0;
        loop {
            let mut requests = Vec::with_capacity(AT_ONCE);
            for text in texts.by_ref().take(AT_ONCE) {
                let request = Request { prompt: model.encode(&text?)?, ..Request::default() };
                let number = before + requests.len() + 1;
                let refused = |reason| RuntimeError::Prompt { number, reason };
                engine.rules().check(&request).map_err(refused)?;
                requests.push(request);
            }
            if requests.is_empty() {
                return Ok(());
            }
            before += requests.len();
            for values in engine.embeddings(requests)? {
                let line = serde_json::to_string(&values).map_err(std::io::Error::from)?;
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
    }

    /// All texts, those of a file as they are read.
    fn texts(&self) -> Result<impl Iterator<Item = Result<String, RuntimeError>>, RuntimeError> {
        let lines = self.lines.as_deref().map(Lines::open).transpose()?;
        Ok(self.text.clone().into_iter().map(Ok).chain(lines.into_iter().flatten()))
    }
}

/// Lines of a file or of standard input.
struct Lines {
    /// Unless it is standard input.
    path: Option<PathBuf>,
    lines: std::io::Lines<Box<dyn BufRead>>,
}

impl Lines {
    fn open(path: &Path) -> Result<Lines, RuntimeError> {
        if path == Path::new("-") {
            let input: Box<dyn BufRead> = Box::new(std::io::stdin().lock());
            return Ok(Lines { path: None, lines: input.lines() });
        }
        let file = File::open(path)
            .map_err(|source| RuntimeError::File { path: path.to_owned(), source })?;
        let file: Box<dyn BufRead> = Box::new(BufReader::new(file));
        Ok(Lines { path: Some(path.to_owned()), lines: file.lines() })
    }
}

impl Iterator for Lines {
    type Item = Result<String, RuntimeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        Some(line.map_err(|source| match &self.path {
            Some(path) => RuntimeError::File { path: path.clone(), source },
            None => RuntimeError::Input(source),
        }))
    }
}

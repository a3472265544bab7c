//! Continues a prompt with a compiled model: `generate MODEL PROMPT [TOKENS]`.

use std::io::Write;
use std::process::ExitCode;

use weir_runtime::{Event, Model, Request, RuntimeError, RuntimeOptions};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, prompt, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: generate MODEL PROMPT [TOKENS]");
        return ExitCode::from(2);
    };
    let tokens = rest.first().and_then(|tokens| tokens.parse().ok()).unwrap_or(64);
    match generate(path, prompt, tokens) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate(path: &str, prompt: &str, tokens: u32) -> Result<(), RuntimeError> {
    let model = Model::open(path)?;
    let mut engine = model.engine(&RuntimeOptions::default())?;
    engine.submit(Request {
        prompt: model.encode(prompt)?,
        max_tokens: Some(tokens),
        sampling: model.sampling_defaults(),
        ..Request::default()
    })?;
    let mut failure = None;
    while engine.step(|_, event| match event {
        Event::Token { text, .. } => {
            print!("{text}");
            // A terminal shows the text as it grows; if it is gone, there is nobody to tell.
            let _ = std::io::stdout().flush();
        }
        Event::Finished { text, usage, .. } => {
            println!("{text}");
            eprintln!(
                "{} prompt tokens, {} new tokens",
                usage.prompt_tokens, usage.completion_tokens
            );
        }
        Event::Failed(fault) => failure = Some(fault),
        // Of models that give no text.
        Event::Embedding { .. } => {}
    }) {}
    failure.map_or(Ok(()), |fault| Err(fault.into()))
}

//! `chat`: a conversation at a terminal, or one turn per line of standard input.
//!
//! The whole history goes through the template again in every turn, so what the model sees is
//! exactly what the template makes of the conversation.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use signal_hook::consts::SIGINT;

use super::options::{RuntimeArguments, SamplingArguments, announce};
use crate::forward::Forward;
use crate::template::ChatMessage;
use crate::{Engine, Event, Model, Request, RuntimeError};

/// Exit code of a program that a Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Talks to the model. /reset forgets the conversation, /exit ends it; Ctrl-C stops an answer, and
/// between answers the program.
#[derive(Clone, Debug, Args)]
pub struct Chat {
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

impl Chat {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        let options = self.runtime.resolve();
        model.template()?;
        model.need_tokenizer()?;
        announce(model, &options)?;
        let mut engine = model.engine(&options)?;
        let (interrupted, waiting) = watch_interrupts()?;
        let input = std::io::stdin();
        let is_terminal = input.is_terminal();
        let mut history = self.first_messages();
        loop {
            if is_terminal {
                print!("> ");
                std::io::stdout().flush()?;
            }
            waiting.store(true, Ordering::SeqCst);
            let mut line = String::new();
            if input.lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            waiting.store(false, Ordering::SeqCst);
            interrupted.store(false, Ordering::SeqCst);
            match line.trim() {
                "" => continue,
                "/exit" => return Ok(()),
                "/reset" => {
                    history = self.first_messages();
                    continue;
                }
                text => history.push(ChatMessage::new("user", text)),
            }
            match self.answer(model, &mut engine, &history, &interrupted) {
                Ok(answer) => history.push(ChatMessage::new("assistant", answer)),
                Err(RuntimeError::Request(error)) if is_terminal => {
                    // Too long, most likely: the conversation before this turn stays.
                    eprintln!("{error}; /reset begins anew");
                    history.pop();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn first_messages(&self) -> Vec<ChatMessage> {
        self.system.iter().map(|system| ChatMessage::new("system", system)).collect()
    }

    fn answer(
        &self,
        model: &Model,
        engine: &mut Engine<Forward>,
        history: &[ChatMessage],
        interrupted: &AtomicBool,
    ) -> Result<String, RuntimeError> {
        let id = engine.submit(Request {
            prompt: model.encode_chat(history)?,
            max_tokens: self.sampling.max_tokens,
            sampling: self.sampling.resolve(model),
            stop: self.sampling.stop.clone(),
            ignore_eos: self.sampling.ignore_eos,
            ..Request::default()
        })?;
        let mut out = std::io::stdout().lock();
        let mut answer = String::new();
        let mut failure: Option<RuntimeError> = None;
        loop {
            let open = engine.step(|_, event| match event {
                Event::Token { text, .. } | Event::Finished { text, .. } => {
                    answer.push_str(text);
                    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                    failure = failure.take().or(written.err().map(RuntimeError::from));
                }
                Event::Failed(fault) => failure = Some(fault.into()),
            });
            if !open {
                break;
            }
            if failure.is_some() || interrupted.swap(false, Ordering::SeqCst) {
                engine.cancel(id);
            }
        }
        writeln!(out)?;
        failure.map_or(Ok(answer), Err)
    }
}

/// A flag that Ctrl-C sets, and one that says whether Ctrl-C ends the program instead.
fn watch_interrupts() -> Result<(Arc<AtomicBool>, Arc<AtomicBool>), RuntimeError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let waiting = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&waiting))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?;
    Ok((interrupted, waiting))
}

//! `chat`: a conversation at a terminal, or one turn per line of standard input.
//!
//! The whole history goes through the template again in every turn, so what the model sees is
//! exactly what the template makes of the conversation. The tokens of an answer stay those that were
//! chosen, so that their rows serve the next turn.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use super::options::{DraftArguments, RuntimeArguments, SamplingArguments, announce};
use super::{INTERRUPTED, say};
use crate::forward::Forward;
use crate::template::ChatMessage;
use crate::{
    Engine, Event, FinishReason, History, Model, Request, RequestError, RuntimeError, SeenChat,
    Usage,
};

/// What a line that begins with a slash can be.
const HELP: &str = "\
/help   say this
/reset  forget the conversation
/exit   leave; Ctrl-D does, too
Ctrl-C stops an answer, and between answers the program.";

/// What the help says at its end.
const NOTES: &str = "\
In a conversation /help lists the commands; /reset forgets the conversation, /exit or Ctrl-D ends it. \
Ctrl-C stops an answer, and between answers the program. Where standard input is no terminal, each of \
its lines is a turn.";

/// Talks to the model: at a terminal, or one turn per line of standard input.
#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub struct Chat {
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// What is computed for a turn when the cache has dropped parts of the conversation: exact, all of
    /// it again; incremental, the new text alone, behind what the cache still holds
    #[arg(long, value_name = "WAY", default_value = "exact", value_parser = parse_history)]
    pub history: History,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// How tokens are guessed.
    #[command(flatten)]
    pub drafting: DraftArguments,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

fn parse_history(text: &str) -> Result<History, String> {
    History::ALL
        .into_iter()
        .find(|history| history.name() == text)
        .ok_or_else(|| format!("it must be one of {}", History::ALL.map(History::name).join(", ")))
}

/// What a line of input asks for.
enum Turn<'a> {
    Nothing,
    Exit,
    Reset,
    Help,
    Unknown(&'a str),
    Say(&'a str),
}

impl Turn<'_> {
    fn of(line: &str) -> Turn<'_> {
        match line.trim() {
            "" => Turn::Nothing,
            "/exit" | "/quit" => Turn::Exit,
            "/reset" => Turn::Reset,
            "/help" => Turn::Help,
            // A path or a fraction is no command.
            word if word.starts_with('/')
                && word[1..].chars().all(|letter| letter.is_ascii_alphabetic()) =>
            {
                Turn::Unknown(word)
            }
            text => Turn::Say(text),
        }
    }
}

impl Chat {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        model.need_text()?;
        let options = self.drafting.over(self.runtime.resolve());
        model.template()?;
        model.need_tokenizer()?;
        let mut engine = model.engine(&options)?;
        announce(model, &options)?;
        let interrupts = Interrupts::watch()?;
        let input = std::io::stdin();
        let is_terminal = input.is_terminal() && std::io::stdout().is_terminal();
        if is_terminal {
            say(format_args!("/help lists commands, Ctrl-D ends the conversation."));
        }
        let mut history = self.first_messages();
        let mut seen = SeenChat::default();
        loop {
            if is_terminal {
                let mut out = std::io::stdout().lock();
                write!(out, "> ")?;
                out.flush()?;
            }
            let mut line = String::new();
            let read = interrupts.while_waiting(|| input.lock().read_line(&mut line));
            if read.map_err(RuntimeError::Input)? == 0 {
                if is_terminal {
                    writeln!(std::io::stdout())?;
                }
                return Ok(());
            }
            let text = match Turn::of(&line) {
                Turn::Nothing => continue,
                Turn::Exit => return Ok(()),
                Turn::Help => {
                    say(format_args!("{HELP}"));
                    continue;
                }
                Turn::Unknown(command) => {
                    say(format_args!("there is no {command}; /help lists the commands"));
                    continue;
                }
                Turn::Reset => {
                    history = self.first_messages();
                    seen = SeenChat::default();
                    if is_terminal {
                        say(format_args!("The conversation is forgotten."));
                    }
                    continue;
                }
                Turn::Say(text) => text,
            };
            history.push(ChatMessage::new("user", text));
            match self.answer(model, &mut engine, &history, &mut seen, &interrupts) {
                Ok(answer) => history.push(ChatMessage::new("assistant", answer)),
                Err(RuntimeError::Request(RequestError::TooLong { rows, context })) => {
                    // The conversation before this turn stays.
                    history.pop();
                    let message = format!(
                        "the conversation would have {rows} tokens with this, and the model's \
                         context is {context}; /reset begins a new one"
                    );
                    if !is_terminal {
                        return Err(RuntimeError::Options(message));
                    }
                    say(format_args!("{message}"));
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
        seen: &mut SeenChat,
        interrupts: &Interrupts,
    ) -> Result<String, RuntimeError> {
        let context = model.compiled().header().context;
        let mut asked = model.encode_chat_after(seen, history)?;
        let id = engine.submit(Request {
            prompt: asked.ids.clone(),
            history: self.history,
            max_tokens: self.sampling.max_tokens,
            sampling: self.sampling.resolve(model),
            stop: self.sampling.stop.clone(),
            ignore_eos: self.sampling.ignore_eos,
            ..Request::default()
        })?;
        let mut out = std::io::stdout().lock();
        let mut answer = String::new();
        let mut end = None;
        let mut failure: Option<RuntimeError> = None;
        loop {
            let open = engine.step(|_, event| {
                let text = match event {
                    Event::Token { token, text, .. } => {
                        asked.ids.push(token);
                        text
                    }
                    Event::Finished { text, reason, usage, .. } => {
                        end = Some((reason, usage));
                        text
                    }
                    Event::Failed(fault) => {
                        failure = Some(fault.into());
                        return;
                    }
                    Event::Embedding { .. } => return,
                };
                answer.push_str(text);
                let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                failure = failure.take().or(written.err().map(RuntimeError::from));
            });
            if !open {
                break;
            }
            if failure.is_some() || interrupts.take() {
                engine.cancel(id);
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        writeln!(out)?;
        asked.text.push_str(&answer);
        *seen = asked;
        self.drafting.announce(end.map(|(_, usage)| usage));
        if let Some((_, Usage { history: History::Incremental, kv_rows_dropped, .. })) = end {
            say(format_args!(
                "[answered without {kv_rows_dropped} tokens of the conversation, which the cache \
                 has dropped]"
            ));
        }
        if let Some(why) = end.and_then(|(reason, usage)| cut_short(reason, usage, context)) {
            say(format_args!("[{why}]"));
        }
        Ok(answer)
    }
}

/// Why an answer stops before its end, if it does.
fn cut_short(reason: FinishReason, usage: Usage, context: u32) -> Option<String> {
    let rows = usage.prompt_tokens + usage.completion_tokens;
    match reason {
        FinishReason::Stop => None,
        FinishReason::Cancelled => Some("stopped".to_owned()),
        FinishReason::Length if rows > context => Some(format!(
            "the model's context of {context} tokens is full; /reset begins a new conversation"
        )),
        FinishReason::Length => Some(format!("cut after --max-tokens {}", usage.completion_tokens)),
    }
}

/// Ctrl-C: it ends the program while it waits for a line, and an answer otherwise.
struct Interrupts {
    waiting: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
}

impl Interrupts {
    /// Begins to watch. A thread of its own takes the signals, since reading a line goes on after
    /// one.
    fn watch() -> Result<Interrupts, RuntimeError> {
        let failed = |error| RuntimeError::Machine(format!("Ctrl-C cannot be watched: {error}"));
        let mut signals = Signals::new([SIGINT]).map_err(failed)?;
        let waiting = Arc::new(AtomicBool::new(false));
        let interrupted = Arc::new(AtomicBool::new(false));
        let watched =
            Interrupts { waiting: Arc::clone(&waiting), interrupted: Arc::clone(&interrupted) };
        let watch = move || {
            for _ in signals.forever() {
                if waiting.load(Ordering::SeqCst) {
                    // The terminal has written ^C; the shell's prompt belongs on a new line.
                    say(format_args!(""));
                    std::process::exit(INTERRUPTED.into());
                }
                interrupted.store(true, Ordering::SeqCst);
            }
        };
        let thread = std::thread::Builder::new().name("ctrl-c".to_owned());
        thread.spawn(watch).map_err(failed)?;
        Ok(watched)
    }

    /// Does something that an interrupt ends together with the program.
    fn while_waiting<T>(&self, read: impl FnOnce() -> T) -> T {
        self.waiting.store(true, Ordering::SeqCst);
        let outcome = read();
        self.waiting.store(false, Ordering::SeqCst);
        self.interrupted.store(false, Ordering::SeqCst);
        outcome
    }

    /// Whether there was an interrupt since the last time.
    fn take(&self) -> bool {
        self.interrupted.swap(false, Ordering::SeqCst)
    }
}

//! `weir run`: the commands of a compiled model over one that was just compiled in memory.

use clap::{Args, Subcommand};
use weir_runtime::command::{self, Candidates};

use crate::driver::load;
use crate::eval;
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
use crate::progress::Progress;

/// Compile a model in memory and run it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = false, subcommand_negates_reqs = true)]
pub struct Execute {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    generate: command::Generate,

    #[command(subcommand)]
    command: Option<Other>,
}

/// What to do instead of generating.
#[derive(Subcommand, Debug)]
enum Other {
    /// Talk to the model
    Chat(command::Chat),
    /// Give the embeddings of texts
    Embed(command::Embed),
    /// Serve the model over HTTP: OpenAI's API, a page to talk to it, metrics
    Serve(command::Serve),
    /// Say what the model is and how much memory it needs
    Info(command::Info),
    /// Write logits to a file, for comparison with other implementations
    Logits(command::Logits),
    /// Measure how fast the model runs, beside what the machine could do
    Bench(command::Bench),
    /// Continue one or several prompts
    Generate(command::Generate),
    /// Measure what the compressed cache costs: tasks, beside a cache that keeps every row
    Eval(command::Eval),
    /// Measure how well the model knows a text, with its cache and with one that keeps every row
    Perplexity(command::Perplexity),
}

impl Execute {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        weir_runtime::machine::check_processor()?;
        self.check()?;
        let progress = Progress::new(self.report.quiet);
        let slots = match &self.command {
            None => self.generate.runtime.slots,
            Some(Other::Generate(generate)) => generate.runtime.slots,
            Some(Other::Chat(chat)) => chat.runtime.slots,
            Some(Other::Serve(serve)) => serve.runtime.slots,
            Some(Other::Info(info)) => info.runtime.slots,
            Some(Other::Embed(embed)) => embed.runtime.slots,
            Some(Other::Logits(logits)) => logits.runtime.slots,
            Some(Other::Eval(eval)) => eval.runtime.slots,
            Some(Other::Perplexity(text)) => text.runtime.slots,
            Some(Other::Bench(_)) => None,
        };
        let slots = slots.unwrap_or(DEFAULT_SLOTS);
        let draft = match &self.command {
            None => self.generate.drafting.resolve(),
            Some(Other::Generate(generate)) => generate.drafting.resolve(),
            Some(Other::Chat(chat)) => chat.drafting.resolve(),
            Some(Other::Serve(serve)) => serve.drafting.resolve(),
            Some(Other::Info(info)) => info.drafting.resolve(),
            Some(_) => 0,
        };
        let compiled =
            load(&ModelOptions { slots, draft, ..self.model.clone() }, &self.report, &progress)?;
        let model = weir_runtime::Model::new(compiled)?;
        match &self.command {
            None => self.generate.run(&model)?,
            Some(Other::Generate(generate)) => generate.run(&model)?,
            Some(Other::Chat(chat)) => chat.run(&model)?,
            Some(Other::Serve(serve)) => serve.run(model)?,
            Some(Other::Info(info)) => info.run(&model)?,
            Some(Other::Embed(embed)) => embed.run(&model)?,
            Some(Other::Logits(logits)) => logits.run(&model)?,
            Some(Other::Bench(bench)) => bench.run(&model)?,
            Some(Other::Eval(eval)) => eval.run(&Candidates::alone(model))?,
            Some(Other::Perplexity(text)) => text.run(&Candidates::alone(model))?,
        }
        Ok(())
    }

    /// Refuses what can be seen to be wrong before the model is compiled.
    fn check(&self) -> Result<(), Failure> {
        let Some(command) = &self.command else { return Ok(self.generate.check()?) };
        // clap takes the options of generating in front of another command, too.
        if self.generate != command::Generate::default() {
            return Err(Failure::usage(format!(
                "put the options of {0} behind it, as in weir run MODEL {0} --threads 1",
                command.name()
            )));
        }
        match command {
            Other::Generate(generate) => Ok(generate.check()?),
            Other::Eval(eval) => eval::check(eval, &self.model),
            _ => Ok(()),
        }
    }
}

impl Other {
    fn name(&self) -> &'static str {
        match self {
            Other::Chat(_) => "chat",
            Other::Serve(_) => "serve",
            Other::Info(_) => "info",
            Other::Embed(_) => "embed",
            Other::Logits(_) => "logits",
            Other::Bench(_) => "bench",
            Other::Generate(_) => "generate",
            Other::Eval(_) => "eval",
            Other::Perplexity(_) => "perplexity",
        }
    }
}

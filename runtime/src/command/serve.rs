//! `serve`: answers requests over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use listenfd::ListenFd;
use sd_notify::NotifyState;

use super::numbers::whole;
use super::options::{BlockArguments, DraftArguments, RuntimeArguments};
use super::say;
use crate::serve::{
    AllowedOrigin, Happening, Limits, ServerOptions, TlsFiles, memory_ceiling, serve,
};
use crate::{Model, RuntimeError};

/// What the help says at its end.
const NOTES: &str = "\
The page to talk to the model is at /, the API at /v1 (OpenAI's: chat/completions, completions, responses, \
embeddings, models; Anthropic's: messages), metrics at /metrics. SIGTERM and Ctrl-C let answers finish (--drain), SIGHUP reads keys and certificates again.";

/// Most seconds that can be asked for: a year.
const MAX_SECONDS: u64 = 366 * 86_400;

/// Most connections, and most requests in the queue: what a system has room for at all.
const MAX_CONNECTIONS: usize = 1 << 20;
const MAX_QUEUE: u32 = 1 << 20;

/// Serves the model over HTTP.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server", after_help = NOTES)]
pub struct Serve {
    /// Address to listen at; others than this machine's own need an API key
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Port to listen at; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Name of the model in requests [default: the model's own]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// File of API keys, one in a line, or a name and a key; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// An API key
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File of the server's certificate and those behind it, in PEM, for HTTPS; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// File of the certificate's private key, in PEM; read again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Listen where others reach the server although there is no API key
    #[arg(long)]
    pub allow_anyone: bool,
    /// Origin (scheme, host and port) whose pages may ask through a browser, or * for any; can be
    /// repeated
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<AllowedOrigin>,
    /// Requests that wait for a slot at most; further ones are refused with status 429 [default: two per
    /// slot, or as many as were answered in the last ten seconds, 512 at most]
    #[arg(long, value_name = "N", value_parser = whole(0, MAX_QUEUE), allow_hyphen_values = true)]
    pub queue: Option<u32>,
    /// Seconds that a request waits for a slot at most [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = whole(1, MAX_SECONDS), allow_hyphen_values = true)]
    pub queue_timeout: Option<u64>,
    /// Seconds that a request takes at most, waiting included [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = whole(1, MAX_SECONDS), allow_hyphen_values = true)]
    pub request_timeout: Option<u64>,
    /// Seconds that answers may still take when the server is told to stop
    #[arg(long, value_name = "SECONDS", value_parser = whole(0, MAX_SECONDS), default_value = "30", allow_hyphen_values = true)]
    pub drain: u64,
    /// Connections at once
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_CONNECTIONS), default_value = "1024", allow_hyphen_values = true)]
    pub connections: usize,
    /// Connections of one address at once on which nothing is being answered
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_CONNECTIONS), default_value = "64", allow_hyphen_values = true)]
    pub connections_per_address: usize,
    /// File that a trace of each request is added to, as lines of OTLP's JSON
    #[arg(long, value_name = "FILE")]
    pub trace_file: Option<PathBuf>,
    /// Form of the log on standard error
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Text)]
    pub log: LogForm,
    /// Write a line for every request, too
    #[arg(long)]
    pub log_requests: bool,
    /// How tokens are guessed.
    #[command(flatten)]
    pub drafting: DraftArguments,
    /// How many prompts there is room for.
    #[command(flatten)]
    pub blocks: BlockArguments,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

/// How lines of a log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// For people
    #[default]
    Text,
    /// An object per line
    Json,
}

impl Serve {
    /// Runs the command.
    pub fn run(&self, model: Model) -> Result<(), RuntimeError> {
        let options = ServerOptions {
            address: SocketAddr::new(self.host, self.port),
            listener: given_socket()?,
            runtime: self.blocks.over(self.drafting.over(self.runtime.resolve())),
            name: self.model_name.clone(),
            key_file: self.api_key_file.clone(),
            key: self.api_key.clone(),
            tls: self.tls_files(),
            is_open: self.allow_anyone,
            allowed_origins: self.allow_origin.clone(),
            queue: self.queue,
            queue_timeout: self.queue_timeout.map(Duration::from_secs),
            request_timeout: self.request_timeout.map(Duration::from_secs),
            drain: Duration::from_secs(self.drain),
            trace_file: self.trace_file.clone(),
            limits: Limits {
                connections: self.connections,
                connections_of_address: self.connections_per_address,
                ..Limits::default()
            },
            is_confined: true,
        };
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        self.write_logs();
        say(format_args!("{}", memory_ceiling(&model, &options)?));
        serve(model, options, |happening| match happening {
            Happening::Confined(confinement) => say(format_args!("{confinement}")),
            Happening::Listens(address) => {
                say(format_args!("listening at {scheme}://{address}"));
                notify(NotifyState::Ready);
            }
            Happening::Drains => {
                say(format_args!("finishing answers"));
                notify(NotifyState::Stopping);
            }
        })
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        let files = self.tls_certificate.clone().zip(self.tls_key.clone());
        files.map(|(certificate, key)| TlsFiles { certificate, key })
    }

    fn write_logs(&self) {
        let level = match self.log_requests {
            true => tracing::Level::INFO,
            false => tracing::Level::WARN,
        };
        let lines = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_target(false)
            .with_writer(std::io::stderr);
        // Fails where another program that this is a part of writes logs already: then it has them.
        let _ = match self.log {
            LogForm::Text => lines.with_ansi(false).try_init(),
            LogForm::Json => lines.json().flatten_event(true).try_init(),
        };
    }
}

/// The socket that systemd has opened for this program, if it has.
fn given_socket() -> Result<Option<TcpListener>, RuntimeError> {
    let given = ListenFd::from_env().take_tcp_listener(0);
    given.map_err(|error| RuntimeError::Machine(format!("the socket that was given: {error}")))
}

/// Tells the service manager, if there is one.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager was not told");
    }
}

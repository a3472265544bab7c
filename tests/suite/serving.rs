//! `serve`: what is asked over HTTP is what the program says without it, whoever else asks; what cannot
//! be done is refused by name; nobody can hold what others need.

mod answers;
mod calls;
mod clients;
mod confined;
mod constraints;
mod crowd;
mod described;
mod document;
mod embeddings;
mod faults;
mod keys;
mod lifetime;
mod limits;
mod mistakes;
mod odd;
mod origins;
mod page;
mod tls;
mod traces;

use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use weir_tests::places::root;
use weir_tests::server::Server;
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// A check with its name.
type Check = (&'static str, fn() -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let checks: [Check; 42] = [
        ("answers", answers::answers),
        ("streams", answers::streams),
        ("probabilities", answers::probabilities),
        ("mistakes", mistakes::mistakes),
        ("company", crowd::company),
        ("queue", limits::queue),
        ("gone", || faults::gone(40)),
        ("killed", faults::killed),
        ("keys", keys::keys),
        ("limits", limits::limits),
        ("pace", limits::pace),
        ("places", limits::places),
        ("proxied", limits::proxied),
        ("large_bodies", limits::large_bodies),
        ("drain", lifetime::drain),
        ("overdue", limits::overdue),
        ("notices", lifetime::notices),
        ("constraints_kept", constraints::kept),
        ("constraints_behind_thoughts", constraints::behind_thoughts),
        ("constraints_in_company", constraints::in_company),
        ("constraints_refused", constraints::refused),
        ("calls_forced", calls::forced),
        ("calls_forced_elsewhere", calls::forced_elsewhere),
        ("calls_refused", calls::refused),
        ("forms_elsewhere", calls::forms_elsewhere),
        ("embeddings", embeddings::given),
        ("embeddings_refused", embeddings::refused),
        ("traces", traces::written),
        ("described", described::described),
        ("described_refusals", described::described_refusals),
        ("odd", || odd::odd(2000, 1)),
        ("clients/python", clients::python),
        ("clients/javascript", clients::javascript),
        ("confined", confined::confined),
        ("replaced_keys", confined::replaced_keys),
        ("own_pages", origins::own_pages),
        ("allowed_pages", origins::allowed_pages),
        ("tls/asked", tls::asked),
        ("tls/openssl", tls::openssl),
        ("tls/replaced", tls::replaced),
        ("tls/strangers", tls::strangers),
        ("tls/given_socket", tls::given_socket),
    ];
    let mut trials: Vec<Trial> =
        (checks.into_iter()).map(|(name, check)| trial(format!("serving/{name}"), check)).collect();
    let long: [Check; 4] = [
        ("company_of_1000", || crowd::crowd(1000, 8)),
        ("gone_1000", || faults::gone(1000)),
        ("odd_100000", || odd::odd(100_000, 2)),
        ("slow_10000", || faults::slow(10_000)),
    ];
    trials.extend(
        long.into_iter()
            .map(|(name, check)| trial(format!("serving/{name}"), check).with_ignored_flag(true)),
    );
    let has_browser = page::can_run();
    if !has_browser {
        println!("no chromedriver and chromium: the tests of the page are not run");
    }
    let seen: [Check; 3] = [
        ("page/conversation", page::conversation),
        ("page/embeddings", page::embeddings),
        ("page/live_view", page::live_view),
    ];
    trials.extend(seen.into_iter().map(|(name, check)| {
        trial(format!("serving/{name}"), check).with_ignored_flag(!has_browser)
    }));
    trials
}

const PROMPT: &str = "Once upon a time";

/// A program for all checks that ask for an answer: it is compiled once.
fn program() -> Result<Arc<Binary>> {
    static PROGRAM: OnceLock<Arc<Binary>> = OnceLock::new();
    let kv = "snapstream,rows=128,sinks=4,recent=32,window=8";
    compiled(&PROGRAM, "models/tales/onnx-genai-int4", 1024, kv)
}

/// One for all checks that need an answer to take its time.
fn slow_program() -> Result<Arc<Binary>> {
    static PROGRAM: OnceLock<Arc<Binary>> = OnceLock::new();
    compiled(&PROGRAM, "models/recall/onnx", 8192, "full")
}

fn compiled(
    place: &OnceLock<Arc<Binary>>,
    model: &str,
    context: u32,
    kv: &str,
) -> Result<Arc<Binary>> {
    if let Some(program) = place.get() {
        return Ok(Arc::clone(program));
    }
    let setup = Setup {
        context,
        kv: kv.to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 4,
    };
    let program = Binary::compile(&root().join(model), &setup)?;
    Ok(Arc::clone(place.get_or_init(|| Arc::new(program))))
}

fn start(options: &[&str]) -> Result<Server> {
    Server::start(program()?.as_ref(), options)
}

fn start_slow(options: &[&str]) -> Result<Server> {
    Server::start(slow_program()?.as_ref(), options)
}

/// What the program's own command writes.
fn generated(arguments: &[&str]) -> Result<Value> {
    let command = [&["generate", "--json", "--prompt", PROMPT], arguments].concat();
    Ok(serde_json::from_str(&program()?.run(&command)?)?)
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

/// A request that takes its time.
fn long_one() -> Value {
    completion(json!({"max_tokens": 8000, "ignore_eos": true, "stream": true}))
}

fn begin(server: &Server, body: &Value) -> Result<TcpStream> {
    server.begin("POST", "/v1/completions", &[], &body.to_string())
}

//! Whole runs against a server of canned answers, which does what its prompts say.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser;

use super::*;
use crate::traffic::outcome::Kind;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    load: Load,
}

/// What the server was asked, as JSON, in order.
type Asked = Arc<Mutex<Vec<Value>>>;

/// A server that lives as long as the test; its address, and what it was asked.
fn serve() -> (String, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let asked = Asked::default();
    let heard = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let heard = heard.clone();
            // A client that has gone is no concern of the server's.
            std::thread::spawn(move || answer(stream, &heard).ok());
        }
    });
    (format!("http://{address}"), asked)
}

/// Answers one request: `refuse`, `break`, `wrong`, `hang` and `count` in a prompt say how.
fn answer(mut stream: TcpStream, asked: &Asked) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    while reader.read_line(&mut head)? > 2 {
        let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap_or(0);
        }
    }
    if head.starts_with("GET /v1/models") {
        let text = r#"{"object":"list","data":[{"id":"tiny"},{"id":"other"}]}"#;
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut body: Value = serde_json::from_slice(&body)?;
    body["authorised"] = head.to_ascii_lowercase().contains("authorization: bearer secret").into();
    let is_chat = head.starts_with("POST /v1/chat/completions");
    let prompt = if is_chat { &body["messages"][0]["content"] } else { &body["prompt"] };
    let prompt = prompt.as_str().unwrap_or_default().to_owned();
    let number = {
        let mut asked = asked.lock().expect("no test holds it while it panics");
        asked.push(body);
        asked.len()
    };
    match prompt.as_str() {
        "refuse" => {
            let text = r#"{"error":{"message":"too many requests","code":429}}"#;
            let length = text.len();
            return write!(stream, "HTTP/1.1 429 Busy\r\ncontent-length: {length}\r\n\r\n{text}");
        }
        "hang" => std::thread::sleep(Duration::from_secs(30)),
        _ => {}
    }
    let words = if prompt == "count" { format!("number {number}") } else { "a b".to_owned() };
    let mut events = String::from(": hello\r\n\r\n");
    let mut push = |event: Value| events += &format!("data: {event}\r\n\r\n");
    if is_chat {
        push(json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}));
    }
    for word in words.split_inclusive(' ') {
        push(match is_chat {
            true => json!({"choices": [{"delta": {"content": word}}]}),
            false => json!({"choices": [{"text": word}]}),
        });
    }
    match prompt.as_str() {
        "break" => {}
        "wrong" => push(json!({"error": {"message": "out of memory"}})),
        _ => {
            push(json!({"choices": [{"text": "", "delta": {}, "finish_reason": "stop"}]}));
            push(json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}));
            events += "data: [DONE]\r\n\r\n";
        }
    }
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")?;
    write!(stream, "transfer-encoding: chunked\r\n\r\n")?;
    for piece in events.as_bytes().chunks(17) {
        write!(stream, "{:x}\r\n", piece.len())?;
        stream.write_all(piece)?;
        write!(stream, "\r\n")?;
        stream.flush()?;
    }
    write!(stream, "0\r\n\r\n")
}

/// Measures with options that have no space in them, and the prompts of a file if there are any.
fn measure(url: &str, options: &str, prompts: &[&str]) -> Result<Measured, Failure> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("prompts.jsonl");
    let lines: Vec<String> =
        prompts.iter().map(|prompt| json!({"prompt": prompt}).to_string()).collect();
    std::fs::write(&path, lines.join("\n")).expect("a file");
    let mut words = vec!["load", "--quiet", "--url", url];
    words.extend(options.split_whitespace());
    if !prompts.is_empty() {
        words.extend(["--dataset", path.to_str().expect("a UTF-8 path")]);
    }
    let load = Line::try_parse_from(words).expect("options").load;
    load.measure(&mut |_, _| Ok(()))
}

#[test]
fn answers_are_measured_and_requests_are_as_asked() {
    let (url, asked) = serve();
    let options = "--prompt x --requests 5 --concurrency 2 --max-tokens 9 --temperature 0.5 \
                   --ignore-eos --warmup 2 --api-key secret";
    let measured = measure(&url, options, &[]).expect("figures");
    let figures = &measured.figures[0];
    assert_eq!((figures.sent, figures.completed, measured.model.as_str()), (5, 5, "tiny"));
    assert_eq!((figures.prompt_tokens, figures.output_tokens), (Some(35), 15));
    assert_eq!((figures.most_at_once, figures.late), (2, None));
    let (first, whole) = (figures.first.expect("tokens"), figures.whole.expect("answers"));
    assert!(0.0 < first.median && first.max <= whole.max);
    assert!(figures.gaps.is_some() && figures.per_token.is_some());
    assert!(measured.verdict().is_ok());
    let asked = asked.lock().expect("the server is done");
    // Those of the warm-up were asked, too.
    assert_eq!(asked.len(), 7);
    let expected = json!({
        "model": "tiny",
        "stream": true,
        "stream_options": {"include_usage": true},
        "temperature": 0.5,
        "ignore_eos": true,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "authorised": true,
    });
    assert_eq!(asked[0], expected);
}

#[test]
fn failures_are_counted_by_kind_and_end_nothing() {
    let (url, asked) = serve();
    let prompts = ["a", "refuse", "break", "wrong", "hang", "b"];
    let options = "--endpoint completions --model m --requests 6 --concurrency 3 --timeout 2";
    let measured = measure(&url, options, &prompts).expect("figures");
    let figures = &measured.figures[0];
    assert_eq!((figures.sent, figures.completed, figures.failed()), (6, 2, 4));
    let kind = |kind| figures.failures.get(&kind).map(|failures| failures.example.as_str());
    assert_eq!(kind(Kind::Status(429)), Some("too many requests"));
    // The first of two, whichever that was.
    let streams = [Some("the answer ended before the model did"), Some("out of memory")];
    assert!(streams.contains(&kind(Kind::Stream)), "{:?}", figures.failures);
    assert_eq!(figures.failures[&Kind::Stream].count, 2);
    assert_eq!(kind(Kind::Timeout), Some("no whole answer in 2 s"));
    let verdict = measured.verdict().expect_err("failures");
    assert_eq!((verdict.code, verdict.message.as_str()), (1, "4 of 6 requests failed"));
    let asked = asked.lock().expect("the server is done");
    let models: BTreeSet<&str> = asked.iter().filter_map(|body| body["model"].as_str()).collect();
    assert_eq!(models, BTreeSet::from(["m"]));
    assert!(asked.iter().any(|body| body["prompt"] == "b"));
}

#[test]
fn a_server_that_is_not_there_is_a_failure_of_each_request() {
    // Nobody listens at a port of the system's.
    let url = "http://127.0.0.1:1";
    let measured = measure(url, "--prompt x --model m --requests 3", &[]).expect("figures");
    assert_eq!(measured.figures[0].failures[&Kind::Connection].count, 3);
    assert_eq!(measured.figures[0].json("m")["mean_ttft_ms"], Value::Null);
    let failure = measure(url, "--prompt x --requests 3", &[]).expect_err("no model");
    assert!(failure.code == 1 && failure.message.contains("refused"), "{failure}");
}

#[test]
fn enough_failures_end_the_run() {
    let (url, asked) = serve();
    let options = "--prompt refuse --concurrency 1 --stop-after-failures 3 --rate inf --rate inf";
    let measured = measure(&url, options, &[]).expect("figures");
    assert_eq!((measured.figures.len(), measured.figures[0].sent), (1, 3));
    assert_eq!(asked.lock().expect("the server is done").len(), 3);
    let failure = measure(&url, "--prompt refuse --warmup 5 --requests 1", &[]);
    assert!(failure.is_err_and(|failure| failure.message.contains("HTTP 429: too many requests")));
}

/// The second request is answered while the first, which hangs, is not: no answer delays a request.
#[test]
fn arrivals_do_not_wait_for_answers() {
    let (url, _) = serve();
    let start = Instant::now();
    let options = "--rate 50 --rate 100 --requests 20 --timeout 2 --model m";
    let measured = measure(&url, options, &["hang", "a", "a", "a"]).expect("figures");
    for (figures, rate) in measured.figures.iter().zip([50.0, 100.0]) {
        assert_eq!((figures.completed, figures.failed()), (15, 5));
        assert!(figures.offered.rate() == Some(rate) && figures.late.is_some());
        assert!(figures.most_at_once >= 5);
    }
    // Ten hang for two seconds each; one after the other they would take twenty.
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_trace_is_replayed_at_its_times() {
    let (url, asked) = serve();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    let trace = concat!(
        "{\"at\": 0.0, \"prompt\": \"first\", \"max_tokens\": 3}\n",
        "{\"at\": 0.1, \"prompt_tokens\": 4}\n",
        "{\"at\": 0.3}\n",
        "{\"at\": 90, \"prompt\": \"too late\"}\n",
    );
    let (trace, text) = (put("trace.jsonl", trace), put("text.txt", "w w w w w w w w"));
    let options = format!("--trace {trace} --dataset {text} --prompt-words 2 --duration 5");
    let measured = measure(&url, &options, &[]).expect("figures");
    let figures = &measured.figures[0];
    assert_eq!((figures.completed, figures.offered), (3, Offered::Trace));
    assert!((0.3..60.0).contains(&figures.seconds), "{}", figures.seconds);
    let asked = asked.lock().expect("the server is done");
    let of = |body: &Value| (body["messages"][0]["content"].clone(), body["max_tokens"].clone());
    let asked: Vec<_> = asked.iter().map(of).collect();
    let expected = [("first", 3), ("w w w", 128), ("w w", 128)];
    assert_eq!(asked, expected.map(|(text, tokens)| (json!(text), json!(tokens))));
}

#[test]
fn answers_that_differ_are_told() {
    let (url, asked) = serve();
    let options = "--same-answer --requests 4 --concurrency 2 --prompt";
    let measured = measure(&url, &format!("{options} x"), &[]).expect("figures");
    assert!(measured.verdict().is_ok() && measured.texts.len() == 1);
    assert_eq!(asked.lock().expect("the server is done")[0]["temperature"], json!(0.0));
    let measured = measure(&url, &format!("{options} count"), &[]).expect("figures");
    let verdict = measured.verdict().expect_err("different answers");
    let told = "3 of 4 answers differ from the most frequent one; there are 4 texts";
    assert_eq!((verdict.code, verdict.message.as_str()), (1, told));
}

#[test]
fn wrong_options_are_refused_before_anything_is_sent() {
    let url = "http://127.0.0.1:1";
    for (options, message) in [
        ("--requests 1", "give --prompt or --dataset"),
        ("--prompt x --rate 2 --concurrency 3", "--concurrency belongs to --rate inf"),
        ("--prompt x --duration 5", "--rate inf with --duration needs --concurrency"),
        ("--prompt x --plot no/x.svg", "--plot draws latencies against rates"),
        ("--prompt x --same-answer --temperature 1", "--same-answer needs --temperature 0"),
        ("--trace no/such", "--trace no/such: No such file"),
        ("--trace no/such --warmup 1", "--warmup needs --prompt or --dataset"),
        ("--prompt x --api-key-file no/such", "--api-key-file no/such: No such file"),
    ] {
        let failure = measure(url, options, &[]).expect_err(options);
        assert!(failure.message.contains(message), "{failure}");
        assert_eq!(failure.code, 2);
    }
    for options in ["--rate 0", "--rate nan", "--duration -1", "--burstiness inf", "--requests 0"] {
        let words = ["load", "--url", url, "--prompt", "x"].into_iter().chain(options.split(' '));
        assert!(Line::try_parse_from(words).is_err(), "{options}");
    }
}

/// A key in a file ends with its line, which is no part of it, and goes before other keys.
#[test]
fn a_key_is_read_from_a_file() {
    let (url, asked) = serve();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("key");
    let options =
        format!("--prompt x --requests 1 --api-key x --api-key-file {}", Path::display(&path));
    std::fs::write(&path, "secret\n").expect("a file");
    measure(&url, &options, &[]).expect("figures");
    assert_eq!(asked.lock().expect("the server is done")[0]["authorised"], true);
    std::fs::write(&path, "name secret\n").expect("a file");
    let failure = measure(&url, &options, &[]).expect_err("a name is no key");
    assert!(failure.code == 2 && failure.message.contains("there must be one key"), "{failure}");
}

//! Nobody can hold what others need: slots, places in the queue, connections, memory, time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::server::Server;

use super::{begin, completion, long_one, start, start_slow};

pub fn queue() -> Result<()> {
    let server = start_slow(&["--queue", "2"])?;
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(begin(&server, &long_one())?);
    }
    server.until("four answers and two that wait", |status| {
        status["slots"]["running"] == 4 && status["slots"]["waiting"] == 2
    })?;
    let refused = server.post("/v1/completions", &completion(json!({})))?;
    ensure!(refused.status == 429, "{} {}", refused.status, refused.body);
    ensure!(refused.header("retry-after").is_some(), "{refused:?}");
    ensure!(refused.json()?["error"]["type"] == "rate_limit_error", "{}", refused.body);
    drop(streams);
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    server.post_ok("/v1/completions", &completion(json!({})))?;
    Ok(())
}

/// More may wait than two a slot where as many are answered in ten seconds.
pub fn pace() -> Result<()> {
    let server = start_slow(&[])?;
    let short = completion(json!({"max_tokens": 1}));
    for _ in 0..16 {
        server.post_ok("/v1/completions", &short)?;
    }
    let streams = (0..20).map(|_| begin(&server, &long_one())).collect::<Result<Vec<_>>>()?;
    server.until("four answers and sixteen that wait", |status| {
        status["slots"]["running"] == 4 && status["slots"]["waiting"] == 16
    })?;
    let grammar = completion(json!({"response_format": {"type": "json_object"}}));
    let refused = server.post("/v1/completions", &grammar)?;
    ensure!(refused.status == 429, "a grammar among many: {} {}", refused.status, refused.body);
    drop(streams);
    server.until("an empty server", |status| status["slots"]["running"] == 0)
}

/// One address, a proxy's for one, can use all slots and places in the queue; what bounds it are its
/// silent connections.
pub fn proxied() -> Result<()> {
    let server = start_slow(&["--queue", "4", "--connections-per-address", "3"])?;
    let mut answered = Vec::new();
    for count in 1..=8 {
        answered.push(begin(&server, &long_one())?);
        server.until("another answer that is given or waits", |status| {
            let slots = &status["slots"];
            slots["running"].as_u64().zip(slots["waiting"].as_u64()).map(|(a, b)| a + b)
                == Some(count)
        })?;
    }
    let _silent = all_silent(&server, 3)?;
    for stream in &mut answered[..4] {
        stream.read_exact(&mut [0; 16])?;
    }
    Ok(())
}

/// As many connections as one address may have on which nothing is being answered; one more is refused.
fn all_silent(server: &Server, most: usize) -> Result<Vec<TcpStream>> {
    let begin = || -> Result<TcpStream> {
        let mut stream = server.connect()?;
        stream.write_all(b"GET / HT")?;
        Ok(stream)
    };
    let silent = (0..most).map(|_| begin()).collect::<Result<Vec<_>>>()?;
    let refused = server.get("/v1/models");
    ensure!(refused.is_err(), "{most} silent connections and one of one address: {refused:?}");
    Ok(silent)
}

pub fn limits() -> Result<()> {
    let server = start(&["--connections-per-address", "8"])?;
    // More than the buffers of a connection hold.
    let long = format!("{{\"prompt\": \"{}\"}}", "a".repeat(12 << 20));
    // Whoever is refused reads it, also where he reads nothing before he has sent everything.
    for _ in 0..16 {
        let response = server.ask("POST", "/v1/completions", &[], &long)?;
        ensure!(response.status == 413, "a long body: {}", response.status);
    }
    let path = format!("/v1/models?{}", "a".repeat(9000));
    ensure!(server.get(&path)?.status == 414, "a long URL");
    let field = format!("x: {}", "a".repeat(20_000));
    ensure!(server.ask("GET", "/v1/models", &[&field], "")?.status == 431, "a long head");
    let fields = vec!["x: y"; 120];
    ensure!(server.ask("GET", "/v1/models", &fields, "")?.status == 431, "many fields");
    // Those who say nothing keep others of their address out, and are sent away themselves.
    let begin = std::time::Instant::now();
    for mut stream in all_silent(&server, 8)? {
        let mut answer = Vec::new();
        // Closed, or reset.
        let _ = stream.read_to_end(&mut answer);
    }
    ensure!(begin.elapsed() < Duration::from_secs(60), "silent connections stay");
    ensure!(server.get("/v1/models")?.status == 200, "the server is there");
    Ok(())
}

/// Where all places are taken, the longest silent makes room, and nobody who is being answered.
pub fn places() -> Result<()> {
    let server = start_slow(&["--connections", "3"])?;
    let mut answered = begin(&server, &long_one())?;
    let mut first = [0; 16];
    answered.read_exact(&mut first)?;
    ensure!(first.starts_with(b"HTTP/1.1 200"), "{first:?}");
    let silent = |bytes: &[u8]| -> Result<_> {
        let mut stream = server.connect()?;
        stream.write_all(bytes)?;
        Ok(stream)
    };
    let ended = |mut stream: TcpStream| -> Result<()> {
        // Closed, or reset, before its time.
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let ended = stream.read(&mut [0; 64]);
        let reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        ensure!(matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(reset), "{ended:?}");
        Ok(())
    };
    let body = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 40\r\n\r\n{";
    let (longest, other) = (silent(body)?, silent(b"GET / HT")?);
    // Each takes a place, and gives it back once it is answered.
    for _ in 0..8 {
        ensure!(server.get("/health/live")?.status == 200, "no place for a question");
    }
    ended(longest)?;
    let metrics = server.get("/metrics")?.body;
    let dismissed = metrics.lines().find_map(|line| {
        line.strip_prefix("weir:connections_dismissed_total")?.split(' ').next_back()?.parse().ok()
    });
    ensure!(dismissed.is_some_and(|count: u64| count >= 1), "{metrics}");
    // Nobody who is being answered makes room.
    let mut answered = vec![answered, begin(&server, &long_one())?, begin(&server, &long_one())?];
    for stream in &mut answered {
        stream.read_exact(&mut first)?;
    }
    ended(other)?;
    let refused = server.get("/health/live");
    ensure!(refused.is_err(), "a fourth connection: {refused:?}");
    for stream in &mut answered {
        stream.read_exact(&mut first)?;
    }
    Ok(())
}

/// Bodies that become much more than they are keep below the ceiling that was printed.
pub fn large_bodies() -> Result<()> {
    let server = Arc::new(start(&[])?);
    let text = "/v1/completions";
    let talk = "/v1/chat/completions";
    let bodies = [
        (text, format!("{{\"prompt\": \"{}\"}}", "a ".repeat(1_900_000))),
        (text, format!("{{\"prompt\": \"{}\"}}", "\\u0041".repeat(600_000))),
        (text, format!("{{\"prompt\": [{}1]}}", "1,".repeat(1_900_000))),
        (text, format!("{{\"prompt\": [{}[1]]}}", "[1],".repeat(900_000))),
        (text, format!("{{\"prompt\": \"a\", \"stop\": [{}\"a\"]}}", "\"a\",".repeat(900_000))),
        (text, format!("{{\"prompt\": \"a\", \"tools\": [{}1]}}", "1,".repeat(1_900_000))),
        (
            talk,
            format!(
                "{{\"messages\": [{}{{}}]}}",
                "{\"role\":\"user\",\"content\":\"\"},".repeat(110_000)
            ),
        ),
        (
            talk,
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": [{}{{}}]}}]}}",
                "{\"type\":\"text\",\"text\":\"\"},".repeat(130_000)
            ),
        ),
    ];
    for (path, body) in bodies {
        let body = Arc::new(body);
        let threads: Vec<_> = (0..12)
            .map(|_| {
                let (server, body) = (Arc::clone(&server), Arc::clone(&body));
                std::thread::spawn(move || server.ask("POST", path, &[], &body))
            })
            .collect();
        for thread in threads {
            let response = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            // A server that refuses closes before it has read everything, which a client may notice first.
            let Ok(response) = response else { continue };
            let refused = [400, 413, 503].contains(&response.status);
            ensure!(refused, "{path}: {} {}", response.status, response.body);
        }
    }
    let ceiling = server.get("/status")?.json()?["memory"]["ceiling_bytes"].clone();
    let ceiling = ceiling.as_u64().context("a ceiling")?;
    let most = server.memory("VmHWM")?;
    ensure!(most * 1024 <= ceiling, "{most} KiB were resident, {ceiling} bytes are the ceiling");
    Ok(())
}

pub fn overdue() -> Result<()> {
    let options = ["--slots", "1", "--request-timeout", "1", "--queue", "1", "--threads", "1"];
    let server = start_slow(&options)?;
    let mut body = long_one();
    body["stream"] = false.into();
    // Two answers in one slot: the second begins when the first has ended.
    body["n"] = 2.into();
    let response = server.post("/v1/completions", &body)?;
    ensure!(response.status == 504, "{} {}", response.status, response.body);
    ensure!(response.json()?["error"]["code"] == "deadline_exceeded", "{}", response.body);
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    Ok(())
}

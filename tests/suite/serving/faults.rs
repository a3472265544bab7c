//! What goes wrong around a server: it is killed and started again, clients vanish in the middle of an
//! answer, thousands hold connections and say next to nothing.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use weir_tests::server::Server;
use weir_tests::systems::Binary;

use super::{PROMPT, begin, compiled, completion, generated, long_one, program};

/// Killed in the middle of its work and started where it was, it answers as before.
pub fn killed() -> Result<()> {
    let binary = program()?;
    let expected = generated(&["--max-tokens", "24"])?["text"].clone();
    let mut server = Server::start(&binary, &[])?;
    let port = server.address().port();
    for _ in 0..3 {
        let busy = json!({"max_tokens": 900, "ignore_eos": true, "stream": true, "n": 4});
        let mut stream = begin(&server, &completion(busy))?;
        ensure!(stream.read(&mut [0; 64])? > 0, "nothing was answered");
        server.signal("KILL")?;
        ensure!(!server.wait()?.success(), "it ended by itself");
        let started = Instant::now();
        server = Server::start_at(&binary, port, &[], &[])?;
        ensure!(server.get("/health/ready")?.status == 200, "it is not ready");
        println!("serving/killed: ready after {} ms", started.elapsed().as_millis());
        let whole = server.post_ok("/v1/completions", &completion(json!({})))?;
        ensure!(whole["choices"][0]["text"] == expected, "{whole} instead of {expected}");
    }
    Ok(())
}

/// Clients that go while they are being answered leave no slot taken and no memory behind.
pub fn gone(clients: u32) -> Result<()> {
    // Answers that would take seconds in caches that are soon full.
    static PROGRAM: OnceLock<Arc<Binary>> = OnceLock::new();
    let kv = "snapstream,rows=128,sinks=4,recent=32,window=8";
    let binary = compiled(&PROGRAM, "models/recall/onnx", 8192, kv)?;
    let server = Server::start(&binary, &[])?;
    let is_empty =
        |status: &Value| status["slots"]["running"] == 0 && status["slots"]["waiting"] == 0;
    let some = |count: u32| -> Result<()> {
        for number in 0..count {
            let mut body = long_one();
            body["stream"] = (number % 2 == 0).into();
            let mut stream = begin(&server, &body)?;
            if number % 3 == 0 {
                // The beginning of another request, which nobody reads while this one is answered.
                stream.write_all(b"G")?;
            }
            if number % 4 == 0 {
                // In the middle of an answer, or refused while those before are not yet missed.
                ensure!(stream.read(&mut [0; 64])? > 0, "nothing was answered");
            }
            drop(stream);
        }
        // What has been sent before they went is read before what is sent now.
        let begin = Instant::now();
        while server.post("/v1/completions", &completion(json!({})))?.status == 429 {
            ensure!(begin.elapsed() < Duration::from_secs(60), "those who have gone keep places");
        }
        server.until("an empty server", is_empty)
    };
    // Every row of every slot is used once, and pools of the allocator and of threads have their size.
    let full = json!({"prompt": "One dog. ".repeat(200), "n": 4, "temperature": 1});
    server.post_ok("/v1/completions", &completion(full))?;
    some(40)?;
    let before = server.memory("RssAnon")?;
    some(clients)?;
    let after = server.memory("RssAnon")?;
    println!("serving/gone: {before} KiB before {clients} clients that went, {after} KiB after");
    // 30 KiB a thousand were seen. One in ten that left its head's buffer of 16 KiB behind would show.
    let room = 512 + u64::from(clients) * 16 / 10;
    ensure!(after <= before + room, "{before} KiB were resident, and {after} are");
    let said = server.said();
    ensure!(!said.iter().any(|line| line.contains("panicked")), "{said:?}");
    Ok(())
}

/// Holds that many connections that say a byte now and then, a part in their heads and a part in their
/// bodies, from as many addresses as it takes; others are answered meanwhile.
pub fn slow(sockets: usize) -> Result<()> {
    // Some are the suite's own.
    let needed = sockets as u64 + 100;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let maximum = limit.maximum.map(|maximum| maximum.max(needed));
        let wanted = Rlimit { current: Some(needed), maximum };
        setrlimit(Resource::Nofile, wanted).context("as many open files are not allowed")?;
    }
    let binary = program()?;
    let expected = generated(&["--max-tokens", "24"])?["text"].clone();
    // Room for all of them: what they cost others is asked, not whether they are kept out.
    let wide = Server::start(&binary, &["--connections", &(sockets + 100).to_string()])?;
    hold_and_ask(&wide, sockets, &expected)?;
    // With the limits of every day the longest silent make room for those that come.
    let narrow = Server::start(&binary, &[])?;
    hold_and_ask(&narrow, sockets, &expected)
}

fn hold_and_ask(server: &Server, sockets: usize, expected: &Value) -> Result<()> {
    let mut held = Vec::with_capacity(sockets);
    for number in 0..sockets {
        // Fifty of each address, of which 64 are allowed.
        let [_, _, high, low] = (number as u32 / 50 + 2).to_be_bytes();
        let mut stream = connect_from(Ipv4Addr::new(127, 1, high, low), server.address())?;
        stream.set_nonblocking(true)?;
        let first: &[u8] = match number % 2 {
            0 => b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n",
            _ => {
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n{"
            }
        };
        // Closed at once where there is no room.
        let _ = stream.write(first);
        held.push(stream);
    }
    let held = Arc::new(held);
    let talking = {
        let held = Arc::clone(&held);
        std::thread::spawn(move || {
            for _ in 0..8 {
                for stream in held.iter() {
                    let _ = (&*stream).write(b"x");
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        })
    };
    let ask = || -> Result<()> {
        let whole = server.post_ok("/v1/completions", &completion(json!({})))?;
        ensure!(whole["choices"][0]["text"] == *expected, "{whole} instead of {expected}");
        Ok(())
    };
    let mut answered = 0;
    while !talking.is_finished() {
        ask()?;
        answered += 1;
    }
    talking.join().map_err(|_| anyhow!("a client panicked"))?;
    ensure!(answered > 0, "nobody was answered");
    println!("serving/slow: {answered} answers of {PROMPT:?} beside {sockets} slow connections");
    let said = server.said();
    ensure!(!said.iter().any(|line| line.contains("panicked")), "{said:?}");
    let (most, ceiling) = (server.memory("VmHWM")?, server.get("/status")?.json()?);
    let ceiling = ceiling["memory"]["ceiling_bytes"].as_u64().context("a ceiling")?;
    ensure!(most * 1024 <= ceiling, "{most} KiB were resident, {ceiling} bytes are the ceiling");
    Ok(())
}

/// A connection whose own address is this one.
fn connect_from(own: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(own, 0))?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

//! From the first notice to the last answer: a server says when it listens and when it stops, and what it
//! finishes.

use std::io::Read;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use weir_tests::server::{Server, read_response};

use super::answers::joined;
use super::{begin, completion, long_one, program, start_slow};

pub fn drain() -> Result<()> {
    let server = start_slow(&[])?;
    let mut body = completion(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true}));
    let mut stream = begin(&server, &body)?;
    body["stream"] = false.into();
    server.until("an answer that is being given", |status| status["slots"]["running"] == 1)?;
    server.signal("TERM")?;
    let started = std::time::Instant::now();
    loop {
        // Until the last answer is given it says that it takes no more.
        match server.get("/health/ready") {
            Ok(response) if response.status == 503 => {
                let refused = server.post("/v1/completions", &body);
                if let Ok(refused) = refused {
                    ensure!(refused.status == 503, "{} {}", refused.status, refused.body);
                }
                break;
            }
            Ok(_) => {}
            Err(_) => break,
        }
        ensure!(started.elapsed() < Duration::from_secs(60), "it goes on as if nothing were");
    }
    let (texts, _) = joined(&read_response(&mut stream)?, 1, "text")?;
    ensure!(texts[0].1 == "length", "the answer was cut: {texts:?}");
    let status = server.wait()?;
    ensure!(status.success(), "{status}");
    // One that takes too long is cut.
    let server = start_slow(&["--drain", "0"])?;
    let mut stream = begin(&server, &long_one())?;
    server.until("an answer that is being given", |status| status["slots"]["running"] == 1)?;
    server.signal("INT")?;
    ensure!(server.wait()?.success(), "it was told to stop");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    if String::from_utf8_lossy(&rest).contains("[DONE]") {
        bail!("the answer of 8000 tokens was given in no time");
    }
    Ok(())
}

/// A service manager hears when the server listens and when it drains; a key comes from the environment.
pub fn notices() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_secs(60)))?;
    let environment = [("NOTIFY_SOCKET", path.as_os_str()), ("WEIR_API_KEY", "key".as_ref())];
    let server = Server::start_in(program()?.as_ref(), &[], &environment)?;
    let hear = || -> Result<String> {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    };
    ensure!(hear()? == "READY=1", "it did not say that it listens");
    ensure!(server.get("/v1/models")?.status == 401, "without the key");
    let field = "authorization: Bearer key";
    ensure!(server.ask("GET", "/v1/models", &[field], "")?.status == 200, "with the key");
    server.signal("TERM")?;
    ensure!(hear()? == "STOPPING=1", "it did not say that it stops");
    ensure!(server.wait()?.success(), "it was told to stop");
    Ok(())
}

//! Who has a key is answered, also after the keys were read again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{completion, program, start};

pub fn keys() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("keys");
    std::fs::write(&file, "alice first-key # hers\n")?;
    let path = file.to_string_lossy().into_owned();
    let server = start(&["--api-key-file", &path])?;
    let status = |key: Option<&str>, path: &str| -> Result<u16> {
        let field = key.map(|key| format!("authorization: Bearer {key}"));
        let fields: Vec<&str> = field.iter().map(String::as_str).collect();
        Ok(server.ask("GET", path, &fields, "")?.status)
    };
    for path in ["/v1/models", "/metrics", "/status"] {
        ensure!(status(None, path)? == 401, "{path} without a key");
        ensure!(status(Some("first-ke"), path)? == 401, "{path} with half a key");
        ensure!(status(Some("alice"), path)? == 401, "{path} with a name");
        ensure!(status(Some("first-key"), path)? == 200, "{path} with a key");
    }
    for path in ["/health/live", "/health/ready", "/"] {
        ensure!(status(None, path)? == 200, "{path} needs no key");
    }
    let refused = server.post("/v1/completions", &completion(json!({})))?;
    ensure!(refused.json()?["error"]["type"] == "authentication_error", "{}", refused.body);
    std::fs::write(&file, "second-key\n")?;
    server.signal("HUP")?;
    let begin = std::time::Instant::now();
    while status(Some("second-key"), "/v1/models")? != 200 {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the keys were not read again");
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(status(Some("first-key"), "/v1/models")? == 401, "a key that is valid no more");
    // What cannot be read changes nothing.
    std::fs::write(&file, "too many words\n")?;
    server.signal("HUP")?;
    std::thread::sleep(Duration::from_millis(200));
    ensure!(status(Some("second-key"), "/v1/models")? == 200, "the keys were lost");
    // Where others reach it, a key is needed.
    let refused = program()?.run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    let refused = refused.err().context("it listens for everybody")?.to_string();
    ensure!(refused.contains("--api-key-file"), "{refused}");
    Ok(())
}

//! What a server has given up when it answers, and what it can do all the same.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::server::Server;

use super::{completion, start};

/// The kernel's word for it, for every thread; answers, the page's numbers and the end are what they
/// are without.
pub fn confined() -> Result<()> {
    let server = start(&[])?;
    let lines = server.said();
    let said = lines.iter().find(|line| line.contains("confined")).context("not a word")?;
    ensure!(said.starts_with("confined: no memory dumps, new privileges"), "{said}");
    let process = format!("/proc/{}", server.process());
    let limits = fs::read_to_string(format!("{process}/limits"))?;
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    let core: Vec<&str> = core.context("no limit of core files")?.split_whitespace().collect();
    ensure!(core[..2] == ["0", "0"], "core files may have {core:?}");
    let mut threads = 0;
    for thread in fs::read_dir(format!("{process}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let field = status.lines().find_map(|line| line.strip_prefix("NoNewPrivs:"));
        ensure!(field.map(str::trim) == Some("1"), "new privileges for a thread: {status}");
        threads += 1;
    }
    ensure!(threads >= 2, "{threads} threads, and the engine has its own");
    let answer = server.post_ok("/v1/completions", &completion(json!({})))?;
    ensure!(answer["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    let status = server.get("/status")?.json()?;
    let resident = status["memory"]["resident_bytes"].as_u64();
    ensure!(resident.is_some_and(|bytes| bytes > 1 << 20), "{status}");
    server.signal("TERM")?;
    ensure!(server.wait()?.success(), "it was told to stop");
    Ok(())
}

/// Keys are read again where the file is replaced by another, and nowhere else.
pub fn replaced_keys() -> Result<()> {
    let (folder, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let keys = folder.path().join("keys");
    fs::write(&keys, "first-key\n")?;
    let server = start(&["--log-requests", "--api-key-file", &keys.to_string_lossy()])?;
    let new = folder.path().join("new");
    fs::write(&new, "second-key\n")?;
    fs::rename(&new, &keys)?;
    server.signal("HUP")?;
    server.hears("the API keys were read again")?;
    ensure!(status(&server, "second-key")? == 200, "the new key");
    ensure!(status(&server, "first-key")? == 401, "a key that is valid no more");
    if !server.said().iter().any(|line| line.starts_with("confined") && line.contains(", files")) {
        println!("serving/replaced_keys ends here: this kernel withholds no files");
        return Ok(());
    }
    let other = elsewhere.path().join("keys");
    fs::write(&other, "third-key\n")?;
    symlink(&other, &new)?;
    fs::rename(&new, &keys)?;
    server.signal("HUP")?;
    server.hears("the API keys were not read again")?;
    ensure!(status(&server, "third-key")? == 401, "a file of another folder was read");
    ensure!(status(&server, "second-key")? == 200, "the keys were lost");
    Ok(())
}

fn status(server: &Server, key: &str) -> Result<u16> {
    let field = format!("authorization: Bearer {key}");
    Ok(server.ask("GET", "/v1/models", &[&field], "")?.status)
}

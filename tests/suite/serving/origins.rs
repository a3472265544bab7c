//! What pages of other origins may do through a browser: nothing, unless the server was told.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::server::{Response, Server, read_response};

use super::{completion, program, start};

/// A server without a key is known by this machine's names, and answers its own pages.
pub fn own_pages() -> Result<()> {
    let server = start(&[])?;
    let port = server.address().port();
    for path in ["/", "/v1/models", "/health/live"] {
        let refused = get(&server, path, "evil.example")?;
        ensure!(refused.status == 403, "{path}: {}", refused.status);
        ensure!(refused.json()?["error"]["code"] == "host_not_allowed", "{}", refused.body);
        for host in [format!("127.0.0.1:{port}"), "localhost".to_owned(), "[::1]:80".to_owned()] {
            ensure!(get(&server, path, &host)?.status == 200, "{path} of {host}");
        }
    }
    let body = completion(json!({"max_tokens": 2})).to_string();
    let post = |origin: &str| {
        let field = format!("origin: {origin}");
        server.ask("POST", "/v1/completions", &[&field], &body)
    };
    // Requests are sent to the address.
    let own = post(&format!("http://127.0.0.1:{port}"))?;
    ensure!(own.status == 200, "{}", own.body);
    ensure!(own.header("access-control-allow-origin").is_none(), "{own:?}");
    for origin in ["https://evil.example", "http://localhost:1", "null"] {
        let refused = post(origin)?;
        ensure!(refused.status == 403, "{origin}: {}", refused.status);
        ensure!(refused.json()?["error"]["code"] == "origin_not_allowed", "{}", refused.body);
        ensure!(refused.header("access-control-allow-origin").is_none(), "{refused:?}");
    }
    let asks = ["origin: https://evil.example", "access-control-request-method: POST"];
    ensure!(server.ask("OPTIONS", "/v1/completions", &asks, "")?.status == 403, "a preflight");
    // Where everybody may ask, by whatever name.
    let open = start(&["--allow-anyone", "--allow-origin", "*"])?;
    let any = get(&open, "/v1/models", "models.example")?;
    ensure!(any.status == 200, "{}", any.body);
    let any = open.ask("GET", "/v1/models", &["origin: null"], "")?;
    ensure!(any.header("access-control-allow-origin") == Some("*"), "{any:?}");
    Ok(())
}

/// Origins that the server was told ask and read answers; keys are needed all the same.
pub fn allowed_pages() -> Result<()> {
    let origin = "https://app.example";
    let server = start(&["--api-key", "key", "--allow-origin", origin])?;
    let from = format!("origin: {origin}");
    let allows = |response: &Response| {
        response.header("access-control-allow-origin") == Some(origin)
            && response.header("vary") == Some("origin")
    };
    let asks =
        [&from, "access-control-request-method: POST", "access-control-request-headers: x-a, x-b"];
    let preflight = server.ask("OPTIONS", "/v1/chat/completions", &asks, "")?;
    ensure!(preflight.status == 204 && allows(&preflight), "{preflight:?}");
    let methods = preflight.header("access-control-allow-methods");
    ensure!(methods.is_some_and(|methods| methods.contains("POST")), "{preflight:?}");
    ensure!(preflight.header("access-control-allow-headers") == Some("x-a, x-b"), "{preflight:?}");
    let without = server.ask("GET", "/v1/models", &[&from], "")?;
    ensure!(without.status == 401 && allows(&without), "{without:?}");
    let with = server.ask("GET", "/v1/models", &[&from, "authorization: Bearer key"], "")?;
    ensure!(with.status == 200 && allows(&with), "{with:?}");
    let other = ["origin: https://app.example:8443", "authorization: Bearer key"];
    ensure!(server.ask("GET", "/v1/models", &other, "")?.status == 403, "another port");
    // A key keeps strangers out, so names need not.
    ensure!(get(&server, "/health/live", "models.example")?.status == 200, "another name");
    let refused = program()?.run(&["serve", "--allow-origin", "https://app.example/page"]);
    let refused = refused.err().context("a page is taken for an origin")?.to_string();
    ensure!(refused.contains("is no origin"), "{refused}");
    Ok(())
}

fn get(server: &Server, path: &str, host: &str) -> Result<Response> {
    let mut stream = server.connect()?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    read_response(&mut stream)
}

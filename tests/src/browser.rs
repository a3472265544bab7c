//! Chromium without a screen, through `chromedriver`'s WebDriver protocol: the few commands that a test of
//! a page needs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::server::{begin, read_response};

/// Until something must have happened on a slow machine with other work beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Times that a driver is started which does not listen.
const STARTS: usize = 5;

/// Names of the browser, where distributions have it.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page; ended when it is dropped.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// What the browser writes down of itself; nothing of it outlives the test.
    _profile: tempfile::TempDir,
}

/// The driver and the browser, if this machine has both.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let find = |name: &str| {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
    };
    Some((find("chromedriver")?, BROWSERS.iter().find_map(|name| find(name))?))
}

/// Whether there is a browser to test with.
pub fn is_there() -> bool {
    programs().is_some()
}

/// A driver and the port at which it listens. Beside tests that take ports as well one has been seen to
/// end without listening, so it is started again.
fn listening(program: &Path) -> Result<(Child, u16)> {
    let mut said = Vec::new();
    for _ in 0..STARTS {
        let mut driver = Command::new(program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("chromedriver did not start")?;
        let output = driver.stdout.take().context("standard output is piped")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let port = line.split_once("started successfully on port ");
            let port = port.and_then(|(_, port)| port.trim_end_matches('.').parse::<u16>().ok());
            said.push(line);
            port
        });
        if let Some(port) = port {
            // Nobody reads what it says from here on; the pipe stays open, or it would die of writing.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((driver, port));
        }
        // It has closed its output.
        let _ = driver.kill();
        let ended = driver.wait()?;
        said.push(ended.to_string());
    }
    bail!("chromedriver does not listen: {said:?}")
}

impl Browser {
    /// Starts a browser. Names of hosts lead nowhere in it: a page reaches addresses alone.
    pub fn start() -> Result<Browser> {
        let (driver, browser) = programs().context("chromedriver and chromium are not here")?;
        let profile = tempfile::tempdir()?;
        let (driver, port) = listening(&driver)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let session = String::new();
        let mut started = Browser { driver, address, session, _profile: profile };
        let data = started._profile.path().to_string_lossy().into_owned();
        let options = json!({
            "binary": browser,
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--disable-quic", "--no-first-run", "--disable-background-networking",
                "--disable-component-update", "--disable-sync", "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                format!("--user-data-dir={data}"),
            ],
        });
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = started.ask("POST", "/session", &wanted)?;
        started.session = session["sessionId"].as_str().context("a session")?.to_owned();
        Ok(started)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let fields = ["content-type: application/json"];
        let mut stream = begin(self.address, method, path, &fields, &body)?;
        let response = read_response(&mut stream)?;
        let value = response.json()?["value"].take();
        if response.status != 200 {
            bail!("{method} {path}: {}: {}", value["error"], value["message"]);
        }
        Ok(value)
    }

    fn tell(&self, command: &str, body: &Value) -> Result<Value> {
        self.ask("POST", &format!("/session/{}/{command}", self.session), body)
    }

    /// Opens an address.
    pub fn open(&self, url: &str) -> Result<()> {
        self.tell("url", &json!({"url": url})).map(drop)
    }

    /// Loads the page again.
    pub fn reload(&self) -> Result<()> {
        self.tell("refresh", &json!({})).map(drop)
    }

    /// What a script returns, which is the body of a function of the page; a promise is waited for.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.tell("execute/sync", &json!({"script": script, "args": []})).context(script.to_owned())
    }

    /// Waits until an expression of the page is true, or something that counts as true.
    pub fn until(&self, expression: &str) -> Result<Value> {
        let start = Instant::now();
        loop {
            let value = self.run(&format!("return {expression};"))?;
            if !matches!(value, Value::Null | Value::Bool(false)) && value != 0 && value != "" {
                return Ok(value);
            }
            ensure!(start.elapsed() < PATIENCE, "{expression} did not come about: {value}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn find(&self, selector: &str) -> Result<String> {
        let found = self.tell("element", &json!({"using": "css selector", "value": selector}))?;
        let (_, id) = found.as_object().and_then(|found| found.iter().next()).context("its id")?;
        Ok(id.as_str().context("its id")?.to_owned())
    }

    /// Clicks on the first element that a selector finds, as a user does: it must be in sight.
    pub fn click(&self, selector: &str) -> Result<()> {
        let id = self.find(selector)?;
        self.tell(&format!("element/{id}/click"), &json!({})).context(selector.to_owned())?;
        Ok(())
    }

    /// Types into the first element that a selector finds.
    pub fn write(&self, selector: &str, text: &str) -> Result<()> {
        let id = self.find(selector)?;
        self.tell(&format!("element/{id}/value"), &json!({"text": text}))
            .context(selector.to_owned())?;
        Ok(())
    }

    /// A command of Chromium's own protocol.
    fn command(&self, name: &str, parameters: Value) -> Result<()> {
        self.tell("goog/cdp/execute", &json!({"cmd": name, "params": parameters})).map(drop)
    }

    /// Makes the page as large as this, in CSS pixels, on a phone or not.
    pub fn resize(&self, width: u32, height: u32, is_phone: bool) -> Result<()> {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": is_phone,
        });
        self.command("Emulation.setDeviceMetricsOverride", size)
    }

    /// Tells the page what the user prefers: `light` or `dark`.
    pub fn prefer(&self, scheme: &str) -> Result<()> {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.command("Emulation.setEmulatedMedia", json!({"features": [feature]}))
    }

    /// Lets no more than so many bytes a second through; `None`: as many as come.
    pub fn throttle(&self, bytes: Option<u32>) -> Result<()> {
        let bytes = bytes.map_or(-1, i64::from);
        let network = json!({
            "offline": false, "latency": 0, "downloadThroughput": bytes, "uploadThroughput": -1,
        });
        self.command("Network.enable", json!({}))?;
        self.command("Network.emulateNetworkConditions", network)
    }

    /// A picture of the page, PNG in base64.
    pub fn picture(&self) -> Result<String> {
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.ask("GET", &path, &Value::Null)?;
        Ok(picture.as_str().context("a picture")?.to_owned())
    }

    /// Errors on the browser's console since the last time.
    pub fn errors(&self) -> Result<Vec<String>> {
        let entries = self.tell("se/log", &json!({"type": "browser"}))?;
        let entries = entries.as_array().context("a log")?.iter();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        Ok(severe.map(|entry| entry["message"].to_string()).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // The browser is the driver's child, and ends with the session.
            let _ = self.ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

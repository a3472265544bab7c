//! A compiled program that serves, and a client that says exactly what is to be said: also what no
//! well-behaved client would say.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::systems::Binary;

/// Until something must have happened on a slow machine with other work beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server; killed when it is dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    said: Arc<Mutex<Vec<String>>>,
    /// How many of them [`Server::hears`] has gone through.
    heard: Mutex<usize>,
}

/// A response.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Fields of its head, their names in small letters.
    pub headers: Vec<(String, String)>,
    /// Its body, chunks joined.
    pub body: String,
}

impl Response {
    /// The value of a field of the head.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("not JSON: {}", self.body))
    }

    /// The data of server-sent events.
    pub fn events(&self) -> Vec<&str> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.collect()
    }
}

impl Server {
    /// Starts a program on a port of its own and waits until it listens.
    pub fn start(binary: &Binary, options: &[&str]) -> Result<Server> {
        Server::start_in(binary, options, &[])
    }

    /// The same with variables of the environment.
    pub fn start_in(
        binary: &Binary,
        options: &[&str],
        environment: &[(&str, &OsStr)],
    ) -> Result<Server> {
        Server::start_at(binary, 0, options, environment)
    }

    /// The same on a port of the caller's choice.
    pub fn start_at(
        binary: &Binary,
        port: u16,
        options: &[&str],
        environment: &[(&str, &OsStr)],
    ) -> Result<Server> {
        let mut command = Command::new(binary.path());
        command.args(["serve", "--port", &port.to_string()]).args(options);
        command.envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let errors = child.stderr.take().context("standard error is piped")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let (sender, lines) = channel();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                // Read to the end even when nobody listens: a full pipe would stop the server.
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
                let _ = sender.send(line);
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Server { child, address, said, heard: Mutex::new(0) };
        server.address = loop {
            let Ok(line) = lines.recv_timeout(PATIENCE) else {
                bail!("the server did not listen; it said {:?}", server.said());
            };
            let address = line.strip_prefix("listening at http");
            if let Some((_, address)) = address.and_then(|address| address.split_once("://")) {
                break address.parse().with_context(|| line.clone())?;
            }
        };
        Ok(server)
    }

    /// The lines that it has written, errors and panics among them.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A number of `/proc/PID/status`, in KiB: `VmRSS`, `VmHWM`.
    pub fn memory(&self, name: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
        let number = line.trim_start_matches(':').trim().trim_end_matches("kB").trim();
        number.parse().with_context(|| line.to_owned())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a line of its log that has this in it, behind those that were waited for before.
    pub fn hears(&self, part: &str) -> Result<()> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + PATIENCE;
        loop {
            while let Some(line) = self.said().get(*heard) {
                *heard += 1;
                if line.contains(part) {
                    return Ok(());
                }
            }
            ensure!(Instant::now() < until, "no {part:?} in {:?}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// A connection on which nothing has been said.
    pub fn connect(&self) -> Result<TcpStream> {
        connect(self.address)
    }

    /// Sends a request and reads its response.
    pub fn ask(&self, method: &str, path: &str, fields: &[&str], body: &str) -> Result<Response> {
        let mut stream = self.begin(method, path, fields, body)?;
        read_response(&mut stream)
    }

    /// Sends a request and leaves its response to be read.
    pub fn begin(
        &self,
        method: &str,
        path: &str,
        fields: &[&str],
        body: &str,
    ) -> Result<TcpStream> {
        begin(self.address, method, path, fields, body)
    }

    /// Asks for a path.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.ask("GET", path, &[], "")
    }

    /// Posts an object.
    pub fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.ask("POST", path, &["content-type: application/json"], &body.to_string())
    }

    /// Posts an object that must be answered.
    pub fn post_ok(&self, path: &str, body: &Value) -> Result<Value> {
        let response = self.post(path, body)?;
        ensure!(response.status == 200, "{path} {body}: {} {}", response.status, response.body);
        response.json()
    }

    /// Waits until something holds.
    pub fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let begin = Instant::now();
        loop {
            let status = self.get("/status")?.json()?;
            if holds(&status) {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "{what} did not come about: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status()?;
        ensure!(status.success(), "kill -{name}: {status}");
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub fn wait(mut self) -> Result<ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(begin.elapsed() < PATIENCE, "the server did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request to whoever listens there, and leaves the response to be read.
pub fn begin(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[&str],
    body: &str,
) -> Result<TcpStream> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for field in fields {
        head.push_str(field);
        head.push_str("\r\n");
    }
    if !body.is_empty() {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    let mut stream = connect(address)?;
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    Ok(stream)
}

/// Reads a response to its end: as many bytes as it says it has, or until the connection is closed.
pub fn read_response(stream: &mut impl Read) -> Result<Response> {
    let mut bytes = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A server that refuses a request does not read its rest, and the system resets the connection;
            // what was answered before that counts.
            Err(error) => {
                ensure!(!bytes.is_empty(), "no response: {error}");
                break;
            }
        }
        if end_of(&bytes).is_some_and(|end| bytes.len() >= end) {
            break;
        }
    }
    let end = end_of_head(&bytes);
    let end = end.with_context(|| format!("no response: {}", String::from_utf8_lossy(&bytes)))?;
    let head = std::str::from_utf8(&bytes[..end])?;
    let status = head.split(' ').nth(1).context("no status")?;
    let headers = fields(head);
    let body = &bytes[end + 4..end_of(&bytes).unwrap_or(bytes.len()).min(bytes.len())];
    let is_chunked =
        headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if is_chunked { join_chunks(body)? } else { body.to_vec() };
    Ok(Response { status: status.parse()?, headers, body: String::from_utf8(body)? })
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n")
}

/// Where a response ends that says how long it is.
fn end_of(bytes: &[u8]) -> Option<usize> {
    let end = end_of_head(bytes)?;
    let fields = fields(std::str::from_utf8(&bytes[..end]).ok()?);
    let (_, length) = fields.iter().find(|(name, _)| name == "content-length")?;
    (end + 4).checked_add(length.parse().ok()?)
}

/// Fields of a head, their names in small letters.
fn fields(head: &str) -> Vec<(String, String)> {
    head.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect()
}

fn join_chunks(mut bytes: &[u8]) -> Result<Vec<u8>> {
    let mut joined = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").context("a chunk is cut")?;
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end])?.trim(), 16)?;
        bytes = &bytes[end + 2..];
        if length == 0 {
            return Ok(joined);
        }
        joined.extend_from_slice(bytes.get(..length).context("a chunk is cut")?);
        bytes = bytes.get(length + 2..).context("a chunk is cut")?;
    }
}

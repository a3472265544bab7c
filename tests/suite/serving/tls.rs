//! HTTPS: the same answers, by clients of two makes; certificates that are replaced; whoever speaks
//! something else, or nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned};
use rustls::{SupportedProtocolVersion, version};
use serde_json::json;
use tempfile::TempDir;
use weir_tests::places::root;
use weir_tests::server::{Response, read_response};

use super::{completion, generated, program, start};

/// Every version that is offered, what is agreed on, whose pages may ask, and mistakes at the start.
pub fn asked() -> Result<()> {
    let folder = Folder::with("first")?;
    let server = start(&[&folder.options()[..], &["--log-requests"]].concat())?;
    let said = server.said();
    let address = format!("listening at https://{}", server.address());
    ensure!(said.contains(&address), "{said:?}");
    ensure!(said.iter().any(|line| line.starts_with("confined")), "{said:?}");
    let body = completion(json!({})).to_string();
    let expected = generated(&["--max-tokens", "24"])?["text"].clone();
    for (version, number) in
        [(&version::TLS13, ProtocolVersion::TLSv1_3), (&version::TLS12, ProtocolVersion::TLSv1_2)]
    {
        let mut client = Client::connect(server.address(), &[version], &["http/1.1"])?;
        let whole = client.ask("POST", "/v1/completions", &["connection: close"], &body)?;
        ensure!(whole.status == 200, "{number:?}: {} {}", whole.status, whole.body);
        ensure!(whole.json()?["choices"][0]["text"] == expected, "{number:?}: {}", whole.body);
        ensure!(client.stream.conn.protocol_version() == Some(number), "not {number:?}");
        ensure!(client.stream.conn.alpn_protocol() == Some(b"http/1.1"), "another protocol");
        ensure!(client.certificate() == certificate("first")?, "another certificate");
    }
    // Who speaks HTTP/2 alone is told so, and who names no protocol is answered.
    let other = Client::connect(server.address(), ALL, &["h2"]);
    ensure!(other.is_err(), "a protocol that is not spoken here");
    let mut client = Client::connect(server.address(), ALL, &[])?;
    let own = format!("https://{}", server.address());
    for (origin, status) in [(&*own, 200), (&own.replace("https", "http"), 403), ("null", 403)] {
        let field = format!("origin: {origin}");
        let answer = client.ask("GET", "/v1/models", &[&field], "")?;
        ensure!(answer.status == status, "{origin}: {} {}", answer.status, answer.body);
    }
    let metrics = client.ask("GET", "/metrics", &[], "")?.body;
    ensure!(metrics.contains("weir:tls_certificate_expires_seconds 4733510400"), "{metrics}");
    ensure!(metrics.contains("weir:tls_handshakes_failed_total 1"), "{metrics}");
    server.signal("TERM")?;
    ensure!(server.wait()?.success(), "it was told to stop");
    // What cannot be served is refused before it listens.
    let fixtures = fixtures();
    let path = |name: &str| fixtures.join(name).to_string_lossy().into_owned();
    for (certificate, key, reason) in [
        ("expired.crt", "first.key", "expired.crt: the certificate has expired"),
        ("first.crt", "second.key", "second.key: it is not the key of the certificate in"),
        ("first.crt", "none.key", "none.key: No such file"),
    ] {
        let (certificate, key) = (path(certificate), path(key));
        let options =
            ["serve", "--port", "0", "--tls-certificate", &certificate, "--tls-key", &key];
        let refused = program()?.run(&options).err().context("it listens")?.to_string();
        ensure!(refused.contains(reason), "{refused} instead of {reason}");
    }
    Ok(())
}

/// A client of another make verifies the certificate and reads the answer.
pub fn openssl() -> Result<()> {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("serving/tls/openssl: there is no openssl, so it is not asked");
        return Ok(());
    }
    for name in ["first", "second"] {
        let folder = Folder::with(name)?;
        let server = start(&folder.options())?;
        for version in ["-tls1_3", "-tls1_2"] {
            let mut client = Command::new("openssl");
            client.args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname"]);
            client.args(["localhost", "-alpn", "http/1.1", version, "-CAfile"]);
            client.arg(fixtures().join("authority.crt"));
            client.arg("-connect").arg(server.address().to_string());
            client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut client = client.spawn()?;
            let mut input = client.stdin.take().context("it is piped")?;
            input.write_all(
                b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            )?;
            // It ends with the connection.
            let output = client.wait_with_output()?;
            drop(input);
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(said.starts_with("HTTP/1.1 200 "), "{name} {version}: {said} {errors}");
        }
    }
    Ok(())
}

/// A new certificate is served to new connections, and one that cannot be is not.
pub fn replaced() -> Result<()> {
    let folder = Folder::with("first")?;
    let server = start(&[&folder.options()[..], &["--log-requests"]].concat())?;
    let mut old = Client::connect(server.address(), ALL, &[])?;
    ensure!(old.ask("GET", "/v1/models", &[], "")?.status == 200, "before");
    ensure!(old.certificate() == certificate("first")?, "the first certificate");
    folder.put("second")?;
    server.signal("HUP")?;
    server.hears("the certificate was read again")?;
    let mut new = Client::connect(server.address(), ALL, &[])?;
    ensure!(new.ask("GET", "/v1/models", &[], "")?.status == 200, "after");
    ensure!(new.certificate() == certificate("second")?, "the second certificate");
    ensure!(old.ask("GET", "/v1/models", &[], "")?.status == 200, "a connection from before");
    // A key without its certificate, a certificate without its end, one that is too old.
    let broken: [(&str, &str, &[u8]); 3] = [
        ("tls.key", "it is not the key", &fs::read(fixtures().join("first.key"))?),
        ("tls.crt", "tls.crt", b"-----BEGIN CERTIFICATE-----\nMIIB"),
        ("tls.crt", "expired", &fs::read(fixtures().join("expired.crt"))?),
    ];
    for (file, reason, content) in broken {
        folder.replace(file, content)?;
        server.signal("HUP")?;
        server.hears("the certificate was not read again")?;
        let said = server.said();
        let line = said.iter().rfind(|line| line.contains("not read again")).context("a line")?;
        ensure!(line.contains(reason), "{line} instead of {reason}");
        let mut client = Client::connect(server.address(), ALL, &[])?;
        ensure!(client.ask("GET", "/v1/models", &[], "")?.status == 200, "after {reason}");
        ensure!(client.certificate() == certificate("second")?, "after {reason}");
    }
    Ok(())
}

/// Who speaks plain HTTP, nonsense or nothing is sent away and costs nobody else anything.
pub fn strangers() -> Result<()> {
    let folder = Folder::with("first")?;
    let options = ["--connections-per-address", "48", "--log-requests"];
    let server = start(&[&folder.options()[..], &options].concat())?;
    let ceiling = |client: &mut Client| -> Result<u64> {
        let status = client.ask("GET", "/status", &[], "")?.json()?;
        status["memory"]["ceiling_bytes"].as_u64().context("a ceiling")
    };
    let mut client = Client::connect(server.address(), ALL, &[])?;
    let limit = ceiling(&mut client)?;
    drop(client);
    for said in [&b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], &[0; 64], &[0xff; 2048]] {
        let mut stream = server.connect()?;
        stream.write_all(said)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        // An alert, which is a record by itself.
        ensure!(answer.first() == Some(&21) && answer.len() == 7, "{answer:?}");
    }
    // A greeting of 60,000 bytes that lacks its end, many times: as much as anybody can have kept.
    let mut greeting = vec![1, 0, 0xea, 0x60];
    greeting.resize(56 << 10, 0);
    let records: Vec<u8> = greeting
        .chunks(16 << 10)
        .flat_map(|part| {
            let [high, low] = (part.len() as u16).to_be_bytes();
            [&[22, 3, 1, high, low], part].concat()
        })
        .collect();
    let began = Instant::now();
    let mut held: Vec<TcpStream> = Vec::new();
    for number in 0..48 {
        let mut stream = server.connect()?;
        match number % 4 {
            // Nothing at all, or a beginning.
            0 => {}
            1 => stream.write_all(&records[..7])?,
            _ => stream.write_all(&records)?,
        }
        held.push(stream);
    }
    ensure!(Client::connect(server.address(), ALL, &[]).is_err(), "there was no room");
    for mut stream in held {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
    }
    let took = began.elapsed();
    ensure!((9..60).contains(&took.as_secs()), "they were sent away after {took:?}");
    let mut client = Client::connect(server.address(), ALL, &[])?;
    ensure!(client.ask("GET", "/v1/models", &[], "")?.status == 200, "afterwards");
    let most = server.memory("VmHWM")? * 1024;
    ensure!(most <= limit, "{most} bytes were resident, {limit} are the ceiling");
    // The ceiling knows of TLS.
    let plain = start(&options)?.get("/status")?.json()?["memory"]["ceiling_bytes"].clone();
    let plain = plain.as_u64().context("a ceiling")?;
    ensure!(limit >= plain + 1024 * (100 << 10), "{limit} with TLS, {plain} without");
    Ok(())
}

/// A socket that the service manager opened, its notices, and an answer that ends after it was told to
/// stop.
pub fn given_socket() -> Result<()> {
    let folder = Folder::with("first")?;
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    let notices = folder.path.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&notices)?;
    manager.set_read_timeout(Some(Duration::from_secs(60)))?;
    let hear = || -> Result<String> {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    };
    // As systemd does it: the first socket is descriptor 3, and the variables name the process.
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" serve \"$@\"";
    let mut service = Command::new("sh");
    service.args(["-c", script]).arg(program()?.path()).args(folder.options());
    service.env("NOTIFY_SOCKET", &notices).stdin(OwnedFd::from(socket));
    let mut service = service.stderr(Stdio::null()).spawn()?;
    let outcome = (|| {
        ensure!(hear()? == "READY=1", "it did not say that it listens");
        let body = completion(json!({"max_tokens": 900, "ignore_eos": true, "stream": true}));
        let mut client = Client::connect(address, ALL, &[])?;
        client.begin("POST", "/v1/completions", &["connection: close"], &body.to_string())?;
        client.stream.sock.peek(&mut [0])?;
        let kill = format!("kill -TERM {}", service.id());
        ensure!(Command::new("sh").args(["-c", &kill]).status()?.success(), "{kill}");
        ensure!(hear()? == "STOPPING=1", "it did not say that it stops");
        let answer = read_response(&mut client.stream)?;
        ensure!(answer.events().last() == Some(&"[DONE]"), "the answer was cut: {answer:?}");
        Ok(())
    })();
    if outcome.is_err() {
        let _ = service.kill();
    }
    let status = service.wait()?;
    outcome?;
    ensure!(status.success(), "{status}");
    Ok(())
}

const ALL: &[&SupportedProtocolVersion] = rustls::ALL_VERSIONS;

fn fixtures() -> PathBuf {
    root().join("tests/fixtures/tls")
}

fn certificate(name: &str) -> Result<CertificateDer<'static>> {
    Ok(CertificateDer::from_pem_file(fixtures().join(name).with_extension("crt"))?)
}

/// A certificate and its key, where they can be replaced.
struct Folder {
    path: TempDir,
    certificate: String,
    key: String,
}

impl Folder {
    fn with(name: &str) -> Result<Folder> {
        let path = tempfile::tempdir()?;
        let file = |name: &str| path.path().join(name).to_string_lossy().into_owned();
        let (certificate, key) = (file("tls.crt"), file("tls.key"));
        let folder = Folder { path, certificate, key };
        folder.put(name)?;
        Ok(folder)
    }

    fn put(&self, name: &str) -> Result<()> {
        for (file, end) in [("tls.crt", "crt"), ("tls.key", "key")] {
            self.replace(file, &fs::read(fixtures().join(name).with_extension(end))?)?;
        }
        Ok(())
    }

    fn replace(&self, file: &str, content: &[u8]) -> Result<()> {
        let (new, file) = (self.path.path().join("new"), self.path.path().join(file));
        fs::write(&new, content)?;
        fs::rename::<&Path, &Path>(&new, &file)?;
        Ok(())
    }

    fn options(&self) -> [&str; 4] {
        ["--tls-certificate", &self.certificate, "--tls-key", &self.key]
    }
}

/// A connection that was agreed on.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    host: String,
}

impl Client {
    fn connect(
        address: SocketAddr,
        versions: &[&'static SupportedProtocolVersion],
        protocols: &[&str],
    ) -> Result<Client> {
        let mut authorities = RootCertStore::empty();
        authorities.add(certificate("authority")?)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_root_certificates(authorities)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let connection = ClientConnection::new(Arc::new(config), ServerName::from(address.ip()))?;
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(120)))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        // With version 1.3 the client is done before it has heard what the server has against it.
        Ok(Client { stream, host: address.to_string() })
    }

    fn certificate(&self) -> CertificateDer<'_> {
        let chain = self.stream.conn.peer_certificates().unwrap_or_default();
        chain.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()))
    }

    fn begin(&mut self, method: &str, path: &str, fields: &[&str], body: &str) -> Result<()> {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let (host, length) = (&self.host, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}");
        self.stream.write_all(format!("{head}\r\n{fields}\r\n{body}").as_bytes())?;
        Ok(())
    }

    fn ask(&mut self, method: &str, path: &str, fields: &[&str], body: &str) -> Result<Response> {
        self.begin(method, path, fields, body)?;
        read_response(&mut self.stream)
    }
}

//! Files that are refused, and what is said of them; `tests/suite/serving/tls.rs` speaks TLS.

use super::*;

fn files(certificate: &str, key: &str) -> TlsFiles {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls"));
    TlsFiles { certificate: folder.join(certificate), key: folder.join(key) }
}

fn refused(files: &TlsFiles) -> String {
    Tls::read(files).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn keys_of_all_kinds_are_read_with_their_certificates() {
    for name in ["first", "second"] {
        let tls = Tls::read(&files(&format!("{name}.crt"), &format!("{name}.key"))).unwrap();
        // 1 January 2120.
        assert_eq!(tls.expires(), 4_733_510_400, "{name}");
        assert_eq!(tls.current().config.alpn_protocols, [b"http/1.1"]);
    }
    // A key and its certificate may stand in one file.
    let folder = tempfile::tempdir().unwrap();
    let both = folder.path().join("both.pem");
    let part = |name| std::fs::read_to_string(files(name, name).key).unwrap();
    std::fs::write(&both, part("first.key") + &part("first.crt")).unwrap();
    let both = TlsFiles { certificate: both.clone(), key: both };
    Tls::read(&both).unwrap();
}

#[test]
fn a_refusal_names_the_file_and_the_reason() {
    let cases = [
        ("no-such-file", "first.key", "no-such-file: No such file"),
        ("first.key", "first.key", "first.key: there is no certificate in it"),
        ("first.crt", "first.crt", "first.crt: there is no private key in it"),
        ("first.crt", "other.key", "other.key: it is not the key of the certificate in "),
        ("second.crt", "first.key", "first.key: it is not the key of the certificate in "),
        ("expired.crt", "first.key", "expired.crt: the certificate has expired"),
        ("own-expired.crt", "first.key", "own-expired.crt: the certificate has expired"),
        ("future.crt", "first.key", "future.crt: the certificate is not valid yet"),
    ];
    for (certificate, key, reason) in cases {
        let said = refused(&files(certificate, key));
        assert!(said.contains(reason), "{certificate} and {key}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged");
    let whole = files("first.crt", "first.key");
    let write = |label: &str| {
        let text = format!("-----BEGIN {label}-----\nMIIB\n-----END {label}-----\n");
        std::fs::write(&damaged, text).unwrap();
    };
    write("CERTIFICATE");
    let said = refused(&TlsFiles { certificate: damaged.clone(), ..whole.clone() });
    assert!(said.contains("damaged: the first certificate: "), "{said}");
    write("PRIVATE KEY");
    let said = refused(&TlsFiles { key: damaged.clone(), ..whole.clone() });
    assert!(said.contains("damaged: it is damaged, or not a key of RSA"), "{said}");
    write("ENCRYPTED PRIVATE KEY");
    let said = refused(&TlsFiles { key: damaged.clone(), ..whole });
    assert!(said.contains("read without a password"), "{said}");
}

#[test]
fn what_was_read_stays_where_reading_again_fails() {
    let folder = tempfile::tempdir().unwrap();
    let new = TlsFiles { certificate: folder.path().join("c"), key: folder.path().join("k") };
    let put = |name: &str| {
        let old = files(&format!("{name}.crt"), &format!("{name}.key"));
        std::fs::copy(old.certificate, &new.certificate).unwrap();
        std::fs::copy(old.key, &new.key).unwrap();
    };
    put("first");
    let tls = Tls::read(&new).unwrap();
    let before = tls.current().config;
    std::fs::remove_file(&new.key).unwrap();
    assert!(tls.reload().is_err());
    assert!(Arc::ptr_eq(&before, &tls.current().config));
    put("second");
    tls.reload().unwrap();
    assert!(!Arc::ptr_eq(&before, &tls.current().config));
}

/// A server's and a client's end of a connection.
async fn pair() -> (tokio::net::TcpStream, std::net::TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().await.unwrap().0, client)
}

fn local(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future);
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let tls = Tls::read(&files("first.crt", "first.key")).unwrap();
    local(async {
        let (server, _client) = pair().await;
        let outcome = tls.accept(server, Duration::from_millis(50)).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// The stream below gives a stalled client up, and TLS above it passes that on.
#[test]
fn who_takes_nothing_is_given_up() {
    let tls = Tls::read(&files("first.crt", "first.key")).unwrap();
    let mut authorities = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(files("authority.crt", "").certificate);
    authorities.add(authority.unwrap()).unwrap();
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authorities)
        .with_no_client_auth();
    local(async {
        let (server, mut client) = pair().await;
        let greeting = std::thread::spawn(move || {
            let name = "localhost".try_into().unwrap();
            let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut client).unwrap();
            }
            client
        });
        let mut server = tokio_io_timeout::TimeoutStream::new(server);
        server.set_write_timeout(Some(Duration::from_millis(50)));
        let mut stream = tls.accept(Box::pin(server), Duration::from_secs(60)).await.unwrap();
        let _client = greeting.join().unwrap();
        let answer = [7; 64 << 10];
        let error = loop {
            let mut written = std::pin::pin!(&mut stream);
            let write = |cx: &mut std::task::Context<'_>| written.as_mut().poll_write(cx, &answer);
            if let Err(error) = std::future::poll_fn(write).await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    });
}

//! TLS: a certificate with its key, and connections that speak it.
//!
//! Versions 1.3 and 1.2 with HTTP/1.1 inside, by `rustls` over Graviola's arithmetic. Certificate and key
//! are read together and replaced together, or stay what they were; a connection keeps those that it began
//! with. Sessions are not resumed: what would be kept of them is memory that strangers fill, and an
//! exchange of keys takes less than a step of any model.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::{RuntimeError, machine};

/// Bytes of an answer that a connection holds until its client takes them. Hyper has those behind them.
pub const UNSENT_BYTES: usize = 16 << 10;

const DAY: u64 = 86_400;

/// Where a certificate and its key are, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to the authority that clients know.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// What connections begin with.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Credentials>,
}

#[derive(Clone, Debug)]
struct Credentials {
    config: Arc<ServerConfig>,
    /// Seconds since 1970 from which on clients refuse the certificate.
    expires: u64,
}

impl Tls {
    /// Reads the files.
    pub fn read(files: &TlsFiles) -> Result<Tls, RuntimeError> {
        machine::check_tls()?;
        // A static program has random numbers from a file of the system's, which is opened with the first
        // of them and kept: later, when the server is confined, it could not be.
        let random = rustls_graviola::default_provider().secure_random;
        random.fill(&mut [0; 32]).map_err(|_| {
            RuntimeError::Machine("TLS needs random numbers, and /dev/random gives none".to_owned())
        })?;
        let current = RwLock::new(files.read(UnixTime::now())?);
        Ok(Tls { files: files.clone(), current })
    }

    /// Reads the files again. On an error what was read before stays.
    pub fn reload(&self) -> Result<(), RuntimeError> {
        let new = self.files.read(UnixTime::now())?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Seconds since 1970 from which on clients refuse the certificate.
    pub fn expires(&self) -> u64 {
        self.current().expires
    }

    fn current(&self) -> Credentials {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Agrees on keys with a client, which has so much time for it.
    pub async fn accept<S>(&self, stream: S, time: Duration) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.current().config);
        let handshake = acceptor.accept_with(stream, |connection| {
            connection.set_buffer_limit(Some(UNSENT_BYTES));
        });
        let late = || Error::new(ErrorKind::TimedOut, "the handshake took too long");
        tokio::time::timeout(time, handshake).await.unwrap_or_else(|_| Err(late()))
    }
}

impl TlsFiles {
    fn read(&self, now: UnixTime) -> Result<Credentials, RuntimeError> {
        let (certificate, key) = (&*self.certificate, &*self.key);
        let chain = read_pem(certificate, |text| {
            CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()
        })?;
        let leaf =
            chain.first().ok_or_else(|| wrong(certificate, "there is no certificate in it"))?;
        let leaf = ParsedCertificate::try_from(leaf)
            .map_err(|error| wrong(certificate, format!("the first certificate: {error}")))?;
        let expires = check_time(&leaf, now).map_err(|reason| wrong(certificate, reason))?;
        let signer = read_pem(key, PrivateKeyDer::from_pem_slice)?;
        let provider = Arc::new(rustls_graviola::default_provider());
        let signer = provider.key_provider.load_private_key(signer).map_err(|_| {
            let known = "a key of RSA, of ECDSA over P-256 or P-384, or of Ed25519";
            wrong(key, format!("it is damaged, or not {known}"))
        })?;
        let certified = CertifiedKey::new(chain, signer);
        certified.keys_match().map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let whose = certificate.display();
                wrong(key, format!("it is not the key of the certificate in {whose}"))
            }
            error => wrong(key, error.to_string()),
        })?;
        let config = Arc::new(configure(provider, certified)?);
        Ok(Credentials { config, expires })
    }
}

fn configure(
    provider: Arc<CryptoProvider>,
    certified: CertifiedKey,
) -> Result<ServerConfig, RuntimeError> {
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let builder =
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(|error| RuntimeError::Machine(format!("internal error: TLS: {error}")))?;
    let mut config = builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Until when a certificate is valid, if it is so now.
///
/// What clients verify is asked with no authority that they know. Its time is looked at before its issuer,
/// so an answer about the time is about this certificate; those behind it in the file are not looked at,
/// as expired ones in a chain do no harm to whoever knows a shorter one.
fn check_time(certificate: &ParsedCertificate<'_>, now: UnixTime) -> Result<u64, String> {
    let at = |time| {
        let nobody = RootCertStore::empty();
        let verified = rustls::client::verify_server_cert_signed_by_trust_anchor(
            certificate,
            &nobody,
            &[],
            time,
            &[],
        );
        match verified {
            Err(rustls::Error::InvalidCertificate(error)) => Some(error),
            _ => None,
        }
    };
    let days = |seconds: u64| seconds.div_ceil(DAY);
    match at(now) {
        Some(CertificateError::ExpiredContext { not_after, .. }) => {
            let since = days(now.as_secs().saturating_sub(not_after.as_secs()));
            return Err(format!("the certificate has expired, within the last {since} days"));
        }
        Some(CertificateError::NotValidYetContext { not_before, .. }) => {
            let until = days(not_before.as_secs().saturating_sub(now.as_secs()));
            return Err(format!("the certificate is not valid yet, but within {until} days"));
        }
        _ => {}
    }
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match at(end_of_time) {
        Some(CertificateError::ExpiredContext { not_after, .. }) => Ok(not_after.as_secs()),
        _ => Err("the certificate does not say until when it is valid".to_owned()),
    }
}

fn read_pem<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, pem::Error>,
) -> Result<T, RuntimeError> {
    let place = |source| RuntimeError::File { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(place)?;
    parse(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            wrong(path, "there is no private key in it that can be read without a password")
        }
        error => wrong(path, error.to_string()),
    })
}

fn wrong(path: &Path, reason: impl Into<String>) -> RuntimeError {
    let source = Error::new(ErrorKind::InvalidData, reason.into());
    RuntimeError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;

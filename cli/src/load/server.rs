//! Where requests go: an address, resolved once, with what every request to it has in common.

use std::net::{SocketAddr, ToSocketAddrs};

use hyper::Uri;
use hyper::header::HeaderValue;

use crate::failure::Failure;

/// An OpenAI-compatible server.
#[derive(Debug)]
pub struct Server {
    /// What its name stands for, tried in order. Looked up once: a lookup for every request would
    /// take a thread each.
    pub addresses: Vec<SocketAddr>,
    /// Host and port, as the user writes them.
    pub authority: HeaderValue,
    /// Path in front of the names of endpoints.
    pub path: String,
    /// Key, as the header has it.
    pub authorization: Option<HeaderValue>,
}

impl Server {
    /// Finds a server by its URL, with or without `/v1` at its end.
    pub fn find(url: &str, key: Option<&str>) -> Result<Server, Failure> {
        let place =
            |reason: &dyn std::fmt::Display| Failure::usage(format!("--url {url}: {reason}"));
        let uri: Uri = url.parse().map_err(|error| place(&error))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                let reason = "there is no TLS here; measure the server itself over http";
                return Err(place(&reason));
            }
            _ => return Err(place(&"it must begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| place(&"there is no host"))?;
        if authority.as_str().contains('@') {
            return Err(place(&"keys belong to --api-key"));
        }
        if uri.query().is_some() {
            return Err(place(&"a query has no place behind a base"));
        }
        let port = authority.port_u16().unwrap_or(80);
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|error| place(&error))?.collect();
        if addresses.is_empty() {
            return Err(place(&"its name stands for no address"));
        }
        let path = uri.path().trim_end_matches('/');
        let base = path.strip_suffix("/v1").unwrap_or(path);
        let authorization = key.map(|key| {
            let header = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut header =
                header.map_err(|_| Failure::usage("the key has a letter no key has"))?;
            header.set_sensitive(true);
            Ok::<_, Failure>(header)
        });
        Ok(Server {
            addresses,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|error| place(&error))?,
            path: format!("{base}/v1"),
            authorization: authorization.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;

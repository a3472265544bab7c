//! What a URL stands for, and which are refused.

use super::*;

#[test]
fn a_base_is_taken_with_and_without_its_version() {
    for (url, path, host) in [
        ("http://127.0.0.1:8080", "/v1", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "/v1", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "/v1", "127.0.0.1:8080"),
        ("http://[::1]:9/models/one/", "/models/one/v1", "[::1]:9"),
    ] {
        let server = Server::find(url, None).expect("a server");
        assert_eq!(
            (server.path.as_str(), server.authority.as_bytes()),
            (path, host.as_bytes()),
            "{url}"
        );
    }
    let server = Server::find("http://127.0.0.1", Some("abc")).expect("a server");
    assert_eq!(server.addresses[0].port(), 80);
    let key = server.authorization.expect("a header");
    assert!(key == "Bearer abc" && key.is_sensitive());
}

#[test]
fn other_urls_are_refused_with_the_reason() {
    for (url, reason) in [
        ("https://127.0.0.1", "there is no TLS here"),
        ("127.0.0.1:8080", "it must begin with http://"),
        ("http://a:b@127.0.0.1", "keys belong to --api-key"),
        ("http://127.0.0.1/v1?x=1", "a query has no place"),
        ("http://", "--url http://:"),
    ] {
        let failure = Server::find(url, None).expect_err(url);
        assert!(failure.message.contains(reason), "{url}: {failure}");
        assert_eq!(failure.code, 2);
    }
    assert!(Server::find("http://127.0.0.1", Some("a\nb")).is_err());
}

//! Forms of pickles, numbers and fences.

use proptest::prelude::*;

use super::*;

#[test]
fn pickles_of_a_string_in_each_protocol() {
    // `pickle.dumps("a😀", protocol=N)` of Python 3.11.
    for bytes in [
        &b"\x80\x02X\x05\0\0\0a\xf0\x9f\x98\x80q\0."[..],
        b"\x80\x03X\x05\0\0\0a\xf0\x9f\x98\x80q\0.",
        b"\x80\x04\x95\x09\0\0\0\0\0\0\0\x8c\x05a\xf0\x9f\x98\x80\x94.",
        b"\x80\x05\x95\x09\0\0\0\0\0\0\0\x8c\x05a\xf0\x9f\x98\x80\x94.",
    ] {
        assert_eq!(unpickle(bytes).as_deref(), Some("a😀"));
    }
}

#[test]
fn other_pickles_are_refused() {
    // A list, a call of `os.system`, two strings, nothing, no end.
    for bytes in [
        &b"\x80\x02]q\0."[..],
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x01a\x8c\x01b.",
        b"\x80\x04.",
        b"\x80\x04\x8c\x01a",
    ] {
        assert_eq!(unpickle(bytes), None);
    }
}

#[test]
fn decimals_are_compared_exactly() {
    for (one, other) in [("1", "1.0"), ("-0", "0"), ("1e3", "1000"), ("0.5", ".50"), ("+7", "07")] {
        assert_eq!(decimal(one), decimal(other), "{one} {other}");
        assert!(decimal(one).is_some());
    }
    assert_ne!(decimal("50000000000000000"), decimal("50000000000000001"));
    assert_ne!(decimal("1"), decimal("-1"));
    for text in ["", "-", ".", "e5", "1e", "x", "1 2"] {
        assert_eq!(decimal(text), None, "{text}");
    }
}

#[test]
fn the_last_fenced_block_is_the_program() {
    assert_eq!(code("```python\na\n```\nor\n```python\nb\nc\n```").as_deref(), Some("b\nc"));
    assert_eq!(code("```python\na"), None);
    assert_eq!(code("a"), None);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read(bytes in any::<Vec<u8>>(), text in any::<String>()) {
        let _ = unpickle(&bytes);
        let _ = unpickle(&[b"\x80\x04".as_slice(), &bytes].concat());
        let _ = unpack(&text);
        let _ = decimal(&text);
    }
}

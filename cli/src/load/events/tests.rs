//! Events are the same wherever their bytes are cut.

use super::*;

/// Feeds pieces, and gives all data that is told.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut events = Events::default();
    let mut told = Vec::new();
    let mut tell = |data: &[u8]| -> Result<(), TooLong> {
        told.push(String::from_utf8(data.to_vec()).expect("whole events are UTF-8"));
        Ok(())
    };
    for piece in pieces {
        events.feed(piece, &mut tell).expect("short events");
    }
    events.finish(&mut tell).expect("short events");
    told
}

/// Texts with every kind of line end, comments, other fields, several lines of data and letters of
/// several bytes, beside their events.
const TEXTS: [(&str, &[&str]); 7] = [
    ("data: {\"a\":1}\n\ndata: [DONE]\n\n", &["{\"a\":1}", "[DONE]"]),
    ("data: eins\r\n\r\ndata: zwei\r\n\r\n", &["eins", "zwei"]),
    ("data: α\r\rdata: 日本\r\r", &["α", "日本"]),
    (": comment\n\nevent: x\nid: 7\ndata:  two spaces\nretry: 9\n\n", &[" two spaces"]),
    ("data: one\ndata:two\r\ndata\n\ndata\n\n", &["one\ntwo\n", ""]),
    ("\u{feff}data: marked\n\ndatum: no\n\n", &["marked"]),
    ("\n\n\r\n: only\r\ndata: no line behind", &["no line behind"]),
];

#[test]
fn events_are_read_whole() {
    for (text, events) in TEXTS {
        assert_eq!(read([text.as_bytes()]), events, "{text:?}");
    }
}

#[test]
fn every_cut_gives_the_same_events() {
    for (text, events) in TEXTS {
        let bytes = text.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(read(pieces), events, "{text:?} cut at {first} and {second}");
            }
        }
        assert_eq!(read(bytes.chunks(1)), events, "{text:?} byte by byte");
    }
}

#[test]
fn an_event_without_end_is_refused() {
    let mut events = Events::default();
    let piece = vec![b'x'; 1 << 20];
    let mut tell = |_: &[u8]| -> Result<(), TooLong> { Ok(()) };
    let outcomes = (0..17).map(|_| events.feed(&piece, &mut tell));
    assert_eq!(outcomes.filter(Result::is_err).count(), 1);
    let mut events = Events::default();
    let line = [b"data: ", &piece[..], b"\n"].concat();
    let outcomes = (0..17).map(|_| events.feed(&line, &mut tell));
    assert!(outcomes.filter(Result::is_err).count() > 0);
}

#[test]
fn what_the_reader_says_ends_the_reading() {
    #[derive(Debug, PartialEq)]
    struct Enough;
    impl From<TooLong> for Enough {
        fn from(_: TooLong) -> Enough {
            Enough
        }
    }
    let mut events = Events::default();
    let outcome = events.feed(b"data: 1\n\ndata: 2\n\n", |_| Err::<(), Enough>(Enough));
    assert_eq!(outcome, Err(Enough));
}

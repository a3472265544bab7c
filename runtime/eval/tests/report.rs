//! Table, JSON and chart of a small run, against files; `BLESS=1` rewrites them.

use std::path::Path;

use weir_eval::{Policy, Summary, Tally};

fn policy(kind: &str, name: &str, rows: u64) -> Policy {
    Policy { kind: kind.into(), name: name.into(), rows, bytes: rows * 2304 }
}

/// Two tasks of eight documents with three questions each; answers are wrong by a fixed rule, more
/// often the smaller the cache is.
fn summary() -> Summary {
    let mut tally = Tally::new(vec![
        policy("full", "full", 4096),
        policy("snapstream", "snapstream,rows=1024", 1024),
        policy("snapstream", "snapstream,rows=512", 512),
        policy("snapstream", "snapstream,rows=256", 256),
        policy("stream", "stream,rows=1024", 1024),
        policy("stream", "stream,rows=256", 256),
    ]);
    for (task, ease) in [("multikey", 5), ("trace", 3)] {
        for document in 0..8 {
            let question = |number: usize| {
                let luck = (document * 7 + number * 5) % 8;
                [8, 7, 6, 4, 3, 1]
                    .map(|skill| f64::from(u8::from(luck < skill * ease / 5)))
                    .to_vec()
            };
            tally.add(task, &[question(0), question(1), question(2)]);
        }
    }
    tally.summary()
}

fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, found).expect("a folder to write to");
    }
    let expected = std::fs::read_to_string(&path).expect("a file with the expectation");
    assert!(found == expected, "{name} differs:\n{found}");
}

#[test]
fn table() {
    let mut out = Vec::new();
    summary().write_table(&mut out).expect("a vector takes all");
    check("report.txt", &String::from_utf8(out).expect("text"));
}

#[test]
fn json() {
    let lines: Vec<String> = summary().json().iter().map(ToString::to_string).collect();
    check("report.jsonl", &(lines.join("\n") + "\n"));
}

#[test]
fn chart() {
    check("report.svg", &summary().chart("tales, int8").expect("a chart"));
}

/// Neither a table nor a program is told ends of an interval that there is not.
#[test]
fn one_document_has_no_interval() {
    let mut tally = Tally::new(vec![policy("full", "full", 8), policy("stream", "stream", 4)]);
    tally.add("single", &[vec![1.0, 0.0], vec![1.0, 1.0]]);
    let summary = tally.summary();
    let mut out = Vec::new();
    summary.write_table(&mut out).expect("a vector takes all");
    let text = String::from_utf8(out).expect("text");
    assert!(text.ends_with("   -50.0  –\n"), "{text}");
    let cells = summary.json();
    let less = &cells[1];
    assert_eq!((less["score"].as_f64(), less["difference"].as_f64()), (Some(0.5), Some(-0.5)));
    for end in ["score_low", "score_high", "difference_low", "difference_high"] {
        assert!(less[end].is_null(), "{end}: {less}");
    }
    assert!(summary.chart("one document").is_ok());
}

#[test]
fn nothing_asked_is_nothing_told() {
    let empty = Tally::new(vec![policy("full", "full", 8)]).summary();
    assert!(empty.rows.is_empty() && empty.json().is_empty());
    assert!(empty.chart("empty").is_ok());
}

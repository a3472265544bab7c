//! The table of metrics in `docs/operations.md` is what `/metrics` prints.

use std::collections::HashMap;
use std::path::Path;

use super::*;

const HEAD: &str = "| metric | type | what |\n|---|---|---|\n";

/// `BLESS=1` writes the table anew.
#[test]
fn the_table_of_metrics_is_what_is_printed() {
    let board = Board::new("model", "avx2", 2, 64);
    // Families have samples once they are used.
    board.failed();
    board.answered("/v1/models", 200);
    let text = board.metrics().unwrap();
    let mut help = HashMap::new();
    let mut table = HEAD.to_owned();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(what), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        match what {
            "HELP" => drop(help.insert(name, rest.trim_end_matches('.'))),
            "TYPE" => {
                // As OpenMetrics names the samples.
                let end = match rest {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                let sample = format!("{name}{end}");
                assert!(text.contains(&format!("\n{sample}")), "{sample} is not in {text}");
                let labels = text.lines().find(|line| line.starts_with(&sample)).unwrap();
                let labels = labels.split_once('{').map_or("", |(_, labels)| labels);
                let labels: Vec<String> = labels
                    .split("\",")
                    .filter_map(|label| label.split_once('='))
                    .filter(|(label, _)| *label != "le")
                    .map(|(label, _)| format!("`{label}`"))
                    .collect();
                let by = if labels.is_empty() { String::new() } else { ", by ".to_owned() };
                let by = by + &labels.join(" and ");
                table.push_str(&format!("| `{sample}` | {rest} | {}{by} |\n", help[name]));
            }
            _ => {}
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let begin = document.find(HEAD).expect("the head of the table");
    let length = document[begin..].find("\n\n").expect("its end") + 1;
    let written = &document[begin..begin + length];
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, document.replacen(written, &table, 1)).unwrap();
    } else {
        assert_eq!(written, table, "BLESS=1 writes the table anew");
    }
}

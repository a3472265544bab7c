//! Recorded arrivals, and what is said of wrong ones.

use super::*;

fn read_lines(content: &str, has_prompts: bool) -> Result<Vec<Arrival>, String> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, content).expect("a file");
    let check = |tokens| if tokens < 1000 { Ok(()) } else { Err("too many".to_owned()) };
    read(&path, has_prompts, check).map_err(|failure| {
        assert_eq!(failure.code, 2);
        failure.message.replace(&*path.to_string_lossy(), "FILE")
    })
}

#[test]
fn lines_say_when_and_what() {
    let lines = concat!(
        "{\"at\": 0, \"prompt\": \"a\", \"max_tokens\": 3}\n",
        "{\"at\": 0.25, \"prompt_tokens\": 300, \"max_tokens\": 64, \"user\": 7, \"key\": \"k\"}\n\n",
        "{\"at\": 0.25, \"priority\": -2}\n",
    );
    let arrivals = read_lines(lines, true).expect("arrivals");
    let expected = [
        Arrival {
            at: 0.0,
            prompt: Wanted::Text("a".to_owned()),
            max_tokens: Some(3),
            ..Arrival::default()
        },
        Arrival {
            at: 0.25,
            prompt: Wanted::Tokens(300),
            max_tokens: Some(64),
            key: Some("k".to_owned()),
            priority: None,
        },
        Arrival { at: 0.25, priority: Some(-2), ..Arrival::default() },
    ];
    assert_eq!(arrivals, expected);
}

#[test]
fn errors_name_file_and_line() {
    for (content, message) in [
        ("{\"at\": 1}\n{\"at\": 0.5}", "line 2: at 0.5 is before the 1 of the line above"),
        ("{\"at\": -1}", "line 1: at -1 is no time from the start"),
        ("{\"at\": 1e12}", "line 1: at 1000000000000 is no time from the start"),
        ("{\"prompt\": \"a\"}", "line 1: missing field `at` at column 15"),
        ("{\"at\": 1, \"max_tokens\": 0}", "line 1: numbers of tokens must be at least 1"),
        ("{\"at\": 1, \"prompt_tokens\": 1000}", "line 1: prompt_tokens 1000: too many"),
        ("", "there is no arrival"),
    ] {
        let error = read_lines(content, true).expect_err(message);
        assert_eq!(error, format!("--trace FILE: {message}"));
    }
    let error = read_lines("{\"at\": 1}", false).expect_err("no prompt");
    assert!(error.ends_with("line 1: it has no prompt: give --dataset or --prompt"), "{error}");
}

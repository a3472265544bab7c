//! What is read from the events of an answer.

use super::*;
use crate::traffic::outcome::Kind;

fn read(events: &[&str]) -> Result<Answer, Failed> {
    let mut reading = Reading::new(8, true);
    for event in events {
        reading.read(event.as_bytes())?;
    }
    reading.end()
}

#[test]
fn chunks_with_text_are_tokens_and_usage_counts() {
    let answer = read(&[
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"Hel\u006co"}}],"usage":null}"#,
        r#"{"choices":[{"index":0,"delta":{"content":" you"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#,
        "[DONE]",
    ]);
    let answer = answer.expect("an answer");
    assert_eq!((answer.chunks(), answer.tokens(), answer.prompt_tokens), (2, 3, Some(7)));
    assert_eq!(answer.text.as_deref(), Some("Hello you"));
    assert!(answer.first.is_some_and(|first| first <= answer.seconds));
}

#[test]
fn completions_and_thoughts_are_text_too() {
    let answer = read(&[
        r#"{"choices":[{"text":"a"}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"b","content":null}}]}"#,
        r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
    ]);
    let answer = answer.expect("an answer without its last line");
    assert_eq!((answer.text.as_deref(), answer.tokens()), (Some("ab"), 2));
}

#[test]
fn an_answer_without_text_has_no_first_token() {
    let answer = read(&[r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#, "[DONE]"]);
    let answer = answer.expect("an answer");
    assert_eq!((answer.first, answer.tokens()), (None, 0));
}

#[test]
fn what_is_no_answer_says_so() {
    for (events, message) in [
        (&[r#"{"error":{"message":"no slot  is\nleft"}}"#][..], "no slot is left"),
        (&[r#"{"object":"error","message":"too long"}"#], "too long"),
        (&[r#"{"choices":[{"text":"a"}]}"#], "the answer ended before the model did"),
        (&["{"], "an event is no chunk"),
        (&[], "the answer ended before the model did"),
    ] {
        let failed = read(events).expect_err(message);
        assert!(failed.message.contains(message), "{failed:?}");
        assert_eq!(failed.kind, Kind::Stream);
    }
}

#[test]
fn long_errors_are_shown_in_part() {
    let shown = said(&"ä ".repeat(500));
    assert_eq!(shown.chars().count(), 202);
    assert_eq!(said(r#"{"detail":"Not Found"}"#), "Not Found");
    assert_eq!(said(r#"{"error":"busy"}"#), "busy");
}

//! Fields and their mistakes.

use super::*;
use crate::serve::json::parse;

fn messages(json: &str) -> Result<Vec<crate::template::ChatMessage>, Failure> {
    read_messages(&parse::<Vec<MessageFields>>(json.as_bytes(), 64)?)
}

#[test]
fn messages_are_texts_or_parts() {
    let read = messages(
        r#"[{"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null}]"#,
    )
    .unwrap();
    let texts: Vec<(&str, &str)> =
        read.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
    assert_eq!(texts, [("system", "Be brief."), ("user", "a\nb"), ("assistant", "")]);
}

#[test]
fn what_is_wrong_in_a_message_is_named() {
    let wrong = [
        ("[]", "messages"),
        (r#"[{"role": "user"}]"#, "messages[0].content"),
        (r#"[{"role": "wizard", "content": "a"}]"#, "messages[0].role"),
        (r#"[{"role": "tool", "content": "a"}]"#, "messages[0].role"),
        (
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#,
            "messages[0].content[0]",
        ),
        (r#"[{"role": "user", "content": "a", "tool_calls": [1]}]"#, "messages[0].tool_calls"),
    ];
    for (json, field) in wrong {
        assert_eq!(messages(json).unwrap_err().param.as_deref(), Some(field), "{json}");
    }
}

#[test]
fn prompts_have_four_forms() {
    let read = |json: &str| parse::<Prompts>(json.as_bytes(), 64);
    let texts = |json: &str| match read(json) {
        Ok(Prompts::Texts(texts)) => texts,
        other => panic!("{json}: {other:?}"),
    };
    let ids = |json: &str| match read(json) {
        Ok(Prompts::Ids(ids)) => ids,
        other => panic!("{json}: {other:?}"),
    };
    assert_eq!(texts("\"a\""), ["a"]);
    assert_eq!(texts("[\"a\", \"b\"]"), ["a", "b"]);
    assert_eq!(texts("[]"), [""; 0]);
    assert_eq!(ids("[1, 2]"), [[1, 2]]);
    assert_eq!(ids("[[1, 2], []]"), [vec![1, 2], vec![]]);
    let many = format!("[{}[1]]", "[1],".repeat(64));
    for wrong in ["[1, \"a\"]", "[\"a\", 1]", "[-1]", "[4294967296]", "{}", "3", &many] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert!(read(&format!("[{}[1]]", "[1],".repeat(63))).is_ok());
}

#[test]
fn lists_end_where_they_may() {
    let fields = |json: &str| parse::<GenerationFields>(json.as_bytes(), 64);
    let stops = |count: usize| format!("{{\"stop\": [{}\"a\"]}}", "\"a\",".repeat(count - 1));
    assert!(fields(&stops(16)).is_ok());
    assert_eq!(fields(&stops(17)).unwrap_err().param.as_deref(), Some("stop"));
    assert_eq!(fields("{\"stop\": 3}").unwrap_err().param.as_deref(), Some("stop"));
    let bias = |count: usize| {
        let entries: Vec<String> = (0..count).map(|token| format!("\"{token}\": 1")).collect();
        format!("{{\"logit_bias\": {{{}}}}}", entries.join(","))
    };
    assert!(fields(&bias(1024)).is_ok());
    assert_eq!(fields(&bias(1025)).unwrap_err().param.as_deref(), Some("logit_bias"));
}

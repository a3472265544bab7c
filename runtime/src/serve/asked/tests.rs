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

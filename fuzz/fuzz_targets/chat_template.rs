//! Chat templates: source and messages are both a stranger's. The template's fuel ends it.
//!
//! The first line is the content of a user's message, the rest the template.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use weir_runtime::template::{ChatMessage, ChatTemplate};

fuzz_target!(|text: &str| {
    let (content, source) = text.split_once('\n').unwrap_or(("Hello", text));
    let special = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
    let Ok(template) = ChatTemplate::compile(source, &special) else { return };
    let messages = [
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", content),
        ChatMessage::new("assistant", content),
    ];
    let _ = template.render(&messages, true);
    let _ = template.render(&[], false);
});

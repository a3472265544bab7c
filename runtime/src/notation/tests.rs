//! Answers in each notation, in files; and what holds for all answers, however they are divided.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::template::ToolCall;

/// A file: a notation with answers in it, and what they say.
fn check(file: &str) {
    let file: Value = serde_json::from_str(file).unwrap();
    let template = file["template"].as_str().unwrap();
    let notation = Notation::of(template, |token| file["token"] == token || token == "</think>");
    assert_eq!(format!("{:?}", notation.calls), file["calls"], "{template}");
    for case in file["answers"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let opened = notation.opens_thoughts(case["prompt"].as_str().unwrap_or_default());
        let whole: Vec<Value> = read(notation, opened, &[text]).iter().map(shown).collect();
        assert_eq!(Value::from(whole.clone()), case["says"], "{text:?}");
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        let divided: Vec<Value> = read(notation, opened, &letters).iter().map(shown).collect();
        assert_eq!(divided, whole, "{text:?} letter by letter");
    }
}

fn shown(part: &Spoken) -> Value {
    match part {
        Spoken::Thought(text) => json!({"thought": text}),
        Spoken::Text(text) => json!({"text": text}),
        Spoken::Call(ToolCall { id: Some(id), name, arguments }) => {
            json!({"call": name, "arguments": arguments, "id": id})
        }
        Spoken::Call(ToolCall { name, arguments, .. }) => {
            json!({"call": name, "arguments": arguments})
        }
    }
}

/// What an answer in pieces says, neighbours of one kind joined.
fn read(notation: Notation, opened: bool, pieces: &[&str]) -> Vec<Spoken> {
    let mut reader = Reader::new(notation, opened);
    let mut out = Vec::new();
    for piece in pieces {
        let mut some = Vec::new();
        reader.push(piece, &mut some);
        out.extend(some);
    }
    reader.finish(&mut out);
    let mut joined: Vec<Spoken> = Vec::new();
    for part in out {
        match (joined.last_mut(), part) {
            (Some(Spoken::Text(last)), Spoken::Text(more)) => last.push_str(&more),
            (Some(Spoken::Thought(last)), Spoken::Thought(more)) => last.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}

#[test]
fn llama() {
    check(include_str!("../../tests/notation/llama.json"));
}

#[test]
fn hermes() {
    check(include_str!("../../tests/notation/hermes.json"));
}

#[test]
fn mistral() {
    check(include_str!("../../tests/notation/mistral.json"));
}

#[test]
fn deepseek() {
    check(include_str!("../../tests/notation/deepseek.json"));
}

#[test]
fn templates_without_calls_have_no_notation_for_them() {
    let of = |template: &str| Notation::of(template, |_| false);
    assert_eq!(of("{{ messages[0].content }}"), Notation::default());
    // The same tags around something that is not JSON.
    assert_eq!(of("<tool_call>\n<function=name>").calls, None);
    assert_eq!(of("{{ message.content.split('</think>')[-1] }}").thoughts, Some(THINK));
    // It opens thoughts, whose end the model writes in tokens of ordinary text.
    assert_eq!(of("<|assistant|>\n<think>\n").thoughts, Some(THINK));
}

#[test]
fn text_in_front_of_a_call_is_not_held_back() {
    let notation = Notation { calls: Some(CallNotation::Hermes), thoughts: None };
    let mut reader = Reader::new(notation, false);
    let mut out = Vec::new();
    reader.push("Let me see <tool", &mut out);
    assert_eq!(out, [Spoken::Text("Let me see ".into())]);
    reader.push("s are here", &mut out);
    assert_eq!(out, [Spoken::Text("Let me see <tools are here".into())]);
}

/// What marks are made of, and what stands between them.
const FRAGMENTS: [&str; 32] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "```json\n",
    "```",
    "<think>",
    "</think>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}",
    "{\"name\": \"g\", \"parameters\": {}}",
    "[{\"name\": \"f\", \"arguments\": {}}]",
    "{}",
    "{\"a\": [1",
    "}",
    "]",
    "function",
    "name",
    "\n",
    "  ",
    "; ",
    "é",
    "<",
    "[",
    "▁",
    "\"",
];

fn any_notation() -> impl Strategy<Value = Notation> {
    let calls = prop_oneof![
        Just(None),
        Just(Some(CallNotation::Llama)),
        Just(Some(CallNotation::Hermes)),
        Just(Some(CallNotation::Mistral)),
        Just(Some(CallNotation::DeepSeek)),
    ];
    let thoughts = prop_oneof![Just(None), Just(Some(THINK))];
    (calls, thoughts).prop_map(|(calls, thoughts)| Notation { calls, thoughts })
}

proptest! {
    #[test]
    fn how_an_answer_is_divided_changes_nothing(
        notation in any_notation(),
        opened in any::<bool>(),
        fragments in prop::collection::vec(0..FRAGMENTS.len(), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let text: String = fragments.iter().map(|index| FRAGMENTS[*index]).collect();
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let opened = opened && notation.thoughts.is_some();
        prop_assert_eq!(read(notation, opened, &pieces), read(notation, opened, &[&text]));
    }

    #[test]
    fn what_is_no_call_is_not_lost(
        notation in any_notation(),
        fragments in prop::collection::vec(0..FRAGMENTS.len(), 0..14),
    ) {
        let text: String = fragments.iter().map(|index| FRAGMENTS[*index]).collect();
        let notation = Notation { thoughts: None, ..notation };
        let parts = read(notation, false, &[&text]);
        if !parts.iter().any(|part| matches!(part, Spoken::Call(_))) {
            let said: Vec<Spoken> = Some(text).filter(|text| !text.is_empty()).map(Spoken::Text).into_iter().collect();
            prop_assert_eq!(parts, said);
        } else {
            // Around calls, marks and white space mean nothing; letters do.
            let said: String = parts.iter().filter_map(|part| match part {
                Spoken::Text(text) => Some(text.as_str()),
                _ => None,
            }).collect();
            prop_assert_eq!(said.matches('é').count(), text.matches('é').count());
        }
    }
}

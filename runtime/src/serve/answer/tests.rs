//! Answers with thoughts and calls as clients are sent them, made of deliveries.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::*;
use crate::notation::Notation;
use crate::serve::app::Ids;
use crate::serve::forms::{ChatForm, Letterhead, MessagesForm, ResponseFields, ResponsesForm};
use crate::serve::mailbox::{End, mailbox};
use crate::{FinishReason, Usage};

const PIECES: [&str; 8] = [
    "<think>\n",
    "Two and",
    " two.\n</think>\n\n",
    "I add",
    ".",
    "<tool_call>{\"name\": \"add\", ",
    "\"arguments\": {\"a\": 2}}",
    "</tool_call>",
];

fn letterhead() -> Letterhead {
    Letterhead { id: "x".into(), created: 1, model: "m".into() }
}

/// The answer of these pieces, a token each.
fn answers(form: Box<dyn Form>, pieces: &[&str], reason: FinishReason) -> Answers {
    let (mut outbox, inbox) = mailbox(1);
    for (id, piece) in (0..).zip(pieces) {
        outbox.token(0, id, piece, None);
    }
    let completion_tokens = pieces.len() as u32;
    let usage = Usage { prompt_tokens: 7, completion_tokens, reused_tokens: 3, ..Usage::default() };
    outbox.end(0, "", End::Finished { reason, stop: None, usage });
    of_inbox(form, inbox)
}

/// The answer that comes into a mailbox.
fn of_inbox(form: Box<dyn Form>, inbox: Inbox) -> Answers {
    let template = "<tool_call>{{ call | tojson }}</tool_call></think>";
    let rules = ReadingRules {
        notation: Some(Notation::of(template, |_| false)),
        in_thoughts: false,
        one_call: false,
        ids: Arc::new(Ids::default()),
        stops: Vec::new(),
    };
    let held = Held::new(None, Answering::default());
    Answers::new(inbox, form, &rules, 1, 1, RequestSpan::default(), held)
}

fn run(response: impl Future<Output = Response>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let body: Body = response.await.into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    })
}

fn whole(answers: Answers) -> Value {
    serde_json::from_str(&run(async { answers.whole().await.unwrap() })).unwrap()
}

/// Data of all events.
fn events(answers: Answers) -> Vec<Value> {
    let text = run(async { answers.stream(Duration::from_secs(60)) });
    text.split("\n\n")
        .filter_map(|event| event.split_once("data: "))
        .filter_map(|(_, data)| serde_json::from_str(data).ok())
        .collect()
}

fn chat() -> Box<dyn Form> {
    Box::new(ChatForm::new(letterhead(), 1, None, true, false))
}

#[test]
fn a_conversations_answer_has_thoughts_text_and_calls() {
    let whole = whole(answers(chat(), &PIECES, FinishReason::Stop));
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I add.");
    assert_eq!(choice["message"]["reasoning_content"], "Two and two.");
    assert_eq!(choice["message"]["reasoning"], "Two and two.");
    let function = json!({"name": "add", "arguments": "{\"a\": 2}"});
    assert_eq!(choice["message"]["tool_calls"][0]["function"], function);
    assert!(choice["message"]["tool_calls"][0]["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
    let mut content = String::new();
    let mut thoughts = String::new();
    let mut calls = Vec::new();
    let mut reasons = Vec::new();
    for event in events(answers(chat(), &PIECES, FinishReason::Stop)) {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        thoughts.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        calls.extend(delta["tool_calls"].as_array().cloned().unwrap_or_default());
        reasons.extend(event["choices"][0]["finish_reason"].as_str().map(str::to_owned));
    }
    assert_eq!((content.as_str(), thoughts.as_str()), ("I add.", "Two and two."));
    assert_eq!((calls.len(), &calls[0]["index"], &calls[0]["function"]), (1, &json!(0), &function));
    assert_eq!(reasons, ["tool_calls"]);
}

/// Where no single token is a mark, its pieces come one by one.
#[test]
fn thoughts_end_with_a_mark_of_several_tokens() {
    let pieces = ["<", "thi", "nk", ">", "Two.", " </", "think", ">\n", "\n", "Four", " <", "."];
    let whole = whole(answers(chat(), &pieces, FinishReason::Stop));
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning"]), (&json!("Four <."), &json!("Two.")));
    // Those of the mark at the end are counted, as a single one is.
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
    let (mut content, mut thoughts) = (String::new(), String::new());
    for event in events(answers(chat(), &pieces, FinishReason::Stop)) {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        thoughts.push_str(delta["reasoning"].as_str().unwrap_or_default());
    }
    assert_eq!((content.as_str(), thoughts.as_str()), ("Four <.", "Two."));
}

/// A call is held back until it is whole, and whoever waits for it hears nothing of its tokens.
#[test]
fn a_stream_whose_tokens_give_nothing_to_write_shows_signs_of_life() {
    let (mut outbox, inbox) = mailbox(1);
    let mut events = Streamed::new(of_inbox(chat(), inbox), Duration::from_millis(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        outbox.token(0, 0, "<tool_call>{\"name\": \"", None);
        let first = events.next().await.unwrap();
        assert!(first.starts_with(b"data: "), "{first:?}");
        let mut next = std::pin::pin!(events.next());
        let mut sign = None;
        for _ in 0..1_000_000 {
            // Whenever it looks there is a token.
            outbox.token(0, 1, "a", None);
            outbox.ring();
            if let Poll::Ready(event) = next.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                sign = event;
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(sign, Some(chat().keep_alive()));
    });
}

#[test]
fn a_call_alone_has_no_content_and_one_that_is_cut_is_text() {
    let call = whole(answers(chat(), &PIECES[5..], FinishReason::Stop));
    assert_eq!(call["choices"][0]["message"]["content"], Value::Null);
    let cut = whole(answers(chat(), &PIECES[5..6], FinishReason::Length));
    assert_eq!(cut["choices"][0]["message"]["content"], PIECES[5]);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[test]
fn responses_are_the_same_whole_and_streamed() {
    let form = || Box::new(ResponsesForm::new(letterhead(), ResponseFields::default()));
    let whole = whole(answers(form(), &PIECES, FinishReason::Stop));
    let kinds: Vec<&str> =
        (0..3).map(|index| whole["output"][index]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(whole["output"][1]["content"][0]["text"], "I add.");
    let events = events(answers(form(), &PIECES, FinishReason::Stop));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    // Names of calls are random.
    let unnamed = |response: &Value| {
        let mut response = response.clone();
        response["output"][2]["call_id"].take();
        response
    };
    assert_eq!(unnamed(&last["response"]), unnamed(&whole));
    let numbers: Vec<u64> =
        events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, "I add.");
    let cut = events_of_cut(form());
    assert_eq!(cut.last().unwrap()["type"], "response.incomplete");
}

fn events_of_cut(form: Box<dyn Form>) -> Vec<Value> {
    events(answers(form, &["Four"], FinishReason::Length))
}

#[test]
fn anthropics_blocks_begin_and_end() {
    let form = || Box::new(MessagesForm::new(letterhead(), 7));
    let whole = whole(answers(form(), &PIECES, FinishReason::Stop));
    let kinds: Vec<&str> =
        (0..3).map(|index| whole["content"][index]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!(whole["content"][2]["input"], json!({"a": 2}));
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["usage"]["input_tokens"], 4);
    assert_eq!(whole["usage"]["cache_read_input_tokens"], 3);
    let events = events(answers(form(), &PIECES, FinishReason::Stop));
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
    assert_eq!((of("message_start"), of("message_stop")), (1, 1));
    assert_eq!((of("content_block_start"), of("content_block_stop")), (3, 3));
    let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    assert_eq!(events_of_cut(form()).len(), 7);
}

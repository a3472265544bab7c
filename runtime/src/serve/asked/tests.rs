//! Fields and their mistakes.

use std::collections::BTreeMap;

use super::*;
use crate::serve::json::parse;
use crate::template::{ChatMessage, ChatTemplate, ToolCall};

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, &BTreeMap::new()).unwrap()
}

/// Knows tools, as far as can be told from outside.
const WITH_TOOLS: &str = "{{ tools }}{{ messages[0].tool_calls }}";

fn messages(json: &str) -> Result<Vec<ChatMessage>, Failure> {
    read_messages(&parse::<MessageList>(json.as_bytes(), 64)?, &template(WITH_TOOLS))
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
        (
            r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#,
            "messages[0].content[0]",
        ),
        (r#"[{"role": "assistant", "tool_calls": [{"id": "1"}]}]"#, "[0].tool_calls[0].function"),
        (
            r#"[{"role": "user", "content": "a",
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]"#,
            "messages[0].tool_calls",
        ),
        (
            r#"[{"role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\""}}]}]"#,
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]"#,
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            r#"[{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]"#,
            "messages[0].tool_calls[0].function.name",
        ),
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
fn lists_are_no_objects() {
    let refused = |failure: Option<Failure>, field: &str| {
        assert_eq!(failure.expect(field).param.as_deref(), Some(field));
    };
    for field in ["stream_options", "response_format", "structured_outputs"] {
        for list in ["[]", "[null]", "[\"text\"]"] {
            let json = format!("{{\"{field}\": {list}}}");
            refused(parse::<GenerationFields>(json.as_bytes(), 64).err(), field);
        }
        let absent = format!("{{\"{field}\": null}}");
        assert!(parse::<GenerationFields>(absent.as_bytes(), 64).is_ok(), "{field} is null");
    }
    for field in ["reasoning", "text"] {
        let json = format!("{{\"input\": \"a\", \"{field}\": [null]}}");
        refused(parse::<ResponsesFields>(json.as_bytes(), 64).err(), field);
    }
    for (field, list) in
        [("output_config", "[null]"), ("thinking", "[\"enabled\"]"), ("tool_choice", "[\"auto\"]")]
    {
        let json = format!("{{\"messages\": [], \"{field}\": {list}}}");
        refused(parse::<AnthropicFields>(json.as_bytes(), 64).err(), field);
    }
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
    let stops = |count: usize| format!("{{\"stop_token_ids\": [{}]}}", vec!["7"; count].join(","));
    assert!(fields(&stops(64)).is_ok());
    assert_eq!(fields(&stops(65)).unwrap_err().param.as_deref(), Some("stop_token_ids"));
}

#[test]
fn calls_and_what_they_gave_are_messages() {
    let read = messages(
        r#"[{"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "2"}]"#,
    )
    .unwrap();
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: Some(id.into()),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(read[0].tool_calls, [call("c1", "f", "{\"a\": 1}"), call("c2", "g", "{}")]);
    assert_eq!((read[0].content.as_str(), read[0].reasoning.as_deref()), ("", Some("Hm.")));
    assert_eq!(read[1].role, "tool");
    assert_eq!((read[1].tool_call_id.as_deref(), read[1].name.as_deref()), (Some("c1"), Some("f")));
    // A template that would not write them.
    let plain = template("{{ messages[0].content }}");
    for (json, field) in [
        (r#"[{"role": "tool", "content": "a"}]"#, "messages[0].role"),
        (
            r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]"#,
            "messages[0].tool_calls",
        ),
    ] {
        let list = parse::<MessageList>(json.as_bytes(), 64).unwrap();
        assert_eq!(read_messages(&list, &plain).unwrap_err().param.as_deref(), Some(field));
    }
}

#[test]
fn tools_are_checked_and_their_choice() {
    let resolve = |json: &str, source: &str| {
        parse::<ToolFieldsOfRequest>(json.as_bytes(), 64)?.resolve(&template(source))
    };
    let tool = r#"{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}"#;
    let with = |rest: &str| format!("{{\"tools\": [{tool}]{rest}}}");
    let tools = resolve(&with(""), WITH_TOOLS).unwrap();
    assert_eq!((tools.definitions, tools.one_call), (vec![tool.to_owned()], false));
    let none = resolve(&with(", \"tool_choice\": \"none\""), WITH_TOOLS).unwrap();
    assert!(none.definitions.is_empty());
    let one =
        resolve(&with(", \"parallel_tool_calls\": false, \"tool_choice\": \"auto\""), WITH_TOOLS);
    assert!(one.unwrap().one_call);
    let many = format!("{{\"tools\": [{}{tool}]}}", format!("{tool},").repeat(128));
    let wrong = [
        (with(", \"tool_choice\": \"perhaps\""), "tool_choice"),
        (with(", \"tool_choice\": 3"), "tool_choice"),
        (with(", \"tool_choice\": {\"function\": {\"name\": \"f\"}}"), "tool_choice.type"),
        (
            with(r#", "tool_choice": {"type": "function", "function": {"name": "g"}}"#),
            "tool_choice",
        ),
        (with(r#", "tool_choice": {"type": "function"}"#), "tool_choice"),
        (with(r#", "tool_choice": {"type": "allowed_tools", "mode": "auto"}"#), "tool_choice"),
        (r#"{"tool_choice": "required"}"#.to_owned(), "tool_choice"),
        (
            r#"{"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}],
                "tool_choice": "required"}"#
                .to_owned(),
            "tools[0].function.parameters",
        ),
        (
            r#"{"tools": [{"function": {"name": "f", "parameters": true}}],
                "tool_choice": "required"}"#
                .to_owned(),
            "tools[0].function.parameters",
        ),
        (
            format!(
                r#"{{"tools": [{{"function": {{"name": "f", "parameters": {{"a": "{}"}}}}}}],
                    "tool_choice": "required"}}"#,
                "a".repeat(64 << 10)
            ),
            "tools",
        ),
        (r#"{"functions": []}"#.to_owned(), "functions"),
        (r#"{"tools": [{"type": "function"}]}"#.to_owned(), "tools[0].function"),
        (r#"{"tools": [{"type": "web"}]}"#.to_owned(), "tools[0].type"),
        (r#"{"tools": [{"function": {"name": "a b"}}]}"#.to_owned(), "tools[0].function.name"),
        (r#"{"tools": [{"function": {}}]}"#.to_owned(), "tools[0].function.name"),
        (r#"{"tools": [1]}"#.to_owned(), "tools[0]"),
        (many, "tools"),
    ];
    for (json, field) in wrong {
        assert_eq!(resolve(&json, WITH_TOOLS).unwrap_err().param.as_deref(), Some(field), "{json}");
    }
    let failure = resolve(&with(""), "{{ messages }}").unwrap_err();
    assert_eq!(failure.param.as_deref(), Some("tools"));
}

#[test]
fn items_of_responses_are_messages() {
    let fields = |json: &str| parse::<ResponsesFields>(json.as_bytes(), 64);
    let read = |json: &str| fields(json)?.messages(&template(WITH_TOOLS));
    let found = read(
        r#"{"instructions": "Be brief.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"}]}"#,
    )
    .unwrap();
    let roles: Vec<&str> = found.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(found[2].reasoning.as_deref(), Some("t"));
    assert_eq!(found[2].tool_calls[0].id, found[3].tool_call_id);
    // Thoughts between a turn's text and its call are that turn's.
    let found = read(
        r#"{"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "u"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
            {"role": "assistant", "content": "d"}]}"#,
    )
    .unwrap();
    let thoughts: Vec<_> = found.iter().map(|message| message.reasoning.as_deref()).collect();
    assert_eq!(thoughts, [None, Some("t\nu"), None, None]);
    assert_eq!(read(r#"{"input": "a"}"#).unwrap(), [ChatMessage::new("user", "a")]);
    for (json, field) in [
        ("{}", "input"),
        (r#"{"input": []}"#, "input"),
        (r#"{"input": [{"type": "computer_call"}]}"#, "input[0].type"),
        (r#"{"input": [{"role": "tool", "content": "a"}]}"#, "input[0].role"),
        (r#"{"input": [{"type": "function_call", "name": "f"}]}"#, "input[0].call_id"),
    ] {
        assert_eq!(read(json).unwrap_err().param.as_deref(), Some(field), "{json}");
    }
    for (json, field) in [
        (r#"{"store": true}"#, "store"),
        (r#"{"previous_response_id": "r"}"#, "previous_response_id"),
        (r#"{"include": ["x"]}"#, "include"),
    ] {
        let failure = fields(json).unwrap().refuse_unsupported().unwrap_err();
        assert_eq!(failure.param.as_deref(), Some(field), "{json}");
    }
    fields(r#"{"store": false, "truncation": "disabled"}"#).unwrap().refuse_unsupported().unwrap();
}

#[test]
fn blocks_of_anthropics_messages_are_messages() {
    let fields = |json: &str| parse::<AnthropicFields>(json.as_bytes(), 64);
    let read = |json: &str| fields(json)?.messages(&template(WITH_TOOLS));
    let found = read(
        r#"{"system": [{"type": "text", "text": "s"}], "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "text", "text": "b"}, {"type": "thinking", "thinking": "v"},
                {"type": "tool_use", "id": "u", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "u", "content": "4"},
                {"type": "text", "text": "c"}]}]}"#,
    )
    .unwrap();
    let texts: Vec<(&str, &str)> =
        found.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
    let expected =
        [("system", "s"), ("user", "a"), ("assistant", "b"), ("tool", "4"), ("user", "c")];
    assert_eq!(texts, expected);
    assert_eq!(found[2].reasoning.as_deref(), Some("t\nv"));
    assert_eq!(found[2].tool_calls[0].arguments, r#"{"x": 1}"#);
    for (json, field) in [
        (r#"{"messages": []}"#, "messages"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}"#,
            "messages",
        ),
        (r#"{"messages": [{"role": "system", "content": "a"}]}"#, "messages[0].role"),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#,
            "messages[0].content[0]",
        ),
    ] {
        assert_eq!(read(json).unwrap_err().param.as_deref(), Some(field), "{json}");
    }
    let tools = fields(
        r#"{"messages": [], "tools": [{"name": "f", "description": "d", "input_schema": {"b": 1}}]}"#,
    );
    let tools = tools.unwrap().tools(&template(WITH_TOOLS)).unwrap().definitions;
    let expected = r#"{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"b": 1}}}"#;
    assert_eq!(tools, [expected]);
}

/// What a choice makes of tools `f`, `g` and `h`: those that are shown, and those that must be called.
type Chosen = (Vec<char>, Option<(Vec<char>, bool, bool)>);

fn chosen(tools: &Tools) -> Chosen {
    let names = |text: String| text.chars().filter(|letter| "fgh".contains(*letter)).collect();
    let shown = |definition: &String| {
        let value: serde_json::Value = serde_json::from_str(definition).unwrap();
        value["function"]["name"].as_str().unwrap().to_owned()
    };
    let forced = tools
        .forced
        .as_ref()
        .map(|forced| (names(forced.names().concat()), forced.is_one, forced.is_named));
    (names(tools.definitions.iter().map(shown).collect()), forced)
}

#[test]
fn a_choice_shows_tools_and_forces_calls() {
    let all = vec!['f', 'g', 'h'];
    let some = |names: &[char], is_one, is_named| Some((names.to_vec(), is_one, is_named));
    let completions: [(&str, Chosen); 6] = [
        ("null", (all.clone(), None)),
        ("\"none\"", (vec![], None)),
        ("\"required\"", (all.clone(), some(&all, false, false))),
        (
            r#"{"type": "function", "function": {"name": "g"}}"#,
            (all.clone(), some(&['g'], true, true)),
        ),
        (
            r#"{"type": "allowed_tools", "allowed_tools": {"mode": "auto",
                "tools": [{"type": "function", "function": {"name": "h"}}]}}"#,
            (vec!['h'], None),
        ),
        (
            r#"{"type": "allowed_tools", "allowed_tools": {"mode": "required",
                "tools": [{"type": "function", "function": {"name": "h"}},
                          {"type": "function", "function": {"name": "f"}}]}}"#,
            (vec!['f', 'h'], some(&['f', 'h'], false, false)),
        ),
    ];
    let of = |names: [&str; 3], tool: &dyn Fn(&str) -> String| names.map(tool).join(",");
    let names = ["f", "g", "h"];
    let tools = of(names, &|name| format!("{{\"function\": {{\"name\": \"{name}\"}}}}"));
    for (choice, expected) in completions {
        let json = format!("{{\"tools\": [{tools}], \"tool_choice\": {choice}}}");
        let fields: ToolFieldsOfRequest = parse(json.as_bytes(), 64).unwrap();
        assert_eq!(chosen(&fields.resolve(&template(WITH_TOOLS)).unwrap()), expected, "{choice}");
    }
    let one = format!(
        "{{\"tools\": [{tools}], \"tool_choice\": \"required\", \"parallel_tool_calls\": false}}"
    );
    let fields: ToolFieldsOfRequest = parse(one.as_bytes(), 64).unwrap();
    let one = fields.resolve(&template(WITH_TOOLS)).unwrap();
    assert_eq!(chosen(&one), (all.clone(), some(&all, true, false)));
    let responses: [(&str, Chosen); 3] = [
        ("\"required\"", (all.clone(), some(&all, false, false))),
        (r#"{"type": "function", "name": "g"}"#, (all.clone(), some(&['g'], true, true))),
        (
            r#"{"type": "allowed_tools", "mode": "required",
                "tools": [{"type": "function", "name": "h"}]}"#,
            (vec!['h'], some(&['h'], false, false)),
        ),
    ];
    let tools = of(names, &|name| format!("{{\"type\": \"function\", \"name\": \"{name}\"}}"));
    for (choice, expected) in responses {
        let json = format!("{{\"tools\": [{tools}], \"tool_choice\": {choice}}}");
        let fields: ResponsesFields = parse(json.as_bytes(), 64).unwrap();
        assert_eq!(chosen(&fields.tools(&template(WITH_TOOLS)).unwrap()), expected, "{choice}");
    }
    let messages: [(&str, Chosen); 5] = [
        (r#"{"type": "auto"}"#, (all.clone(), None)),
        (r#"{"type": "none"}"#, (vec![], None)),
        (r#"{"type": "any"}"#, (all.clone(), some(&all, false, false))),
        (
            r#"{"type": "any", "disable_parallel_tool_use": true}"#,
            (all.clone(), some(&all, true, false)),
        ),
        (r#"{"type": "tool", "name": "g"}"#, (all.clone(), some(&['g'], true, true))),
    ];
    let tools = of(names, &|name| format!("{{\"name\": \"{name}\"}}"));
    for (choice, expected) in messages {
        let json = format!("{{\"messages\": [], \"tools\": [{tools}], \"tool_choice\": {choice}}}");
        let fields: AnthropicFields = parse(json.as_bytes(), 64).unwrap();
        assert_eq!(chosen(&fields.tools(&template(WITH_TOOLS)).unwrap()), expected, "{choice}");
    }
    for (choice, field) in
        [(r#"{"type": "tool"}"#, "tool_choice.name"), (r#"{"type": "some"}"#, "tool_choice.type")]
    {
        let json = format!("{{\"messages\": [], \"tools\": [{tools}], \"tool_choice\": {choice}}}");
        let fields: AnthropicFields = parse(json.as_bytes(), 64).unwrap();
        let failure = fields.tools(&template(WITH_TOOLS)).unwrap_err();
        assert_eq!(failure.param.as_deref(), Some(field));
    }
}

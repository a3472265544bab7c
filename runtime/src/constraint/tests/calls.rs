//! Answers that must be calls: whatever a model says, its reader finds valid calls in it and nothing else.

use super::*;
use crate::notation::forced::{CallableTool, ForcedCalls};
use crate::notation::{CallNotation, Notation, Reader, Spoken, ThoughtMarks};
use crate::template::ToolCall;

const THINK: ThoughtMarks = ThoughtMarks { begin: "<think>", end: "</think>" };

const NOTATIONS: [CallNotation; 4] =
    [CallNotation::Llama, CallNotation::Hermes, CallNotation::Mistral, CallNotation::DeepSeek];

/// Marks of all notations.
const MARKS: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<think>",
    "</think>",
];

struct Known {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

/// A vocabulary in which marks are texts like any other, and one in which they are special tokens.
fn known(is_special: bool) -> &'static Known {
    static KNOWN: OnceLock<[Known; 2]> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tales/tokenizer.json");
        let mut source: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let plain = source.to_string();
        let added = source["added_tokens"].as_array_mut().unwrap();
        for (id, mark) in (2048..).zip(MARKS) {
            added.push(json!({
                "id": id, "content": mark, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }));
        }
        [plain, source.to_string()].map(|source| {
            let packed = weir_tokenizer::pack(source.as_bytes()).unwrap();
            let tokenizer = Tokenizer::open(packed).unwrap();
            let grammars = Grammars::new(&tokenizer, tokenizer.vocabulary(), &[EOS]).unwrap();
            Known { tokenizer, grammars }
        })
    });
    &known[usize::from(is_special)]
}

impl Known {
    fn read(&self, constraint: &Constraint) -> Result<Grammar, ConstraintError> {
        loop {
            match self.grammars.read(constraint) {
                Err(ConstraintError::Busy) => {}
                outcome => return outcome,
            }
        }
    }

    fn allowed(&self, matcher: &mut Matcher) -> Vec<u32> {
        let mut logits = vec![0.0; self.tokenizer.vocabulary() as usize];
        matcher.mask(&mut logits, &[EOS]).unwrap();
        (0..).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(token, _)| token).collect()
    }

    /// Whether a text keeps to a grammar, token by token as the tokenizer divides it, and may end there.
    fn takes(&self, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = Matcher::new(grammar.clone());
        let mut is_whole = false;
        for token in self.tokenizer.encode(text, false).unwrap() {
            if is_whole || !self.allowed(&mut matcher).contains(&token) {
                return false;
            }
            is_whole = matcher.take(token).unwrap();
        }
        is_whole || self.allowed(&mut matcher).contains(&EOS)
    }

    fn calls(&self, calls: &ForcedCalls) -> Grammar {
        self.read(&Constraint::Calls(calls.clone())).unwrap()
    }

    /// The answer that begins like this and goes on as one of a model that knows nothing.
    fn babble(&self, grammar: Grammar, begin: &str, seed: u64) -> String {
        let mut matcher = Matcher::new(grammar);
        let mut ids = self.tokenizer.encode(begin, false).unwrap();
        for token in &ids {
            let text = self.tokenizer.token_text(*token);
            assert!(self.allowed(&mut matcher).contains(token), "{text:?} of {begin:?}");
            assert!(!matcher.take(*token).unwrap(), "{begin:?} is a whole answer");
        }
        let mut state = seed.wrapping_mul(2) + 1;
        for _ in 0..3000 {
            let tokens = self.allowed(&mut matcher);
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let token = tokens[(state >> 33) as usize % tokens.len()];
            if token == EOS {
                return self.tokenizer.decode(&ids, false);
            }
            ids.push(token);
            if matcher.take(token).unwrap() {
                return self.tokenizer.decode(&ids, false);
            }
        }
        panic!("no end of {:?}", self.tokenizer.decode(&ids, false))
    }
}

fn tools() -> Vec<CallableTool> {
    let tool = |name: &str, parameters| CallableTool { name: name.to_owned(), parameters };
    vec![
        tool(
            "add",
            json!({
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "maximum": 99},
                    "how": {"$ref": "#/$defs/how"},
                },
                "$defs": {"how": {"enum": ["}\"</tool_call>", "slow"]}},
                "required": ["a", "how"],
                "additionalProperties": false,
            }),
        ),
        // A name that another one begins with.
        tool("add.more", json!({"type": "object", "additionalProperties": false})),
        tool(
            "function",
            json!({
                "type": "object",
                "properties": {"q": {"type": "string", "maxLength": 6}},
                "additionalProperties": false,
            }),
        ),
    ]
}

fn is_valid(call: &ToolCall) -> bool {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    let keys: Vec<&String> = arguments.as_object().unwrap().keys().collect();
    match call.name.as_str() {
        "add" => {
            let how = ["}\"</tool_call>", "slow"];
            keys == ["a", "how"]
                && (0..=99).contains(&arguments["a"].as_i64().unwrap())
                && how.contains(&arguments["how"].as_str().unwrap())
        }
        "add.more" => keys.is_empty(),
        "function" => {
            keys.is_empty()
                || (keys == ["q"] && arguments["q"].as_str().unwrap().chars().count() <= 6)
        }
        _ => false,
    }
}

/// What an answer says, thoughts joined, which the prompt has opened or not.
fn said(notation: CallNotation, are_open: bool, text: &str) -> (String, Vec<ToolCall>) {
    let notation = Notation { calls: Some(notation), thoughts: Some(THINK) };
    let mut reader = Reader::new(notation, are_open);
    let mut out = Vec::new();
    reader.push(text, &mut out);
    reader.finish(&mut out);
    let (mut thoughts, mut made) = (String::new(), Vec::new());
    for part in out {
        match part {
            Spoken::Thought(thought) => thoughts.push_str(&thought),
            Spoken::Call(call) => made.push(call),
            Spoken::Text(more) => panic!("{more:?} is said in {text:?}"),
        }
    }
    (thoughts, made)
}

#[test]
fn whatever_a_model_says_is_calls_that_are_valid() {
    let mut several = 0;
    for notation in NOTATIONS {
        for is_special in [false, true] {
            for is_one in [false, true] {
                let calls = ForcedCalls { notation, tools: tools(), is_one };
                let known = known(is_special);
                let grammar = known.calls(&calls);
                for seed in 0..25 {
                    let text = known.babble(grammar.clone(), "", seed);
                    let (_, made) = said(notation, false, &text);
                    assert!(!made.is_empty() && made.iter().all(is_valid), "{text:?}");
                    assert!(!is_one || made.len() == 1, "{text:?}");
                    several += usize::from(made.len() > 1);
                }
            }
        }
    }
    assert!(several > 20, "{several} answers with several calls");
}

#[test]
fn thoughts_may_come_first_and_are_anything() {
    for notation in NOTATIONS {
        for is_special in [false, true] {
            for are_open in [false, true] {
                let known = known(is_special);
                let calls = ForcedCalls { notation, tools: tools(), is_one: true };
                let grammar = known.calls(&calls).behind_thoughts(THINK, are_open);
                let opened = if are_open { "" } else { "<think>" };
                let begin = format!("{opened}\nHm: {{\"a\": <tool\n\n</think>\n\n");
                for seed in 0..5 {
                    let text = known.babble(grammar.clone(), &begin, seed);
                    let (thoughts, made) = said(notation, are_open, &text);
                    assert_eq!(thoughts, "Hm: {\"a\": <tool", "{text:?}");
                    assert!(made.len() == 1 && is_valid(&made[0]), "{text:?}");
                }
                // Without thoughts it calls at once; those that were opened must end.
                let first = known.allowed(&mut Matcher::new(grammar));
                let letter = known.tokenizer.encode("a", false).unwrap();
                assert_eq!(first.contains(&letter[0]), are_open);
                assert!(!first.contains(&EOS));
            }
        }
    }
}

/// Forms that begin as the mark of thoughts does, and forms that do not.
#[test]
fn thoughts_may_come_in_front_of_any_form() {
    let forms = [
        (Constraint::JsonObject, ""),
        (Constraint::Choice(vec!["yes".into(), "no".into()]), ""),
        (Constraint::Regex("<t[a-z]{1,3}>".into()), "<th"),
        (Constraint::Regex(" ?<[a-z]".into()), " <"),
    ];
    for (form, begin) in forms {
        for is_special in [false, true] {
            for are_open in [false, true] {
                let known = known(is_special);
                let grammar = known.read(&form).unwrap();
                let thinking = grammar.clone().behind_thoughts(THINK, are_open);
                let opened = if are_open { "" } else { "<think>" };
                let thoughts = format!("{opened}Hm: {{\"a\": yes <tool\n</think>");
                for seed in 0..5 {
                    let answer = known.babble(grammar.clone(), begin, seed);
                    assert!(answer.starts_with(begin), "{answer:?}");
                    let thought = known.babble(thinking.clone(), &thoughts, seed);
                    let said = thought.strip_prefix(&thoughts).unwrap();
                    assert!(known.takes(&grammar, said), "{thought:?}");
                    // Who may think need not; thoughts that were opened must end.
                    assert_eq!(known.takes(&thinking, &answer), !are_open);
                }
            }
        }
    }
}

#[test]
fn answers_as_models_write_them_are_taken() {
    let texts: [(CallNotation, &[&str]); 4] = [
        (
            CallNotation::Llama,
            &[
                r#"{"name": "add", "parameters": {"a": 1, "how": "slow"}}"#,
                r#"{"type": "function", "name": "add.more", "parameters": {}}"#,
                r#"{"name": "add.more", "parameters": {}}; {"name": "function", "parameters": {"q": "x"}}"#,
            ],
        ),
        (
            CallNotation::Hermes,
            &[
                "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"how\": \"slow\"}}\n</tool_call>",
                "<tool_call>{\"name\":\"add.more\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"function\", \"arguments\": {}}\n</tool_call>",
            ],
        ),
        (
            CallNotation::Mistral,
            &[
                r#"[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "how": "slow"}}, {"name": "add.more", "arguments": {}}]"#,
                r#"[TOOL_CALLS]add[ARGS]{"a": 1, "how": "slow"}[TOOL_CALLS]function[CALL_ID]abcdefghi[ARGS]{}"#,
            ],
        ),
        (
            CallNotation::DeepSeek,
            &[
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1, \"how\": \"slow\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>function\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1, \"how\": \"slow\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ],
        ),
    ];
    for (notation, texts) in texts {
        let calls = ForcedCalls { notation, tools: tools(), is_one: false };
        for text in texts {
            for is_special in [false, true] {
                let known = known(is_special);
                assert!(known.takes(&known.calls(&calls), text), "{text}");
            }
        }
    }
}

#[test]
fn tools_that_cannot_be_kept_to_are_named_and_many_are_read() {
    let known = known(false);
    let read = |tools: Vec<CallableTool>| {
        let calls = ForcedCalls { notation: CallNotation::Hermes, tools, is_one: false };
        known.read(&Constraint::Calls(calls))
    };
    let tool = |parameters| CallableTool { name: "f".into(), parameters };
    let closed = || tool(json!({"type": "object", "additionalProperties": false}));
    for wrong in [
        json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}),
        json!({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}),
        json!({"type": "object", "x-guidance": {"lenient": true}}),
        json!({"type": "object", "properties": {"a": {"const": i64::MIN}}}),
        json!({"type": "object", "properties": {"a": {"pattern": "a?".repeat(2000)}}}),
    ] {
        let error = read(vec![closed(), tool(wrong), closed()]).unwrap_err();
        assert!(matches!(&error, ConstraintError::Tool { index: 1, .. }), "{error:?}");
    }
    assert_eq!(read(vec![]).unwrap_err(), ConstraintError::NoTool);
    let long = json!({"type": "object", "description": "a".repeat(40_000)});
    let error = read(vec![tool(long.clone()), tool(long)]).unwrap_err();
    assert!(matches!(error, ConstraintError::TooLong { .. }), "{error:?}");
    // Each is light, and all of them are not.
    let heavy = json!({"type": "object", "properties": {"a": {"pattern": "a?".repeat(600)}}});
    assert!(read(vec![tool(heavy.clone()), tool(heavy)]).is_err());
    let names = ["city", "country", "unit", "days", "language"];
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["city"],
        "additionalProperties": false,
    });
    let many: Vec<CallableTool> = (0..32)
        .map(|number| CallableTool {
            name: format!("tool_{number}"),
            parameters: parameters.clone(),
        })
        .collect();
    // How long it takes is for the machine to say, which may have other work.
    let is_read = (0..10).any(|_| match read(many.clone()) {
        Err(ConstraintError::TooSlow) => false,
        outcome => outcome.is_ok(),
    });
    assert!(is_read, "32 tools");
}

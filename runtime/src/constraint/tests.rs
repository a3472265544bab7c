//! Which texts keep to a constraint, and that no source takes the server down.

mod calls;
mod refused;
mod schemas;

use std::sync::OnceLock;

use super::*;
use weir_tokenizer::Tokenizer;

const EOS: u32 = 1;

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tales/tokenizer.json");
        let packed = weir_tokenizer::pack(&std::fs::read(path).unwrap()).unwrap();
        Tokenizer::open(packed).unwrap()
    })
}

/// Wider than the tokenizer, as models are.
fn vocabulary() -> u32 {
    tokenizer().vocabulary() + 5
}

fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| Grammars::new(tokenizer(), vocabulary(), &[EOS]).unwrap())
}

/// Reads although other tests read as well.
fn read(constraint: &Constraint) -> Result<Grammar, ConstraintError> {
    loop {
        match grammars().read(constraint) {
            Err(ConstraintError::Busy) => {}
            outcome => return outcome,
        }
    }
}

fn allowed(matcher: &mut Matcher, ends: &[u32]) -> Result<Vec<u32>, ConstraintFault> {
    let mut logits = vec![0.0; vocabulary() as usize];
    matcher.mask(&mut logits, ends)?;
    Ok((0..).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(token, _)| token).collect())
}

/// Whether a text keeps to a constraint and may end there.
fn takes(constraint: &Constraint, text: &str) -> bool {
    let mut matcher = Matcher::new(read(constraint).unwrap());
    let mut is_whole = false;
    for token in tokenizer().encode(text, false).unwrap() {
        if is_whole || !allowed(&mut matcher, &[EOS]).unwrap().contains(&token) {
            return false;
        }
        is_whole = matcher.take(token).unwrap();
    }
    is_whole || allowed(&mut matcher, &[EOS]).unwrap().contains(&EOS)
}

/// An answer of a model that knows nothing, and whether it came to an end.
fn babble(constraint: &Constraint, seed: u64, most: usize) -> (String, bool) {
    let mut matcher = Matcher::new(read(constraint).unwrap());
    let (mut ids, mut state) = (Vec::new(), seed.wrapping_mul(2) + 1);
    while ids.len() < most {
        let tokens = allowed(&mut matcher, &[EOS]).unwrap();
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let token = tokens[(state >> 33) as usize % tokens.len()];
        if token == EOS {
            return (tokenizer().decode(&ids, true), true);
        }
        ids.push(token);
        if matcher.take(token).unwrap() {
            return (tokenizer().decode(&ids, true), true);
        }
    }
    (tokenizer().decode(&ids, true), false)
}

fn person() -> Constraint {
    Constraint::JsonSchema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "kind": {"enum": ["cat", "dog"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    }))
}

#[test]
fn texts_that_keep_to_it_are_taken_and_no_others() {
    let cases: [(Constraint, &[&str], &[&str]); 5] = [
        (
            person(),
            &[
                r#"{"name": "Tom", "age": 3, "kind": "cat"}"#,
                "{\n  \"name\":\"\",\n  \"age\":120,\n  \"kind\":\"dog\"\n}",
            ],
            &[
                r#"{"name": "Tom", "age": 121, "kind": "cat"}"#,
                r#"{"name": "Tom", "age": 3}"#,
                r#"{"name": "Tom", "age": 3, "kind": "cow"}"#,
                r#"{"name": "much too long", "age": 3, "kind": "cat"}"#,
                r#"{"name":  "Tom", "age": 3, "kind": "cat"}"#,
                "[]",
            ],
        ),
        (
            Constraint::JsonObject,
            &["{}", r#"{"a": [1, {"b": null}], "c": "é\n"}"#],
            &["[]", "{", "{} ", "a", r#"{"a": 01}"#],
        ),
        (
            Constraint::Regex(r"(\d{3}-)?\d{4}|a/b".into()),
            &["1234", "555-1234", "a/b"],
            &["", "123", "555-123", "12345", " 1234", "a"],
        ),
        (
            Constraint::Choice(vec!["yes".into(), "no.*".into(), "say \"(a/b)\"\n".into()]),
            &["yes", "no.*", "say \"(a/b)\"\n"],
            &["", "y", "nono", "no.", "yesno", "say \"(a/b)\""],
        ),
        (
            Constraint::Lark(
                "start: item (\", \" item)*\nitem: /[a-z]+/ | \"(\" start \")\"".into(),
            ),
            &["a, bc", "(a, (b), c), d"],
            &["", "a,b", "(a", "a, "],
        ),
    ];
    for (constraint, good, bad) in cases {
        for text in good {
            assert!(takes(&constraint, text), "{constraint:?} does not take {text:?}");
        }
        for text in bad {
            assert!(!takes(&constraint, text), "{constraint:?} takes {text:?}");
        }
    }
}

#[test]
fn whatever_the_model_says_is_valid() {
    for seed in 0..40 {
        let (text, is_whole) = babble(&person(), seed, 400);
        assert!(is_whole, "{text}");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "age", "kind"]);
        assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
        assert!((0..=120).contains(&value["age"].as_i64().unwrap()), "{text}");
        assert!(value["kind"] == "cat" || value["kind"] == "dog", "{text}");
        let choice = ["Tuesday", "Tomorrow", "To"].map(str::to_owned);
        let (text, is_whole) = babble(&Constraint::Choice(choice.to_vec()), seed, 20);
        assert!(is_whole && choice.contains(&text), "{text}");
    }
}

#[test]
fn an_answer_may_end_where_its_grammar_may_and_special_tokens_are_no_text() {
    let mut matcher = Matcher::new(read(&Constraint::Regex("(?s:.)+".into())).unwrap());
    let first = allowed(&mut matcher, &[EOS]).unwrap();
    assert!(!first.contains(&EOS));
    let special = (0..tokenizer().vocabulary()).filter(|id| tokenizer().is_special(*id));
    assert!(special.clone().count() > 0);
    assert!(special.into_iter().all(|id| !first.contains(&id)));
    assert!(first.iter().all(|id| *id < tokenizer().vocabulary()));
    let token = tokenizer().encode("a", false).unwrap()[0];
    assert!(!matcher.take(token).unwrap());
    // Whatever ends the answer does so there, a token of the request's own too; nothing else does.
    assert!(allowed(&mut matcher, &[EOS, 0]).unwrap().contains(&EOS));
    assert!(allowed(&mut matcher, &[EOS, 0]).unwrap().contains(&0));
    assert!(!allowed(&mut matcher, &[]).unwrap().contains(&EOS));
}

#[test]
fn what_cannot_be_kept_to_is_refused_with_its_reason() {
    let schema = |schema: Value| Constraint::JsonSchema(schema);
    let cases = [
        (schema(json!({"type": "array", "uniqueItems": true})), "uniqueItems"),
        (schema(json!({"type": "object", "if": {}, "then": {}})), "\"if\", \"then\""),
        (schema(json!({"type": "string", "format": "phone"})), "phone"),
        (schema(json!({"$ref": "https://example.org/schema"})), "example.org"),
        (schema(json!({"type": "strin"})), "strin"),
        (schema(json!({"oneOf": [{"type": "string"}, {"maxLength": 3}]})), "anyOf"),
        (schema(json!({"x-guidance": {"lenient": true}})), "x-guidance"),
        (schema(json!([])), "an object"),
        (schema(json!(false)), "nsatisfiable"),
        (Constraint::Regex("(".into()), "regex"),
        (Constraint::Regex(String::new()), "empty"),
        (Constraint::Regex("a".repeat((64 << 10) + 1)), "65537 bytes"),
        (Constraint::Choice(vec![]), "nothing"),
        (Constraint::Choice(vec!["a".into(), String::new()]), "text 1"),
        (Constraint::Lark("begin: \"a\"".into()), "start"),
        (Constraint::Lark("start: a".into()), "a"),
        (Constraint::Lark("start: T\nT: /a*/ & /b*/".into()), "\\x26"),
    ];
    for (constraint, part) in cases {
        let error = read(&constraint).unwrap_err().to_string();
        assert!(error.contains(part), "{constraint:?}: {error}");
        assert!(error.len() < 1000 && !error.contains("backtrace"), "{error}");
    }
}

/// Sources that want too much. Each is refused, or read within its bounds; what is read is followed a
/// little.
#[test]
fn no_source_takes_more_than_its_share() {
    let numbered = |count: usize, part: &dyn Fn(usize) -> String, between: &str| -> String {
        (0..count).map(part).collect::<Vec<_>>().join(between)
    };
    let mut deep = json!({"type": "string"});
    for _ in 0..70 {
        deep = json!({"type": "array", "items": deep});
    }
    let properties: serde_json::Map<String, Value> =
        (0..2000).map(|name| (format!("p{name}"), json!({"type": "integer"}))).collect();
    let doubled: serde_json::Map<String, Value> = (1..25)
        .map(|name| {
            let other = json!({"$ref": format!("#/$defs/d{}", name - 1)});
            (format!("d{name}"), json!({"type": "object", "properties": {"a": other, "b": other}}))
        })
        .chain([("d0".to_owned(), json!({"type": "null"}))])
        .collect();
    let patterns: Vec<Value> =
        (10..20).map(|n| json!({"pattern": format!("^(.{{{n}}})*$")})).collect();
    let refused = [
        Constraint::JsonSchema(deep),
        Constraint::JsonSchema(json!({"type": "object", "properties": properties.clone()})),
        Constraint::JsonSchema(
            json!({"properties": properties, "allOf": [{"type": "object", "minProperties": 1}]}),
        ),
        Constraint::JsonSchema(json!({"$ref": "#"})),
        Constraint::JsonSchema(json!({"type": "string", "allOf": patterns})),
        Constraint::Regex("a?".repeat(20_000)),
        Constraint::Regex(r"\w\W".repeat(10_000)),
        Constraint::Regex("(".repeat(30_000) + "a" + &")".repeat(30_000)),
        Constraint::Lark(format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000))),
        Constraint::Lark(format!(
            "start: T0\n{}\nT40: \"x\"",
            numbered(40, &|n| format!("T{n}: T{} T{}", n + 1, n + 1), "\n")
        )),
        Constraint::Lark(format!("start: {}\nx: \"a\"", "x? ".repeat(16_000))),
    ];
    for constraint in refused {
        let shown = format!("{constraint:?}");
        assert!(read(&constraint).is_err(), "{}", &shown[..shown.len().min(100)]);
    }
    let bounded = [
        Constraint::JsonSchema(json!({"enum": (0..5000).collect::<Vec<_>>()})),
        Constraint::JsonSchema(json!({"$defs": doubled, "$ref": "#/$defs/d24"})),
        Constraint::JsonSchema(json!({"type": "array", "items": {"$ref": "#"}})),
        Constraint::JsonSchema(json!({"type": "string", "minLength": 100_000})),
        Constraint::JsonSchema(json!({"type": "array", "items": true, "minItems": 1_000_000})),
        Constraint::Regex("((((a{0,100}){0,100}){0,100}){0,100}){0,100}b".into()),
        Constraint::Regex("(a|b)*a(a|b){24}".into()),
        Constraint::Regex("(.*a.{20}b|.*c.{25}d|.*e.{30}f)".into()),
        Constraint::Regex("a".repeat(64 << 10)),
        Constraint::Lark(format!(
            "start: \"x\" ({})",
            numbered(2500, &|n| format!("\"{n}\""), "|")
        )),
        Constraint::Lark("start: s\ns: s s s | s s | /[a-z]+/ | \" \"".into()),
        // As deep as rules can name one another.
        Constraint::Lark(format!(
            "start: r0\n{}\nr4000: \"x\"",
            numbered(4000, &|n| format!("r{n}: r{}", n + 1), "\n")
        )),
    ];
    for constraint in bounded {
        let Ok(grammar) = read(&constraint) else { continue };
        let mut matcher = Matcher::new(grammar);
        for step in 0..200 {
            let Ok(tokens) = allowed(&mut matcher, &[]) else { break };
            match tokens.get((step * 7919) % tokens.len().max(1)).map(|token| matcher.take(*token))
            {
                Some(Ok(false)) => {}
                _ => break,
            }
        }
    }
}

#[test]
fn a_grammar_is_read_once_and_while_one_is_read_others_wait() {
    let grammars = Grammars::new(tokenizer(), vocabulary(), &[EOS]).unwrap();
    let constraint = |name: usize| Constraint::Regex(format!("a{name}"));
    let first = grammars.read(&constraint(0)).unwrap();
    let is_first = |grammar: &Grammar| grammar.is(&first);
    assert!(is_first(&grammars.read(&constraint(0)).unwrap()));
    for name in 1..limits::KEPT_GRAMMARS {
        assert!(!is_first(&grammars.read(&constraint(name)).unwrap()));
    }
    // It was not asked for again until now, and is the last to go.
    assert!(is_first(&grammars.read(&constraint(0)).unwrap()));
    grammars.read(&constraint(100)).unwrap();
    assert!(is_first(&grammars.read(&constraint(0)).unwrap()));
    let seat = grammars.take_seat();
    assert_eq!(grammars.read(&constraint(101)).unwrap_err(), ConstraintError::Busy);
    assert!(is_first(&grammars.read(&constraint(0)).unwrap()));
    drop(seat);
    grammars.read(&constraint(101)).unwrap();
}

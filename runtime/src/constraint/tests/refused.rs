//! What the library would read as something else, or without end, is refused before it does; what is like
//! it and harmless is read.

use super::*;

fn schema(schema: Value) -> Constraint {
    Constraint::JsonSchema(schema)
}

fn check_refused(cases: &[(Constraint, &str)]) {
    for (constraint, part) in cases {
        let mut shown = format!("{constraint:?}");
        shown.truncate(shown.floor_char_boundary(1000));
        let error = read(constraint).expect_err(&shown).to_string();
        assert!(error.contains(part) && error.len() < 1000, "{shown}: {error}");
    }
}

fn number(value: Value) -> Value {
    json!({"type": "number", "multipleOf": value})
}

#[test]
fn numbers_that_would_be_read_as_others_are_refused_with_their_place() {
    let range =
        |from: f64, to: f64| schema(json!({"type": "integer", "minimum": from, "maximum": to}));
    let common = [json!({"multipleOf": 100_000}), json!({"multipleOf": 99_999})];
    check_refused(&[
        (schema(json!({"const": i64::MIN})), "#/const: the number is -9223372036854775808"),
        (schema(json!({"const": 9_007_199_254_740_993_u64})), "9007199254740993"),
        (schema(json!({"enum": [1, {"a": [2, 1e17]}]})), "#/enum/1/a/1: "),
        (schema(json!({"properties": {"a": {"minimum": u64::MAX}}})), "#/properties/a/minimum: "),
        (
            schema(json!({"x-parts": {"const": {"a": i64::MIN}}, "$ref": "#/x-parts"})),
            "#/x-parts/const/a: the number is -92233720",
        ),
        (range(-1e30, -1e29), "#/maximum: "),
        (range(1e16, 1e17), "#/minimum: "),
        (schema(json!({"exclusiveMinimum": 1e300})), "#/exclusiveMinimum: "),
        (schema(json!({"a".repeat(5000): {"const": 1e300}})), "#/aaa"),
        // Of multiples what 32 bits can be counted with.
        (schema(number(json!(4_000_000_000_u64))), "#/multipleOf: "),
        (schema(number(json!(1e-9))), "#/multipleOf: "),
        (schema(json!({"type": "integer", "allOf": common})), "least common multiple"),
        (
            schema(json!({
                "$defs": {"a": number(json!(70_000))},
                "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
            })),
            "least common multiple",
        ),
        (
            schema(json!({
                "type": "object", "properties": {"ab": number(json!(65_537))},
                "patternProperties": {"^a": number(json!(65_539))},
            })),
            "least common multiple",
        ),
    ]);
    let most = 9_007_199_254_740_991_i64;
    let cases = [
        (json!({"const": -most}), "-9007199254740991", "-9007199254740992"),
        (json!({"type": "integer", "minimum": -most, "maximum": most}), "12", "9007199254740992"),
        // Types of 64 bits, as far as numbers are read.
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            "-9007199254740991",
            "-9007199254740992",
        ),
        (json!({"type": "integer", "exclusiveMaximum": u64::MAX}), "12", "9007199254740991"),
        (json!({"type": "integer", "multipleOf": 100_000_000}), "4200000000", "4200000001"),
        (json!({"type": "number", "multipleOf": 0.25}), "1.75", "1.85"),
        (json!({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}), "24", "20"),
        // What no answer is read from may be as large as it likes.
        (json!({"type": "integer", "default": 1e300, "examples": [1e300]}), "12", "1.2"),
    ];
    for (source, good, bad) in cases {
        let constraint = schema(source);
        assert!(takes(&constraint, good), "{constraint:?} does not take {good}");
        assert!(!takes(&constraint, bad), "{constraint:?} takes {bad}");
    }
}

#[test]
fn exclusive_bounds_hold_or_are_refused() {
    let bounds = |more: Value| {
        let mut source = json!({"type": "number"});
        source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema(source)
    };
    check_refused(&[
        (bounds(json!({"exclusiveMinimum": 0, "maximum": 0.5})), "the bound 0 is exclusive"),
        (bounds(json!({"exclusiveMinimum": 3, "exclusiveMaximum": 3.25})), "the bound 3 is"),
        (bounds(json!({"minimum": -0.5, "exclusiveMaximum": 0})), "the bound 0 is exclusive"),
        (bounds(json!({"minimum": -7.5, "exclusiveMaximum": -7})), "the bound -7 is exclusive"),
        (bounds(json!({"minimum": 0, "exclusiveMinimum": true, "maximum": 0.5})), "the bound 0"),
        (bounds(json!({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]})), "bound 0 and"),
    ]);
    let cases: [(Value, &[&str], &[&str]); 5] = [
        (json!({"exclusiveMinimum": 0, "maximum": 1}), &["0.5", "1"], &["0", "0.0", "1.5"]),
        (json!({"exclusiveMinimum": 0}), &["0.01", "1"], &["0", "-1"]),
        (json!({"minimum": 0, "exclusiveMaximum": 0.5}), &["0", "0.4"], &["0.5", "-0.1"]),
        (json!({"exclusiveMinimum": -1, "maximum": -0.5}), &["-0.9"], &["-1", "-0.4"]),
        (json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 1.5}), &["1"], &["0", "2"]),
    ];
    for (source, good, bad) in cases {
        let constraint = bounds(source);
        assert!(good.iter().all(|text| takes(&constraint, text)), "{constraint:?}");
        assert!(!bad.iter().any(|text| takes(&constraint, text)), "{constraint:?}");
    }
}

#[test]
fn schemas_that_differ_in_their_order_are_read_each() {
    let grammars = Grammars::new(tokenizer(), vocabulary(), &[EOS]).unwrap();
    let ordered = |names: [&str; 2]| {
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "null"}))).collect();
        json!({
            "type": "object", "properties": properties, "required": ["a", "b"],
            "additionalProperties": false,
        })
    };
    let (first, second) = (schema(ordered(["a", "b"])), schema(ordered(["b", "a"])));
    assert_eq!(first, second);
    let read = |constraint: &Constraint| grammars.read(constraint).unwrap();
    let (of_first, of_second) = (read(&first), read(&second));
    assert!(!of_first.is(&of_second));
    assert!(read(&first).is(&of_first) && read(&second).is(&of_second));
    for (constraint, text) in
        [(&first, r#"{"a":null,"b":null}"#), (&second, r#"{"b":null,"a":null}"#)]
    {
        assert!(takes(constraint, text), "{text}");
    }
}

#[test]
fn grammars_bring_in_no_other_forms() {
    let lark = |source: &str| Constraint::Lark(source.into());
    check_refused(&[
        (lark("start: %json {\"const\": -9223372036854775808}"), "%json is not supported"),
        (lark("start: T\nT: %regex {\"substring_chars\": \"abc\"}"), "%regex is not supported"),
        (lark("start: %lark { start: \"a\" }"), "%lark is not supported"),
        (lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\""), "%llguidance"),
        (lark("start: T\nT: ~/a*/"), "(~)"),
        (lark("start: \"a\"~1..9000"), "(~)"),
        // No sign is hidden by what only looks like a text or a comment.
        (lark("start: \"\\\"\" | %json {}"), "%json"),
        (lark("start: /a\\// | %json {}"), "%json"),
        (lark("start: <\"> | %json {} | \"a\""), "%json"),
        (lark("start: \"//\" | %json {}"), "%json"),
        (lark("start: \"a\" // \"\n| %json {}"), "%json"),
    ]);
    let taken = [
        ("start: \"%json\" \"~\" /[~%]\\/%lark/", "%json~%/%lark"),
        ("// %json ~\nstart: \"a\" # %regex\n%import common.INT\n%ignore / /", "a"),
        ("%import common.INT\nstart: \"a\" INT", "a12"),
    ];
    for (source, text) in taken {
        assert!(takes(&lark(source), text), "{source:?} does not take {text:?}");
    }
}

#[test]
fn alternatives_do_not_multiply_without_end() {
    let many = |count: usize| json!({"anyOf": vec![json!({"type": "string"}); count]});
    let long = json!({"const": "a".repeat(50_000)});
    let inside = |schema: &Value| json!({"type": "object", "properties": {"a": schema}});
    let items = |schema: &Value| json!({"type": "array", "items": schema});
    let joined = [many(150), many(150), long.clone()];
    let multiplied: Vec<Constraint> = [
        json!({"allOf": joined}),
        json!({"allOf": joined.clone().map(|each| inside(&each))}),
        json!({"allOf": joined.clone().map(|each| items(&each))}),
        json!({"anyOf": [{"type": "null"}, {"allOf": joined}]}),
        json!({
            "$defs": {"a": many(150), "b": {"$ref": "#/$defs/a"}, "c": long},
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#/$defs/c"}],
        }),
        json!({
            "allOf": [
                {"type": "object", "properties": (0..500).map(|name| (name.to_string(), json!(true)))
                    .collect::<serde_json::Map<_, _>>()},
                {"type": "object", "additionalProperties": long},
            ],
        }),
    ]
    .map(schema)
    .into();
    for constraint in multiplied {
        let error = read(&constraint).unwrap_err().to_string();
        assert!(error.contains("too many combinations"), "{error}");
    }
    // References that lead to one another are for the library to refuse, and end here.
    for source in [
        json!({"$ref": "#", "type": "object"}),
        json!({"anyOf": [{"$ref": "#", "minLength": 1}, {"$ref": "#", "minLength": 2}]}),
        json!({"$defs": {"a": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}),
    ] {
        assert!(read(&schema(source.clone())).is_err(), "{source}");
    }
    let names: Vec<String> = (0..2000).map(|name| format!("name{name}")).collect();
    let kinds: Vec<Value> = (0..30)
        .map(|kind| {
            json!({"type": "object", "properties": {"kind": {"const": kind.to_string()}},
                   "required": ["kind"]})
        })
        .collect();
    let tree = json!({"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}});
    let harmless = [
        json!({"type": "string", "enum": names}),
        json!({"type": "object", "anyOf": kinds, "properties": {"id": {"type": "integer"}}}),
        json!({"$defs": {"tree": tree}, "allOf": [{"$ref": "#/$defs/tree"}, {"required": ["left"]}]}),
        json!({"allOf": [many(10), many(10), {"maxLength": 3}]}),
    ];
    for source in harmless {
        assert_eq!(read(&schema(source.clone())).err(), None, "{source}");
    }
}

/// The library counts none of it: it compares all patterns of an object's properties with each other, again
/// for each combination of objects, and runs them over names.
#[test]
fn patterns_of_names_are_charged_what_they_take() {
    let patterns = |count: usize, part: &str| -> Value {
        (0..count).map(|index| (format!("^{part}{index}$"), json!(true))).collect()
    };
    let object = |count: usize, part: &str| json!({"patternProperties": patterns(count, part)});
    let objects = |many: usize, count: usize, part: &str| json!({"prefixItems": vec![object(count, part); many]});
    let beside = |many: usize, count: usize, part: &str| {
        let values: Vec<Value> = (0..many).map(|index| json!({"k": index})).collect();
        json!({"patternProperties": patterns(count, part), "enum": values})
    };
    let referred = |many: usize, count: usize, part: &str| {
        let reference = json!({"$ref": "#/$defs/a"});
        json!({"$defs": {"a": object(count, part)}, "allOf": vec![reference; many]})
    };
    let named = |length: usize, pattern: &str| {
        let properties = json!({"ab".repeat(length / 2): true});
        json!({"properties": properties, "patternProperties": {pattern: true}})
    };
    let pairs = "pairs of patterns of properties";
    let combinations = "too many combinations";
    let names = "patternProperties have too many parts";
    check_refused(&[
        (schema(object(17, "a*b")), "16 are read at most"),
        (schema(objects(2, 16, "a*b")), pairs),
        (schema(objects(200, 2, "(a*b){100}")), pairs),
        (schema(beside(500, 3, "(a*b){100}")), combinations),
        (schema(referred(100, 3, "(a*b){100}")), combinations),
        (schema(named(20_000, "^(a|b)*a(a|b){1000}c$")), names),
        (schema(named(20_000, "^((a|b)*a(a|b){10}){10,100}c$")), names),
        (schema(named(20_000, "^a{30}{30}c$")), names),
        (
            schema(
                json!({"required": ["a".repeat(60_000)], "patternProperties": {"[a]{50}": true}}),
            ),
            names,
        ),
    ]);
    for source in [
        object(16, "a*b"),
        objects(100, 2, "a*b"),
        beside(20, 2, "a*b"),
        referred(10, 3, "a*b"),
        named(200, "^x-[a-z0-9_]{1,64}$"),
        named(20_000, "^(a|b)*c\\{1000}$"),
    ] {
        assert_eq!(read(&schema(source.clone())).err(), None, "{source}");
    }
    // Each of two tools is light, and both together are not.
    let tool = || forced::CallableTool {
        name: "f".into(),
        parameters: json!({"type": "object", "patternProperties": patterns(12, "a*b")}),
    };
    let calls = |tools| {
        Constraint::Calls(ForcedCalls {
            notation: crate::notation::CallNotation::Hermes,
            tools,
            is_one: true,
        })
    };
    check_refused(&[(calls(vec![tool(), tool()]), pairs)]);
    assert_eq!(read(&calls(vec![tool()])).err(), None);
}

#[test]
fn expressions_mean_what_they_say() {
    let pattern = |pattern: &str| schema(json!({"type": "string", "pattern": pattern}));
    check_refused(&[
        (Constraint::Regex("a(?P<stop>b)".into()), "look-ahead"),
        (Constraint::Regex("(?x) a ( ?<stop> b)".into()), "look-ahead"),
        (Constraint::Lark("start: /a(?P<stop>b)/".into()), "look-ahead"),
        (pattern("^a(?<stop>b)$"), "look-ahead"),
        (pattern("^[+--]$"), "-- in a class"),
        (pattern("^[a-z&&b]$"), "&& in a class"),
        (pattern("^x[~~]$"), "~~ in a class"),
        (pattern("^[^[a]]$"), "[ in a class"),
        (pattern("^[]a]$"), "] at its beginning"),
        (schema(json!({"type": "object", "patternProperties": {"^[--a]": true}})), "-- in a"),
    ]);
    let cases = [
        (Constraint::Regex(r"a?<stop>\(?<stop>(?<other>b)".into()), "a<stop>(<stop>b"),
        (Constraint::Regex("[a-z--b]".into()), "a"),
        (pattern(r"^--&&~~[\-\-][-a&~]\[\[$"), r#""--&&~~-&[[""#),
    ];
    for (constraint, text) in cases {
        assert!(takes(&constraint, text), "{constraint:?} does not take {text:?}");
    }
}

/// A request's own ends may be texts of the grammar.
#[test]
fn no_token_ends_an_answer_where_its_grammar_may_not_end() {
    let token = |text: &str| {
        let tokens = tokenizer().encode(text, false).unwrap();
        assert_eq!(tokens.len(), 1, "{text:?}");
        tokens[0]
    };
    let (a, b) = (token("a"), token("b"));
    let mut matcher = Matcher::new(read(&Constraint::Regex("[ab][ab]b*".into())).unwrap());
    let first = allowed(&mut matcher, &[EOS, b]).unwrap();
    assert!(first.contains(&a) && !first.contains(&b) && !first.contains(&EOS));
    matcher.take(a).unwrap();
    matcher.take(a).unwrap();
    let third = allowed(&mut matcher, &[EOS, b]).unwrap();
    assert!(third.contains(&b) && third.contains(&EOS));
    // Where the grammar has nothing else the answer is none.
    let mut matcher = Matcher::new(read(&Constraint::Regex("bb".into())).unwrap());
    let ends: Vec<u32> = allowed(&mut matcher, &[EOS]).unwrap();
    assert!(ends.contains(&b));
    assert_eq!(allowed(&mut matcher, &ends), Err(ConstraintFault::NoToken));
}

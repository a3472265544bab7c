//! The matcher against known answers; the integration tests compare it with `fancy-regex`.

use super::compile::compile;
use super::*;

fn spans(pattern: &str, text: &str) -> Vec<(usize, usize)> {
    compile(pattern).unwrap().find_all(text).unwrap()
}

fn pieces<'t>(pattern: &str, text: &'t str) -> Vec<&'t str> {
    spans(pattern, text).into_iter().map(|(start, end)| &text[start..end]).collect()
}

#[test]
fn quantifiers_give_back_as_they_should() {
    assert_eq!(pieces(r"a+ab", "aaab"), ["aaab"]);
    assert_eq!(pieces(r"a++ab", "aaab"), [""; 0]);
    assert_eq!(pieces(r"a+?b|a", "aaab"), ["aaab"]);
    assert_eq!(pieces(r"a{2}", "aaaaa"), ["aa", "aa"]);
    assert_eq!(pieces(r"(?:ab){1,2}?", "ababab"), ["ab", "ab", "ab"]);
    assert_eq!(pieces(r"(?>a|ab)c", "abc ac"), ["ac"]);
    assert_eq!(pieces(r"x(?>a+?b)y", "xaaby"), ["xaaby"]);
    assert_eq!(pieces(r"a{,2}b", "aaab"), ["aab"]);
}

#[test]
fn conditions_look_both_ways() {
    assert_eq!(spans(r"\s+(?!\S)", "a   b "), [(1, 3), (5, 6)]);
    assert_eq!(spans(r"(?<=é)x", "éx x"), [(2, 3)]);
    assert_eq!(spans(r"(?<!ab)c", "abc c"), [(4, 5)]);
    assert_eq!(pieces(r"\bfoo\b", "foo foobar"), ["foo"]);
    assert_eq!(spans(r"^a", "a\na"), [(0, 1), (2, 3)]);
    assert_eq!(spans(r"a$", "a\na"), [(0, 1), (2, 3)]);
    assert_eq!(spans(r"a\Z", "a\na\n"), [(2, 3)]);
}

#[test]
fn flags_end_with_their_group() {
    assert_eq!(pieces(r"(?i:'s)|x", "'S X x"), ["'S", "x"]);
    assert_eq!(pieces(r"((?i)a)b", "Ab AB"), ["Ab"]);
    assert_eq!(pieces(r"(?i)[k]", "K\u{212a}"), ["K", "\u{212a}"]);
}

#[test]
fn classes_nest_and_intersect() {
    assert_eq!(pieces(r"[^(\s|[.,!])]+", "ab, c.d"), ["ab", "c", "d"]);
    assert_eq!(pieces(r"[\p{L}&&[^\p{Han}]]+", "ab漢c"), ["ab", "c"]);
    assert_eq!(pieces(r"[]a]+", "]a["), ["]a"]);
}

#[test]
fn brackets_with_names_are_those_of_unicode() {
    assert_eq!(pieces(r"[[:alpha:]]+", "naïve漢1_"), ["naïve漢"]);
    assert_eq!(pieces(r"[[:^alpha:][:digit:]]+", "a1é٣ ."), ["1", "٣ ."]);
    assert_eq!(pieces(r"[^[:space:][:upper:]]+", "aÉb\u{3000}c"), ["a", "b", "c"]);
    assert_eq!(pieces(r"[[:alpha:]&&[^é]]+", "aéb"), ["a", "b"]);
    assert_eq!(pieces(r"[[:xdigit:]]+", "fFgＡ٣9"), ["fF", "9"]);
    assert_eq!(pieces(r"(?i)[[:lower:]]+", "aÉ1"), ["aÉ"]);
    // No names: a class in its own right, and one class in another.
    assert_eq!(pieces(r"[:alpha:]+", "a:phz"), ["a:ph"]);
    assert_eq!(pieces(r"[x[:,;]]+", "x:,;y"), ["x:,;"]);
    assert_eq!(pieces(r"[\[:alpha:]+]", "[]a]"), ["[]", "a]"]);
    let named: Vec<&str> = compile::POSIX.iter().map(|(name, _)| *name).collect();
    for name in named {
        assert!(compile(&format!("[[:{name}:]]")).is_ok(), "{name}");
    }
}

#[test]
fn empty_matches_follow_the_reference() {
    assert_eq!(spans("", "ab"), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(spans("b*", "abb"), [(0, 0), (1, 3)]);
}

#[test]
fn what_is_not_understood_is_refused() {
    for pattern in
        [r"(a)\1", r"(?<=a+)b", r"(?:a*)*", r"(?>a)+", r"(", r")", r"[a", r"*", r"\G", r"(?m)a"]
    {
        assert!(compile(pattern).is_err(), "{pattern}");
    }
    let refused = |pattern: &str| compile(pattern).expect_err(pattern).0;
    assert_eq!(refused("(?<=a{1000000})b"), "look-behind over more than 255 characters");
    assert_eq!(refused("[[:punct:]]"), "the bracket `[:punct:]`");
    assert_eq!(refused("[+--]"), "`--` in the class `[+--]`");
    assert_eq!(refused("[a-z~~[b]]"), "`~~` in the class `[a-z~~[b]]`");
    assert!(compile(r"[\--/~\~]").is_ok());
}

#[test]
fn compiling_takes_no_time_of_its_own_for_nested_groups() {
    let nested = |inner: &str, tail: &str| {
        let groups = 40;
        format!("{}{inner}{}", "(?:".repeat(groups), tail.repeat(groups))
    };
    assert!(compile(&format!("(?<={})c", nested("a", "|b)"))).is_ok());
    assert_eq!(pieces(&format!("a{}", nested("", "){256}")), "aa"), ["a", "a"]);
}

#[test]
fn steps_back_are_counted_and_bounded() {
    let text = "a".repeat(2000);
    // Each place costs a step or two and as many steps back as fit into what a byte is allowed.
    let far = compile("(?<=a{255})b").unwrap();
    assert_eq!(far.find_all(&text), Ok(Vec::new()));
    let often = compile(&format!("{}b", "(?<=a{255})".repeat(10))).unwrap();
    assert_eq!(often.find_all(&text), Err(Budget));
    let read = |program: &Program| {
        let mut writer = Writer::default();
        program.write(&mut writer);
        Program::read(&mut Reader::new(&writer.0, "patterns"))
    };
    let at = far.instructions.iter().position(|i| matches!(i, Instruction::Look { .. })).unwrap();
    let mut broken = far.clone();
    if let Instruction::Look { back, .. } = &mut broken.instructions[at] {
        *back += 1;
    }
    assert_eq!(read(&far), Ok(far));
    let error = read(&broken).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer table, section patterns: a program jumps outside, looks"));
}

#[test]
fn catastrophic_backtracking_ends_in_an_error() {
    let program = compile(r"(?:a|a|a)+b").unwrap();
    assert_eq!(program.find_all(&"a".repeat(100)), Err(Budget));
}

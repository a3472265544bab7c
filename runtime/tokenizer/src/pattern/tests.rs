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
}

#[test]
fn catastrophic_backtracking_ends_in_an_error() {
    let program = compile(r"(?:a|a|a)+b").unwrap();
    assert_eq!(program.find_all(&"a".repeat(100)), Err(Budget));
}

//! Refuses grammars in Lark that bring in what is bounded elsewhere.
//!
//! A grammar may hold schemas, expressions as trees and grammars of its own, which nobody has looked at, and
//! texts that must not match something, which multiply as intersections do. Its source is divided as the
//! library's lexer divides it, so that the same signs mean nothing in texts, expressions and comments.

use super::ConstraintError;
use super::weight::{check_expressions, refused};

/// What may follow a `%`. Of the library's other words some are refused by itself.
const DIRECTIVES: [&str; 3] = ["ignore", "import", "if"];

/// Letters of a directive that are shown.
const SHOWN: usize = 20;

/// Refuses grammars that are too heavy.
pub(super) fn check(grammar: &str) -> Result<(), ConstraintError> {
    if grammar.contains('&') {
        let reason = "intersections (&) are not supported; the character itself is \\x26";
        return Err(refused(reason.to_owned()));
    }
    let signs = signs(grammar);
    let mut parts = signs.split('%');
    parts.next();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(part.len());
        let word = &part[..end];
        if !DIRECTIVES.contains(&word) {
            let word = &word[..end.min(SHOWN)];
            return Err(refused(format!(
                "%{word} is not supported in a grammar; schemas and regular expressions are forms of \
                 their own"
            )));
        }
    }
    if signs.contains('~') {
        let reason =
            "what must not match (~) is not supported, nor are repetitions by ~: write {2,5}";
        return Err(refused(reason.to_owned()));
    }
    check_expressions([grammar].into_iter())
}

/// A grammar without its texts, expressions, comments and names of special tokens. What does not end is not
/// there either; the library refuses it.
fn signs(grammar: &str) -> String {
    let mut signs = String::new();
    let mut rest = grammar;
    while let Some(sign) = rest.chars().next() {
        let length = match sign {
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '"' | '/' => delimited(rest, sign),
            '<' => rest.find('>').map_or(rest.len(), |end| end + 1),
            _ => {
                signs.push(sign);
                sign.len_utf8()
            }
        };
        // What stands on both sides is two words.
        if length > sign.len_utf8() {
            signs.push(' ');
        }
        rest = &rest[length..];
    }
    signs
}

fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Bytes of a text up to the sign that it begins with, where that is not escaped.
fn delimited(text: &str, sign: char) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, character)| {
        let ends = *character == sign && !is_escaped;
        is_escaped = *character == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(place, _)| place + sign.len_utf8())
}

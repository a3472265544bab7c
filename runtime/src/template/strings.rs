//! Methods of Python's strings that minijinja-contrib lacks, or has without some arguments.
//!
//! Positions and widths count characters, as in Python.

use std::ops::Range;

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::python::Arguments;

/// Characters that a text is filled up to: a width comes from the template, and its text into memory.
const MAX_WIDTH: i64 = 65_536;

/// A method that the engine itself does not have.
pub fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = text.split_once(not_empty(method, separator)?);
            Ok(triple(parts.map_or([text, "", ""], |(head, tail)| [head, separator, tail])))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = text.rsplit_once(not_empty(method, separator)?);
            Ok(triple(parts.map_or(["", "", text], |(head, tail)| [head, separator, tail])))
        }
        "split" | "rsplit" => {
            let mut arguments = Arguments::new(method, args)?;
            let separator = arguments.take("sep")?;
            let most = arguments.take("maxsplit")?;
            arguments.finish()?;
            let not_text = || wrong(method, "the separator must be a text");
            let separator =
                separator.as_ref().map(|value| value.as_str().ok_or_else(not_text)).transpose()?;
            // A negative number is no limit.
            let most = most.map(i64::try_from).transpose()?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
            let parts = match (separator, method) {
                (None, "split") => split_at_spaces(text, most),
                (None, _) => split_at_spaces_from_the_end(text, most),
                (Some(separator), "split") => {
                    text.splitn(most + 1, not_empty(method, separator)?).collect()
                }
                (Some(separator), _) => {
                    let parts = text.rsplitn(most + 1, not_empty(method, separator)?);
                    let mut parts: Vec<&str> = parts.collect();
                    parts.reverse();
                    parts
                }
            };
            Ok(parts.into_iter().collect())
        }
        "splitlines" => {
            let mut arguments = Arguments::new(method, args)?;
            let keep_ends = arguments.take("keepends")?.is_some_and(|value| value.is_true());
            arguments.finish()?;
            Ok(split_lines(text, keep_ends).into_iter().collect())
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (part, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let position = bytes_between(text, start, end).and_then(|range| {
                let inside = &text[range.clone()];
                let from_the_end = method.starts_with('r');
                let at = if from_the_end { inside.rfind(part) } else { inside.find(part) };
                at.map(|at| text[..range.start + at].chars().count())
            });
            match position {
                Some(position) => Ok(position.into()),
                None if method.ends_with("find") => Ok((-1).into()),
                None => Err(wrong(method, "the text has no such part")),
            }
        }
        // With a start, and perhaps an end; without them the methods are there.
        "count" | "startswith" | "endswith" if args.len() > 1 => {
            let (part, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            match bytes_between(text, start, end) {
                Some(range) => {
                    let (inside, part) = (text[range].into(), [part.clone()]);
                    pycompat::unknown_method_callback(state, &inside, method, &part)
                }
                None if method == "count" => Ok(0.into()),
                None => Ok(false.into()),
            }
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let missing = missing(method, text, width)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Ok(format!("{sign}{}{digits}", "0".repeat(missing)).into())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            let fill = fill.unwrap_or(" ");
            if fill.chars().count() != 1 {
                return Err(wrong(method, "what it fills with must be one character"));
            }
            let missing = missing(method, text, width)?;
            let before = match method {
                "ljust" => 0,
                "rjust" => missing,
                // An odd one goes before if the width is odd, as in CPython.
                _ => missing / 2 + usize::from(missing % 2 == 1 && width % 2 == 1),
            };
            Ok(format!("{}{text}{}", fill.repeat(before), fill.repeat(missing - before)).into())
        }
        "title" => {
            let () = from_args(args)?;
            Ok(title(text).into())
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn wrong(method: &str, reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{method}: {reason}"))
}

fn not_empty<'a>(method: &str, separator: &'a str) -> Result<&'a str, Error> {
    if separator.is_empty() { Err(wrong(method, "the separator is empty")) } else { Ok(separator) }
}

fn triple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// Characters that the text has less than `width`.
fn missing(method: &str, text: &str, width: i64) -> Result<usize, Error> {
    if width > MAX_WIDTH {
        return Err(wrong(method, &format!("the width is at most {MAX_WIDTH}")));
    }
    Ok(usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count()))
}

/// What Python splits at. Unlike Unicode's, the four separators of ASCII are among them.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

/// The bytes of a slice of characters, whose negative positions count from the end. `None` if it begins
/// behind the end or ends before it begins: there is not even an empty text then.
fn bytes_between(text: &str, start: Option<i64>, end: Option<i64>) -> Option<Range<usize>> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let position = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (position(start.unwrap_or(0)), position(end.unwrap_or(length)).min(length));
    if start > end {
        return None;
    }
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte)
    };
    Some(byte(start)..byte(end))
}

fn split_at_spaces(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() && parts.len() < most {
        let (part, behind) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        parts.push(part);
        rest = behind.trim_start_matches(is_space);
    }
    // What is left keeps the blanks at its end.
    parts.extend((!rest.is_empty()).then_some(rest));
    parts
}

fn split_at_spaces_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() && parts.len() < most {
        let start = rest.char_indices().rfind(|(_, character)| is_space(*character));
        let (before, part) =
            rest.split_at(start.map_or(0, |(byte, space)| byte + space.len_utf8()));
        parts.push(part);
        rest = before.trim_end_matches(is_space);
    }
    parts.extend((!rest.is_empty()).then_some(rest));
    parts.reverse();
    parts
}

fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |character: char| matches!(character, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line = rest.find(ends).unwrap_or(rest.len());
        let end = match rest[line..].chars().next() {
            Some('\r') if rest[line..].starts_with("\r\n") => line + 2,
            Some(end) => line + end.len_utf8(),
            None => line,
        };
        lines.push(&rest[..if keep_ends { end } else { line }]);
        rest = &rest[end..];
    }
    lines
}

/// Every letter behind one that is none is a capital. (The filter `title` begins words elsewhere.)
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = character.is_lowercase() || character.is_uppercase();
    }
    out
}

//! The filter `tojson`, as Transformers has it: Python's `json.dumps`, not escaped for HTML.
//!
//! Prompts are compared by the byte with those that a model was trained on, so numbers, escapes and
//! blanks are Python's.

use std::fmt::Write as _;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind};

use super::python::Arguments;

/// Levels of lists and objects: JSON that is read has at most 128, and a conversation wraps it in a few.
/// A namespace that contains itself has no end.
const MAX_DEPTH: usize = 256;

/// Blanks of one level. Templates use 2 or 4.
const MAX_INDENT: i64 = 64;

/// How `json.dumps` is asked to write.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    /// What a level adds to the beginning of a line; without it all is one line.
    indent: Option<String>,
    between_items: String,
    behind_key: String,
}

/// The filter: `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn to_json(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let style = Style::read(&arguments.into_values())?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

impl Style {
    fn read(arguments: &[Value]) -> Result<Style, Error> {
        let mut arguments = Arguments::new("tojson", arguments)?;
        let ensure_ascii = arguments.take("ensure_ascii")?.is_some_and(|value| value.is_true());
        let indent = arguments.take("indent")?.map(|value| read_indent(&value)).transpose()?;
        let separators = arguments.take("separators")?;
        let sort_keys = arguments.take("sort_keys")?.is_some_and(|value| value.is_true());
        arguments.finish()?;
        let (between_items, behind_key) = match separators {
            Some(separators) => read_separators(&separators)?,
            // Lines do not end with blanks.
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Style { ensure_ascii, sort_keys, indent, between_items, behind_key })
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(bad_value(format!("more than {MAX_DEPTH} levels")));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.write_all(('[', ']'), &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sort_keys {
                    sort(&mut keys)?;
                }
                self.write_all(('{', '}'), &keys, depth, out, |key, out| {
                    self.write_text(&key_text(key)?, out);
                    out.push_str(&self.behind_key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            other => return Err(bad_value(format!("{other} is not JSON"))),
        }
        Ok(())
    }

    /// Writes a list or an object: its items, what is between them, and the lines' beginnings.
    fn write_all(
        &self,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut write_item: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.between_items);
            }
            self.begin_line(depth + 1, out);
            write_item(item, out)?;
        }
        if !items.is_empty() {
            self.begin_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn begin_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\x1f' => escape(character, out),
                '\x7f'.. if self.ensure_ascii => escape(character, out),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// A character by its UTF-16 units: those behind the basic plane have two.
fn escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a `String` does not fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// A number of blanks, or the text that stands for them.
fn read_indent(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(value.clone())
        .map_err(|_| bad_argument("indent", "must be an integer or a text"))?;
    if width > MAX_INDENT {
        return Err(bad_argument("indent", &format!("must be at most {MAX_INDENT}")));
    }
    // Python, too, takes a negative number as none.
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0)))
}

fn read_separators(value: &Value) -> Result<(String, String), Error> {
    let wrong = || bad_argument("separators", "must be two texts");
    if value.kind() != ValueKind::Seq {
        return Err(wrong());
    }
    let separators: Vec<Value> = value.try_iter()?.collect();
    let [items, keys] = separators.as_slice() else { return Err(wrong()) };
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(wrong);
    Ok((text(items)?, text(keys)?))
}

/// Orders keys as Python does, which does not compare texts with numbers.
fn sort(keys: &mut [Value]) -> Result<(), Error> {
    if let Some(pair) = keys.windows(2).find(|pair| pair[0].kind() != pair[1].kind()) {
        let (one, other) = (pair[0].kind(), pair[1].kind());
        return Err(bad_value(format!("keys that are {one} and {other} have no order")));
    }
    keys.sort();
    Ok(())
}

/// A key as text: JSON has no others.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::Number => number(key)?,
        ValueKind::Bool if key.is_true() => "true".to_owned(),
        ValueKind::Bool => "false".to_owned(),
        ValueKind::None => "null".to_owned(),
        other => return Err(bad_value(format!("{other} is not a key of JSON"))),
    })
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    f64::try_from(value.clone()).map(float)
}

/// A float as Python's `repr` and `json.dumps` write it: the shortest digits that give it back, with an
/// exponent below 1e-4 and from 1e16 on.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Rust's digits are the same; its exponents have no sign and no second figure.
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        // `1.0`, with a point.
        _ => format!("{value:?}"),
    }
}

fn bad_argument(name: &str, reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {name} {reason}"))
}

fn bad_value(reason: String) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("tojson: {reason}"))
}

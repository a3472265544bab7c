//! Records of a published file: one JSON object a line, or one array of objects.
//!
//! The file stays in memory as text and a record is parsed when it is wanted, so that a file of long
//! documents costs its own size once.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Error, text};

/// A file of records.
pub(crate) struct Records {
    path: PathBuf,
    text: String,
    places: Vec<(usize, Range<usize>)>,
}

impl Records {
    pub(crate) fn open(path: &Path) -> Result<Records, Error> {
        let text = text::read(path)?;
        let places =
            if text.trim_start().starts_with('[') { elements(&text) } else { lines(&text) };
        if places.is_empty() {
            return Err(Error::Nothing { path: path.to_owned(), reason: "no records".into() });
        }
        Ok(Records { path: path.to_owned(), text, places })
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, index: usize) -> Result<Record<'_>, Error> {
        let (line, range) = self.places[index].clone();
        let wrong = |reason: String| Error::Record {
            path: self.path.clone(),
            line,
            field: "record".into(),
            reason,
        };
        match serde_json::from_str(&self.text[range]) {
            Ok(Value::Object(fields)) => Ok(Record { path: &self.path, line, index, fields }),
            Ok(_) => Err(wrong("not an object".into())),
            // The parser counts lines from where the record begins, which helps nobody.
            Err(error) => {
                let text = error.to_string();
                Err(wrong(text.split_once(" at line ").map_or(&*text, |(reason, _)| reason).into()))
            }
        }
    }
}

fn lines(text: &str) -> Vec<(usize, Range<usize>)> {
    let mut start = 0;
    let mut places = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if !line.trim().is_empty() {
            places.push((index + 1, start..start + line.len()));
        }
        start += line.len();
    }
    places
}

/// The elements of one array. Only brackets and strings are looked at; what stands between them is
/// checked when the record is parsed, and an unfinished last element is one too.
fn elements(text: &str) -> Vec<(usize, Range<usize>)> {
    let (mut depth, mut line, mut start, mut first_line) = (0usize, 1, None, 1);
    let (mut quoted, mut escaped) = (false, false);
    let mut places = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        line += usize::from(byte == b'\n');
        if quoted {
            (quoted, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        let outside = byte.is_ascii_whitespace() || byte == b',' || byte == b']';
        if depth == 1 && start.is_none() && !outside {
            (start, first_line) = (Some(at), line);
        }
        match byte {
            b'"' => quoted = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let ends = depth == 1 && matches!(byte, b'}' | b',') || depth == 0 && byte == b']';
        if let (true, Some(from)) = (ends, start) {
            places.push((first_line, from..if byte == b'}' { at + 1 } else { at }));
            start = None;
        }
    }
    if let Some(from) = start {
        places.push((first_line, from..text.len()));
    }
    places
}

/// One record, whose fields are asked for by name and kind.
pub(crate) struct Record<'r> {
    path: &'r Path,
    line: usize,
    /// Place in the file, from 0.
    pub(crate) index: usize,
    fields: Map<String, Value>,
}

impl Record<'_> {
    pub(crate) fn wrong(&self, field: &str, reason: impl Into<String>) -> Error {
        Error::Record {
            path: self.path.to_owned(),
            line: self.line,
            field: field.to_owned(),
            reason: reason.into(),
        }
    }

    /// A field that may be absent or null.
    pub(crate) fn find(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn value(&self, field: &str) -> Result<&Value, Error> {
        self.find(field).ok_or_else(|| self.wrong(field, "missing"))
    }

    pub(crate) fn text(&self, field: &str) -> Result<&str, Error> {
        self.value(field)?.as_str().ok_or_else(|| self.wrong(field, "not a string"))
    }

    /// The first of several spellings of a field that the record has.
    pub(crate) fn text_of(&self, fields: &[&str]) -> Result<&str, Error> {
        let field = fields.iter().find(|field| self.find(field).is_some()).unwrap_or(&fields[0]);
        self.text(field)
    }

    /// An array of strings with at least one entry.
    pub(crate) fn texts(&self, field: &str) -> Result<Vec<String>, Error> {
        let entries =
            self.value(field)?.as_array().ok_or_else(|| self.wrong(field, "not an array"))?;
        if entries.is_empty() {
            return Err(self.wrong(field, "empty"));
        }
        let texts = entries.iter().map(|entry| entry.as_str().map(str::to_owned));
        texts.collect::<Option<_>>().ok_or_else(|| self.wrong(field, "an entry is not a string"))
    }

    /// A name for messages and reports: the first of these fields that is text or a number, else
    /// the record's place.
    pub(crate) fn id(&self, fields: &[&str]) -> String {
        let named = fields.iter().find_map(|field| match self.find(field)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        named.unwrap_or_else(|| self.index.to_string())
    }
}

//! The words that name a task on a command line: `FORMAT:FILE?option=value&option=value`.
//!
//! A `%` and two hexadecimal digits stand for a byte, so that `&` (`%26`) and line breaks (`%0A`)
//! can occur in a value. Every option must be read by somebody: one that nobody asked for is an
//! error.

use std::cell::RefCell;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, Format};

/// A task as the user names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What the file holds.
    pub format: Format,
    /// The file.
    pub path: PathBuf,
    text: String,
    options: Vec<(String, String)>,
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Spec, Error> {
        let wrong = |reason: String| Error::Spec { spec: text.to_owned(), reason };
        let (format, rest) = text.split_once(':').ok_or_else(|| {
            wrong(format!("no format; write FORMAT:FILE, FORMAT one of {}", names()))
        })?;
        let format = Format::ALL
            .into_iter()
            .find(|known| known.name() == format)
            .ok_or_else(|| wrong(format!("no format `{format}`, there are {}", names())))?;
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() {
            return Err(wrong("no file".into()));
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option
                .split_once('=')
                .ok_or_else(|| wrong(format!("`{option}` is no option=value")))?;
            if pairs.iter().any(|(known, _)| known == name) {
                return Err(wrong(format!("{name} is given twice")));
            }
            let value = decode(value)
                .ok_or_else(|| wrong(format!("{name}: a `%` without two hexadecimal digits")))?;
            pairs.push((name.to_owned(), value));
        }
        Ok(Spec { format, path: path.into(), text: text.to_owned(), options: pairs })
    }
}

impl Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Replaces `%XX`.
fn decode(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The options of a task while it is opened; remembers which were asked for.
pub(crate) struct Options<'s> {
    spec: &'s Spec,
    asked: RefCell<Vec<&'static str>>,
}

impl<'s> Options<'s> {
    pub(crate) fn of(spec: &'s Spec) -> Options<'s> {
        Options { spec, asked: RefCell::default() }
    }

    pub(crate) fn text(&self, name: &'static str) -> Option<&'s str> {
        self.asked.borrow_mut().push(name);
        let found = self.spec.options.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A number in a range.
    pub(crate) fn number(
        &self,
        name: &'static str,
        default: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(self.wrong(format!(
                "{name} is `{text}`, but it must be a number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// One of some names.
    pub(crate) fn choice<T: Copy>(
        &self,
        name: &'static str,
        default: T,
        known: &[(&str, T)],
    ) -> Result<T, Error> {
        self.text(name).map_or(Ok(default), |text| self.one(name, text, known))
    }

    /// Some of some names, separated by commas; all of them if the option is absent.
    pub(crate) fn choices<T: Copy>(
        &self,
        name: &'static str,
        known: &[(&str, T)],
    ) -> Result<Vec<T>, Error> {
        match self.text(name) {
            Some(text) => text.split(',').map(|part| self.one(name, part, known)).collect(),
            None => Ok(known.iter().map(|(_, value)| *value).collect()),
        }
    }

    fn one<T: Copy>(&self, name: &str, text: &str, known: &[(&str, T)]) -> Result<T, Error> {
        known.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
            self.wrong(format!("{name} is `{text}`, but it must be one of {}", words.join(", ")))
        })
    }

    pub(crate) fn wrong(&self, reason: String) -> Error {
        Error::Spec { spec: self.spec.text.clone(), reason }
    }

    /// To be called when all have been asked for.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let asked = self.asked.borrow();
        let strange = self.spec.options.iter().find(|(name, _)| !asked.contains(&name.as_str()));
        match strange {
            Some((name, _)) => {
                let mut known = asked.clone();
                known.sort_unstable();
                known.dedup();
                Err(self.wrong(format!("no option {name}, there are {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }
}

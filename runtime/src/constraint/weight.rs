//! Refuses sources whose reading takes more than it should, before they are read.
//!
//! The library counts what it spends, but not everywhere: it compares the patterns of a schema's
//! properties pair by pair, writes all properties down once for each where their number is bounded, and
//! multiplies expressions out that must match the same text. Short sources could keep it busy for hours.
//! Bounds here are those at which a reading stays well below its quarter of a second and 64 MiB.

use serde_json::{Map, Value};

use super::{ConstraintError, joins, numbers};

/// Signs that repeat something in regular expressions, or make it optional.
const REPETITIONS: usize = 1000;

/// Classes of characters by name, each of which is hundreds of ranges of Unicode.
const CLASSES: usize = 500;

/// Levels of a schema.
const LEVELS: usize = 64;

/// Sum of the squares of the numbers of properties: one object with 800 of them.
const PROPERTY_PAIRS: usize = 640_000;

/// Properties of an object where a schema bounds their number.
const COUNTED_PROPERTIES: usize = 50;

/// Patterns of properties of one object.
const NAME_PATTERNS: usize = 16;

/// Patterns and formats of a schema in which the same text may have to match several.
const JOINED_PATTERNS: usize = 3;

/// Keywords beside which another schema may stand without having to hold together with something.
const HARMLESS: [&str; 14] = [
    "type",
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
];

/// Keywords whose schemas hold for the same value as what stands beside them.
const APPLICATORS: [&str; 4] = ["$ref", "anyOf", "oneOf", "allOf"];

pub(super) fn refused(reason: String) -> ConstraintError {
    ConstraintError::Refused(reason)
}

/// Whether values have to keep to several schemas here.
pub(super) fn is_joined(fields: &Map<String, Value>) -> bool {
    let parts = fields.keys().filter(|name| !HARMLESS.contains(&name.as_str())).count();
    let applies = fields.keys().any(|name| APPLICATORS.contains(&name.as_str()));
    let all = fields.get("allOf").and_then(Value::as_array);
    (applies && parts > 1) || all.is_some_and(|all| all.len() > 1)
}

/// Refuses regular expressions that are too heavy; `texts` are all of a constraint.
pub(super) fn check_expressions<'a>(
    texts: impl Iterator<Item = &'a str>,
) -> Result<(), ConstraintError> {
    let (mut repetitions, mut classes) = (0, 0);
    for text in texts {
        if names_stop(text) {
            let reason =
                "groups that are named \"stop\" are not supported, as they would mean look-ahead";
            return Err(refused(reason.to_owned()));
        }
        let mut escaped = false;
        for character in text.chars() {
            match character {
                '*' | '+' | '?' | '{' => repetitions += 1,
                'w' | 'W' | 'd' | 'D' | 's' | 'S' | 'p' | 'P' if escaped => classes += 1,
                _ => {}
            }
            escaped = character == '\\' && !escaped;
        }
    }
    if repetitions > REPETITIONS {
        return Err(refused(format!(
            "there are {repetitions} of the signs * + ? {{ in regular expressions, and {REPETITIONS} \
             are read at most"
        )));
    }
    if classes > CLASSES {
        return Err(refused(format!(
            "there are {classes} classes such as \\w in regular expressions, and {CLASSES} are read \
             at most"
        )));
    }
    Ok(())
}

/// Whether a group has the name that makes it look-ahead for the library. Space may stand in front of it
/// where expressions may be spaced out.
fn names_stop(text: &str) -> bool {
    ["?P<stop>", "?<stop>"].into_iter().any(|name| {
        text.match_indices(name).any(|(place, _)| {
            let Some(before) = text[..place].trim_end().strip_suffix('(') else { return false };
            let escapes = before.len() - before.trim_end_matches('\\').len();
            escapes % 2 == 0
        })
    })
}

/// Refuses a pattern of a schema whose classes mean something else here than in ECMAScript, which patterns
/// are written in: there a class holds no other one, and none is joined, cut or taken away.
fn check_pattern(pattern: &str) -> Result<(), ConstraintError> {
    let mut characters = pattern.chars().peekable();
    // The last character of the class, if in one.
    let mut class: Option<char> = None;
    while let Some(character) = characters.next() {
        if character == '\\' {
            characters.next();
            class = class.map(|_| character);
            continue;
        }
        match (class, character) {
            (None, '[') => {
                characters.next_if_eq(&'^');
                if characters.peek() == Some(&']') {
                    return Err(in_class("] at its beginning"));
                }
                class = Some(character);
            }
            (None, _) => {}
            (Some(_), ']') => class = None,
            (Some(_), '[') => return Err(in_class("[")),
            (Some('-'), '-') => return Err(in_class("--")),
            (Some('&'), '&') => return Err(in_class("&&")),
            (Some('~'), '~') => return Err(in_class("~~")),
            (Some(_), _) => class = Some(character),
        }
    }
    Ok(())
}

fn in_class(signs: &str) -> ConstraintError {
    refused(format!(
        "a pattern has {signs} in a class of characters, which is not supported unless it is escaped"
    ))
}

/// Refuses a schema that is too heavy.
pub(super) fn check_schema(schema: &Value) -> Result<(), ConstraintError> {
    let seen = Seen::of(schema)?;
    seen.check()?;
    numbers::check(schema)?;
    if seen.counts_properties && seen.most_properties > COUNTED_PROPERTIES {
        return Err(refused(format!(
            "minProperties and maxProperties are supported beside {COUNTED_PROPERTIES} properties of \
             an object at most"
        )));
    }
    if seen.joins && seen.patterns > JOINED_PATTERNS {
        return Err(refused(format!(
            "more than {JOINED_PATTERNS} patterns and formats are supported only where no value has \
             to keep to several schemas (allOf, or $ref, anyOf or oneOf with something beside it)"
        )));
    }
    joins::check([schema].into_iter())
}

/// Refuses schemas that are too heavy together, each of which is not by itself.
pub(super) fn check_schemas<'s>(
    schemas: impl Iterator<Item = &'s Value> + Clone,
) -> Result<(), ConstraintError> {
    joins::check(schemas.clone())?;
    let mut all = Seen::default();
    for schema in schemas {
        let seen = Seen::of(schema)?;
        all.expressions.extend(seen.expressions);
        all.property_pairs += seen.property_pairs;
    }
    all.check()
}

/// What there is in a schema. Keywords are counted wherever they stand, in examples too.
#[derive(Default)]
struct Seen<'s> {
    expressions: Vec<&'s str>,
    patterns: usize,
    property_pairs: usize,
    most_properties: usize,
    counts_properties: bool,
    joins: bool,
}

impl<'s> Seen<'s> {
    fn of(schema: &'s Value) -> Result<Seen<'s>, ConstraintError> {
        let mut seen = Seen::default();
        seen.walk(schema, 0)?;
        Ok(seen)
    }

    /// Refuses what adds up.
    fn check(&self) -> Result<(), ConstraintError> {
        check_expressions(self.expressions.iter().copied())?;
        match self.property_pairs > PROPERTY_PAIRS {
            true => {
                Err(refused("there are too many properties (one object may have 800)".to_owned()))
            }
            false => Ok(()),
        }
    }

    fn walk(&mut self, schema: &'s Value, level: usize) -> Result<(), ConstraintError> {
        if level > LEVELS {
            return Err(refused(format!("it is nested more than {LEVELS} levels deep")));
        }
        match schema {
            Value::Array(list) => list.iter().try_for_each(|entry| self.walk(entry, level + 1)),
            Value::Object(fields) => {
                self.look_at(fields)?;
                fields.values().try_for_each(|field| self.walk(field, level + 1))
            }
            _ => Ok(()),
        }
    }

    fn look_at(&mut self, fields: &'s Map<String, Value>) -> Result<(), ConstraintError> {
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    check_pattern(pattern)?;
                    self.expressions.push(pattern);
                    self.patterns += 1;
                }
                ("format", Value::String(_)) => self.patterns += 1,
                ("minProperties" | "maxProperties", Value::Number(_)) => {
                    self.counts_properties = true;
                }
                ("properties", Value::Object(all)) => {
                    self.most_properties = self.most_properties.max(all.len());
                    self.property_pairs += all.len() * all.len();
                }
                ("patternProperties", Value::Object(all)) => {
                    if all.len() > NAME_PATTERNS {
                        return Err(refused(format!(
                            "an object has {} patterns of properties, and {NAME_PATTERNS} are read \
                             at most",
                            all.len()
                        )));
                    }
                    all.keys().try_for_each(|pattern| check_pattern(pattern))?;
                    self.expressions.extend(all.keys().map(String::as_str));
                    self.patterns += all.len();
                }
                _ => {}
            }
        }
        self.joins |= is_joined(fields);
        Ok(())
    }
}

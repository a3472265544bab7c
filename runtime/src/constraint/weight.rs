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

/// Sum of the squares of the numbers of properties: one object with 800 of them.
const PROPERTY_PAIRS: usize = 640_000;

/// Properties of an object where a schema bounds their number.
const COUNTED_PROPERTIES: usize = 50;

/// Patterns of properties of one object.
const NAME_PATTERNS: usize = 16;

/// Pairs of patterns of properties, of which each may take the library 1 ms: one object with 16 patterns.
pub(super) const PATTERN_PAIRS: usize = NAME_PATTERNS * (NAME_PATTERNS - 1) / 2;

/// Letters of names times the parts of patterns that they are looked for in, which nothing of the library's
/// own counts: 2 million take 70 ms where each letter has each part of a pattern go on.
const NAME_STEPS: usize = 2_000_000;

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
    let mut expressions = Expressions::default();
    for text in texts {
        expressions.add(text)?;
    }
    expressions.check()
}

/// What regular expressions have in all.
#[derive(Clone, Copy, Default)]
struct Expressions {
    repetitions: usize,
    classes: usize,
}

impl Expressions {
    fn add(&mut self, text: &str) -> Result<(), ConstraintError> {
        if names_stop(text) {
            let reason =
                "groups that are named \"stop\" are not supported, as they would mean look-ahead";
            return Err(refused(reason.to_owned()));
        }
        let mut escaped = false;
        for character in text.chars() {
            match character {
                '*' | '+' | '?' | '{' => self.repetitions += 1,
                'w' | 'W' | 'd' | 'D' | 's' | 'S' | 'p' | 'P' if escaped => self.classes += 1,
                _ => {}
            }
            escaped = character == '\\' && !escaped;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ConstraintError> {
        let Expressions { repetitions, classes } = self;
        if *repetitions > REPETITIONS {
            return Err(refused(format!(
                "there are {repetitions} of the signs * + ? {{ in regular expressions, and \
                 {REPETITIONS} are read at most"
            )));
        }
        if *classes > CLASSES {
            return Err(refused(format!(
                "there are {classes} classes such as \\w in regular expressions, and {CLASSES} are \
                 read at most"
            )));
        }
        Ok(())
    }
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

/// Parts of an expression with those that it repeats written out, or more: as many states may it be in at
/// once.
fn parts(expression: &str) -> usize {
    // Of each group that is open.
    let mut groups = vec![0_usize];
    let mut last = 0_usize;
    let mut rest = expression;
    while let Some(sign) = rest.chars().next() {
        let mut length = sign.len_utf8();
        let part = match sign {
            '(' => {
                groups.push(0);
                last = 0;
                0
            }
            // The outermost is not closed.
            ')' if groups.len() > 1 => groups.pop().unwrap_or(0),
            '[' => {
                length = class_length(rest);
                1
            }
            '\\' => {
                length += rest[length..].chars().next().map_or(0, char::len_utf8);
                1
            }
            '{' => match repetition(rest) {
                Some((times, bytes)) => {
                    length = bytes;
                    // What has been counted once is there some more times.
                    let more = last.saturating_mul(times.saturating_sub(1));
                    last = last.saturating_add(more);
                    more
                }
                None => 1,
            },
            '*' | '+' | '?' | '|' | '^' | '$' => 0,
            _ => 1,
        };
        if sign != '{' && part > 0 {
            last = part;
        }
        if let Some(group) = groups.last_mut() {
            *group = group.saturating_add(part);
        }
        rest = &rest[length..];
    }
    groups.into_iter().fold(0, usize::saturating_add)
}

/// How often a repetition at the beginning of an expression has something at most, or at least where there
/// is no most, and its bytes.
fn repetition(expression: &str) -> Option<(usize, usize)> {
    let end = expression.find('}')?;
    let mut bounds = expression[1..end].rsplit(',');
    Some((bounds.find_map(|bound| bound.parse().ok())?, end + 1))
}

/// Bytes of a class of characters at the beginning of an expression.
fn class_length(expression: &str) -> usize {
    let mut is_escaped = false;
    let end = expression.char_indices().skip(1).find(|(_, character)| {
        let ends = *character == ']' && !is_escaped;
        is_escaped = *character == '\\' && !is_escaped;
        ends
    });
    end.map_or(expression.len(), |(place, _)| place + 1)
}

/// What reading a schema takes that adds up with what other schemas take.
#[derive(Default)]
pub(super) struct Weight {
    expressions: Expressions,
    property_pairs: usize,
    pattern_pairs: usize,
    name_steps: usize,
    joined_bytes: usize,
    /// Whether an object may have properties beside those that are declared.
    pub has_further_names: bool,
}

impl Weight {
    /// The weight of a schema in its normal form, which is refused if that alone is too much.
    pub fn of(schema: &Value) -> Result<Weight, ConstraintError> {
        let mut seen = Seen::default();
        seen.walk(schema)?;
        seen.weight.name_steps = seen.names.saturating_mul(seen.name_parts);
        seen.weight.check()?;
        numbers::check(schema)?;
        if seen.counts_properties && seen.most_properties > COUNTED_PROPERTIES {
            return Err(refused(format!(
                "minProperties and maxProperties are supported beside {COUNTED_PROPERTIES} properties \
                 of an object at most"
            )));
        }
        if seen.joins && seen.patterns > JOINED_PATTERNS {
            return Err(refused(format!(
                "more than {JOINED_PATTERNS} patterns and formats are supported only where no value \
                 has to keep to several schemas (allOf, or $ref, anyOf or oneOf with something beside \
                 it)"
            )));
        }
        seen.weight.joined_bytes = joins::bytes(schema)?;
        Ok(seen.weight)
    }

    /// With another one's.
    pub fn add(&mut self, other: &Weight) {
        let sums = [
            (&mut self.expressions.repetitions, other.expressions.repetitions),
            (&mut self.expressions.classes, other.expressions.classes),
            (&mut self.property_pairs, other.property_pairs),
            (&mut self.pattern_pairs, other.pattern_pairs),
            (&mut self.name_steps, other.name_steps),
            (&mut self.joined_bytes, other.joined_bytes),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.has_further_names |= other.has_further_names;
    }

    /// Refuses what adds up.
    pub fn check(&self) -> Result<(), ConstraintError> {
        self.expressions.check()?;
        if self.property_pairs > PROPERTY_PAIRS {
            let reason = "there are too many properties (one object may have 800)";
            return Err(refused(reason.to_owned()));
        }
        if self.pattern_pairs > PATTERN_PAIRS {
            return Err(refused(format!(
                "there are {} pairs of patterns of properties of the same objects, and {PATTERN_PAIRS} \
                 are compared at most",
                self.pattern_pairs
            )));
        }
        if self.name_steps > NAME_STEPS {
            return Err(refused(format!(
                "patternProperties have too many parts, counting what they repeat, for names that are so \
                 long: {} of one times the other, and {NAME_STEPS} are read at most",
                self.name_steps
            )));
        }
        joins::check(self.joined_bytes)
    }
}

/// What there is in a schema. Keywords are counted wherever they stand, in examples too.
#[derive(Default)]
struct Seen {
    weight: Weight,
    patterns: usize,
    most_properties: usize,
    /// Bytes of names, and parts of the patterns of names.
    names: usize,
    name_parts: usize,
    counts_properties: bool,
    joins: bool,
}

impl Seen {
    fn walk(&mut self, schema: &Value) -> Result<(), ConstraintError> {
        match schema {
            Value::Array(list) => list.iter().try_for_each(|entry| self.walk(entry)),
            Value::Object(fields) => {
                self.look_at(fields)?;
                fields.values().try_for_each(|field| self.walk(field))
            }
            _ => Ok(()),
        }
    }

    fn look_at(&mut self, fields: &Map<String, Value>) -> Result<(), ConstraintError> {
        for (name, value) in fields {
            // Whatever has a name may be matched with patterns: constants and what is required, too.
            self.names = self.names.saturating_add(name.len());
            match (name.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    check_pattern(pattern)?;
                    self.weight.expressions.add(pattern)?;
                    self.patterns += 1;
                }
                ("format", Value::String(_)) => self.patterns += 1,
                ("minProperties" | "maxProperties", Value::Number(_)) => {
                    self.counts_properties = true;
                }
                ("required", Value::Array(all)) => {
                    let bytes = all.iter().filter_map(Value::as_str).map(str::len).sum();
                    self.names = self.names.saturating_add(bytes);
                }
                ("properties", Value::Object(all)) => {
                    self.most_properties = self.most_properties.max(all.len());
                    self.weight.property_pairs += all.len() * all.len();
                }
                ("patternProperties", Value::Object(all)) => self.look_at_names(all)?,
                _ => {}
            }
        }
        let declares = |name: &str| {
            fields.get(name).and_then(Value::as_object).is_some_and(|all| !all.is_empty())
        };
        let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
        self.weight.has_further_names |=
            !is_closed && (declares("properties") || declares("patternProperties"));
        self.joins |= is_joined(fields);
        Ok(())
    }

    fn look_at_names(&mut self, patterns: &Map<String, Value>) -> Result<(), ConstraintError> {
        let count = patterns.len();
        if count > NAME_PATTERNS {
            return Err(refused(format!(
                "an object has {count} patterns of properties, and {NAME_PATTERNS} are read at most"
            )));
        }
        for pattern in patterns.keys() {
            check_pattern(pattern)?;
            self.weight.expressions.add(pattern)?;
            self.name_parts = self.name_parts.saturating_add(parts(pattern));
        }
        self.patterns += count;
        self.weight.pattern_pairs += count * count.saturating_sub(1) / 2;
        Ok(())
    }
}

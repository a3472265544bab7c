//! Refuses schemas whose alternatives multiply where a value has to keep to several of them.
//!
//! The library writes each combination down, with copies of all that is in it: two times 150 alternatives
//! beside a text of 50 KB are more than a gigabyte. Here the same combinations are formed of references to
//! the schema, within a budget of the bytes that the library would copy.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::ConstraintError;
use super::weight::{PATTERN_PAIRS, refused};

/// Bytes that the combinations of schemas may have.
const JOINED_BYTES: usize = 8 << 20;

/// Bytes of a combination besides its schemas'.
const COMBINATION_BYTES: usize = 64;

/// What comparing two patterns of properties counts for: the library does so whenever objects with several
/// of them are joined, and it takes up to 1 ms as `^(a*b){100}1$` and `^(a*b){100}2$`, which copying this many
/// bytes does not.
const PATTERN_PAIR_BYTES: usize = JOINED_BYTES / PATTERN_PAIRS;

/// Schemas within one another, references followed. The library follows twice as many at most.
const LEVELS: usize = 64;

/// Keywords that say nothing about a value.
const SILENT: [&str; 7] =
    ["$defs", "definitions", "$schema", "$id", "$comment", "title", "description"];

/// Bytes of a schema's combinations, which must be in its normal form.
pub(super) fn bytes(schema: &Value) -> Result<usize, ConstraintError> {
    let mut joins = Joins { schema, left: JOINED_BYTES };
    match joins.walk(schema) {
        Some(()) => Ok(JOINED_BYTES - joins.left),
        None => Err(too_many()),
    }
}

/// Refuses more than there may be.
pub(super) fn check(bytes: usize) -> Result<(), ConstraintError> {
    if bytes > JOINED_BYTES { Err(too_many()) } else { Ok(()) }
}

fn too_many() -> ConstraintError {
    refused(
        "there are too many combinations of alternatives where values have to keep to several schemas \
         (allOf, or $ref, anyOf, oneOf or enum with something beside it)"
            .to_owned(),
    )
}

/// What a value may have to keep to.
#[derive(Clone, Copy)]
enum Part<'s> {
    Schema(&'s Value),
    /// A schema's own keywords, but for those that hold other schemas for the same value.
    Plain(&'s Map<String, Value>),
    /// Nothing but this value.
    Literal(&'s Value),
}

impl<'s> Part<'s> {
    /// The one type of its values, if it says one.
    fn kind(self) -> Option<&'static str> {
        let named = match self {
            Part::Schema(_) => None,
            Part::Plain(fields) => fields.get("type").and_then(Value::as_str),
            Part::Literal(Value::Null) => Some("null"),
            Part::Literal(Value::Bool(_)) => Some("boolean"),
            Part::Literal(Value::Number(_)) => Some("number"),
            Part::Literal(Value::String(_)) => Some("string"),
            Part::Literal(Value::Array(_)) => Some("array"),
            Part::Literal(Value::Object(_)) => Some("object"),
        };
        match named? {
            "integer" | "number" => Some("number"),
            named => ["null", "boolean", "string", "array", "object"]
                .into_iter()
                .find(|kind| *kind == named),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Part::Schema(value) | Part::Literal(value) => bytes_of(value),
            Part::Plain(fields) => plain_bytes(fields),
        }
    }

    /// What a property must be.
    fn property(self, name: &str) -> Vec<Part<'s>> {
        match self {
            Part::Literal(Value::Object(fields)) => {
                fields.get(name).map(Part::Literal).into_iter().collect()
            }
            Part::Plain(fields) => match fields.get("properties").and_then(|all| all.get(name)) {
                Some(schema) => vec![Part::Schema(schema)],
                None => self.further_properties(),
            },
            _ => Vec::new(),
        }
    }

    /// What properties without a schema of their own must be: one of these, by their names.
    fn further_properties(self) -> Vec<Part<'s>> {
        let Part::Plain(fields) = self else { return Vec::new() };
        let named = fields.get("patternProperties").and_then(Value::as_object);
        let further = fields.get("additionalProperties");
        let all = named.into_iter().flat_map(Map::values).chain(further);
        all.filter(|schema| schema.is_object()).map(Part::Schema).collect()
    }

    /// The patterns of its properties' names.
    fn patterns(self) -> impl Iterator<Item = &'s String> {
        let patterns = match self {
            Part::Plain(fields) => fields.get("patternProperties").and_then(Value::as_object),
            Part::Schema(_) | Part::Literal(_) => None,
        };
        patterns.into_iter().flat_map(Map::keys)
    }

    fn names(self) -> impl Iterator<Item = &'s String> {
        let fields = match self {
            Part::Literal(value) => value.as_object(),
            Part::Plain(fields) => fields.get("properties").and_then(Value::as_object),
            Part::Schema(_) => None,
        };
        fields.into_iter().flat_map(Map::keys)
    }

    /// What the first items must be, one by one.
    fn items(self) -> &'s [Value] {
        let list = match self {
            Part::Literal(value) => value.as_array(),
            Part::Plain(fields) => fields.get("prefixItems").and_then(Value::as_array),
            Part::Schema(_) => None,
        };
        list.map_or(&[], Vec::as_slice)
    }

    fn item(self, index: usize) -> Option<Part<'s>> {
        match (self, self.items().get(index)) {
            (Part::Literal(_), item) => item.map(Part::Literal),
            (_, Some(item)) => Some(Part::Schema(item)),
            (_, None) => self.further_items(),
        }
    }

    fn further_items(self) -> Option<Part<'s>> {
        let Part::Plain(fields) = self else { return None };
        let items = fields.get("items").filter(|items| items.is_object());
        items.map(Part::Schema)
    }
}

/// One of a value's alternatives: it keeps to all of these.
struct Combination<'s> {
    parts: Vec<Part<'s>>,
    bytes: usize,
}

impl<'s> Combination<'s> {
    fn of(part: Part<'s>, bytes: usize) -> Combination<'s> {
        Combination { parts: vec![part], bytes: bytes + COMBINATION_BYTES }
    }
}

/// `None` wherever the budget is used up.
struct Joins<'s> {
    /// What references lead into.
    schema: &'s Value,
    left: usize,
}

impl<'s> Joins<'s> {
    fn spend(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    /// Forms the combinations of a schema and of all within.
    fn walk(&mut self, value: &'s Value) -> Option<()> {
        match value {
            Value::Array(list) => list.iter().try_for_each(|entry| self.walk(entry)),
            Value::Object(fields) => {
                self.join(&[Part::Schema(value)], 0)?;
                fields.values().try_for_each(|field| self.walk(field))
            }
            _ => Some(()),
        }
    }

    /// Forms the combinations of what a value has to keep to, and those of its parts.
    fn join(&mut self, parts: &[Part<'s>], level: usize) -> Option<()> {
        if level > LEVELS {
            return Some(());
        }
        for combination in self.alternatives(parts, level)? {
            let parts = combination.parts;
            if parts.len() < 2 {
                continue;
            }
            let names: BTreeSet<&String> = parts.iter().flat_map(|part| part.names()).collect();
            for name in names {
                let all: Vec<Part> = parts.iter().flat_map(|part| part.property(name)).collect();
                self.join_several(&all, level)?;
            }
            let all: Vec<Part> = parts.iter().flat_map(|part| part.further_properties()).collect();
            self.join_several(&all, level)?;
            let items = parts.iter().map(|part| part.items().len()).max().unwrap_or(0);
            for index in 0..items {
                let all: Vec<Part> = parts.iter().filter_map(|part| part.item(index)).collect();
                self.join_several(&all, level)?;
            }
            let all: Vec<Part> = parts.iter().filter_map(|part| part.further_items()).collect();
            self.join_several(&all, level)?;
        }
        Some(())
    }

    /// The same where there is more than one, of which the library makes copies first.
    fn join_several(&mut self, parts: &[Part<'s>], level: usize) -> Option<()> {
        self.spend(1)?;
        if parts.len() < 2 {
            return Some(());
        }
        for part in parts {
            self.spend(part.bytes())?;
        }
        self.join(parts, level + 1)
    }

    fn alternatives(&mut self, parts: &[Part<'s>], level: usize) -> Option<Vec<Combination<'s>>> {
        let mut all = Vec::new();
        for part in parts {
            let more = match *part {
                Part::Schema(schema) => self.of_schema(schema, level)?,
                part => vec![Combination::of(part, part.bytes())],
            };
            all = self.product(all, more, level)?;
        }
        Some(all)
    }

    /// The alternatives of a schema. One that is nothing but a reference stays one; nothing stands for all
    /// values.
    fn of_schema(&mut self, schema: &'s Value, level: usize) -> Option<Vec<Combination<'s>>> {
        let Value::Object(fields) = schema else { return Some(Vec::new()) };
        let mut all = Vec::new();
        if level > LEVELS {
            return Some(all);
        }
        let bytes = plain_bytes(fields);
        if bytes > 0 {
            all.push(Combination::of(Part::Plain(fields), bytes));
        }
        for (name, value) in fields {
            let more = match (name.as_str(), value) {
                ("const", value) => vec![Combination::of(Part::Literal(value), bytes_of(value))],
                ("enum", Value::Array(values)) => values
                    .iter()
                    .map(|value| Combination::of(Part::Literal(value), bytes_of(value)))
                    .collect(),
                ("anyOf" | "oneOf", Value::Array(options)) => {
                    let mut more = Vec::new();
                    for option in options {
                        more.extend(self.of_schema(option, level + 1)?);
                    }
                    more
                }
                ("allOf", Value::Array(each)) => {
                    let each: Vec<Part> = each.iter().map(Part::Schema).collect();
                    self.alternatives(&each, level + 1)?
                }
                ("$ref", Value::String(reference)) => {
                    vec![Combination::of(Part::Schema(schema), reference.len())]
                }
                _ => continue,
            };
            all = self.product(all, more, level)?;
        }
        Some(all)
    }

    /// Each of these with each of those. Where there are none all values are allowed, and what they join is
    /// copied at most.
    fn product(
        &mut self,
        these: Vec<Combination<'s>>,
        those: Vec<Combination<'s>>,
        level: usize,
    ) -> Option<Vec<Combination<'s>>> {
        if these.is_empty() {
            return Some(those);
        }
        if those.is_empty() {
            return Some(these);
        }
        let (these, those) = (self.followed(these, level)?, self.followed(those, level)?);
        let mut all = Vec::new();
        for this in &these {
            for that in &those {
                self.spend(this.bytes + that.bytes)?;
                let kinds: BTreeSet<&str> =
                    this.parts.iter().chain(&that.parts).filter_map(|part| part.kind()).collect();
                // No value is of two types.
                if kinds.len() < 2 {
                    let parts = [&this.parts[..], &that.parts].concat();
                    let patterns: BTreeSet<&String> =
                        parts.iter().flat_map(|part| part.patterns()).collect();
                    let pairs = patterns.len() * patterns.len().saturating_sub(1) / 2;
                    self.spend(pairs.saturating_mul(PATTERN_PAIR_BYTES))?;
                    all.push(Combination { parts, bytes: this.bytes + that.bytes });
                }
            }
        }
        Some(all)
    }

    /// The same with what references lead to.
    fn followed(
        &mut self,
        combinations: Vec<Combination<'s>>,
        level: usize,
    ) -> Option<Vec<Combination<'s>>> {
        let mut all = Vec::new();
        for combination in combinations {
            match combination.parts[..] {
                [Part::Schema(schema)] if level <= LEVELS => {
                    let target = schema.get("$ref").and_then(Value::as_str);
                    let Some(target) = target.and_then(|target| self.target(target)) else {
                        continue;
                    };
                    self.spend(COMBINATION_BYTES + bytes_of(target))?;
                    let targets = self.of_schema(target, level + 1)?;
                    all.extend(self.followed(targets, level + 1)?);
                }
                _ => all.push(combination),
            }
        }
        Some(all)
    }

    /// What a reference leads to, as the library reads it. It refuses what leads nowhere.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        if reference == "#" {
            return Some(self.schema);
        }
        let mut steps = reference.strip_prefix("#/")?.split('/');
        steps.try_fold(self.schema, |value, step| match value {
            Value::Array(list) => list.get(step.parse::<usize>().ok()?),
            value => value.get(step),
        })
    }
}

/// Bytes of a schema's own keywords.
fn plain_bytes(fields: &Map<String, Value>) -> usize {
    let others = ["const", "enum", "anyOf", "oneOf", "allOf", "$ref"];
    let is_plain = |name: &str| !others.contains(&name) && !SILENT.contains(&name);
    let plain = fields.iter().filter(|(name, _)| is_plain(name));
    plain.map(|(name, value)| name.len() + bytes_of(value)).sum()
}

fn bytes_of(value: &Value) -> usize {
    value.to_string().len()
}

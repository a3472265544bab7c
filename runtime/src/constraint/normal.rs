//! Writes schemas as the library reads them, in draft 2020-12.
//!
//! The library goes by keywords' order, and by `$schema` of old drafts passes over what came later. It
//! loses a keyword that speaks of another one (`additionalProperties` of `patternProperties`, `true` for
//! `exclusiveMinimum` of `minimum`) where an applicator stands between the two, and looks references up by
//! their letters. Servers that people write schemas for take each keyword for what it says, whatever
//! `$schema` names, and so do we: what stands in a schema here is in one spelling, in an order in which
//! nothing is lost, and its references are the names that lead to their targets. All checks read what this
//! gives, which is what the library is given.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::ConstraintError;
use super::limits::SOURCE_BYTES;
use super::weight::refused;

/// Levels of a schema.
const LEVELS: usize = 64;

/// Schemas of a `oneOf` that are compared with one another, pair by pair: 64 KiB of these take a tenth of a
/// second.
const DISTINCT_OPTIONS: usize = 32;
/// Properties of each that are required in which they are compared, and texts that one may be.
const COMPARED: usize = 16;

/// Bytes of a place that are shown.
const PLACE_BYTES: usize = 200;

/// Keywords that the library applies where they stand. All others between two of these it reads as if they
/// were a schema of their own.
const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Drafts up to 6 say of a bound whether it is exclusive.
const BOUNDS: [(&str, &str); 2] =
    [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")];

/// A schema as the library reads it. Whatever the source is nested in, its result is not nested deeply.
pub(super) fn normal(schema: &Value) -> Result<Value, ConstraintError> {
    let mut writer = Writer { root: schema, moved: Vec::new(), is_any: RefCell::default() };
    let mut written = writer.write(schema, Part::Schema, 0).map_err(Fault::into_error)?;
    writer.put_moved(&mut written)?;
    Ok(written)
}

/// Refuses constants of a schema in its normal form that texts without `\u` cannot have.
pub(super) fn check_letters(schema: &Value) -> Result<(), ConstraintError> {
    check_letters_of(schema, Part::Schema, false).map_err(Fault::into_error)
}

fn check_letters_of(value: &Value, part: Part, is_constant: bool) -> Result<(), Fault> {
    match value {
        Value::String(text) if is_constant && text.contains(is_spelled) => {
            let reason = "control characters in constants are supported only where objects with \
                          properties have additionalProperties: false";
            Err(Fault::new(reason.to_owned()))
        }
        Value::Array(list) => list.iter().enumerate().try_for_each(|(index, entry)| {
            check_letters_of(entry, part, is_constant).map_err(|fault| fault.inside(index))
        }),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            let is_keyword = part == Part::Schema && ["const", "enum"].contains(&name.as_str());
            check_letters_of(field, part.at(name), is_constant || is_keyword)
                .map_err(|fault| fault.inside(name))
        }),
        _ => Ok(()),
    }
}

/// Whether JSON has a letter in four digits only, for the library at least.
fn is_spelled(letter: char) -> bool {
    letter.is_ascii_control() && !['\n', '\r', '\t', '\u{8}', '\u{c}'].contains(&letter)
}

/// What is wrong, and where.
pub(super) struct Fault {
    place: String,
    reason: String,
}

impl Fault {
    pub fn new(reason: String) -> Fault {
        Fault { place: String::new(), reason }
    }

    /// The same, seen from the outside.
    pub fn inside(mut self, step: impl std::fmt::Display) -> Fault {
        self.place = format!("/{step}{}", self.place);
        self
    }

    pub fn into_error(mut self) -> ConstraintError {
        if self.place.len() > PLACE_BYTES {
            self.place.truncate(self.place.floor_char_boundary(PLACE_BYTES));
            self.place.push('…');
        }
        refused(format!("#{}: {}", self.place, self.reason))
    }
}

/// What a part of a schema is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    Schema,
    /// Schemas by names, which are no keywords.
    Names,
    /// A value: one that an answer may be, or an example.
    Value,
}

impl Part {
    pub fn at(self, name: &str) -> Part {
        match (self, name) {
            (Part::Value, _)
            | (Part::Schema, "const" | "enum" | "default" | "example" | "examples") => Part::Value,
            // The last is no keyword; OpenAPI has its schemas there.
            (
                Part::Schema,
                "properties" | "patternProperties" | "$defs" | "definitions" | "schemas",
            ) => Part::Names,
            _ => Part::Schema,
        }
    }
}

struct Writer<'s> {
    root: &'s Value,
    /// Places that no reference of the library leads to, as steps from the root of what is written. Each is
    /// copied to a name that has its number.
    moved: Vec<Vec<String>>,
    /// By the address of a schema within the root, which does not move: whether its `oneOf` is an `anyOf`.
    is_any: RefCell<BTreeMap<usize, bool>>,
}

impl Writer<'_> {
    fn write(&mut self, value: &Value, part: Part, level: usize) -> Result<Value, Fault> {
        if level > LEVELS {
            return Err(Fault::new(format!("it is nested more than {LEVELS} levels deep")));
        }
        match value {
            Value::Array(list) => {
                let entries = list.iter().enumerate().map(|(index, entry)| {
                    self.write(entry, part, level + 1).map_err(|fault| fault.inside(index))
                });
                Ok(Value::Array(entries.collect::<Result<_, _>>()?))
            }
            Value::Object(fields) => {
                let mut written = Map::new();
                let is_any = part == Part::Schema && self.is_any(fields);
                for (name, field) in fields {
                    let field = match (part, name.as_str(), field) {
                        (Part::Schema, "$ref", Value::String(reference)) => {
                            self.reference(reference).map(Value::String)
                        }
                        _ => self.write(field, part.at(name), level + 1),
                    };
                    let field = field.map_err(|fault| fault.inside(name))?;
                    let name = if is_any && name == "oneOf" { "anyOf" } else { name };
                    written.insert(name.to_owned(), field);
                }
                match part {
                    Part::Schema => Ok(Value::Object(in_order(in_one_draft(written)?))),
                    Part::Names | Part::Value => Ok(Value::Object(written)),
                }
            }
            value => Ok(value.clone()),
        }
    }

    /// Whether `oneOf` says the same as `anyOf`, since no value fits two of its schemas. The library sees that
    /// by itself, but not behind references.
    fn is_any(&self, fields: &Map<String, Value>) -> bool {
        let Some(Value::Array(options)) = fields.get("oneOf") else { return false };
        if options.len() > DISTINCT_OPTIONS || fields.contains_key("anyOf") {
            return false;
        }
        // All references that lead through it ask again.
        let place = std::ptr::from_ref(fields).addr();
        if let Some(is_any) = self.is_any.borrow().get(&place) {
            return *is_any;
        }
        let options: Vec<&Value> = options.iter().map(|option| self.looked_into(option)).collect();
        let is_any = options.iter().enumerate().all(|(index, option)| {
            options[..index].iter().all(|other| are_distinct(option, other))
        });
        self.is_any.borrow_mut().insert(place, is_any);
        is_any
    }

    /// A schema, or what it refers to: what stands beside a reference leaves fewer values only.
    fn looked_into<'v>(&'v self, schema: &'v Value) -> &'v Value {
        let fragment = schema.get("$ref").and_then(Value::as_str);
        let fragment = fragment.and_then(|reference| reference.strip_prefix('#'));
        let steps = fragment.and_then(|fragment| steps(fragment).ok().flatten());
        let target = steps.and_then(|steps| {
            steps.iter().try_fold(self.root, |value, step| match value {
                Value::Array(list) => list.get(step.parse::<usize>().ok()?),
                value => value.get(step),
            })
        });
        target.unwrap_or(schema)
    }

    /// A reference whose steps are the names themselves. One that is not to a place in the schema is left to
    /// the library, which refuses it.
    fn reference(&mut self, reference: &str) -> Result<String, Fault> {
        let Some(fragment) = reference.strip_prefix('#') else { return Ok(reference.to_owned()) };
        let unclear = |reason: &str| Fault::new(format!("the reference {reference:?} {reason}"));
        let Some(steps) = steps(fragment).map_err(unclear)? else {
            return Ok(reference.to_owned());
        };
        if steps.is_empty() {
            return Ok("#".to_owned());
        }
        let steps = self.follow(&steps).map_err(unclear)?;
        // The library takes `#/` for the whole, and what stands between two slashes for a name.
        if steps.iter().all(|step| !step.contains('/')) && steps != [""] {
            return Ok(format!("#/{}", steps.join("/")));
        }
        let place = self.moved.iter().position(|moved| *moved == steps);
        let number = place.unwrap_or_else(|| {
            self.moved.push(steps);
            self.moved.len() - 1
        });
        Ok(format!("#/$defs/{}", self.moved_name(number)))
    }

    /// The name of a copy, which is none of the schema's.
    fn moved_name(&self, number: usize) -> String {
        let names = self.root.get("$defs").and_then(Value::as_object);
        let mut name = format!("moved{number}");
        while names.is_some_and(|names| names.contains_key(&name)) {
            name.push('_');
        }
        name
    }

    /// Where steps lead to a schema, the steps to it in what is written.
    fn follow(&self, steps: &[String]) -> Result<Vec<String>, &'static str> {
        let (mut value, mut part) = (self.root, Part::Schema);
        let mut written = Vec::new();
        for step in steps {
            let nowhere = "leads nowhere";
            let mut step_written = step.as_str();
            match value {
                Value::Array(list) => {
                    let index = step.parse::<usize>().ok();
                    // No sign, and no zero in front.
                    let index = index.filter(|index| index.to_string() == *step);
                    value = index.and_then(|index| list.get(index)).ok_or(nowhere)?;
                }
                Value::Object(fields) => {
                    let has_list = fields.get("items").is_some_and(Value::is_array);
                    step_written = match (part, step.as_str()) {
                        (Part::Schema, "items") if has_list => "prefixItems",
                        (Part::Schema, "additionalItems") if has_list => "items",
                        (Part::Schema, "additionalItems") => return Err(nowhere),
                        (Part::Schema, "oneOf") if self.is_any(fields) => "anyOf",
                        (_, step) => step,
                    };
                    value = fields.get(step).ok_or(nowhere)?;
                    part = part.at(step);
                }
                _ => return Err(nowhere),
            }
            written.push(step_written.to_owned());
        }
        match part == Part::Schema && (value.is_object() || value.is_boolean()) {
            true => Ok(written),
            false => Err("leads to what is no schema"),
        }
    }

    /// Copies what has been moved, in which references are written by now.
    fn put_moved(&self, written: &mut Value) -> Result<(), ConstraintError> {
        let (mut copies, mut bytes) = (Vec::new(), 0_usize);
        for (number, steps) in self.moved.iter().enumerate() {
            let target = steps.iter().try_fold(&*written, |value, step| match value {
                Value::Array(list) => list.get(step.parse::<usize>().ok()?),
                value => value.get(step),
            });
            let Some(target) = target else {
                return Err(refused("a reference leads to what has no place".to_owned()));
            };
            bytes = bytes.saturating_add(target.to_string().len());
            if bytes > SOURCE_BYTES {
                return Err(refused(format!(
                    "references to names with a slash (~1) lead to more than {SOURCE_BYTES} bytes"
                )));
            }
            copies.push((self.moved_name(number), target.clone()));
        }
        let Value::Object(fields) = written else { return Ok(()) };
        if copies.is_empty() {
            return Ok(());
        }
        let names = fields.entry("$defs").or_insert_with(|| json!({}));
        let Value::Object(names) = names else {
            return Err(refused("#/$defs: it must be an object".to_owned()));
        };
        names.extend(copies);
        Ok(())
    }
}

/// A schema's keywords in draft 2020-12, where the ones of older drafts mean what they always have.
fn in_one_draft(mut fields: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    fields.retain(|name, field| name != "$schema" && !asks_for_nothing(name, field));
    for (inclusive, exclusive) in BOUNDS {
        match (fields.get(exclusive), fields.get(inclusive)) {
            (Some(Value::Bool(false)), _) => {
                fields.shift_remove(exclusive);
            }
            (Some(Value::Bool(true)), Some(Value::Number(bound))) => {
                let bound = Value::Number(bound.clone());
                fields.shift_remove(inclusive);
                fields.insert(exclusive.to_owned(), bound);
            }
            (Some(Value::Bool(true)), _) => {
                return Err(Fault::new(format!(
                    "true is supported only beside the number of {inclusive} in the same schema; write \
                     the number itself"
                ))
                .inside(exclusive));
            }
            _ => {}
        }
    }
    // The library takes items of old drafts only where nothing stands between the two, and new ones for old
    // beside additionalItems, which say nothing then.
    let further = fields.shift_remove("additionalItems");
    if fields.get("items").is_some_and(Value::is_array) {
        if fields.contains_key("prefixItems") {
            let reason = "a list of schemas is not supported beside prefixItems, which is the same";
            return Err(Fault::new(reason.to_owned()).inside("items"));
        }
        let mut renamed = Map::new();
        for (name, field) in fields {
            let is_list = name == "items";
            renamed.insert(if is_list { "prefixItems".to_owned() } else { name }, field);
            if let Some(further) = further.as_ref().filter(|_| is_list) {
                renamed.insert("items".to_owned(), further.clone());
            }
        }
        fields = renamed;
    }
    Ok(fields)
}

/// Whether it can be seen that no value fits two schemas: they have different types, or a property that has a
/// tag of its own in each, as unions with a discriminator do.
fn are_distinct<'s>(one: &'s Value, other: &'s Value) -> bool {
    fn kind(schema: &Value) -> Option<&str> {
        match schema.get("type").and_then(Value::as_str) {
            Some("integer") => Some("number"),
            kind => kind,
        }
    }
    match (kind(one), kind(other)) {
        (Some(one), Some(other)) if one != other => return true,
        (Some("object"), Some("object")) => {}
        _ => return false,
    }
    // Without the property a value fits at most the schema that does not require it.
    let required = |schema: &'s Value| {
        let names = schema.get("required").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).take(COMPARED)
    };
    required(one).chain(required(other)).any(|name| {
        let (Some(these), Some(those)) = (tags(one, name), tags(other, name)) else { return false };
        these.iter().all(|tag| !those.contains(tag))
    })
}

/// All texts that a property may be, if its schema lists them.
fn tags<'s>(schema: &'s Value, name: &str) -> Option<Vec<&'s str>> {
    let property = schema.get("properties")?.get(name)?;
    match (property.get("const"), property.get("enum")) {
        (Some(tag), _) => Some(vec![tag.as_str()?]),
        (None, Some(Value::Array(tags))) if tags.len() <= COMPARED => {
            tags.iter().map(Value::as_str).collect()
        }
        _ => None,
    }
}

/// Whether a keyword that the library does not know allows everything, as programs write them that write
/// schemas.
fn asks_for_nothing(name: &str, field: &Value) -> bool {
    match (name, field) {
        ("uniqueItems", field) => *field == Value::Bool(false),
        ("propertyNames", Value::Object(fields)) => {
            fields.iter().all(|(name, field)| name == "type" && field == "string")
        }
        ("propertyNames" | "unevaluatedProperties" | "unevaluatedItems", field) => {
            *field == Value::Bool(true)
        }
        _ => false,
    }
}

/// A schema's keywords with all that are not applied in place side by side. Properties of an answer come in
/// the order in which `properties` and applicators stand, so they gather there.
fn in_order(fields: Map<String, Value>) -> Map<String, Value> {
    let is_plain = |name: &str| !APPLICATORS.contains(&name);
    let first = fields.keys().find(|name| is_plain(name)).cloned();
    let anchor = match fields.contains_key("properties") {
        true => Some("properties".to_owned()),
        false => first,
    };
    let (mut before, mut plain, mut behind) = (Map::new(), Map::new(), Map::new());
    let mut is_behind = false;
    for (name, field) in fields {
        is_behind |= Some(&name) == anchor.as_ref();
        match (is_plain(&name), is_behind) {
            (true, _) => plain.insert(name, field),
            (false, false) => before.insert(name, field),
            (false, true) => behind.insert(name, field),
        };
    }
    before.into_iter().chain(plain).chain(behind).collect()
}

/// The names on the way to what a fragment stands for (RFC 6901); none if it is the name of an anchor.
fn steps(fragment: &str) -> Result<Option<Vec<String>>, &'static str> {
    let pointer = percent_decoded(fragment)
        .ok_or("has a % without the two digits of a byte of UTF-8 behind it")?;
    if pointer.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let Some(steps) = pointer.strip_prefix('/') else { return Ok(None) };
    let steps: Option<Vec<String>> = steps.split('/').map(unescaped).collect();
    steps.map(Some).ok_or("has a ~ that is not ~0 or ~1")
}

/// A fragment's letters. `None` if they are not UTF-8, or a sign stands for no byte.
fn percent_decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes().iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let mut digit = || char::from(*rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// A step of a pointer as the name that it is. `None` if it is none.
fn unescaped(step: &str) -> Option<String> {
    let mut name = String::with_capacity(step.len());
    let mut letters = step.chars();
    while let Some(letter) = letters.next() {
        name.push(match letter {
            '~' => match letters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(name)
}

//! Refuses numbers of schemas that the library would read as other ones.
//!
//! It takes numbers for 64-bit floats and writes ranges of them as regular expressions by way of 64-bit
//! integers, which the smallest of them has it do without end. It counts `multipleOf` in 32 bits, which
//! wrap around, and forgets that a bound is exclusive where both have the same digits in front of the point.
//!
//! Bounds of 64-bit integers, which programs write for their types, are tightened to what it reads: fewer
//! answers are possible, all of them such as the schema allows.

use serde_json::{Map, Number, Value};

use super::ConstraintError;
use super::normal::{Fault, Part};
use super::weight::{is_joined, refused};

/// Numbers up to here are integers that a float tells from their neighbours.
const MOST: f64 = 9_007_199_254_740_991.0;

/// Digits behind the point of `multipleOf`, and the number that all its digits are. Ten times that and
/// nine times the unit still have 32 bits, with which the library goes from digit to digit.
const MULTIPLE_DIGITS: u32 = 8;
/// See above.
const MULTIPLE: f64 = 100_000_000.0;

/// The least common multiple of what values may have to be multiples of at once, whose square has 32 bits.
const COMMON_MULTIPLE: u64 = 65_535;

/// Keywords whose number is read as a float.
const BOUNDS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Whether a bound is so far out that a tighter one may stand for it.
fn is_lax(name: &str, bound: f64) -> bool {
    match name {
        "minimum" | "exclusiveMinimum" => bound < -MOST,
        "maximum" | "exclusiveMaximum" => bound > MOST,
        _ => false,
    }
}

/// Moves bounds beyond what is read to it. The schema has been checked and is not nested deeply: no
/// constant has such numbers.
pub(super) fn tighten(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(tighten),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_f64() {
                    Some(bound) if is_lax(name, bound) => {
                        *field = (bound.signum() as i64 * MOST as i64).into()
                    }
                    _ => tighten(field),
                }
            }
        }
        _ => {}
    }
}

/// Refuses a schema for its numbers, which must be in its normal form.
pub(super) fn check(schema: &Value) -> Result<(), ConstraintError> {
    let mut seen = Numbers::default();
    seen.walk(schema, Part::Schema, false).map_err(Fault::into_error)?;
    if !seen.meets {
        return Ok(());
    }
    seen.check_multiples()?;
    match seen.ranges.misread() {
        Some((bound, other)) => Err(refused(format!(
            "a value may have to keep to the exclusive bound {bound} and to the bound {other}, and \
             exclusive whole numbers are not supported within 1 of the other bound"
        ))),
        None => Ok(()),
    }
}

/// Bounds of values: exclusive ones, and those of the other side. First from below, with those from above,
/// then from above, with those from below; these as their opposites, so that what holds for the first holds
/// for them.
#[derive(Default)]
struct Ranges {
    exclusive: [Vec<f64>; 2],
    others: [Vec<f64>; 2],
}

impl Ranges {
    /// Those of a schema.
    fn of(fields: &Map<String, Value>) -> Ranges {
        let mut ranges = Ranges::default();
        // Bounds of integers become inclusive before they are written.
        if fields.get("type").is_some_and(|kind| kind == "integer") {
            return ranges;
        }
        let sides = [("minimum", "exclusiveMinimum", 1.0), ("maximum", "exclusiveMaximum", -1.0)];
        for (side, (inclusive, exclusive, sign)) in sides.into_iter().enumerate() {
            let number = |name: &str| fields.get(name).and_then(Value::as_f64);
            let exclusive = number(exclusive);
            ranges.exclusive[side].extend(exclusive.map(|bound| bound * sign));
            let bounds = number(inclusive).into_iter().chain(exclusive);
            ranges.others[1 - side].extend(bounds.map(|bound| bound * -sign));
        }
        ranges
    }

    fn extend(&mut self, more: Ranges) {
        for (all, more) in self.exclusive.iter_mut().zip(more.exclusive) {
            all.extend(more);
        }
        for (all, more) in self.others.iter_mut().zip(more.others) {
            all.extend(more);
        }
    }

    /// An exclusive bound that would be taken for an inclusive one, and the other one.
    fn misread(&self) -> Option<(f64, f64)> {
        for (side, sign) in [1.0, -1.0].into_iter().enumerate() {
            let whole = self.exclusive[side].iter().filter(|it| **it >= 0.0 && it.fract() == 0.0);
            for bound in whole {
                let mut others = self.others[side].iter();
                if let Some(other) = others.find(|other| bound < *other && **other < bound + 1.0) {
                    // Zero as it is written, without a sign.
                    return Some((bound * sign + 0.0, other * sign));
                }
            }
        }
        None
    }
}

#[derive(Default)]
struct Numbers {
    /// Whether values may have to keep to several of its schemas.
    meets: bool,
    has_references: bool,
    /// Digits, and how many of them stand behind the point.
    multiples: Vec<(u64, u32)>,
    ranges: Ranges,
}

impl Numbers {
    /// `is_exact` is whether each number is one that an answer may be. No reference leads into values.
    fn walk(&mut self, value: &Value, part: Part, is_exact: bool) -> Result<(), Fault> {
        match value {
            Value::Number(number) if is_exact => check_exact(number),
            Value::Array(list) => list.iter().enumerate().try_for_each(|(index, entry)| {
                self.walk(entry, part, is_exact).map_err(|fault| fault.inside(index))
            }),
            Value::Object(fields) => {
                if part == Part::Schema {
                    self.look_at(fields)?;
                }
                fields.iter().try_for_each(|(name, field)| {
                    let is_keyword = part == Part::Schema;
                    let is_literal = is_keyword && ["const", "enum"].contains(&name.as_str());
                    let is_bound =
                        is_keyword && field.is_number() && BOUNDS.contains(&name.as_str());
                    if !is_exact && field.as_f64().is_some_and(|bound| is_lax(name, bound)) {
                        return Ok(());
                    }
                    let is_exact = is_exact || is_literal || is_bound;
                    self.walk(field, part.at(name), is_exact).map_err(|fault| fault.inside(name))
                })
            }
            _ => Ok(()),
        }
    }

    fn look_at(&mut self, fields: &Map<String, Value>) -> Result<(), Fault> {
        // Named properties keep to what is said of all whose names are alike, too.
        let both = fields.contains_key("properties") && fields.contains_key("patternProperties");
        self.meets |= both || is_joined(fields);
        self.has_references |= fields.contains_key("$ref");
        if let Some(multiple) = fields.get("multipleOf").and_then(Value::as_f64) {
            let multiple = decimal(multiple).map_err(|fault| fault.inside("multipleOf"))?;
            self.multiples.extend((multiple.0 > 0).then_some(multiple));
        }
        let ranges = Ranges::of(fields);
        if let Some((bound, other)) = ranges.misread() {
            return Err(Fault::new(format!(
                "the bound {bound} is exclusive, and exclusive whole numbers are not supported \
                 within 1 of the other bound, which is {other}"
            )));
        }
        self.ranges.extend(ranges);
        Ok(())
    }

    /// Refuses multiples of which something may have to be one at once. A single one meets itself only
    /// where it can be referred to twice.
    fn check_multiples(&self) -> Result<(), ConstraintError> {
        if self.multiples.len() <= 1 && !self.has_references {
            return Ok(());
        }
        let digits = self.multiples.iter().map(|(_, digits)| *digits).max().unwrap_or(0);
        let mut common = 1_u64;
        for (multiple, of_it) in &self.multiples {
            let multiple = multiple * 10_u64.pow(digits - of_it);
            common = (common / common_divisor(common, multiple)).saturating_mul(multiple);
            if common > COMMON_MULTIPLE {
                return Err(refused(format!(
                    "values may have to keep to several multipleOf, whose least common multiple is \
                     more than {COMMON_MULTIPLE} (of the last digit that one of them has)"
                )));
            }
        }
        Ok(())
    }
}

fn check_exact(number: &Number) -> Result<(), Fault> {
    match number.as_f64() {
        Some(value) if value.abs() <= MOST => Ok(()),
        _ => Err(Fault::new(format!("the number is {number}, and they are read up to ±{MOST}"))),
    }
}

/// The digits of a multiple as the library reads them, and how many of them stand behind the point.
fn decimal(multiple: f64) -> Result<(u64, u32), Fault> {
    let (mut value, mut digits) = (multiple.abs(), 0);
    while value.fract() != 0.0 && digits < MULTIPLE_DIGITS {
        value *= 10.0;
        digits += 1;
    }
    match value.fract() == 0.0 && value <= MULTIPLE {
        true => Ok((value as u64, digits)),
        false => Err(Fault::new(format!(
            "the number is {multiple}, and multipleOf is read with {MULTIPLE_DIGITS} digits behind the \
             point, and up to {MULTIPLE} without it"
        ))),
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

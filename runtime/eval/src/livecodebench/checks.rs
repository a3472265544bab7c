//! Tests of a program: their published forms, and what it means to pass them.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::records::Record;
use crate::sandbox::Outcome;
use crate::{Error, Sandbox};

/// Seconds for one test, as in the published runner.
const SECONDS: u64 = 6;

/// Bytes that the private tests of a problem may have when they are unpacked.
const MOST: usize = 1 << 30;

/// What solutions may use without importing it, by the published runner's list of modules.
const PRELUDE: &str = "\
import sys
sys.setrecursionlimit(50000)
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, json
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
";

/// A program's input and what it must give.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Check {
    pub(super) input: String,
    output: String,
    /// Whether a function is called with one JSON value a line; else the program reads its input.
    pub(super) calls: bool,
}

/// What decides whether a program is right.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(super) checks: Vec<Check>,
    pub(super) function: Option<String>,
    pub(super) sandbox: Arc<Sandbox>,
}

impl Program {
    /// Whether the code in an answer passes all tests; an answer without code does not.
    pub(crate) fn passes(&self, answer: &str) -> Result<bool, Error> {
        let Some(code) = code(answer) else { return Ok(false) };
        for check in &self.checks {
            let passed = match &self.function {
                Some(function) if check.calls => self.calls(&code, function, check)?,
                _ => self.reads(&code, check)?,
            };
            if !passed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn reads(&self, code: &str, check: &Check) -> Result<bool, Error> {
        let program = format!("{PRELUDE}\n{code}\n");
        let outcome = self.sandbox.run(&program, check.input.as_bytes(), SECONDS)?;
        Ok(match outcome {
            Outcome::Wrote(output) => same_lines(&String::from_utf8_lossy(&output), &check.output),
            Outcome::Failed => false,
        })
    }

    /// The result comes back as JSON. What the solution prints goes elsewhere.
    fn calls(&self, code: &str, function: &str, check: &Check) -> Result<bool, Error> {
        let quoted = |text: &str| Value::from(text).to_string();
        let program = format!(
            "{PRELUDE}
import sys as _sys, json as _json
_out, _sys.stdout = _sys.stdout, _sys.stderr
{code}
_of = Solution() if 'Solution' in globals() else _sys.modules[__name__]
_lines = _json.loads({}).split('\\n')
_result = getattr(_of, {})(*[_json.loads(line) for line in _lines])
_out.write(_json.dumps(_result))
_out.flush()
",
            // JSON in a string of Python: JSON's escapes are among Python's, but for surrogates,
            // which only the parser of JSON joins; so JSON is parsed there, too.
            quoted(&quoted(&check.input)),
            quoted(function),
        );
        let outcome = self.sandbox.run(&program, b"", SECONDS)?;
        let Outcome::Wrote(output) = outcome else { return Ok(false) };
        let given = serde_json::from_slice::<Value>(&output);
        let wanted = serde_json::from_str::<Value>(&check.output);
        Ok(matches!((given, wanted), (Ok(given), Ok(wanted)) if same(&given, &wanted)))
    }
}

/// The last fenced block of an answer.
fn code(answer: &str) -> Option<String> {
    let lines: Vec<&str> = answer.lines().collect();
    let fences: Vec<usize> =
        (0..lines.len()).filter(|index| lines[*index].contains("```")).collect();
    let [.., start, end] = fences[..] else { return None };
    Some(lines[start + 1..end].join("\n"))
}

/// Whether lines are the same, each without white space around it, or hold the same decimals.
fn same_lines(given: &str, wanted: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        text.trim().split('\n').map(|line| line.trim().to_owned()).collect()
    };
    let (given, wanted) = (lines(given), lines(wanted));
    given.len() == wanted.len()
        && given.iter().zip(&wanted).all(|(given, wanted)| {
            let decimals =
                |line: &str| line.split_whitespace().map(decimal).collect::<Option<Vec<_>>>();
            given == wanted || decimals(given).is_some_and(|all| Some(all) == decimals(wanted))
        })
}

/// An exact decimal: sign, digits without zeros at either end, power of ten of the last.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (number, power) = match rest.split_once(['e', 'E']) {
        Some((number, power)) => (number, power.parse::<i64>().ok()?),
        None => (rest, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let kept = digits.trim_end_matches('0');
    let dropped = (digits.len() - kept.len()) as i64;
    let power = power.checked_sub(fraction.len() as i64)?.checked_add(dropped)?;
    match kept.trim_start_matches('0') {
        "" => Some((false, String::new(), 0)),
        kept => Some((negative, kept.to_owned(), power)),
    }
}

/// Equality as Python has it: 1 is 1.0.
fn same(given: &Value, wanted: &Value) -> bool {
    match (given, wanted) {
        (Value::Array(given), Value::Array(wanted)) => {
            given.len() == wanted.len() && given.iter().zip(wanted).all(|(g, w)| same(g, w))
        }
        (Value::Object(given), Value::Object(wanted)) => {
            let found = |(key, value): (&String, &Value)| {
                wanted.get(key).is_some_and(|wanted| same(value, wanted))
            };
            given.len() == wanted.len() && given.iter().all(found)
        }
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        _ => given == wanted,
    }
}

/// Tests in a field: JSON in a string, or for private ones of the later releases the same as a
/// pickled string, compressed with zlib, in base 64.
pub(super) fn checks(record: &Record<'_>, field: &str) -> Result<Vec<Check>, Error> {
    let text = record.text(field)?;
    let unpacked;
    let json = if text.trim_start().starts_with('[') {
        text
    } else {
        unpacked = unpack(text).map_err(|reason| record.wrong(field, reason))?;
        &unpacked
    };
    let entries: Vec<Value> =
        serde_json::from_str(json).map_err(|error| record.wrong(field, error.to_string()))?;
    let check = |(index, entry): (usize, &Value)| {
        let part = |name: &str| {
            let text = entry.get(name).and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| record.wrong(field, format!("test {index} has no text `{name}`")))
        };
        let calls = match part("testtype")?.as_str() {
            "functional" => true,
            "stdin" => false,
            kind => return Err(record.wrong(field, format!("test {index} is of kind `{kind}`"))),
        };
        Ok(Check { input: part("input")?, output: part("output")?, calls })
    };
    entries.iter().enumerate().map(check).collect()
}

fn unpack(text: &str) -> Result<String, String> {
    let packed = BASE64_STANDARD.decode(text.trim()).map_err(|error| error.to_string())?;
    let pickled = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(&packed, MOST)
        .map_err(|error| format!("not zlib: {:?}", error.status))?;
    unpickle(&pickled).ok_or_else(|| "not the pickle of one string".into())
}

/// The string that a pickle of a string holds (Python's protocols 2 to 5). A pickle is a program
/// for a stack machine; of its instructions those that such a pickle has are known here and no
/// others, so that nothing runs.
fn unpickle(bytes: &[u8]) -> Option<String> {
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let mut found = None;
    loop {
        let width = match take(1)?[0] {
            // PROTO, BINPUT
            0x80 | b'q' => {
                take(1)?;
                continue;
            }
            // FRAME
            0x95 => {
                take(8)?;
                continue;
            }
            // LONG_BINPUT
            b'r' => {
                take(4)?;
                continue;
            }
            // MEMOIZE
            0x94 => continue,
            // STOP
            b'.' => return found,
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            0x8c => 1,
            b'X' => 4,
            0x8d => 8,
            _ => return None,
        };
        let length = take(width)?.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let text = take(usize::try_from(length).ok()?)?;
        if found.replace(String::from_utf8(text.to_vec()).ok()?).is_some() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests;

//! Odd requests, each from its number: an example of the document with one thing changed, or something
//! that is hardly a request.

use std::fmt::{Display, Formatter};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Value, json};

use super::super::document::{Document, Operation};

/// What is sent, and what must come back.
pub struct Asked {
    /// What it asks for, where it is well-formed enough to be of one.
    pub operation: Option<Operation>,
    /// All that is sent.
    pub bytes: Vec<u8>,
    /// Whether nothing follows although more was announced.
    pub is_cut: bool,
    /// What must come back.
    pub expected: Expected,
}

/// What must come back.
pub enum Expected {
    /// Any response that the document has.
    Anything,
    /// This status.
    Status(u16),
    /// A refusal for which this field is to blame.
    Refusal(String),
}

impl Display for Asked {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.bytes);
        let shown: String = text.chars().take(1500).collect();
        write!(f, "{shown} ({} bytes)", self.bytes.len())
    }
}

/// Makes requests.
pub struct Maker<'a> {
    document: &'a Document,
    seed: u64,
    operations: Vec<Operation>,
    posts: Vec<Operation>,
}

/// Numbers for choices.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        // The remainder favours small numbers by less than one in 2^50.
        (self.0.next_u64() % count.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'b, T>(&mut self, choices: &'b [T]) -> Option<&'b T> {
        choices.get(self.below(choices.len()))
    }
}

impl<'a> Maker<'a> {
    /// For the operations of a document.
    pub fn new(document: &'a Document, seed: u64) -> Result<Maker<'a>> {
        let operations = document.operations()?;
        let is_post = |operation: &&Operation| operation.method == "POST" && operation.is_answered;
        let posts = operations.iter().filter(is_post);
        let posts = posts.cloned().collect();
        Ok(Maker { document, seed, operations, posts })
    }

    /// The request of this number.
    pub fn make(&self, number: u64) -> Result<Asked> {
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed);
        dice.set_stream(number);
        let mut dice = Dice(dice);
        match dice.below(20) {
            0 => self.spoiled_text(&mut dice),
            1 => self.no_object(&mut dice),
            2 => self.another_method(&mut dice),
            3 => self.odd_path(&mut dice),
            4 => self.odd_head(&mut dice),
            5 => self.cut(&mut dice),
            6 => Ok(noise(&mut dice)),
            _ => self.one_field(&mut dice),
        }
    }

    fn example(&self, dice: &mut Dice) -> Result<(Operation, Value)> {
        let operation = dice.pick(&self.posts).context("an operation")?.clone();
        let example = dice.pick(&operation.examples).context("an example")?.clone();
        Ok((operation, example))
    }

    /// An example with one field, or something in it, replaced, removed or added.
    fn one_field(&self, dice: &mut Dice) -> Result<Asked> {
        let (operation, mut body) = self.example(dice)?;
        let known = self.document.fields(&operation)?;
        let value = odd_value(dice, 0);
        let is_lax_at = |place: &str| is_lax(place, &value);
        let (place, is_lax) = if dice.one_in(3) {
            let name = dice.pick(&known).context("a field")?;
            let place = format!("/{name}");
            let is_lax = is_lax_at(&place);
            body[name] = value;
            (place, is_lax)
        } else {
            let places = places(&body);
            let place = dice.pick(&places).context("a place")?.clone();
            let is_lax = is_lax_at(&place);
            if dice.one_in(6) {
                remove(&mut body, &place);
            } else if let Some(old) = body.pointer_mut(&place) {
                *old = value;
            }
            (place, is_lax)
        };
        let field = place.split('/').nth(1).unwrap_or_default().to_owned();
        let expected = match is_lax || self.document.allows(&operation, &body)? {
            true => Expected::Anything,
            false => Expected::Refusal(field),
        };
        let bytes = post(&operation.path, &[], body.to_string().as_bytes());
        Ok(Asked { operation: Some(operation), bytes, is_cut: false, expected })
    }

    /// An example whose text was damaged: bytes changed, cut, doubled, keys twice.
    fn spoiled_text(&self, dice: &mut Dice) -> Result<Asked> {
        let (operation, example) = self.example(dice)?;
        let mut text = example.to_string().into_bytes();
        match dice.below(6) {
            0 => text.truncate(dice.below(text.len())),
            1 => {
                let place = dice.below(text.len());
                text[place] = dice.below(256) as u8;
            }
            2 => text.extend_from_slice(&text.clone()),
            3 => text.splice(1..1, *b"\"model\": null, \"model\": null, ").for_each(drop),
            4 => text.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
            _ => {
                let depth = 40 + dice.below(60);
                let deep = format!("\"x\": {}{},", "[".repeat(depth), "]".repeat(depth));
                text.splice(1..1, deep.into_bytes()).for_each(drop);
            }
        }
        let bytes = post(&operation.path, &[], &text);
        let expected = Expected::Anything;
        Ok(Asked { operation: Some(operation), bytes, is_cut: false, expected })
    }

    /// JSON that is no object, or nothing at all.
    fn no_object(&self, dice: &mut Dice) -> Result<Asked> {
        let (operation, example) = self.example(dice)?;
        let values: Vec<Value> =
            example.as_object().into_iter().flatten().map(|(_, value)| value.clone()).collect();
        let bodies =
            ["", "null", "[]", "7", "\"text\"", "[[]]", "true", " ", &json!(values).to_string()]
                .map(str::to_owned);
        let body = dice.pick(&bodies).context("a body")?;
        let bytes = post(&operation.path, &[], body.as_bytes());
        let expected = Expected::Status(400);
        Ok(Asked { operation: Some(operation), bytes, is_cut: false, expected })
    }

    fn another_method(&self, dice: &mut Dice) -> Result<Asked> {
        let path = dice.pick(&self.operations).context("an operation")?.path.clone();
        let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"];
        let there: Vec<&str> = self
            .operations
            .iter()
            .filter(|other| other.path == path)
            .map(|other| other.method.as_str())
            .collect();
        let is_other = |method: &&&str| {
            // Whoever gets a path may ask for its head alone.
            !(there.contains(*method) || **method == "HEAD" && there.contains(&"GET"))
        };
        let methods: Vec<&str> = methods.iter().filter(is_other).copied().collect();
        let method = dice.pick(&methods).context("a method")?;
        let bytes = request(method, &path.replace("{name}", "a"), &[], b"{}");
        let expected = Expected::Status(405);
        Ok(Asked { operation: None, bytes, is_cut: false, expected })
    }

    fn odd_path(&self, dice: &mut Dice) -> Result<Asked> {
        let path = dice.pick(&self.operations).context("an operation")?.path.clone();
        let long = format!("{path}?{}", "a".repeat(dice.below(12_000)));
        let paths = [
            format!("{path}/"),
            format!("/{path}"),
            format!("{path}?stream=%00&%ff"),
            "/v1/models/%F0%9F%A6%8A".to_owned(),
            "/v1/models/%00".to_owned(),
            "/v1/models/%ff%fe".to_owned(),
            "/v1/models/a/b/../c".to_owned(),
            "/../../etc/passwd".to_owned(),
            "/%2e%2e/status".to_owned(),
            "*".to_owned(),
            "http://other.example/status".to_owned(),
            "/\u{e9}\u{2603}".to_owned(),
            long,
        ];
        let bytes = request("GET", dice.pick(&paths).context("a path")?, &[], b"");
        Ok(Asked { operation: None, bytes, is_cut: false, expected: Expected::Anything })
    }

    /// A good request with fields of the head that are odd, none of which matters.
    fn odd_head(&self, dice: &mut Dice) -> Result<Asked> {
        let (operation, example) = self.example(dice)?;
        let fields = [
            "content-type: text/plain".to_owned(),
            "content-type: application/xml; charset=utf-7".to_owned(),
            "content-type: multipart/form-data; boundary=x".to_owned(),
            "accept: image/png".to_owned(),
            "authorization: Basic Og==".to_owned(),
            "authorization: Bearer".to_owned(),
            "x-request-id: <script>".to_owned(),
            format!("x-request-id: {}", "a".repeat(300)),
            "x-odd: \u{e9}\u{2603}".to_owned(),
            format!("x-long: {}", "a".repeat(8000)),
            "range: bytes=0-1".to_owned(),
            "upgrade: h2c".to_owned(),
            "accept-encoding: gzip, br, zstd".to_owned(),
            "expect: 100-continue".to_owned(),
        ];
        let field = dice.pick(&fields).context("a field")?;
        let body = example.to_string();
        let bytes = post(&operation.path, &[field], body.as_bytes());
        // What is sent before the answer proper to who expects it is no part of it.
        let expects = field.starts_with("expect");
        let operation = (!expects).then_some(operation);
        let expected = if expects { Expected::Anything } else { Expected::Status(200) };
        Ok(Asked { operation, bytes, is_cut: expects, expected })
    }

    /// Less than was announced, in one piece or in chunks.
    fn cut(&self, dice: &mut Dice) -> Result<Asked> {
        let (operation, example) = self.example(dice)?;
        let body = example.to_string().into_bytes();
        let bytes = if dice.one_in(2) {
            let mut bytes = post(&operation.path, &[], &body);
            bytes.truncate(bytes.len() - 1 - dice.below(body.len() - 1));
            bytes
        } else {
            let sizes = ["fffffffffffffffff", "ffffffffffffffff", "-1", "zz", "5;x=y", "0"];
            let size = dice.pick(&sizes).context("a size")?;
            let head = head("POST", &operation.path, &["transfer-encoding: chunked"]);
            let mut bytes = format!("{head}\r\n{size}\r\n").into_bytes();
            bytes.extend_from_slice(&body[..5.min(body.len())]);
            bytes
        };
        Ok(Asked { operation: None, bytes, is_cut: true, expected: Expected::Anything })
    }
}

/// Bytes that are no request, or hardly one.
fn noise(dice: &mut Dice) -> Asked {
    let mut bytes = vec![0; dice.below(2000)];
    dice.0.fill_bytes(&mut bytes);
    if dice.one_in(2) {
        bytes.splice(0..0, *b"POST /v1/completions HTTP/1.1\r\n").for_each(drop);
    }
    Asked { operation: None, bytes, is_cut: true, expected: Expected::Anything }
}

fn head(method: &str, path: &str, fields: &[&str]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for field in fields {
        head.push_str(field);
        head.push_str("\r\n");
    }
    head
}

fn request(method: &str, path: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let length = format!("content-length: {}", body.len());
    let fields = [fields, &[length.as_str()]].concat();
    let mut bytes = format!("{}\r\n", head(method, path, &fields)).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn post(path: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    request("POST", path, fields, body)
}

/// Pointers to everything in a value but itself.
fn places(value: &Value) -> Vec<String> {
    fn visit(value: &Value, here: &str, found: &mut Vec<String>) {
        let mut enter = |name: &str, value: &Value| {
            let place = format!("{here}/{name}");
            visit(value, &place, found);
            found.push(place);
        };
        match value {
            Value::Object(entries) => {
                entries.iter().for_each(|(name, entry)| enter(name, entry));
            }
            Value::Array(items) => {
                (0..).zip(items).for_each(|(index, item): (usize, _)| {
                    enter(&index.to_string(), item);
                });
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    visit(value, "", &mut found);
    found
}

fn remove(body: &mut Value, place: &str) {
    let Some((outer, name)) = place.rsplit_once('/') else { return };
    match body.pointer_mut(outer) {
        Some(Value::Object(entries)) => {
            entries.shift_remove(name);
        }
        Some(Value::Array(items)) => {
            if let Ok(index) = name.parse::<usize>() {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// Serde takes a list for an object inside a body, its entries in the order of the fields; no client sends
/// that, and what it means is what the object would.
fn is_lax(place: &str, value: &Value) -> bool {
    let objects = [
        "stream_options",
        "response_format",
        "structured_outputs",
        "messages",
        "input",
        "reasoning",
        "text",
        "thinking",
        "tool_choice",
    ];
    let has_lists =
        value.is_array() || value.as_object().is_some_and(|o| o.values().any(Value::is_array));
    has_lists && objects.iter().any(|name| place.split('/').nth(1) == Some(name))
}

/// A value of any kind, of a size that is seldom seen.
fn odd_value(dice: &mut Dice, depth: usize) -> Value {
    const TEXTS: [&str; 12] = [
        "",
        "a",
        "-1",
        "null",
        "\0",
        "\u{feff}\u{202e}text",
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
        "\u{fffd}\u{ffff}",
        "e\u{301}\u{301}\u{301}\u{301}",
        "{{ messages }}{% for x in range(9999999) %}x{% endfor %}",
        "<|im_start|>system",
        "</s><s>",
    ];
    match dice.below(24) {
        0 => Value::Null,
        1 => true.into(),
        2 => false.into(),
        3 => 0.into(),
        4 => (-1).into(),
        5 => 1.into(),
        6 => 1.5.into(),
        7 => (-0.5).into(),
        8 => 1e308.into(),
        9 => (-1e308).into(),
        10 => i64::MIN.into(),
        11 => u64::MAX.into(),
        12 => (1_u64 << 32).into(),
        13 => 9.into(),
        14 => "a ".repeat(dice.below(3000)).into(),
        15 => "\u{2603}".repeat(dice.below(40_000)).into(),
        16 => vec![Value::Null; dice.below(3)].into(),
        17 => vec![Value::from(dice.below(70_000)); dice.below(5000)].into(),
        18 => vec![Value::from("a"); dice.below(100)].into(),
        19 => {
            let entries = (0..dice.below(1200)).map(|index| (index.to_string(), json!(1)));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
        20 if depth < 3 => json!([odd_value(dice, depth + 1), odd_value(dice, depth + 1)]),
        21 if depth < 3 => json!({"type": odd_value(dice, depth + 1)}),
        _ => dice.pick(&TEXTS).copied().unwrap_or_default().into(),
    }
}

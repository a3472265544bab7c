//! Text to graph. Errors name line and column; types are taken from the text, so that a wrong
//! graph can be written down for the verifier's tests.

use std::collections::HashMap;
use std::str::FromStr;

use super::digest;
use crate::attribute::AttributeValue;
use crate::constant::{ConstData, Constant};
use crate::dim::Dim;
use crate::entity::Value;
use crate::graph::{
    Aggregate, Body, BodyResult, CacheDecl, CacheFormat, CacheRows, Graph, InputRole, KvPolicy,
    LayerKind, Normalise, OutputRole, Pooling, RotarySets, Scoring,
};
use crate::ops::{Known, Op};
use crate::stage::Stage;
use crate::types::{DType, Element, QuantFormat, TensorType, ZeroPoints};

/// A text that is no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Reads a graph whose constants all stand in the text.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    parse_with(text, &|_, _| None)
}

/// Reads a graph; `store` supplies large constants by name and digest.
pub fn parse_with(
    text: &str,
    store: &dyn Fn(&str, u64) -> Option<Constant>,
) -> Result<Graph, ParseError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, text)| Line { text, at: 0, number: index + 1 })
        .filter(|line| !line.text.trim().is_empty() && !line.text.trim_start().starts_with(';'));
    let mut graph = Graph::new();
    let mut line = lines.next().unwrap_or(Line { text: "", at: 0, number: 1 });
    line.expect("graph")?;
    line.expect("@")?;
    let stage = line.word()?;
    graph.stage = Stage::ALL
        .into_iter()
        .find(|known| known.name() == stage)
        .ok_or_else(|| line.error(format!("no stage is called {stage:?}")))?;
    let mut has_main = false;
    while let Some(mut line) = lines.next() {
        match line.word()? {
            "rotary" => {
                graph.rotary =
                    RotarySets { sets: line.field("sets")?, switch: line.field("switch")? };
            }
            "const" => {
                line.entity("c", graph.constants.len())?;
                let constant = line.constant(store)?;
                graph.constants.push(constant);
            }
            "cache" => {
                line.entity("k", graph.caches.len())?;
                let cache = line.cache()?;
                graph.caches.push(cache);
            }
            "kind" => {
                line.entity("kind", graph.kinds.len())?;
                let name = line.quoted()?;
                let (weights, caches) = (line.field("weights")?, line.field("caches")?);
                line.expect("{")?;
                line.end()?;
                let body = parse_body(&mut lines, line.number)?;
                graph.kinds.push(LayerKind { name, body, weights, caches });
                continue;
            }
            "main" if !has_main => {
                line.expect("{")?;
                line.end()?;
                graph.main = parse_body(&mut lines, line.number)?;
                has_main = true;
                continue;
            }
            word => return Err(line.error(format!("{word:?} begins no entry of a graph"))),
        }
        line.end()?;
    }
    if has_main {
        Ok(graph)
    } else {
        let line = text.lines().count().max(1);
        Err(ParseError { line, column: 1, message: "there is no main".into() })
    }
}

fn parse_body<'t>(
    lines: &mut impl Iterator<Item = Line<'t>>,
    start: usize,
) -> Result<Body, ParseError> {
    let mut body = Body::default();
    let mut values: HashMap<usize, Value> = HashMap::new();
    for mut line in lines {
        line.skip_space();
        if line.take("}") {
            line.end()?;
            return Ok(body);
        }
        if line.take("param ") {
            let (number, ty, name, known) = line.defined()?;
            let role = line.input_role()?;
            let value = body.param(role, ty, known, name);
            if values.insert(number, value).is_some() {
                return Err(line.error(format!("v{number} is defined twice")));
            }
        } else if line.take("return ") {
            let value = line.value(&values)?;
            let role = line.output_role()?;
            body.results.push(BodyResult { value, role });
        } else {
            line.node(&mut body, &mut values)?;
        }
        line.end()?;
    }
    Err(ParseError { line: start, column: 1, message: "the body does not end".into() })
}

/// A line and how far it has been read.
struct Line<'t> {
    text: &'t str,
    at: usize,
    number: usize,
}

type Defined = (usize, TensorType, Option<String>, Option<Known>);

impl<'t> Line<'t> {
    fn error(&self, message: impl Into<String>) -> ParseError {
        let column = self.text[..self.at].chars().count() + 1;
        ParseError { line: self.number, column, message: message.into() }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Reads a token if it comes next.
    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.take(token) { Ok(()) } else { Err(self.error(format!("expected {token:?}"))) }
    }

    fn end(&mut self) -> Result<(), ParseError> {
        self.skip_space();
        if self.rest().is_empty() {
            Ok(())
        } else {
            Err(self.error("expected the end of the line"))
        }
    }

    /// Letters, digits and underscores.
    fn word(&mut self) -> Result<&'t str, ParseError> {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            return Err(self.error("expected a word"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// Everything in front of a character, which is read too.
    fn until(&mut self, end: char) -> Result<&'t str, ParseError> {
        let rest = self.rest();
        match rest.find(end) {
            Some(place) => {
                self.at += place + end.len_utf8();
                Ok(&rest[..place])
            }
            None => Err(self.error(format!("expected {end:?}"))),
        }
    }

    fn number<T: FromStr>(&mut self) -> Result<T, ParseError> {
        let before = self.at;
        let word = self.word()?;
        word.parse().map_err(|_| {
            self.at = before;
            self.error(format!("{word:?} is not a number that fits here"))
        })
    }

    /// `[4,6,5]`
    fn numbers<T: FromStr>(&mut self) -> Result<Vec<T>, ParseError> {
        self.expect("[")?;
        let before = self.at;
        let list = self.until(']')?;
        list.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().map_err(
            |_| {
                self.at = before;
                self.error("these are not numbers that fit here")
            },
        )
    }

    fn field<T: FromStr>(&mut self, name: &str) -> Result<T, ParseError> {
        self.expect(name)?;
        self.expect("=")?;
        self.number()
    }

    fn entity(&mut self, prefix: &str, next: usize) -> Result<(), ParseError> {
        self.expect(prefix)?;
        let number: usize = self.number()?;
        if number == next { Ok(()) } else { Err(self.error(format!("expected {prefix}{next}"))) }
    }

    fn quoted(&mut self) -> Result<String, ParseError> {
        self.expect("\"")?;
        let mut text = String::new();
        let mut characters = self.rest().char_indices();
        while let Some((place, character)) = characters.next() {
            match character {
                '"' => {
                    self.at += place + 1;
                    return Ok(text);
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 'u')) => {
                        let digits: String = characters
                            .by_ref()
                            .map(|(_, digit)| digit)
                            .skip_while(|digit| *digit == '{')
                            .take_while(|digit| *digit != '}')
                            .collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.ok_or_else(|| self.error("a malformed escape"))?);
                    }
                    Some((_, escaped)) => text.push(escaped),
                    None => break,
                },
                _ => text.push(character),
            }
        }
        Err(self.error("the quotation does not end"))
    }

    fn ty(&mut self) -> Result<TensorType, ParseError> {
        self.skip_space();
        let before = self.at;
        let wrong = |line: &Self, what: &str| ParseError {
            column: line.text[..before].chars().count() + 1,
            ..line.error(what)
        };
        let element = self.until('[')?;
        let element =
            parse_element(element.trim()).ok_or_else(|| wrong(self, "expected an element type"))?;
        let shape = parse_dims(self.until(']')?).ok_or_else(|| wrong(self, "expected sizes"))?;
        Ok(TensorType { element, shape })
    }

    /// `v3: f32[sequence, 64] "hidden" known=[1, past]`
    fn defined(&mut self) -> Result<Defined, ParseError> {
        self.expect("v")?;
        let number = self.number()?;
        self.expect(":")?;
        let ty = self.ty()?;
        self.skip_space();
        let name = if self.rest().starts_with('"') { Some(self.quoted()?) } else { None };
        let malformed = |line: &Self| line.error("expected sizes");
        let known = if self.take("known=all(") {
            Some(Known::Fill(Dim::parse(self.until(')')?).ok_or_else(|| malformed(self))?))
        } else if self.take("known=[") {
            Some(Known::Elements(parse_dims(self.until(']')?).ok_or_else(|| malformed(self))?))
        } else {
            None
        };
        Ok((number, ty, name, known))
    }

    fn value(&mut self, values: &HashMap<usize, Value>) -> Result<Value, ParseError> {
        self.expect("v")?;
        let number: usize = self.number()?;
        values.get(&number).copied().ok_or_else(|| self.error(format!("v{number} is not defined")))
    }

    fn input_role(&mut self) -> Result<InputRole, ParseError> {
        Ok(match self.word()? {
            "tokens" => InputRole::Tokens,
            "positions" => InputRole::Positions,
            "attention_mask" => InputRole::AttentionMask,
            "past_key" => InputRole::PastKey(self.number()?),
            "past_value" => InputRole::PastValue(self.number()?),
            "known" => InputRole::Known,
            "operand" => InputRole::Operand,
            "other" => InputRole::Other,
            word => return Err(self.error(format!("no role of an input is called {word:?}"))),
        })
    }

    fn output_role(&mut self) -> Result<OutputRole, ParseError> {
        Ok(match self.word()? {
            "logits" => OutputRole::Logits,
            "hidden" => OutputRole::Hidden,
            "present_key" => OutputRole::PresentKey(self.number()?),
            "present_value" => OutputRole::PresentValue(self.number()?),
            "other" => OutputRole::Other,
            word => return Err(self.error(format!("no role of a result is called {word:?}"))),
        })
    }

    fn node(
        &mut self,
        body: &mut Body,
        values: &mut HashMap<usize, Value>,
    ) -> Result<(), ParseError> {
        let mut defined: Vec<Defined> = Vec::new();
        // A result begins with v and a digit; no op does.
        let mut rest = self.rest().chars();
        if rest.next() == Some('v') && rest.next().is_some_and(|c| c.is_ascii_digit()) {
            defined.push(self.defined()?);
            while self.take(",") {
                defined.push(self.defined()?);
            }
            self.expect("=")?;
        }
        let place = self.at;
        let name = self.word()?;
        self.expect("(")?;
        let mut operands = Vec::new();
        if !self.take(")") {
            operands.push(self.value(values)?);
            while self.take(",") {
                operands.push(self.value(values)?);
            }
            self.expect(")")?;
        }
        let attributes = if self.take("{") { split_fields(self.until('}')?) } else { Vec::new() };
        let origin = if self.take("@") { Some(self.quoted()?) } else { None };
        let mut find = |wanted: &str| {
            let found = attributes.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        };
        let op = match Op::parse(name, &mut find) {
            Some(Ok(op)) => op,
            Some(Err(attribute)) => {
                return Err(self.error(format!("attribute {attribute} is missing or malformed")));
            }
            None => {
                self.at = place;
                return Err(self.error(format!("no op is called {name:?}")));
            }
        };
        let taken = op.attributes();
        let strange =
            attributes.iter().find(|(name, _)| taken.iter().all(|(known, _)| known != name));
        if let Some((name, _)) = strange {
            return Err(self.error(format!("{op} has no attribute {name:?}")));
        }
        let types = defined.iter().map(|(_, ty, _, known)| (ty.clone(), known.clone())).collect();
        let results = body.push_typed(op, operands, types, origin);
        for ((number, _, name, _), value) in defined.into_iter().zip(results) {
            body.values[value].name = name;
            if values.insert(number, value).is_some() {
                return Err(self.error(format!("v{number} is defined twice")));
            }
        }
        Ok(())
    }

    fn constant(
        &mut self,
        store: &dyn Fn(&str, u64) -> Option<Constant>,
    ) -> Result<Constant, ParseError> {
        let name = self.quoted()?;
        self.expect(":")?;
        let ty = self.ty()?;
        self.expect("=")?;
        if self.take("rounded ") {
            let source_ty = self.ty()?;
            self.expect("=")?;
            let source = Box::new(self.elements(name.clone(), source_ty, store)?);
            return Ok(Constant { name, ty, data: ConstData::Rounded(source) });
        }
        self.elements(name, ty, store)
    }

    /// Elements as they stand in the text, or what the store has for their digest.
    fn elements(
        &mut self,
        name: String,
        ty: TensorType,
        store: &dyn Fn(&str, u64) -> Option<Constant>,
    ) -> Result<Constant, ParseError> {
        if self.take("digest ") {
            let before = self.at;
            let word = self.word()?;
            let wanted =
                u64::from_str_radix(word, 16).map_err(|_| self.error("expected digits"))?;
            let found = store(&name, wanted).filter(|found| found.ty == ty);
            return found.filter(|found| digest(found) == wanted).ok_or_else(|| {
                self.at = before;
                self.error(format!("no constant {name:?} of this type and digest is at hand"))
            });
        }
        self.expect("[")?;
        let before = self.at;
        let list = self.until(']')?;
        let dtype = ty.dtype().ok_or_else(|| self.error("quantised elements in the text"))?;
        let elements: Option<Vec<Vec<u8>>> = match list.trim() {
            "" => Some(Vec::new()),
            list => list.split(',').map(|text| element_bytes(dtype, text.trim())).collect(),
        };
        let fits = |elements: &Vec<Vec<u8>>| ty.element_count() == Some(elements.len());
        match elements.filter(fits) {
            Some(elements) => Ok(Constant::dense(name, ty, elements.concat().into())),
            None => {
                self.at = before;
                Err(self.error(format!("these are not the elements of {ty}")))
            }
        }
    }

    fn cache(&mut self) -> Result<CacheDecl, ParseError> {
        let mut cache = CacheDecl {
            layer: self.field("layer")?,
            kv_heads: self.field("kv_heads")?,
            key_width: self.field("key_width")?,
            value_width: self.field("value_width")?,
            format: self.number_format()?,
            block: self.block_format()?,
            window: self.field("window")?,
            layout: None,
        };
        if self.take("policy=") {
            let name = self.word()?;
            let policy = KvPolicy::parse(name)
                .ok_or_else(|| self.error(format!("no policy is called {name:?}")))?;
            cache.layout = Some(CacheRows {
                policy,
                elastic: self.field("elastic")?,
                sinks: self.field("sinks")?,
                selected: self.field("selected")?,
                recent: self.field("recent")?,
                observed: self.field("observed")?,
                pool: self.field("pool")?,
                by_head: if self.take("by_head=") { self.numbers()? } else { Vec::new() },
                growth: if self.take("growth=") { self.number()? } else { 0 },
                in_flight: if self.take("in_flight=") { self.number()? } else { 0 },
                reservoir: if self.take("reservoir=") { self.number()? } else { 0 },
                reselect: if self.take("reselect=") { self.number()? } else { false },
                redundancy: if self.take("redundancy=") { self.number()? } else { 0 },
                second: if self.take("second=") { self.number()? } else { 0 },
                second_share: if self.take("second_share=") { self.number()? } else { 0 },
                scoring: self.scoring()?,
                seed: if self.take("seed=") { self.number()? } else { 0 },
            });
        }
        Ok(cache)
    }

    /// `aggregate=max normalise=all pooling=average`, or nothing for the default.
    fn scoring(&mut self) -> Result<Scoring, ParseError> {
        if !self.take("aggregate=") {
            return Ok(Scoring::default());
        }
        let aggregate = self.named(Aggregate::parse)?;
        self.expect("normalise=")?;
        let normalise = self.named(Normalise::parse)?;
        self.expect("pooling=")?;
        Ok(Scoring { aggregate, normalise, pooling: self.named(Pooling::parse)? })
    }

    /// One of a few names.
    fn named<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Result<T, ParseError> {
        let name = self.word()?;
        parse(name).ok_or_else(|| self.error(format!("nothing here is called {name:?}")))
    }

    /// `block=i4`, or nothing where all rows have one type.
    fn block_format(&mut self) -> Result<Option<CacheFormat>, ParseError> {
        self.take("block=").then(|| self.named(CacheFormat::parse)).transpose()
    }

    /// `type=f16`
    fn number_format(&mut self) -> Result<CacheFormat, ParseError> {
        let name: String = self.field("type")?;
        CacheFormat::parse(&name).ok_or_else(|| self.error(format!("no type is called {name:?}")))
    }
}

/// `name=value` separated by commas that stand in no brackets.
fn split_fields(text: &str) -> Vec<(&str, &str)> {
    let mut fields = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (place, character) in text.char_indices().chain([(text.len(), ',')]) {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 || place == text.len() => {
                let field = text[start..place].trim();
                fields.push(field.split_once('=').unwrap_or((field, "")));
                start = (place + 1).min(text.len());
            }
            _ => {}
        }
    }
    fields
}

fn parse_dims(text: &str) -> Option<Vec<Dim>> {
    match text.trim() {
        "" => Some(Vec::new()),
        text => text.split(',').map(Dim::parse).collect(),
    }
}

fn parse_element(text: &str) -> Option<Element> {
    if let Some(dtype) = DType::parse(text) {
        return Some(Element::Plain(dtype));
    }
    let (bits, fields) = text.strip_prefix("int")?.strip_suffix('>')?.split_once('<')?;
    let fields = split_fields(fields);
    let find =
        |wanted: &str| fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let zero = match find("zero")? {
        "codes" => ZeroPoints::Codes,
        "float" => ZeroPoints::Float,
        number => ZeroPoints::Fixed(number.parse().ok()?),
    };
    let scale = DType::parse(find("scale")?)?;
    let block = find("block")?.parse().ok()?;
    let short = find("short").is_some();
    Some(Element::Quant(QuantFormat { bits: bits.parse().ok()?, block, scale, short, zero }))
}

/// Little-endian bytes of an element's text.
fn element_bytes(dtype: DType, text: &str) -> Option<Vec<u8>> {
    match dtype {
        DType::F32 => text.parse().ok().map(|value: f32| value.to_le_bytes().to_vec()),
        DType::F64 => text.parse().ok().map(|value: f64| value.to_le_bytes().to_vec()),
        DType::F16 => {
            text.parse().ok().map(|value| half::f16::from_f32(value).to_le_bytes().to_vec())
        }
        DType::BF16 => {
            text.parse().ok().map(|value| half::bf16::from_f32(value).to_le_bytes().to_vec())
        }
        DType::U64 => text.parse().ok().map(|value: u64| value.to_le_bytes().to_vec()),
        _ => {
            let value: i64 = text.parse().ok()?;
            let fits = crate::interpret::tensor::wrapped_integer(dtype, value) == value
                && (dtype != DType::Bool || matches!(value, 0 | 1));
            fits.then(|| value.to_le_bytes()[..dtype.bytes()].to_vec())
        }
    }
}

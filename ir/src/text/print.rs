//! Graph to text.

use std::fmt::{self, Write};

use super::{INLINE, digest};
use crate::attribute::AttributeValue;
use crate::constant::{ConstData, Constant};
use crate::entity::Value;
use crate::graph::{Body, CacheDecl, Graph, InputRole, OutputRole, Scoring};
use crate::interpret::Data;
use crate::ops::Known;
use crate::types::DType;

/// The text of a graph.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    write_graph(&mut text, graph).expect("a string takes every write");
    text
}

/// The text of a body alone, as it stands in a graph's.
pub fn body(body: &Body) -> String {
    let mut text = String::new();
    write_body(&mut text, body).expect("a string takes every write");
    text
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

fn write_graph(text: &mut String, graph: &Graph) -> fmt::Result {
    writeln!(text, "graph @{}", graph.stage)?;
    if graph.rotary != Default::default() {
        writeln!(text, "rotary sets={} switch={}", graph.rotary.sets, graph.rotary.switch)?;
    }
    for (id, constant) in graph.constants.iter() {
        write!(text, "const {id} {}: ", quoted(&constant.name))?;
        write_data(text, constant)?;
    }
    for (id, cache) in graph.caches.iter() {
        write_cache(text, &id.to_string(), cache)?;
    }
    for (id, kind) in graph.kinds.iter() {
        let name = quoted(&kind.name);
        writeln!(text, "kind {id} {name} weights={} caches={} {{", kind.weights, kind.caches)?;
        write_body(text, &kind.body)?;
        writeln!(text, "}}")?;
    }
    writeln!(text, "main {{")?;
    write_body(text, &graph.main)?;
    writeln!(text, "}}")
}

/// A constant's type and elements.
fn write_data(text: &mut String, constant: &Constant) -> fmt::Result {
    write!(text, "{} = ", constant.ty)?;
    match (inline(constant), &constant.data) {
        (Some(elements), _) => writeln!(text, "{elements}"),
        (None, ConstData::Rounded(source)) => {
            text.push_str("rounded ");
            write_data(text, source)
        }
        (None, _) => writeln!(text, "digest {:016x}", digest(constant)),
    }
}

fn write_cache(text: &mut String, id: &str, cache: &CacheDecl) -> fmt::Result {
    write!(
        text,
        "cache {id} layer={} kv_heads={} key_width={} value_width={} type={}",
        cache.layer,
        cache.kv_heads,
        cache.key_width,
        cache.value_width,
        cache.format.name()
    )?;
    if let Some(block) = cache.block {
        write!(text, " block={}", block.name())?;
    }
    write!(text, " window={}", cache.window)?;
    if let Some(rows) = &cache.layout {
        write!(
            text,
            " policy={} elastic={} sinks={} selected={} recent={} observed={} pool={}",
            rows.policy.name(),
            rows.elastic,
            rows.sinks,
            rows.selected,
            rows.recent,
            rows.observed,
            rows.pool
        )?;
        if !rows.by_head.is_empty() {
            let numbers: Vec<String> = rows.by_head.iter().map(u32::to_string).collect();
            write!(text, " by_head=[{}]", numbers.join(","))?;
        }
        if rows.growth > 0 {
            write!(text, " growth={}", rows.growth)?;
        }
        if rows.in_flight > 0 {
            write!(text, " in_flight={}", rows.in_flight)?;
        }
        if rows.reservoir > 0 {
            write!(text, " reservoir={}", rows.reservoir)?;
        }
        if rows.reselect {
            text.push_str(" reselect=true");
        }
        if rows.redundancy > 0 {
            write!(text, " redundancy={}", rows.redundancy)?;
        }
        if rows.second > 0 {
            write!(text, " second={} second_share={}", rows.second, rows.second_share)?;
        }
        if rows.scoring != Scoring::default() {
            let Scoring { aggregate, normalise, pooling } = rows.scoring;
            let names = [aggregate.name(), normalise.name(), pooling.name()];
            write!(text, " aggregate={} normalise={} pooling={}", names[0], names[1], names[2])?;
        }
        if rows.seed > 0 {
            write!(text, " seed={}", rows.seed)?;
        }
    }
    writeln!(text)
}

fn write_body(text: &mut String, body: &Body) -> fmt::Result {
    for param in &body.params {
        writeln!(text, "  param {} {}", defined(body, param.value), input_role(&param.role))?;
    }
    for (_, node) in body.live() {
        let results: Vec<String> = node.results.iter().map(|value| defined(body, *value)).collect();
        write!(text, "  {}", results.join(", "))?;
        if !results.is_empty() {
            text.push_str(" = ");
        }
        let operands: Vec<String> = node.operands.iter().map(Value::to_string).collect();
        write!(text, "{}({})", node.op, operands.join(", "))?;
        let attributes: Vec<String> = node
            .op
            .attributes()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if !attributes.is_empty() {
            write!(text, " {{{}}}", attributes.join(", "))?;
        }
        if let Some(origin) = &node.origin {
            write!(text, " @ {}", quoted(origin))?;
        }
        text.push('\n');
    }
    for result in &body.results {
        writeln!(text, "  return {} {}", result.value, output_role(&result.role))?;
    }
    Ok(())
}

/// `v3: f32[sequence, 64] "hidden" known=[1, past]`
fn defined(body: &Body, value: Value) -> String {
    let Some(data) = body.values.get(value) else { return format!("{value}: missing") };
    let mut text = format!("{value}: {}", data.ty);
    if let Some(name) = &data.name {
        write!(text, " {}", quoted(name)).expect("a string takes every write");
    }
    match &data.known {
        None => {}
        Some(Known::Fill(dim)) => {
            write!(text, " known=all({dim})").expect("a string takes every write");
        }
        Some(Known::Elements(dims)) => {
            write!(text, " known={}", dims.print()).expect("a string takes every write");
        }
    }
    text
}

pub(super) fn input_role(role: &InputRole) -> String {
    match role {
        InputRole::Tokens => "tokens".into(),
        InputRole::Positions => "positions".into(),
        InputRole::AttentionMask => "attention_mask".into(),
        InputRole::PastKey(layer) => format!("past_key {layer}"),
        InputRole::PastValue(layer) => format!("past_value {layer}"),
        InputRole::Known => "known".into(),
        InputRole::Operand => "operand".into(),
        InputRole::Other => "other".into(),
    }
}

pub(super) fn output_role(role: &OutputRole) -> String {
    match role {
        OutputRole::Logits => "logits".into(),
        OutputRole::Hidden => "hidden".into(),
        OutputRole::PresentKey(layer) => format!("present_key {layer}"),
        OutputRole::PresentValue(layer) => format!("present_value {layer}"),
        OutputRole::Other => "other".into(),
    }
}

/// Text in double quotes; backslash, quote and control characters escaped.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            _ if character.is_control() => {
                write!(quoted, "\\u{{{:x}}}", u32::from(character)).expect("a string takes it");
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Elements of a small plain constant.
fn inline(constant: &Constant) -> Option<String> {
    let dtype = constant.ty.dtype()?;
    let small = constant.ty.element_count().is_some_and(|count| count <= INLINE);
    if !small || !matches!(constant.data, ConstData::Dense { .. }) {
        return None;
    }
    let tensor = constant.tensor().ok()?;
    let elements: Vec<String> = match tensor.data() {
        Data::F32(values) => values.iter().map(|value| format!("{value:?}")).collect(),
        Data::F64(values) => values.iter().map(|value| format!("{value:?}")).collect(),
        Data::I64(values) if dtype == DType::U64 => {
            values.iter().map(|value| (*value as u64).to_string()).collect()
        }
        Data::I64(values) => values.iter().map(i64::to_string).collect(),
        Data::Bool(values) => values.iter().map(|value| u8::from(*value).to_string()).collect(),
    };
    Some(format!("[{}]", elements.join(", ")))
}

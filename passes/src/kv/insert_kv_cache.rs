//! Makes attention state explicit.
//!
//! Before:  kind (hidden, positions, past_key, past_value, ...):
//!            v9, v10, v11 = causal_attention v1, v2, v3, past_key, past_value
//!            return hidden, v10, v11
//! After:   kind (hidden, positions, ...):
//!            cache_append v2, v3 {cache=k0}
//!            v9 = cache_attend v1 {cache=k0}
//!            return hidden
//!
//! Needs: stage `Canonical`; every layer kind has one causal attention, whose past rows are
//! parameters of the kind and whose present rows are results of it.
//! Gives: stage `Cached`; a cache per layer; no value grows with the sequence.
//!
//! Correct because attention does not depend on the order in which keys are visited: past rows
//! followed by the new ones are the rows of the cache after the append, and a query reads those at
//! or before its own position.

use weir_ir::graph::{LayerKind, Param};
use weir_ir::infer::Tables;
use weir_ir::ops::{CacheAppend, CacheAttend, CausalAttention, Layer, TypeError};
use weir_ir::patch::Rebuild;
use weir_ir::{
    Body, CacheDecl, CacheFormat, CacheId, Graph, InputRole, NodeData, Op, OutputRole, Stage,
    Table, Value, entity::Entity,
};

/// What the attention of a kind says about its cache, and which parameters and results go.
struct State {
    decl: CacheDecl,
    past: [Value; 2],
    present: [Value; 2],
}

/// Rewrites the graph; returns the number of caches.
pub fn run(graph: &mut Graph) -> Result<usize, TypeError> {
    let states: Vec<State> =
        graph.kinds.values().map(|kind| state(&kind.body)).collect::<Result<_, _>>()?;
    let mut caches: Table<CacheId, CacheDecl> = Table::default();
    let mut cache_of_kind: Vec<Option<CacheId>> = vec![None; states.len()];
    for (_, node) in graph.main.live() {
        if let Op::Layer(layer) = &node.op {
            let decl = CacheDecl { layer: layer.index, ..states[layer.kind.index()].decl.clone() };
            cache_of_kind[layer.kind.index()] = Some(caches.push(decl));
        }
    }
    let mut kinds = Table::default();
    for ((_, kind), (state, cache)) in graph.kinds.iter().zip(states.iter().zip(&cache_of_kind)) {
        let tables =
            Tables { constants: &graph.constants, caches: &caches, kinds: None, cache: *cache };
        let body = rewrite_kind(&kind.body, state, tables)?;
        kinds.push(LayerKind { body, caches: 1, ..kind.clone() });
    }
    graph.main = rewrite_main(graph, &states, &caches, &kinds)?;
    graph.kinds = kinds;
    graph.caches = caches;
    graph.stage = Stage::Cached;
    Ok(graph.caches.len())
}

fn state(body: &Body) -> Result<State, TypeError> {
    let mut attentions = body.live().filter_map(|(_, node)| match &node.op {
        Op::CausalAttention(attention) => Some((attention, node)),
        _ => None,
    });
    let (Some((attention, node)), None) = (attentions.next(), attentions.next()) else {
        return Err(error("a layer kind needs exactly one causal attention"));
    };
    let (past, present) =
        ([node.operands[3], node.operands[4]], [node.results[1], node.results[2]]);
    let is_param = |value: &Value| body.params.iter().any(|param| param.value == *value);
    if !past.iter().all(is_param) {
        return Err(error("past rows are not parameters of the layer kind"));
    }
    let [heads, _, key_width] = sizes(body, past[0]);
    let [_, _, value_width] = sizes(body, past[1]);
    let (Some(kv_heads), Some(key_width), Some(value_width)) = (heads, key_width, value_width)
    else {
        return Err(error("heads and widths of the past rows are not numbers"));
    };
    let window = attention.window;
    // Policy, rows and number format are chosen later.
    let format = CacheFormat::F32;
    let decl = CacheDecl {
        layer: 0,
        kv_heads,
        key_width,
        value_width,
        format,
        block: None,
        window,
        layout: None,
    };
    Ok(State { decl, past, present })
}

fn sizes(body: &Body, value: Value) -> [Option<u32>; 3] {
    let shape = body.shape(value);
    std::array::from_fn(|index| {
        shape.get(index).and_then(|dim| dim.as_size()).and_then(|size| u32::try_from(size).ok())
    })
}

fn rewrite_kind(body: &Body, state: &State, tables: Tables<'_>) -> Result<Body, TypeError> {
    let mut rebuild = Rebuild::new(body, tables);
    for Param { value, role } in &body.params {
        if !state.past.contains(value) {
            rebuild.param(*value, role.clone(), body.ty(*value).clone());
        }
    }
    for (node, data) in body.live() {
        match &data.op {
            Op::CausalAttention(attention) => attend(&mut rebuild, attention, data)?,
            _ => drop(rebuild.copy(node)?),
        }
    }
    for result in &body.results {
        if !state.present.contains(&result.value) {
            let value = new(&rebuild, result.value)?;
            rebuild.result(value, result.role.clone());
        }
    }
    Ok(rebuild.body)
}

fn attend(
    rebuild: &mut Rebuild<'_>,
    attention: &CausalAttention,
    data: &NodeData,
) -> Result<(), TypeError> {
    // A kind's body names the cache of whichever layer it is applied to by its first number.
    let cache = CacheId::new(0);
    let (key, value) = (new(rebuild, data.operands[1])?, new(rebuild, data.operands[2])?);
    rebuild.push(CacheAppend { cache }, vec![key, value], data.origin.clone())?;
    let mut operands = vec![new(rebuild, data.operands[0])?];
    if attention.sinks {
        operands.push(new(rebuild, data.operands[5])?);
    }
    let attend = CacheAttend {
        cache,
        scale: attention.scale,
        softcap: attention.softcap,
        sinks: attention.sinks,
    };
    let results = rebuild.push(attend, operands, data.origin.clone())?;
    rebuild.set(data.results[0], results[0]);
    Ok(())
}

fn rewrite_main(
    graph: &Graph,
    states: &[State],
    caches: &Table<CacheId, CacheDecl>,
    kinds: &Table<weir_ir::Kind, LayerKind>,
) -> Result<Body, TypeError> {
    let main = &graph.main;
    let tables = Tables { constants: &graph.constants, caches, kinds: Some(kinds), cache: None };
    let mut rebuild = Rebuild::new(main, tables);
    for Param { value, role } in &main.params {
        if !matches!(role, InputRole::PastKey(_) | InputRole::PastValue(_)) {
            rebuild.param(*value, role.clone(), main.ty(*value).clone());
        }
    }
    let mut cache_ids = caches.keys();
    for (node, data) in main.live() {
        let Op::Layer(layer) = &data.op else {
            rebuild.copy(node)?;
            continue;
        };
        let state = &states[layer.kind.index()];
        let body = &graph.kinds[layer.kind].body;
        let mut operands = Vec::new();
        for (operand, param) in data.operands.iter().zip(&body.params) {
            if !state.past.contains(&param.value) {
                operands.push(new(&rebuild, *operand)?);
            }
        }
        let applied = Layer { cache: cache_ids.next(), ..layer.clone() };
        let mut results = rebuild.push(applied, operands, data.origin.clone())?.into_iter();
        for (old, result) in data.results.iter().zip(&body.results) {
            if !state.present.contains(&result.value)
                && let Some(value) = results.next()
            {
                rebuild.set(*old, value);
            }
        }
    }
    for result in &main.results {
        if !matches!(result.role, OutputRole::PresentKey(_) | OutputRole::PresentValue(_)) {
            let value = new(&rebuild, result.value)?;
            rebuild.result(value, result.role.clone());
        }
    }
    Ok(rebuild.body)
}

fn new(rebuild: &Rebuild<'_>, old: Value) -> Result<Value, TypeError> {
    rebuild.get(old).ok_or_else(|| error(&format!("{old} has no place in the new body")))
}

fn error(message: &str) -> TypeError {
    TypeError { op: "causal_attention", message: message.to_owned() }
}

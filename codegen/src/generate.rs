//! The entry of code generation: a verified graph at stage `Fixed` becomes a compiled model.
//!
//! Plans come first, then weights in the order of segments and layers, then code per level, then
//! tables. The same graph and options give the same bytes.

use std::collections::{HashMap, HashSet};

use weir_abi::{CacheLayout, HeadResult, IsaLevel, KindCode, KindEntry, LayerEntry};
use weir_ir::graph::{BodyResult, CacheDecl, CacheRows, KvPolicy, OutputRole, Scoring};
use weir_ir::verify::Verified;
use weir_ir::{Const, Graph, Kind, Node, Op, Stage, Value};

use crate::emit::{Assembly, FuncId, disassemble};
use crate::error::{CodegenError, number, wrong};
use crate::image::{CodeImage, ModelImage};
use crate::kernels::attention::AttendSpec;
use crate::kernels::compact::emit_compact;
use crate::kernels::matmul::Compute;
use crate::kernels::observe::{ObserveSpec, ScoreSource, emit_observe};
use crate::layouts::{layout, slot_bytes};
use crate::pack::PackedLayout;
use crate::plan::{Kernel, Root, SegmentPlan, SegmentSource, lower_segment};
use crate::probes::emit_probes;
use crate::segments::emit_segment;
use crate::tables::{LevelCode, Tables, empty_header, write_tables};
use crate::weights::{self, WeightRegion, WeightSource};

#[cfg(test)]
mod tests;

/// What the user and the driver choose.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Arithmetic of products; the weights' own where none is given.
    pub compute: Option<Compute>,
    /// Levels that code is emitted for, besides the portable one.
    pub levels: &'a [IsaLevel],
    /// Most rows of a step.
    pub max_rows: u32,
    /// Most rows of a call of the head.
    pub max_head_rows: u32,
    /// Slots of the cache.
    pub slots: u32,
    /// Positions of a sequence.
    pub context: u32,
    /// Packed tokenizer, or empty.
    pub tokenizer: &'a [u8],
    /// Chat template, or empty.
    pub chat_template: &'a [u8],
    /// Facts as JSON, or empty.
    pub facts: &'a [u8],
    /// Keeps CLIF and assembly texts.
    pub listing: bool,
    /// Puts a barrier behind every kernel, so that whoever watches barriers learns what each takes.
    pub profile: bool,
}

/// A compiled model with its figures.
pub struct Generated<'a> {
    /// The model.
    pub image: ModelImage<'a>,
    /// Bytes and texts.
    pub report: Report,
}

/// Bytes of the parts, and texts for people.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Machine code of all levels.
    pub code_bytes: u64,
    /// Tables with tokenizer, template and facts.
    pub tables_bytes: u64,
    /// Packed weights.
    pub weights_bytes: u64,
    /// Buffers of a step.
    pub arena_bytes: u64,
    /// Hidden rows of a step.
    pub hidden_bytes: u64,
    /// What a call of the head gives, logits in most models.
    pub answer_bytes: u64,
    /// Cache of one slot, per layer.
    pub cache_slot_bytes: Vec<u64>,
    /// Segments with their arena bytes and numbers of kernels and barriers.
    pub segments: Vec<SegmentReport>,
    /// CLIF text of all functions that have one, if listings were asked for.
    pub clif: Option<String>,
    /// Assembly text of all functions, if listings were asked for.
    pub assembly: Option<String>,
}

/// Figures of a segment's plan.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    /// Name.
    pub name: String,
    /// Bytes of its buffers.
    pub arena_bytes: u64,
    /// Kernels.
    pub kernels: usize,
    /// Barriers, the last one included.
    pub barriers: usize,
}

/// The nodes of `main` in their segments.
struct Parts<'g> {
    graph: &'g Graph,
    embed: Vec<Node>,
    layers: Vec<Node>,
    head: Vec<Node>,
    constants: HashMap<Value, WeightSource>,
    answer: Value,
    head_result: HeadResult,
}

/// One planned layer kind.
pub(crate) struct KindPlan {
    kind: Kind,
    pub(crate) plan: SegmentPlan,
    attend: AttendSpec,
    source: ScoreSource,
}

/// Compiles a graph. Weights stay unpacked until the image is written.
pub fn generate<'a>(
    verified: Verified<'a>,
    options: &Options<'_>,
) -> Result<Generated<'a>, CodegenError> {
    let graph = verified.graph();
    let Plans { parts, hidden_width, embed, kinds, head } = Plans::of(graph, options)?;

    let mut region = WeightRegion::new(graph);
    let mut offsets: Vec<u64> = Vec::new();
    let embed_weights = place(&mut region, &mut offsets, &embed, &[])?;
    let mut layers = Vec::new();
    let mut layouts: Vec<CacheLayout> = Vec::new();
    let mut head_rows: Vec<u32> = Vec::new();
    let mut cache_slot_bytes = Vec::new();
    for node in &parts.layers {
        let Op::Layer(layer) = &graph.main.nodes[*node].op else { continue };
        let cache = layer_cache(graph, *node)?;
        let layout = layout(cache, &graph.main.nodes[*node].op, &mut head_rows)?;
        let known = layouts.iter().position(|other| *other == layout);
        let index = known.unwrap_or(layouts.len());
        if known.is_none() {
            layouts.push(layout);
        }
        let (at, kind) = kinds
            .iter()
            .enumerate()
            .find(|(_, plan)| plan.kind == layer.kind)
            .ok_or_else(|| wrong(node.to_string(), "a layer without a kind"))?;
        let weights = place(&mut region, &mut offsets, &kind.plan, &layer.weights)?;
        layers.push(LayerEntry {
            kind: number(at, "layer kind")?,
            layout: number(index, "cache layout")?,
            weights,
            weight_count: number(kind.plan.weights.len(), "number of weights")?,
        });
        cache_slot_bytes.push(slot_bytes(cache, &layout, &kind.attend.cache));
    }
    let head_weights = place(&mut region, &mut offsets, &head, &[])?;
    let weights = region.finish();

    let (code, levels, clif) = emit(&embed, &kinds, &head, options)?;
    let head_width = graph.main.shape(parts.answer).last().and_then(|size| size.as_size());
    let head_width = head_width.ok_or_else(|| wrong("main", "a result of no numeric width"))?;
    let embedded = embedded(&parts)?;
    let vocabulary = match parts.head_result {
        // A token that is chosen is the next one to be looked up.
        HeadResult::Logits if head_width > embedded => {
            return Err(CodegenError::Unsupported {
                place: "main".into(),
                message: format!("a head of {head_width} tokens over {embedded} embeddings"),
            });
        }
        HeadResult::Logits => head_width,
        HeadResult::Hidden => embedded,
    };
    let plans: Vec<&SegmentPlan> =
        [&embed].into_iter().chain(kinds.iter().map(|kind| &kind.plan)).chain([&head]).collect();
    let arena_bytes = plans.iter().map(|plan| plan.arena_bytes as u64).max().unwrap_or(0);
    let mut header = empty_header();
    header.code_bytes = code.bytes.len() as u64;
    header.weights_bytes = weights.bytes;
    header.vocabulary = number(vocabulary, "vocabulary")?;
    header.hidden_width = number(hidden_width, "hidden width")?;
    header.context = options.context;
    header.max_rows = options.max_rows;
    header.max_head_rows = options.max_head_rows;
    header.slots = options.slots;
    header.rotary_sets = graph.rotary.sets;
    header.rotary_switch = graph.rotary.switch;
    header.head_result = parts.head_result as u32;
    header.head_width = number(head_width, "width of the head")?;
    header.arena_bytes = arena_bytes;
    header.embed_weights = embed_weights;
    header.head_weights = head_weights;
    let tables = write_tables(&Tables {
        header,
        levels,
        kinds: kinds.iter().map(|kind| kind_entry(&kind.attend)).collect(),
        layers,
        layouts,
        head_rows,
        weight_offsets: offsets,
        symbols: &code.symbols,
        tokenizer: options.tokenizer,
        chat_template: options.chat_template,
        facts: options.facts,
    });
    let assembly = options.listing.then(|| listing(&code));
    let report = Report {
        code_bytes: code.bytes.len() as u64,
        tables_bytes: tables.len() as u64,
        weights_bytes: weights.bytes,
        arena_bytes,
        hidden_bytes: u64::from(options.max_rows) * hidden_width as u64 * 4,
        answer_bytes: u64::from(options.max_head_rows) * head_width as u64 * 4,
        cache_slot_bytes,
        segments: plans.into_iter().map(segment_report).collect(),
        clif,
        assembly,
    };
    Ok(Generated { image: ModelImage { code, tables, weights }, report })
}

/// The plans of all segments.
pub(crate) struct Plans<'g> {
    parts: Parts<'g>,
    hidden_width: usize,
    pub(crate) embed: SegmentPlan,
    pub(crate) kinds: Vec<KindPlan>,
    pub(crate) head: SegmentPlan,
}

impl<'g> Plans<'g> {
    /// Plans the segments of a graph.
    pub(crate) fn of(graph: &'g Graph, options: &Options<'_>) -> Result<Self, CodegenError> {
        check(graph, options)?;
        let parts = Parts::of(graph)?;
        let hidden_width = hidden_width(&parts)?;
        let tied = tied(&parts, options);
        let source = |name: &str| SegmentSource {
            name: name.to_owned(),
            body: &graph.main,
            nodes: Vec::new(),
            input: None,
            output: parts.answer,
            target: Root::Hidden,
            weights: parts.constants.clone(),
            cache: None,
            cache_rows: 0,
            by_head: false,
            reservoir: None,
            compute: options.compute,
            tied: tied.clone(),
            has_tiles: options.levels.contains(&IsaLevel::Amx),
            max_rows: options.max_rows as usize,
            hidden_width,
            head: false,
        };
        let first = &graph.main.nodes[parts.layers[0]];
        let last = &graph.main.nodes[parts.layers[parts.layers.len() - 1]];
        let embed = lower_segment(&SegmentSource {
            nodes: parts.embed.clone(),
            output: first.operands[0],
            ..source("embed")
        })?;
        let head = lower_segment(&SegmentSource {
            nodes: parts.head.clone(),
            input: Some(last.results[0]),
            target: Root::Answer,
            max_rows: options.max_head_rows as usize,
            head: true,
            ..source("head")
        })?;
        let kinds = plan_kinds(&parts, options, hidden_width)?;
        Ok(Plans { parts, hidden_width, embed, kinds, head })
    }
}

fn check(graph: &Graph, options: &Options<'_>) -> Result<(), CodegenError> {
    if graph.stage != Stage::Fixed {
        return Err(wrong("graph", format!("stage {} instead of Fixed", graph.stage)));
    }
    for (name, value) in [
        ("rows of a step", options.max_rows),
        ("rows of the head", options.max_head_rows),
        ("slots", options.slots),
        ("context", options.context),
    ] {
        if value == 0 {
            return Err(CodegenError::Options(format!("{name}: 0 is not possible")));
        }
    }
    let quantised = graph
        .constants
        .values()
        .any(|constant| matches!(constant.ty.element, weir_ir::Element::Quant(_)));
    if options.compute.is_some_and(Compute::is_integer) && !quantised {
        let message = "int8 arithmetic needs int4 or int8 weights, and the model has none";
        return Err(CodegenError::Options(message.to_owned()));
    }
    Ok(())
}

impl<'g> Parts<'g> {
    fn of(graph: &'g Graph) -> Result<Self, CodegenError> {
        let (answer, head_result) = match graph.main.results.as_slice() {
            [BodyResult { value, role: OutputRole::Logits }] => (*value, HeadResult::Logits),
            [BodyResult { value, role: OutputRole::Hidden }] => (*value, HeadResult::Hidden),
            _ => return Err(wrong("main", "its result is not exactly logits or hidden rows")),
        };
        let mut parts = Parts {
            graph,
            embed: Vec::new(),
            layers: Vec::new(),
            head: Vec::new(),
            constants: HashMap::new(),
            answer,
            head_result,
        };
        for (node, data) in graph.main.live() {
            match &data.op {
                Op::ReadConstant(op) => {
                    parts.constants.insert(data.results[0], WeightSource::Constant(op.constant));
                }
                Op::Layer(_) if parts.head.is_empty() => parts.layers.push(node),
                Op::Layer(_) => return Err(wrong(node.to_string(), "a layer after the head")),
                _ if parts.layers.is_empty() => parts.embed.push(node),
                _ => parts.head.push(node),
            }
        }
        if parts.layers.is_empty() {
            return Err(CodegenError::Unsupported {
                place: "main".into(),
                message: "a model without layers that repeat".into(),
            });
        }
        Ok(parts)
    }
}

/// Entries of the table that tokens' rows come from.
fn embedded(parts: &Parts<'_>) -> Result<usize, CodegenError> {
    let main = &parts.graph.main;
    let embed = parts.embed.iter().map(|node| &main.nodes[*node]);
    let table = embed.filter(|node| matches!(node.op, Op::Embed(_))).map(|node| node.operands[1]);
    let sizes = table.filter_map(|table| main.shape(table).first()?.as_size());
    sizes.min().ok_or_else(|| wrong("main", "no table of embeddings of a known size"))
}

fn hidden_width(parts: &Parts<'_>) -> Result<usize, CodegenError> {
    let main = &parts.graph.main;
    let hidden = main.nodes[parts.layers[0]].operands.first();
    let width = hidden.and_then(|value| main.shape(*value).last()).and_then(|size| size.as_size());
    width.ok_or_else(|| wrong("main", "hidden rows without a numeric width"))
}

/// Tables of the embedding that are weights of products too: they keep the product's layout.
fn tied(parts: &Parts<'_>, options: &Options<'_>) -> HashMap<WeightSource, PackedLayout> {
    let main = &parts.graph.main;
    let mut tied = HashMap::new();
    for node in &parts.head {
        let node = &main.nodes[*node];
        let Op::Linear(_) = node.op else { continue };
        let Some(source) = parts.constants.get(&node.operands[1]) else { continue };
        if let Some((layout, _)) = weights::product(main.ty(node.operands[1]), options.compute) {
            tied.insert(*source, layout);
        }
    }
    tied
}

fn layer_cache(graph: &Graph, node: Node) -> Result<&CacheDecl, CodegenError> {
    let cache = match &graph.main.nodes[node].op {
        Op::Layer(layer) => layer.cache.and_then(|cache| graph.caches.get(cache)),
        _ => None,
    };
    cache.ok_or_else(|| wrong(node.to_string(), "a layer without a cache"))
}

/// How a cache scores rows.
fn score_source(cache: &CacheDecl) -> ScoreSource {
    match &cache.layout {
        Some(rows) if rows.policy == KvPolicy::Random => ScoreSource::Lots { seed: rows.seed },
        Some(rows) => {
            let (scoring, redundancy, second) = (rows.scoring, rows.redundancy, rows.second > 0);
            ScoreSource::Queries { pool: rows.pool.max(1) as usize, scoring, redundancy, second }
        }
        None => ScoreSource::Queries {
            pool: 1,
            scoring: Scoring::default(),
            redundancy: 0,
            second: false,
        },
    }
}

fn plan_kinds(
    parts: &Parts<'_>,
    options: &Options<'_>,
    hidden_width: usize,
) -> Result<Vec<KindPlan>, CodegenError> {
    let graph = parts.graph;
    let mut kinds: Vec<KindPlan> = Vec::new();
    let mut seen: HashSet<Kind> = HashSet::new();
    for node in &parts.layers {
        let Op::Layer(layer) = &graph.main.nodes[*node].op else { continue };
        let cache = layer_cache(graph, *node)?;
        let source = score_source(cache);
        if !seen.insert(layer.kind) {
            // How rows are scored is part of the kind's code.
            if kinds.iter().any(|plan| plan.kind == layer.kind && plan.source != source) {
                return Err(CodegenError::Unsupported {
                    place: format!("layer {}", layer.index),
                    message: "scores made in another way than in the layers before it".into(),
                });
            }
            continue;
        }
        let kind = &graph.kinds[layer.kind];
        let body = &kind.body;
        let before = body.params.len().saturating_sub(kind.weights);
        let weights = body.params[before..]
            .iter()
            .enumerate()
            .map(|(index, param)| (param.value, WeightSource::Parameter(index)))
            .collect();
        let [result] = body.results.as_slice() else {
            return Err(wrong(&kind.name, "not exactly one result"));
        };
        let plan = lower_segment(&SegmentSource {
            name: format!("layer-{}", kinds.len()),
            body,
            nodes: body.order.clone(),
            input: body.params.first().map(|param| param.value),
            output: result.value,
            target: Root::Hidden,
            weights,
            cache: Some(cache),
            cache_rows: most_rows(parts, layer.kind),
            by_head: rows_of(parts, layer.kind).any(|rows| !rows.by_head.is_empty()),
            reservoir: reservoir_seed(parts, layer.kind),
            compute: options.compute,
            tied: HashMap::new(),
            has_tiles: options.levels.contains(&IsaLevel::Amx),
            max_rows: options.max_rows as usize,
            hidden_width,
            head: false,
        })?;
        let attend = plan.steps.iter().find_map(|step| match &step.kernel {
            Kernel::Attend { spec, .. } => Some(*spec),
            _ => None,
        });
        let attend = attend.ok_or_else(|| wrong(&kind.name, "no attention"))?;
        kinds.push(KindPlan { kind: layer.kind, plan, attend, source });
    }
    Ok(kinds)
}

/// The rows of the caches of a kind's layers; budgets differ from layer to layer.
fn rows_of<'a>(parts: &'a Parts<'_>, kind: Kind) -> impl Iterator<Item = &'a CacheRows> {
    let graph = parts.graph;
    parts.layers.iter().filter_map(move |node| match &graph.main.nodes[*node].op {
        Op::Layer(layer) if layer.kind == kind => graph.caches.get(layer.cache?)?.layout.as_ref(),
        _ => None,
    })
}

/// The most rows that a head has in the cache of a layer of a kind.
fn most_rows(parts: &Parts<'_>, kind: Kind) -> u32 {
    let of_head = |rows: &CacheRows| rows.rows() - rows.selected + rows.most_selected();
    rows_of(parts, kind).map(of_head).max().unwrap_or(0)
}

/// Seed of the lots for the reservoirs of a kind's layers; nothing if none has one.
fn reservoir_seed(parts: &Parts<'_>, kind: Kind) -> Option<u32> {
    rows_of(parts, kind).find(|rows| rows.reservoir > 0).map(|rows| rows.seed)
}

/// Places a segment's weights and appends their offsets; returns the index of the first.
fn place(
    region: &mut WeightRegion<'_>,
    offsets: &mut Vec<u64>,
    plan: &SegmentPlan,
    parameters: &[Const],
) -> Result<u32, CodegenError> {
    let first = number(offsets.len(), "number of weights")?;
    for slot in &plan.weights {
        let constant = match slot.source {
            WeightSource::Constant(constant) => constant,
            WeightSource::Parameter(index) => *parameters
                .get(index)
                .ok_or_else(|| wrong(&plan.name, format!("no constant for weight {index}")))?,
        };
        offsets.push(region.place(constant, slot.form));
    }
    Ok(first)
}

fn kind_entry(attend: &AttendSpec) -> KindEntry {
    let cache = attend.cache;
    let block = cache.of_block();
    KindEntry {
        heads: attend.score.heads as u32,
        kv_heads: cache.kv_heads as u32,
        key_width: cache.key_width as u32,
        value_width: cache.value_width as u32,
        key_row_bytes: cache.key_bytes() as u32,
        value_row_bytes: cache.value_bytes() as u32,
        block_key_row_bytes: block.map_or(0, |block| block.key_bytes() as u32),
        block_value_row_bytes: block.map_or(0, |block| block.value_bytes() as u32),
    }
}

fn emit(
    embed: &SegmentPlan,
    kinds: &[KindPlan],
    head: &SegmentPlan,
    options: &Options<'_>,
) -> Result<(CodeImage, Vec<LevelCode>, Option<String>), CodegenError> {
    let keep_texts = options.listing;
    let mut assembly = Assembly::new()?;
    if keep_texts {
        assembly.keep_clif();
    }
    // Compact has no wide version: all levels share it.
    let mut compact: Vec<FuncId> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let name = format!("compact-{index}");
        compact.push(emit_compact(&mut assembly, &name, &kind.attend.cache, kind.source.asks())?);
    }
    let mut levels: Vec<(IsaLevel, FuncId, Vec<[FuncId; 3]>, FuncId)> = Vec::new();
    let chosen = |level: &IsaLevel| *level == IsaLevel::Portable || options.levels.contains(level);
    for level in IsaLevel::ALL.into_iter().filter(chosen) {
        let first = emit_segment(&mut assembly, embed, level, options.profile)?;
        let layers = kinds
            .iter()
            .zip(&compact)
            .enumerate()
            .map(|(index, (kind, compact))| {
                let layer = emit_segment(&mut assembly, &kind.plan, level, options.profile)?;
                let name = format!("observe-{index}");
                let spec = ObserveSpec { attend: kind.attend, source: kind.source };
                let observe = emit_observe(&mut assembly, &name, &spec, level)?;
                Ok([layer, observe, *compact])
            })
            .collect::<Result<Vec<_>, CodegenError>>()?;
        let head = emit_segment(&mut assembly, head, level, options.profile)?;
        levels.push((level, first, layers, head));
    }
    emit_probes(&mut assembly)?;
    let clif = keep_texts.then(|| {
        let texts = assembly.functions().filter_map(|id| {
            // CLIF numbers functions; what they are called stands in a comment.
            Some(format!("; {}\n{}", assembly.name(id), assembly.clif(id)?))
        });
        texts.collect::<Vec<_>>().join("\n")
    });
    let names: Vec<String> = assembly.functions().map(|id| assembly.name(id).to_owned()).collect();
    let ids: Vec<FuncId> = assembly.functions().collect();
    let code = assembly.finish()?;
    let offsets: HashMap<&str, u64> =
        code.symbols.iter().map(|symbol| (symbol.name.as_str(), symbol.offset)).collect();
    let at = |id: FuncId| {
        let index = ids.iter().position(|other| *other == id);
        index.and_then(|index| offsets.get(names[index].as_str())).copied().unwrap_or(0)
    };
    let levels = levels
        .into_iter()
        .map(|(level, embed, layers, head)| LevelCode {
            level: level as u32,
            embed: at(embed),
            head: at(head),
            kinds: layers
                .into_iter()
                .map(|segments| {
                    let [layer, observe, compact] = segments.map(at);
                    KindCode { layer, observe, compact }
                })
                .collect(),
        })
        .collect();
    Ok((code, levels, clif))
}

fn listing(code: &CodeImage) -> String {
    let texts = code.symbols.iter().filter_map(|symbol| disassemble(code, &symbol.name));
    texts.collect::<Vec<_>>().join("\n")
}

fn segment_report(plan: &SegmentPlan) -> SegmentReport {
    SegmentReport {
        name: plan.name.clone(),
        arena_bytes: plan.arena_bytes as u64,
        kernels: plan.steps.len(),
        barriers: plan.steps.last().map_or(0, |step| step.phase) + 1,
    }
}

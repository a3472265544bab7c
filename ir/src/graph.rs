//! The graph: constants, caches, layer kinds and the main body.
//!
//! A body is a list of nodes in execution order over its own values. Repeated layers are held once:
//! a layer kind is a body with weight and cache parameters, applied by `layer` nodes with tables of
//! constants and caches, so that an 80-layer model prints in two pages and passes run once a kind.

use crate::constant::Constant;
use crate::dim::Dim;
use crate::entity::{CacheId, Const, Kind, Node, Table, Value};
use crate::ops::{Known, Op, Operand, TypeError};
use crate::stage::Stage;
use crate::types::TensorType;

/// A model's computation at one stage.
#[derive(Clone, Debug)]
pub struct Graph {
    /// How far the graph has come; the verifier checks what the stage promises.
    pub stage: Stage,
    /// Weights and tables.
    pub constants: Table<Const, Constant>,
    /// Attention state, from stage `Cached` on.
    pub caches: Table<CacheId, CacheDecl>,
    /// Layer kinds, from the end of `Canonical` on.
    pub kinds: Table<Kind, LayerKind>,
    /// How rotary tables are stacked, from `Canonical` on.
    pub rotary: RotarySets,
    /// The whole computation.
    pub main: Body,
}

/// Sets of rotary tables in each table constant: row = set * positions + position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotarySets {
    /// Sets: 1, or 2 for a model that changes its factors by length.
    pub sets: u32,
    /// A sequence whose greatest length exceeds this uses the second set; 0 with one set.
    pub switch: u32,
}

impl Default for RotarySets {
    fn default() -> Self {
        RotarySets { sets: 1, switch: 0 }
    }
}

/// A layer's body with its parameters beyond the hidden rows.
#[derive(Clone, Debug)]
pub struct LayerKind {
    /// Short name: `layer0`.
    pub name: String,
    /// The computation. Its first parameters are the `layer` node's operands, then one parameter
    /// per weight.
    pub body: Body,
    /// How many of the body's parameters (the last ones) are weights.
    pub weights: usize,
    /// Cache that the body's cache ops name: every layer of the kind replaces this parameter by its
    /// own. Layouts of two layers of a kind may differ in rows, not in widths.
    pub caches: usize,
}

/// Nodes over values.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// Every value ever made in this body.
    pub values: Table<Value, ValueData>,
    /// Every node ever made; those in `order` are live.
    pub nodes: Table<Node, NodeData>,
    /// Live nodes in execution order.
    pub order: Vec<Node>,
    /// Inputs.
    pub params: Vec<Param>,
    /// Results.
    pub results: Vec<BodyResult>,
}

/// An input of a body.
#[derive(Clone, Debug)]
pub struct Param {
    /// The value it defines.
    pub value: Value,
    /// What it is.
    pub role: InputRole,
}

/// What an input of a body is.
#[derive(Clone, Debug, PartialEq)]
pub enum InputRole {
    /// Token ids: i64 `[batch, sequence]`, or i64 `[sequence]` from `Canonical` on.
    Tokens,
    /// Absolute positions of the new rows.
    Positions,
    /// Mask over `past + sequence` rows; all ones: Weir has no padding rows.
    AttentionMask,
    /// Cached keys of a layer, `[batch, kv_heads, past, key_width]`; in canonical graphs
    /// `[kv_heads, past, key_width]`.
    PastKey(u32),
    /// Cached values of a layer, like the keys.
    PastValue(u32),
    /// An integer input whose content is known in terms of the symbols (such as write indices).
    Known,
    /// Hidden rows or a weight of a layer kind.
    Operand,
    /// An input that no role describes; only graphs of single operators have it.
    Other,
}

/// A result of a body.
#[derive(Clone, Debug)]
pub struct BodyResult {
    /// The value.
    pub value: Value,
    /// What it is.
    pub role: OutputRole,
}

/// What a result of a body is.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputRole {
    /// Logits `[batch, sequence, vocabulary]`, from `Canonical` on `[sequence, vocabulary]`.
    Logits,
    /// Keys of a layer with the new rows appended.
    PresentKey(u32),
    /// Values of a layer with the new rows appended.
    PresentValue(u32),
    /// Anything else; hidden rows of a layer kind.
    Other,
}

/// A value.
#[derive(Clone, Debug)]
pub struct ValueData {
    /// Its type.
    pub ty: TensorType,
    /// Its content, where it follows from shapes.
    pub known: Option<Known>,
    /// Name in the model's file, if any.
    pub name: Option<String>,
    /// Where it comes from.
    pub source: ValueSource,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// Input number of the body.
    Param(usize),
    /// Result number of a node.
    Result(Node, usize),
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeData {
    /// What it computes.
    pub op: Op,
    /// Its operands.
    pub operands: Vec<Value>,
    /// Its results.
    pub results: Vec<Value>,
    /// Place in the model's file, for messages: `node "/layers.0/MatMul" (opset 18)`.
    pub origin: Option<String>,
}

/// Attention state of one layer, from stage `Cached` on.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheDecl {
    /// Layer that owns it.
    pub layer: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values of a key row of one head.
    pub key_width: u32,
    /// Values of a value row of one head.
    pub value_width: u32,
    /// Number format of keys and values.
    pub format: CacheFormat,
    /// Number format of the immutable block, the rows below S + K, if it is another one.
    pub block: Option<CacheFormat>,
    /// Sliding window of the attention that reads it, 0 for none.
    pub window: u32,
    /// Policy and rows, from stage `Sparse` on.
    pub layout: Option<CacheRows>,
}

impl CacheDecl {
    /// Whether all keys lie in it turned ([`mod@crate::interpret::turn`]), and queries are turned before
    /// they meet them: where some rows are codes of four bits.
    pub fn turns_keys(&self) -> bool {
        RowFormats { ring: self.format, block: self.block }.turns_keys()
    }

    /// Number formats of rows in the cache and of a prompt that is longer than it. Such a prompt is
    /// computed over rows of the ring's format, so int4 of a cache that drops rows of prompts is the
    /// format of its block, and the block is the whole cache: the prompt's rows are int8 until it ends.
    pub fn row_formats(&self) -> RowFormats {
        let drops_rows = self.layout.as_ref().is_some_and(|rows| rows.policy.has_block());
        match self.format {
            CacheFormat::I4 if drops_rows => {
                RowFormats { ring: CacheFormat::I8, block: Some(CacheFormat::I4) }
            }
            ring => RowFormats { ring, block: self.block },
        }
    }

    /// Rows that have the block's format, the first ones: S + K, or all of them; none if all rows of
    /// cache and prompts have one format.
    pub fn block_rows(&self) -> u32 {
        match &self.layout {
            Some(rows) if self.format == CacheFormat::I4 && rows.policy.has_block() => rows.rows(),
            Some(rows) if self.block.is_some() => rows.block_rows(),
            _ => 0,
        }
    }
}

crate::attribute::named_enum!(
    /// Number format of keys and values. Rows are rounded when they are written.
    CacheFormat {
        /// Single precision.
        F32 = "f32",
        /// IEEE half precision.
        F16 = "f16",
        /// The upper half of single precision.
        BF16 = "bf16",
        /// Codes of 8 bits and a scale per row and head, and attention in codes.
        I8 = "i8",
        /// The same with codes of 4 bits, which name levels among those of 8.
        I4 = "i4",
    }
);

impl CacheFormat {
    /// Whether rows are codes with a scale, and attention computes with codes.
    pub fn is_coded(self) -> bool {
        matches!(self, CacheFormat::I8 | CacheFormat::I4)
    }

    /// Whether the immutable block may have this format where the ring has another: rows of it are
    /// made from rows of the ring, and read as those are, so it holds less of them.
    pub fn suits_block_of(self, ring: CacheFormat) -> bool {
        match self {
            CacheFormat::I4 => ring != CacheFormat::I4,
            CacheFormat::I8 => !ring.is_coded(),
            _ => false,
        }
    }
}

/// Number formats of the rows of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFormats {
    /// The ring's, and of all rows where a cache is one ring.
    pub ring: CacheFormat,
    /// The immutable block's, if it is another one.
    pub block: Option<CacheFormat>,
}

impl RowFormats {
    /// Whether any rows are codes of four bits: all keys are turned then.
    pub fn turns_keys(self) -> bool {
        self.ring == CacheFormat::I4 || self.block == Some(CacheFormat::I4)
    }
}

impl From<CacheFormat> for RowFormats {
    fn from(ring: CacheFormat) -> RowFormats {
        RowFormats { ring, block: None }
    }
}

crate::attribute::named_enum!(
    /// How a cache chooses the rows it keeps.
    KvPolicy {
        /// Every row.
        Full = "full",
        /// Sinks and a ring.
        Stream = "stream",
        /// Sinks, rows selected at the end of the prompt, and a ring.
        Snapstream = "snapstream",
        /// The same of a prompt; what is generated is kept beside it until the slot is full.
        Snapkv = "snapkv",
        /// As `Snapstream`, with rows selected by lot.
        Random = "random",
        /// The ring of a sliding-window layer: the window and the rows of one step.
        Window = "window",
    }
);

impl KvPolicy {
    /// Whether rows below S + K are an immutable block, in front of a ring.
    pub fn has_block(self) -> bool {
        !matches!(self, KvPolicy::Full | KvPolicy::Window)
    }
}

crate::attribute::named_enum!(
    /// How the attention that a row gets from the observed queries and the heads of a group becomes
    /// one number.
    Aggregate {
        /// The mean over queries, then over heads.
        Mean = "mean",
        /// The largest over queries, then over heads.
        Max = "max",
        /// The largest over queries, at least the head's mean over the candidates; then the largest
        /// over heads (DefensiveKV, ICLR 2026).
        Defensive = "defensive",
    }
);

crate::attribute::named_enum!(
    /// What an observed query's attention sums to one over.
    Normalise {
        /// All keys up to it, as attention itself.
        All = "all",
        /// The candidates, as the equation of the SnapStream paper states.
        Candidates = "candidates",
    }
);

crate::attribute::named_enum!(
    /// How neighbours are pooled.
    Pooling {
        /// Their average, inside the candidates only.
        Average = "average",
        /// Their largest, inside the candidates only.
        Max = "max",
        /// Their average over everything in front of the observed queries, with zeros beyond both
        /// ends, as SnapKV's code pools: sinks weigh on their neighbours.
        Reference = "reference",
    }
);

/// How candidates are scored (section 4.2 and 4.3 of the method's document).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scoring {
    /// From queries and heads to a number.
    pub aggregate: Aggregate,
    /// What attention is relative to.
    pub normalise: Normalise,
    /// From neighbours to a score.
    pub pooling: Pooling,
}

impl Default for Scoring {
    fn default() -> Scoring {
        Scoring { aggregate: Aggregate::Mean, normalise: Normalise::All, pooling: Pooling::Average }
    }
}

/// Policy and rows of a cache; the letters are those of the method's document.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheRows {
    /// Policy.
    pub policy: KvPolicy,
    /// Whether selected rows that a prompt does not need become ring rows.
    pub elastic: bool,
    /// S.
    pub sinks: u32,
    /// K; where heads have different numbers of them the least.
    pub selected: u32,
    /// K of each key/value head, where they differ; empty where they do not.
    pub by_head: Vec<u32>,
    /// R.
    pub recent: u32,
    /// Rows beside these that no prompt fills: room for generated ones.
    pub growth: u32,
    /// D: further rows of the ring, for tokens that are guessed and may be taken back. No query reads
    /// as many rows of the ring as it has.
    pub in_flight: u32,
    /// N: further rows, which hold a sample of those that have left the ring.
    pub reservoir: u32,
    /// Whether rows are selected from anew when there is no room left for generated ones.
    pub reselect: bool,
    /// Percent of a candidate's score, then, that its redundancy is, which counts against it; the rest
    /// is what else scores it (1 - λ and λ of R-KV).
    pub redundancy: u32,
    /// w.
    pub observed: u32,
    /// Rows of a prompt, of each key/value head, whose queries are asked beside the last ones: those
    /// near what the last ones attend to ([`crate::interpret::second`]). 0: none.
    pub second: u32,
    /// Percent of the selected rows that are chosen by what these attend to; 0 where there are none.
    pub second_share: u32,
    /// Pooling width.
    pub pool: u32,
    /// How candidates are scored.
    pub scoring: Scoring,
    /// Seed of the lots that are drawn instead of scores, and for the reservoir.
    pub seed: u32,
}

impl CacheRows {
    /// R rows in a ring and no others.
    pub fn ring(policy: KvPolicy, recent: u32) -> CacheRows {
        CacheRows {
            policy,
            elastic: true,
            sinks: 0,
            selected: 0,
            by_head: Vec::new(),
            recent,
            growth: 0,
            in_flight: 0,
            reservoir: 0,
            reselect: false,
            redundancy: 0,
            observed: 0,
            second: 0,
            second_share: 0,
            pool: 1,
            scoring: Scoring::default(),
            seed: 0,
        }
    }

    /// K of a head.
    pub fn selected_of(&self, head: usize) -> u32 {
        self.by_head.get(head).copied().unwrap_or(self.selected)
    }

    /// K of the head with the most.
    pub fn most_selected(&self) -> u32 {
        self.by_head.iter().copied().max().unwrap_or(self.selected)
    }

    /// S + K: rows of the immutable block that every head has.
    pub fn block_rows(&self) -> u32 {
        self.sinks + self.selected
    }

    /// S + K + R: rows that are kept of a prompt.
    pub fn prompt_rows(&self) -> u32 {
        self.sinks + self.selected + self.recent
    }

    /// S + K + R, and the rows beside them: rows of a slot that every head has. Heads of which more rows
    /// are selected have the others behind these.
    pub fn rows(&self) -> u32 {
        self.prompt_rows() + self.growth + self.in_flight + self.reservoir
    }

    /// Whether rows of longer prompts are selected by what queries attend to.
    pub fn observes(&self) -> bool {
        matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv) && self.most_selected() > 0
    }
}

impl Graph {
    /// A graph without content at the stage `Imported`.
    pub fn new() -> Graph {
        Graph {
            stage: Stage::Imported,
            constants: Table::default(),
            caches: Table::default(),
            kinds: Table::default(),
            rotary: RotarySets::default(),
            main: Body::default(),
        }
    }

    /// Adds a constant and a node in `main` that reads it.
    pub fn constant(&mut self, constant: Constant) -> Value {
        let constant = self.constants.push(constant);
        self.read_constant(constant)
    }

    /// Adds a node in `main` that reads a constant.
    pub fn read_constant(&mut self, constant: Const) -> Value {
        let data = &self.constants[constant];
        let (ty, name) = (data.ty.clone(), data.name.clone());
        let known = Known::of_constant(data);
        self.main.push_typed(Op::read_constant(constant), Vec::new(), vec![(ty, known)], Some(name))
            [0]
    }
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Body {
    /// Adds an input.
    pub fn param(
        &mut self,
        role: InputRole,
        ty: TensorType,
        known: Option<Known>,
        name: Option<String>,
    ) -> Value {
        let source = ValueSource::Param(self.params.len());
        let value = self.values.push(ValueData { ty, known, name, source });
        self.params.push(Param { value, role });
        value
    }

    /// Appends a node; its result types follow from the op's rule.
    pub fn push(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        origin: Option<String>,
    ) -> Result<Vec<Value>, TypeError> {
        let inputs: Vec<Operand<'_>> = operands.iter().map(|value| self.operand(*value)).collect();
        let results = op.infer(&inputs)?;
        Ok(self.push_typed(op, operands, results, origin))
    }

    /// Appends a node with one result.
    pub fn push1(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        origin: Option<String>,
    ) -> Result<Value, TypeError> {
        self.push(op, operands, origin).map(|results| results[0])
    }

    /// Appends a node whose result types are given (ops whose types depend on graph tables).
    pub fn push_typed(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        results: Vec<(TensorType, Option<Known>)>,
        origin: Option<String>,
    ) -> Vec<Value> {
        let node: Node = crate::entity::Entity::new(self.nodes.len());
        let results: Vec<Value> = results
            .into_iter()
            .enumerate()
            .map(|(index, (ty, known))| {
                let source = ValueSource::Result(node, index);
                self.values.push(ValueData { ty, known, name: None, source })
            })
            .collect();
        let made = self.nodes.push(NodeData { op, operands, results: results.clone(), origin });
        debug_assert_eq!(made, node);
        self.order.push(node);
        results
    }

    /// What an op's rule sees of a value.
    pub fn operand(&self, value: Value) -> Operand<'_> {
        let data = &self.values[value];
        Operand { ty: &data.ty, known: data.known.as_ref() }
    }

    /// Type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value].ty
    }

    /// Sizes of a value.
    pub fn shape(&self, value: Value) -> &[Dim] {
        &self.values[value].ty.shape
    }

    /// The node that makes a value, unless it is an input.
    pub fn maker(&self, value: Value) -> Option<&NodeData> {
        match self.values[value].source {
            ValueSource::Param(_) => None,
            ValueSource::Result(node, _) => Some(&self.nodes[node]),
        }
    }

    /// Live nodes in order.
    pub fn live(&self) -> impl Iterator<Item = (Node, &NodeData)> {
        self.order.iter().filter_map(|node| Some((*node, self.nodes.get(*node)?)))
    }
}

impl CacheRows {
    /// Checks the numbers against each other (section 2 of the method's document).
    pub fn check(&self) -> Result<(), String> {
        let parts = [self.selected, self.recent, self.growth, self.in_flight, self.reservoir];
        let total = parts.iter().try_fold(self.sinks, |total, rows| total.checked_add(*rows));
        if total.is_none() {
            return Err("the sum of rows overflows".into());
        }
        if self.recent == 0 {
            return Err("a cache needs at least one recent row".into());
        }
        if self.observed > self.recent {
            let (observed, recent) = (self.observed, self.recent);
            return Err(format!("{observed} observed rows are more than {recent} recent rows"));
        }
        if self.observes() {
            if self.observed == 0 {
                return Err("selection needs observed rows".into());
            }
            if self.pool.is_multiple_of(2) {
                return Err(format!("pooling width {} is even", self.pool));
            }
        }
        if matches!(self.policy, KvPolicy::Stream | KvPolicy::Window) && self.selected > 0 {
            return Err(format!("policy {} selects no rows", self.policy.name()));
        }
        self.check_heads()?;
        if self.policy == KvPolicy::Window && self.sinks > 0 {
            return Err("a window has no sinks".into());
        }
        if self.policy != KvPolicy::Snapkv && !self.reselect && self.growth > 0 {
            return Err(format!("policy {} has no room beside its rows", self.policy.name()));
        }
        let is_snapstream = self.policy == KvPolicy::Snapstream;
        if self.reselect && (!is_snapstream || self.growth == 0 || self.reservoir > 0) {
            let what = "only snapstream with room beside its rows and no reservoir selects anew";
            return Err(what.into());
        }
        if self.redundancy > 100 || (self.redundancy > 0 && !self.reselect) {
            let percent = self.redundancy;
            return Err(format!("redundancy of {percent} % of the scores of rows selected anew"));
        }
        self.check_second()?;
        let has_reservoir = matches!(self.policy, KvPolicy::Stream | KvPolicy::Snapstream);
        if !has_reservoir && self.reservoir > 0 {
            return Err(format!("policy {} has no reservoir", self.policy.name()));
        }
        if self.in_flight > 0 {
            if self.policy == KvPolicy::Full {
                return Err("a full cache overwrites no row: none is needed in flight".into());
            }
            if self.reservoir > 0 || self.reselect {
                let what = "a row in flight may be taken back, but not what it has moved to a \
                            reservoir or had selected anew";
                return Err(what.into());
            }
        }
        Ok(())
    }

    /// Checks the numbers of second queries.
    fn check_second(&self) -> Result<(), String> {
        let CacheRows { second, second_share, .. } = *self;
        if (second > 0) != (1..=100).contains(&second_share) {
            return Err(format!("{second} rows asked again for {second_share} % of the selected"));
        }
        if second > 0 && !matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv) {
            return Err(format!("policy {} asks no row", self.policy.name()));
        }
        Ok(())
    }

    /// Checks the numbers of rows by head.
    fn check_heads(&self) -> Result<(), String> {
        let Some(least) = self.by_head.iter().min() else { return Ok(()) };
        if *least != self.selected || self.by_head.iter().all(|rows| rows == least) {
            let (selected, by_head) = (self.selected, &self.by_head);
            return Err(format!("selected={selected} is not the least of different {by_head:?}"));
        }
        let room = u32::MAX - (self.sinks + self.recent);
        let beside = [self.growth, self.in_flight]
            .iter()
            .try_fold(room, |room, rows| room.checked_sub(*rows));
        if beside.is_none_or(|room| self.most_selected() > room) {
            return Err("the sum of rows of a head overflows".into());
        }
        if !matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv | KvPolicy::Random) {
            return Err(format!("policy {} selects no rows by head", self.policy.name()));
        }
        if self.reservoir > 0 || self.reselect {
            let what = "rows by head go neither with a reservoir nor with rows selected anew";
            return Err(what.into());
        }
        Ok(())
    }
}

//! The graph: constants, caches, layer kinds and the main body.
//!
//! A body is a list of nodes in execution order over its own values. Repeated layers are held once:
//! a layer kind is a body with weight and cache parameters, applied by `layer` nodes with tables of
//! constants and caches, so that an 80-layer model prints in two pages and passes run once a kind.

mod caches;

pub use caches::{
    Aggregate, CacheDecl, CacheFormat, CacheRows, KvPolicy, Normalise, Pooling, RowFormats, Scoring,
};

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
    /// What a model that gives embeddings ends in: the rows behind its last norm, `[batch, sequence,
    /// width]`, from `Canonical` on `[sequence, width]`.
    Hidden,
    /// Keys of a layer with the new rows appended.
    PresentKey(u32),
    /// Values of a layer with the new rows appended.
    PresentValue(u32),
    /// Anything else; hidden rows of a layer kind.
    Other,
}

impl OutputRole {
    /// Whether it is what the model is there for, of which there is one.
    pub fn is_answer(&self) -> bool {
        matches!(self, OutputRole::Logits | OutputRole::Hidden)
    }
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

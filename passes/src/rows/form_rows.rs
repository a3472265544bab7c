//! Turns the imported graph into rows.
//!
//! Before:  v3: f32[1, sequence, 64] = linear ... ; v4 = reshape v3 ; v5 = transpose v4
//!          v9 = concat past, v7 ; v10 = matmul v5, v9 ; v11 = add v10, mask ; v12 = softmax v11 ; ...
//! After:   v3: f32[sequence, 64] = linear ... ; v4: f32[sequence, 4, 16] = reshape v3
//!          v8, present_key, present_value = causal_attention v4, v5, v6, past_key, past_value
//!
//! Needs: stage `Imported`; batch bound, floats widened, constants folded, products with weights,
//! norms and rotations recognised.
//! Gives: stage `Canonical` but for layer kinds: rows only, named attention, no masks, no
//! transpositions; rotary and other position-dependent values are tables.
//!
//! The graph is run once with layouts for values (`axes.rs`): each node says how its result follows
//! from its operands' layouts. Nodes that only move values leave no node behind. What has no meaning
//! in rows is reported with its place, all of it together.

use std::collections::HashMap;

use weir_ir::graph::{BodyResult, OutputRole, RotarySets};
use weir_ir::interpret::Interpreter;
use weir_ir::{
    Body, Const, Constant, DType, Graph, InputRole, Node, Op, Stage, Symbol, Table, TensorType,
    Value,
};

use super::axes::Factor;
use super::form::{Form, Keys, Past, Rows};
use crate::error::{PassError, Unsupported};
use crate::positional::Positional;
use crate::recognise::place;

/// The form of a node's first result, or why there is none.
pub(super) type Outcome = Result<Form, String>;

/// The new graph while it is made.
pub(super) struct Former<'g> {
    pub graph: &'g Graph,
    pub positional: Positional<'g>,
    pub interpreter: Interpreter<'g>,
    pub constants: Table<Const, Constant>,
    pub body: Body,
    pub origin: Option<String>,
    forms: HashMap<Value, Form>,
    reads: HashMap<Const, Value>,
    /// The numbers that were made for the new graph, by their bits.
    scalars: HashMap<u32, Const>,
    pub tables: HashMap<Value, Value>,
    pub tokens: Value,
    pub positions: Value,
    presents: HashMap<u32, [Value; 2]>,
    layers: u32,
    /// How the tables of angles are stacked, once there is one.
    pub sets: Option<RotarySets>,
}

/// Rewrites the graph; returns how many nodes went.
pub fn run(graph: &mut Graph, context: u32) -> Result<usize, PassError> {
    let mut former = Former::new(graph, context);
    let mut problems = Vec::new();
    for (node, data) in graph.main.live() {
        former.origin = data.origin.clone();
        let outcome = former.node(node);
        let form = outcome.unwrap_or_else(|message| {
            problems.push(Unsupported { place: place(&graph.main, node), message });
            Form::Unknown
        });
        for result in &data.results {
            former.forms.insert(*result, form.clone());
        }
    }
    if let Some(end) = former.positional.table_end() {
        return Err(PassError::Options(format!(
            "--context {context} is longer than the file's table of positions, which ends at {end}"
        )));
    }
    if problems.is_empty() {
        former.results(&mut problems);
    }
    if !problems.is_empty() {
        // A node that was imported as several ops says the same once.
        problems.dedup();
        return Err(PassError::Unsupported(problems));
    }
    let before = graph.main.order.len();
    let Former { constants, mut body, sets, .. } = former;
    body.remove_dead();
    graph.constants = constants;
    graph.main = body;
    graph.rotary = sets.unwrap_or_default();
    graph.stage = Stage::Canonical;
    Ok(before.saturating_sub(graph.main.order.len()))
}

impl<'g> Former<'g> {
    fn new(graph: &'g Graph, context: u32) -> Former<'g> {
        let mut body = Body::default();
        let row_type = TensorType::new(DType::I64, vec![Symbol::Sequence.into()]);
        let name = |name: &str| Some(name.to_owned());
        let tokens = body.param(InputRole::Tokens, row_type.clone(), None, name("tokens"));
        let positions = body.param(InputRole::Positions, row_type, None, name("positions"));
        let mut forms = HashMap::new();
        let mut layers = 0;
        for param in &graph.main.params {
            let form = match param.role {
                InputRole::Tokens => Form::Tokens,
                InputRole::PastKey(layer) | InputRole::PastValue(layer) => {
                    layers = layers.max(layer + 1);
                    past(graph, param.value, layer, matches!(param.role, InputRole::PastKey(_)))
                }
                _ => Form::Positional,
            };
            forms.insert(param.value, form);
        }
        Former {
            graph,
            positional: Positional::new(graph, context),
            interpreter: Interpreter::new(graph),
            constants: graph.constants.clone(),
            body,
            origin: None,
            forms,
            reads: HashMap::new(),
            scalars: HashMap::new(),
            tables: HashMap::new(),
            tokens,
            positions,
            presents: HashMap::new(),
            layers,
            sets: None,
        }
    }

    /// What an imported value is.
    pub fn form(&self, value: Value) -> Form {
        self.forms.get(&value).cloned().unwrap_or(Form::Unknown)
    }

    /// An imported value as rows.
    pub fn rows(&self, value: Value) -> Result<Rows, String> {
        match self.form(value) {
            Form::Rows(rows) => Ok(rows),
            _ => Err("an operand that is not rows of hidden values".into()),
        }
    }

    /// Reads a constant in the new graph, once.
    pub fn read(&mut self, constant: Const) -> Value {
        if let Some(value) = self.reads.get(&constant) {
            return *value;
        }
        let data = &self.constants[constant];
        let results = vec![(data.ty.clone(), None)];
        let read = Op::read_constant(constant);
        let value = self.body.push_typed(read, Vec::new(), results, Some(data.name.clone()))[0];
        self.reads.insert(constant, value);
        value
    }

    /// A new f32 vector constant.
    pub fn new_vector(&mut self, name: String, values: &[f32]) -> Result<Value, String> {
        let constant = self.constants.push(Constant::from_f32(name, &[values.len()], values));
        Ok(self.read(constant))
    }

    /// A new f32 number, once a number. A constant of the file is never taken for it: its name may be
    /// that of another number.
    pub fn new_scalar(&mut self, value: f32) -> Value {
        let constant = match self.scalars.get(&value.to_bits()) {
            Some(constant) => *constant,
            None => {
                let name = format!("{value}");
                let constant = self.constants.push(Constant::from_f32(name, &[], &[value]));
                self.scalars.insert(value.to_bits(), constant);
                constant
            }
        };
        self.read(constant)
    }

    /// The number behind a scalar that was made for the new graph.
    pub fn scalar_of_new(&self, value: Value) -> Option<f32> {
        let Op::ReadConstant(read) = &self.body.maker(value)?.op else { return None };
        let known = self.scalars.iter().find(|(_, constant)| **constant == read.constant);
        known.map(|(bits, _)| f32::from_bits(*bits))
    }

    /// The number in a constant of one element.
    pub fn scalar(&self, constant: Const) -> Option<f32> {
        if self.graph.constants.get(constant)?.ty.element_count() != Some(1) {
            return None;
        }
        self.interpreter.constant(constant).ok()?.f32s().ok()?.first().copied()
    }

    /// A parameter of the new graph, once a role.
    pub fn param(&mut self, role: InputRole, ty: TensorType) -> Value {
        match self.body.params.iter().find(|param| param.role == role) {
            Some(param) => param.value,
            None => self.body.param(role, ty, None, None),
        }
    }

    /// A number for the cache of a layer that has none in the file.
    pub fn next_layer(&mut self) -> u32 {
        self.layers += 1;
        self.layers - 1
    }

    /// Records an attention's keys and values with the new rows.
    pub fn present(&mut self, layer: u32, present: [Value; 2]) -> Result<(), String> {
        match self.presents.insert(layer, present) {
            None => Ok(()),
            Some(_) => Err(format!("a second attention reads the cache of layer {layer}")),
        }
    }

    fn node(&mut self, node: Node) -> Outcome {
        let graph = self.graph;
        let data = &graph.main.nodes[node];
        if data.operands.iter().any(|value| matches!(self.form(*value), Form::Unknown)) {
            return Ok(Form::Unknown);
        }
        if let Op::ReadConstant(read) = &data.op {
            return Ok(Form::Constant(read.constant));
        }
        if data.results.iter().all(|value| self.positional.contains(*value)) {
            return Ok(Form::Positional);
        }
        let form = self.translate(data)?;
        let axes = match &form {
            Form::Rows(rows) => Some(&rows.axes),
            Form::Keys(keys) => Some(&keys.axes),
            Form::Scores(scores) | Form::Weights(scores) => Some(&scores.query.axes),
            _ => None,
        };
        // What follows takes the dimensions of a value for those of its layout.
        if axes.is_some_and(|axes| axes.len() != graph.main.ty(data.results[0]).rank()) {
            return Err("values are laid out in a way that rows cannot follow".into());
        }
        Ok(form)
    }

    /// Sets the results of the new body.
    fn results(&mut self, problems: &mut Vec<Unsupported>) {
        let mut answer = None;
        for result in &self.graph.main.results {
            match result.role {
                OutputRole::Logits | OutputRole::Hidden => match self.form(result.value) {
                    Form::Rows(rows) if is_plain(&rows) => {
                        answer = Some(BodyResult { value: rows.value, role: result.role.clone() });
                    }
                    _ => problems.push(Unsupported {
                        place: match result.role {
                            OutputRole::Hidden => "output of hidden rows".into(),
                            _ => "output logits".into(),
                        },
                        message: "it is not a row of numbers per token".into(),
                    }),
                },
                OutputRole::PresentKey(layer) | OutputRole::PresentValue(layer) => {
                    let is_key = matches!(result.role, OutputRole::PresentKey(_));
                    if !self.is_present(result.value, layer, is_key) {
                        let name = &self.graph.main.values[result.value].name;
                        let name = name.clone().unwrap_or_else(|| result.value.to_string());
                        let what = if is_key { "keys" } else { "values" };
                        problems.push(Unsupported {
                            place: format!("output \"{name}\""),
                            message: format!(
                                "it is not layer {layer}'s past {what} followed by the new ones"
                            ),
                        });
                    }
                }
                OutputRole::Other => {}
            }
        }
        let Some(answer) = answer else {
            problems.push(Unsupported {
                place: "graph".into(),
                message: "no output holds logits or hidden rows".into(),
            });
            return;
        };
        self.body.results.push(answer);
        let mut layers: Vec<(u32, [Value; 2])> = self.presents.drain().collect();
        layers.sort_unstable();
        for (layer, [key, value]) in layers {
            self.body.results.push(BodyResult { value: key, role: OutputRole::PresentKey(layer) });
            let role = OutputRole::PresentValue(layer);
            self.body.results.push(BodyResult { value, role });
        }
    }

    /// Whether an output is the cache of a layer with the new rows, as they are.
    fn is_present(&self, value: Value, layer: u32, is_key: bool) -> bool {
        let Form::Keys(Keys { past, scale, .. }) = self.form(value) else { return false };
        scale == 1.0
            && past.is_none_or(|past| past.layer == layer && past.is_key == is_key)
            && self.presents.contains_key(&layer)
    }
}

/// Whether rows are laid out as `[.., rows, width]`, or `[.., width]` of the last row.
fn is_plain(rows: &Rows) -> bool {
    let Some((last, leading)) = rows.axes.split_last() else { return false };
    let whole = super::axes::stretch(last) == Some((rows.width, 1)) || rows.width == 1;
    whole && leading.iter().flatten().all(|factor| *factor == Factor::Rows)
}

fn past(graph: &Graph, value: Value, layer: u32, is_key: bool) -> Form {
    let shape = graph.main.shape(value);
    match shape {
        [_, heads, _, width] => match (heads.as_size(), width.as_size()) {
            (Some(heads), Some(width)) => Form::Past(Past { layer, is_key, heads, width }),
            _ => Form::Unknown,
        },
        _ => Form::Unknown,
    }
}

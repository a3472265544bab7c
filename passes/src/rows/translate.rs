//! One op of the imported graph in terms of rows; products, look-ups, norms and rotations here, what moves
//! values in `movement`, what computes with each number by itself in `elementwise`.

use weir_ir::graph::RotarySets;
use weir_ir::ops::{Embed, LayerNorm, Linear, RotaryRows};
use weir_ir::{Constant, DType, Dim, NodeData, Op, Symbol, Value};

use super::axes::{Factor, columns, pad, stretch};
use super::columns::shaped;
use super::form::{Form, Rows};
use super::form_rows::{Former, Outcome};
use crate::positional::row_axis;

impl Former<'_> {
    /// The result of a node whose operands are all known.
    pub(super) fn translate(&mut self, node: &NodeData) -> Outcome {
        let operands = node.operands.as_slice();
        match &node.op {
            Op::Cast(cast) => self.cast(operands[0], cast.to),
            Op::Reshape(_) | Op::Expand(_) | Op::Transpose(_) => self.relaid(node),
            Op::Slice(op) => self.slice(node, op),
            Op::Gather(gather) => self.gather(gather.axis, operands),
            Op::Concat(op) => self.concat(op.axis, operands),
            Op::UpdateSlice(update) => self.update(update.axis, &update.start, operands),
            Op::Embed(_) => self.embed(operands),
            Op::Linear(linear) => self.linear(linear, operands),
            Op::RmsNorm(_) | Op::LayerNorm(_) => self.norm(&node.op, operands),
            Op::Rotary(rotary) => self.rotary(rotary, operands),
            Op::Unary(unary) => self.unary(unary.op, operands[0]),
            Op::Binary(binary) => {
                let form = self.binary(binary.op, [operands[0], operands[1]])?;
                Ok(padded(form, self.rank(node.results[0])))
            }
            Op::Reduce(reduce) => self.reduce(reduce, operands[0]),
            Op::Select(_) => Ok(padded(self.select(operands)?, self.rank(node.results[0]))),
            Op::Softmax(softmax) => match self.form(operands[0]) {
                Form::Scores(scores) if softmax.axis + 1 == self.rank(operands[0]) => {
                    Ok(Form::Weights(scores))
                }
                _ => Err("a softmax that is not over attention scores".into()),
            },
            Op::MatMul(_) => match (self.form(operands[0]), self.form(operands[1])) {
                (Form::Weights(weights), form) => match self.as_keys(&form) {
                    Some(values) => self.weighted_values(&weights, &values),
                    None => Err("attention weights times something that is not values".into()),
                },
                (Form::Rows(query), form) => match self.as_keys(&form) {
                    Some(keys) => self.scores(&query, &keys),
                    None => Err("a product of rows with something that is not keys".into()),
                },
                _ => Err("a product that is neither with a weight nor attention".into()),
            },
            Op::Attention(attention) => self.attention_op(attention, operands),
            op => Err(format!("op {} has no meaning in rows of tokens", op.name())),
        }
    }

    pub(super) fn rank(&self, value: Value) -> usize {
        self.graph.main.ty(value).rank()
    }

    pub(super) fn is_integer(&self, value: Value) -> bool {
        self.graph.main.ty(value).dtype().is_some_and(DType::is_integer)
    }

    pub(super) fn unchanged(&self, value: Value) -> Outcome {
        Ok(self.form(value))
    }

    fn embed(&mut self, operands: &[Value]) -> Outcome {
        let (Form::Tokens, Form::Constant(table)) =
            (self.form(operands[0]), self.form(operands[1]))
        else {
            return Err("a look-up that is not of token ids in a table".into());
        };
        let width = self.constants[table].ty.shape[1].as_size().ok_or("a table without a width")?;
        let table = self.read(table);
        let embed = Embed { to: DType::F32 };
        let operands_new = vec![self.tokens, table];
        let value = self.push(embed.into(), operands_new)?;
        let mut axes = Vec::new();
        for dim in self.graph.main.shape(operands[0]) {
            let is_rows = *dim == Dim::symbol(Symbol::Sequence);
            axes.push(if is_rows { vec![Factor::Rows] } else { Vec::new() });
        }
        axes.push(columns(width, 1));
        Ok(Form::Rows(Rows { value, width, axes, last_only: false }))
    }

    fn linear(&mut self, op: &Linear, operands: &[Value]) -> Outcome {
        let mut rows = self.rows(operands[0])?;
        let Form::Constant(weight) = self.form(operands[1]) else {
            return Err("a weight that is not a constant".into());
        };
        let Some(last) = rows.axes.last().and_then(|axis| stretch(axis)) else {
            return Err("a product over columns that are not in order".into());
        };
        if last.0 != rows.width || (last.1 != 1 && rows.width > 1) {
            return Err("a product over part of a row".into());
        }
        let width =
            self.constants[weight].ty.shape[0].as_size().ok_or("a weight without a size")?;
        let value = shaped(&mut self.body, rows.value, &[rows.width]).map_err(text)?;
        let mut inputs = vec![value, self.read(weight)];
        if op.bias {
            inputs.push(self.vector(operands[2])?);
        }
        let linear = Linear { bias: op.bias, residual: false };
        rows.value = self.push(linear.into(), inputs)?;
        rows.width = width;
        if let Some(axis) = rows.axes.last_mut() {
            *axis = columns(width, 1);
        }
        Ok(Form::Rows(rows))
    }

    /// A norm over the last dimension.
    fn norm(&mut self, op: &Op, operands: &[Value]) -> Outcome {
        let mut rows = self.rows(operands[0])?;
        let width = innermost(&rows)?;
        let value = self.heads(&rows, width)?;
        let mut inputs = vec![value];
        for operand in &operands[1..] {
            inputs.push(self.vector(*operand)?);
        }
        let op = match op {
            Op::LayerNorm(norm) => Op::from(LayerNorm { bias: operands.len() > 2, ..norm.clone() }),
            other => other.clone(),
        };
        let value = self.push(op, inputs)?;
        rows.value = shaped(&mut self.body, value, &[rows.width]).map_err(text)?;
        Ok(Form::Rows(rows))
    }

    /// Rows as `[sequence, width]` if one stretch of `width` is all, else `[sequence, n, width]`.
    pub(super) fn heads(&mut self, rows: &Rows, width: usize) -> Result<Value, String> {
        let sizes = if width == rows.width { vec![width] } else { vec![rows.width / width, width] };
        shaped(&mut self.body, rows.value, &sizes).map_err(text)
    }

    fn rotary(&mut self, op: &weir_ir::ops::Rotary, operands: &[Value]) -> Outcome {
        let mut rows = self.rows(operands[0])?;
        let width = innermost(&rows)?;
        let half = (op.width / 2) as usize;
        let row_dimension = rows.axes.iter().position(|axis| *axis == [Factor::Rows]);
        let mut tables = Vec::new();
        for angle in &operands[1..3] {
            let own = row_axis(&self.graph.main, *angle)?;
            // Broadcast aligns dimensions from the right: the angles' rows must be the rows.
            let rank = self.rank(*angle);
            let aligned = own.is_none()
                || own.map(|axis| rank - axis) == row_dimension.map(|axis| rows.axes.len() - axis);
            if !aligned {
                return Err("angles that do not run along the rows".into());
            }
            let table = self.table(*angle, own, half)?;
            tables.push(table);
        }
        let value =
            shaped(&mut self.body, rows.value, &[rows.width / width, width]).map_err(text)?;
        let rotary = RotaryRows { width: op.width, interleaved: op.interleaved };
        let inputs = vec![value, self.positions, tables[0], tables[1]];
        let value = self.push(rotary.into(), inputs)?;
        rows.value = shaped(&mut self.body, value, &[rows.width]).map_err(text)?;
        Ok(Form::Rows(rows))
    }

    /// A positional value as a table constant, once a value.
    fn table(&mut self, value: Value, axis: Option<usize>, width: usize) -> Result<Value, String> {
        if let Some(table) = self.tables.get(&value) {
            return Ok(*table);
        }
        let table = self
            .positional
            .table(value, axis)
            .map_err(|error| format!("its values cannot be had for all positions: {error}"))?;
        if table.width != width {
            return Err(format!("{} values for a position, not {width}", table.width));
        }
        // A sequence chooses one set, by which it reads all tables.
        let sets = RotarySets { sets: table.sets, switch: table.switch };
        match self.sets.replace(sets) {
            Some(known) if known.sets != sets.sets => {
                return Err("some tables of angles switch at a length, others do not".into());
            }
            Some(known) if known != sets => {
                return Err("tables that switch at different lengths".into());
            }
            _ => {}
        }
        let rows = table.rows.len() / width.max(1);
        // Layers compute equal tables from separate nodes.
        let bytes: Vec<u8> = table.rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        let ty = weir_ir::TensorType::new(DType::F32, vec![rows.into(), width.into()]);
        let same = |constant: &Constant| {
            constant.ty == ty
                && matches!(&constant.data, weir_ir::ConstData::Dense { bytes: known, .. }
                    if known.as_ref() == bytes.as_slice())
        };
        let known = self.constants.iter().find(|(_, constant)| same(constant)).map(|(id, _)| id);
        let constant = match known {
            Some(constant) => constant,
            None => {
                let name = format!("positions {}", self.tables.len());
                self.constants.push(Constant::dense(name, ty, bytes.into()))
            }
        };
        let read = self.read(constant);
        self.tables.insert(value, read);
        Ok(read)
    }

    pub(super) fn push(&mut self, op: Op, operands: Vec<Value>) -> Result<Value, String> {
        let origin = self.origin.clone();
        self.body.push1(op, operands, origin).map_err(text)
    }
}

/// The result of an op that broadcasts, whose rank may be that of another operand.
fn padded(mut form: Form, rank: usize) -> Form {
    match &mut form {
        Form::Rows(rows) => pad(&mut rows.axes, rank),
        Form::Keys(keys) => pad(&mut keys.axes, rank),
        Form::Scores(scores) | Form::Weights(scores) => pad(&mut scores.query.axes, rank),
        _ => {}
    }
    form
}

/// A type rule refused what this pass wrote: our bug, shown with its place.
pub(super) fn text(error: weir_ir::ops::TypeError) -> String {
    format!("internal error: {error}")
}

/// Size of the last dimension, which must walk neighbouring columns.
pub(super) fn innermost(rows: &Rows) -> Result<usize, String> {
    match rows.axes.last().and_then(|axis| stretch(axis)) {
        Some((width, stride))
            if width > 0 && (stride == 1 || width == 1) && rows.width.is_multiple_of(width) =>
        {
            Ok(width)
        }
        _ => Err("the last dimension is not a run of columns".into()),
    }
}

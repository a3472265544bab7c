//! One op of the imported graph in terms of rows.

use weir_ir::graph::RotarySets;
use weir_ir::ops::binary::{Binary, BinaryOp};
use weir_ir::ops::reduce::Reduce;
use weir_ir::ops::unary::{Unary, UnaryOp};
use weir_ir::ops::{Cast, Embed, LayerNorm, Linear, RotaryRows, TableRows};
use weir_ir::{Const, Constant, DType, Dim, NodeData, Op, Symbol, Value};

use super::axes::{Axis, Factor, axis_size, columns, expanded, pad, reshaped, stretch};
use super::columns::{column_indices, concat, shaped, slice, unrepeated};
use super::form::{Form, Keys, Rows, Scores};
use super::form_rows::{Former, Outcome};
use crate::positional::row_axis;

/// Ops between a rounding and the cast of its result that are looked through: more than any exporter
/// writes.
const MAX_CHAIN: usize = 16;

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

    fn rank(&self, value: Value) -> usize {
        self.graph.main.ty(value).rank()
    }

    fn is_integer(&self, value: Value) -> bool {
        self.graph.main.ty(value).dtype().is_some_and(DType::is_integer)
    }

    fn unchanged(&self, value: Value) -> Outcome {
        Ok(self.form(value))
    }

    /// Another element type. All numbers of rows are f32 in the new graph, so that nothing is left of
    /// a cast to a type that holds the same numbers; truth values become 0 and 1.
    fn cast(&mut self, operand: Value, to: DType) -> Outcome {
        let from = self.graph.main.ty(operand).dtype().ok_or("a cast of quantised values")?;
        let wide = to.is_float() || matches!(to, DType::I32 | DType::I64);
        match self.form(operand) {
            form if from == to || from.is_float() && to.is_float() => Ok(form),
            form if from.is_integer() && wide => Ok(form),
            Form::Rows(mut rows) if from == DType::Bool && wide => {
                rows.value = self.push(Cast { to: DType::F32 }.into(), vec![rows.value])?;
                Ok(Form::Rows(rows))
            }
            Form::Rows(rows) if from.is_float() && to.is_integer() && self.is_whole(rows.value) => {
                Ok(Form::Rows(rows))
            }
            _ => Err(format!("a cast of {from} to {to}, which loses what it cannot hold")),
        }
    }

    /// Whether a value of the new graph was rounded to whole numbers, as exporters do that quantise
    /// activations: the bounds of the codes and a zero point stand behind the rounding.
    fn is_whole(&self, value: Value) -> bool {
        let mut value = value;
        for _ in 0..MAX_CHAIN {
            let Some(node) = self.body.maker(value) else { return false };
            match (&node.op, node.operands.as_slice()) {
                (Op::Unary(Unary { op: UnaryOp::Round | UnaryOp::Floor | UnaryOp::Ceil }), _) => {
                    return true;
                }
                (Op::Reshape(_), [inner]) => value = *inner,
                (
                    Op::Binary(Binary {
                        op: BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max,
                    }),
                    [a, b],
                ) => {
                    let number = self.scalar_of_new(*b).map(|number| (number, *a));
                    let number = number.or_else(|| Some((self.scalar_of_new(*a)?, *b)));
                    let Some((number, inner)) = number else { return false };
                    if number.fract() != 0.0 {
                        return false;
                    }
                    value = inner;
                }
                _ => return false,
            }
        }
        false
    }

    /// A value in another layout.
    fn relaid(&self, node: &NodeData) -> Outcome {
        let failed = || "values are laid out in a way that rows cannot follow".to_owned();
        match self.form(node.operands[0]) {
            Form::Rows(mut rows) => {
                rows.axes = relay(&node.op, &rows.axes, 0).ok_or_else(failed)?;
                Ok(Form::Rows(rows))
            }
            Form::Keys(mut keys) => {
                keys.axes = relay(&node.op, &keys.axes, 0).ok_or_else(failed)?;
                Ok(Form::Keys(keys))
            }
            Form::Scores(scores) => Ok(Form::Scores(self.relaid_scores(node, scores)?)),
            Form::Weights(weights) => Ok(Form::Weights(self.relaid_scores(node, weights)?)),
            // Token ids have no layout to speak of: unit dimensions come and go.
            Form::Tokens => Ok(Form::Tokens),
            _ => Err(failed()),
        }
    }

    /// Scores whose leading dimensions, which are their queries', have another layout. The last two
    /// stay: no op behind tells a row of queries from one of keys.
    fn relaid_scores(&self, node: &NodeData, mut scores: Scores) -> Result<Scores, String> {
        let last_two = |value: Value| {
            let shape = self.graph.main.shape(value);
            shape.len().checked_sub(2).map(|leading| &shape[leading..])
        };
        let rank = self.rank(node.operands[0]);
        let stays = last_two(node.operands[0]).is_some()
            && last_two(node.operands[0]) == last_two(node.results[0])
            && match &node.op {
                Op::Transpose(transpose) => transpose.order.ends_with(&[rank - 2, rank - 1]),
                _ => true,
            };
        if !stays {
            return Err("the queries and keys of scores change places or sizes".into());
        }
        let axes = &scores.query.axes;
        let (leading, last) = axes.split_at(axes.len().saturating_sub(2));
        let relaid = relay(&node.op, leading, 2)
            .filter(|axes| !axes.iter().flatten().any(|f| matches!(f, Factor::Repeat(_))))
            .ok_or("scores are laid out in a way that rows cannot follow")?;
        scores.query.axes = [relaid.as_slice(), last].concat();
        Ok(scores)
    }

    fn slice(&mut self, node: &NodeData, op: &weir_ir::ops::Slice) -> Outcome {
        let operand = node.operands[0];
        let whole = self.graph.main.shape(operand)[op.axis].clone();
        if op.start == Dim::number(0) && op.step == 1 && op.length == whole {
            return self.unchanged(operand);
        }
        match self.form(operand) {
            Form::Rows(mut rows) => {
                if rows.axes[op.axis] == [Factor::Rows] {
                    let last = Dim::symbol(Symbol::Sequence).minus(&Dim::number(1));
                    if op.length != Dim::number(1) || Some(&op.start) != last.as_ref() {
                        return Err("rows other than the last are picked".into());
                    }
                    rows.axes[op.axis] = Vec::new();
                    rows.last_only = true;
                    return Ok(Form::Rows(rows));
                }
                let (Some(start), Some(length), 1) =
                    (op.start.as_size(), op.length.as_size(), op.step)
                else {
                    return Err("a slice of columns with a step or an unknown place".into());
                };
                self.cut(&rows, op.axis, start, length)
            }
            // A cache of fixed length: its first `past + sequence` rows are those that were written.
            Form::Keys(keys) if keys.axes[op.axis] == [Factor::Total] => {
                let all = op.start == Dim::number(0) && op.step == 1 && op.length == Dim::total();
                if all { Ok(Form::Keys(keys)) } else { Err("some of the keys are cut off".into()) }
            }
            _ => Err("a slice of something that is not rows".into()),
        }
    }

    fn cut(&mut self, rows: &Rows, axis: usize, start: usize, length: usize) -> Outcome {
        match slice(&mut self.body, rows, axis, start, length) {
            Ok(Some(rows)) => Ok(Form::Rows(rows)),
            Ok(None) => Err("a slice across the columns of several dimensions".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Picks the last row, or an entry of a dimension over columns.
    fn gather(&mut self, axis: usize, operands: &[Value]) -> Outcome {
        let Form::Rows(mut rows) = self.form(operands[0]) else {
            return Err("a look-up in something that is not rows".into());
        };
        let Form::Constant(index) = self.form(operands[1]) else {
            return Err("a look-up whose indices are computed".into());
        };
        let rank = self.rank(operands[1]);
        let indices = self.constants[index].small_integers(1).filter(|indices| indices.len() == 1);
        let (Some(indices), true) = (indices, rank <= 1) else {
            return Err("a look-up of several entries of a row".into());
        };
        let index = indices[0];
        let is_row = rows.axes[axis] == [Factor::Rows];
        let mut rows = if is_row {
            if index != -1 {
                return Err("rows other than the last are picked".into());
            }
            rows.axes[axis] = Vec::new();
            rows.last_only = true;
            rows
        } else {
            let size = stretch(&rows.axes[axis]).map_or(0, |(size, _)| size) as i64;
            let start = if index < 0 { index + size } else { index };
            let Some(start) = usize::try_from(start).ok().filter(|start| (*start as i64) < size)
            else {
                return Err(format!("index {index} of {size} entries"));
            };
            match self.cut(&rows, axis, start, 1)? {
                Form::Rows(rows) => rows,
                form => return Ok(form),
            }
        };
        if rank == 0 {
            rows.axes.remove(axis);
        }
        Ok(Form::Rows(rows))
    }

    fn concat(&mut self, axis: usize, operands: &[Value]) -> Outcome {
        // Partial rotations that turn whole heads join them with no columns at all.
        let none = Dim::number(0);
        let is_empty = |value: &Value| self.graph.main.shape(*value)[axis] == none;
        let operands: Vec<Value> = operands.iter().copied().filter(|v| !is_empty(v)).collect();
        if let [only] = operands.as_slice() {
            return self.unchanged(*only);
        }
        let forms: Vec<Form> = operands.iter().map(|value| self.form(*value)).collect();
        if let [Form::Past(past), Form::Rows(new)] = forms.as_slice() {
            // Some files keep a row for every query head, though neighbours share theirs.
            let new = match unrepeated(&mut self.body, new).map_err(text)? {
                Some(new) => new,
                None => {
                    return Err("new rows repeat columns in a way that cannot be written".into());
                }
            };
            let known = new.axes.len() == 4
                && axis == 2
                && stretch(&new.axes[1]) == Some((past.heads, past.width))
                || past.heads == 1;
            let plain = new.axes.len() == 4
                && new.axes[2] == [Factor::Rows]
                && (stretch(&new.axes[3]) == Some((past.width, 1)) || past.width == 1);
            if !known || !plain || axis != 2 || new.width != past.heads * past.width {
                return Err("new rows do not follow the past ones in their layout".into());
            }
            let mut axes = new.axes.clone();
            axes[2] = vec![Factor::Total];
            return Ok(Form::Keys(Keys {
                past: Some(past.clone()),
                new: new.value,
                row_width: new.width,
                axes,
                scale: 1.0,
            }));
        }
        let mut parts = Vec::new();
        for form in forms {
            let Form::Rows(rows) = form else {
                return Err("rows are joined with something else".into());
            };
            parts.push(rows);
        }
        match concat(&mut self.body, &parts, axis) {
            Ok(Some(rows)) => Ok(Form::Rows(rows)),
            Ok(None) => Err("rows of different layouts are joined".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// New rows written into a cache of fixed length behind the past ones.
    fn update(&mut self, axis: usize, start: &Dim, operands: &[Value]) -> Outcome {
        if *start != Dim::symbol(Symbol::Past) {
            return Err(format!("rows are written at {start}, not behind the past ones"));
        }
        self.concat(axis, operands)
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
    fn heads(&mut self, rows: &Rows, width: usize) -> Result<Value, String> {
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

    fn unary(&mut self, op: UnaryOp, operand: Value) -> Outcome {
        match (op, self.form(operand)) {
            (_, Form::Rows(mut rows)) => {
                rows.value = self.push(Unary { op }.into(), vec![rows.value])?;
                Ok(Form::Rows(rows))
            }
            (UnaryOp::IsNan, Form::Weights(_)) => Ok(Form::WeightsAreNan),
            (UnaryOp::Tanh, Form::Scores(mut scores))
                if scores.softcap == 0.0 && !scores.squashed =>
            {
                scores.squashed = true;
                Ok(Form::Scores(scores))
            }
            (op, _) => Err(format!("{} of something that is not rows", op.name())),
        }
    }

    fn binary(&mut self, op: BinaryOp, operands: [Value; 2]) -> Outcome {
        let forms = operands.map(|value| self.form(value));
        match &forms {
            // Those of the new graph would not truncate.
            [Form::Rows(_), Form::Rows(_)]
                if op == BinaryOp::Div && self.is_integer(operands[0]) =>
            {
                Err("a division of integers that depend on tokens".into())
            }
            [Form::Rows(a), Form::Rows(b)] => self.both_rows(op, a, b),
            [Form::Rows(rows), Form::Constant(constant)] => {
                let other = self.column_constant(rows, operands[1], *constant)?;
                self.with_other(op, rows, other, false)
            }
            [Form::Constant(constant), Form::Rows(rows)] => {
                let other = self.column_constant(rows, operands[0], *constant)?;
                self.with_other(op, rows, other, true)
            }
            [Form::Rows(rows), Form::Positional] => {
                let other = self.column_table(rows, operands[1])?;
                self.with_other(op, rows, other, false)
            }
            [Form::Positional, Form::Rows(rows)] => {
                let other = self.column_table(rows, operands[0])?;
                self.with_other(op, rows, other, true)
            }
            [Form::Keys(keys), Form::Constant(constant)]
            | [Form::Constant(constant), Form::Keys(keys)] => {
                let factor = self.scalar(*constant).ok_or("keys and a tensor")?;
                let mut keys = keys.clone();
                match op {
                    BinaryOp::Mul => keys.scale *= factor,
                    BinaryOp::Div if matches!(forms[0], Form::Keys(_)) => keys.scale /= factor,
                    _ => return Err(format!("{} of keys", op.name())),
                }
                Ok(Form::Keys(keys))
            }
            [Form::Scores(scores), Form::Constant(constant)]
            | [Form::Constant(constant), Form::Scores(scores)] => {
                let number = self.scalar(*constant).ok_or("scores and a constant tensor")?;
                if op == BinaryOp::Div && !matches!(forms[0], Form::Scores(_)) {
                    return Err("a number divided by scores".into());
                }
                if op == BinaryOp::Add && number == 0.0 {
                    return Ok(Form::Scores(scores.clone()));
                }
                self.scaled_scores(scores, op, number)
            }
            [Form::Scores(scores), Form::Positional] if op == BinaryOp::Add => {
                self.masked_scores(scores, operands[1])
            }
            [Form::Positional, Form::Scores(scores)] if op == BinaryOp::Add => {
                self.masked_scores(scores, operands[0])
            }
            _ => Err(format!("{} of values that have no common meaning in rows", op.name())),
        }
    }

    fn both_rows(&mut self, op: BinaryOp, a: &Rows, b: &Rows) -> Outcome {
        let last_only = a.last_only || b.last_only;
        let layout = |rows: &Rows| {
            let rank = a.axes.len().max(b.axes.len());
            let mut axes = vec![Vec::new(); rank - rows.axes.len()];
            axes.extend(rows.axes.iter().cloned());
            axes
        };
        let (left, right) = (layout(a), layout(b));
        if left == right && a.width == b.width {
            let value = self.push(Binary { op }.into(), vec![a.value, b.value])?;
            return Ok(Form::Rows(Rows { value, width: a.width, axes: left, last_only }));
        }
        // One value per head, or per row, against whole rows.
        let (wide, narrow) = if a.width >= b.width { (a, b) } else { (b, a) };
        let width = innermost(wide)?;
        if narrow.width * width != wide.width {
            return Err(format!("{} of rows with different layouts", op.name()));
        }
        let (wide_axes, narrow_axes) = (layout(wide), layout(narrow));
        let rank = wide_axes.len();
        for (index, (own, other)) in wide_axes.iter().zip(&narrow_axes).enumerate() {
            let expected = match (index + 1 == rank, stretch(own)) {
                (true, _) => Vec::new(),
                (false, Some((size, stride))) if size > 1 => columns(size, stride / width),
                _ => own.clone(),
            };
            if *other != expected {
                return Err(format!("{} of rows with different layouts", op.name()));
            }
        }
        let count = wide.width / width;
        let wide_value = shaped(&mut self.body, wide.value, &[count, width]).map_err(text)?;
        let narrow_value = shaped(&mut self.body, narrow.value, &[count, 1]).map_err(text)?;
        let values = if a.width >= b.width {
            vec![wide_value, narrow_value]
        } else {
            vec![narrow_value, wide_value]
        };
        let value = self.push(Binary { op }.into(), values)?;
        let value = shaped(&mut self.body, value, &[wide.width]).map_err(text)?;
        Ok(Form::Rows(Rows { value, width: wide.width, axes: wide_axes, last_only }))
    }

    fn with_other(&mut self, op: BinaryOp, rows: &Rows, other: Value, first: bool) -> Outcome {
        let mut rows = rows.clone();
        let operands = if first { vec![other, rows.value] } else { vec![rows.value, other] };
        rows.value = self.push(Binary { op }.into(), operands)?;
        Ok(Form::Rows(rows))
    }

    /// A constant that is broadcast to rows: a number, or a value for every column.
    fn column_constant(
        &mut self,
        rows: &Rows,
        imported: Value,
        constant: Const,
    ) -> Result<Value, String> {
        if let Some(number) = self.scalar(constant) {
            return Ok(self.new_scalar(number));
        }
        let shape = self.graph.main.ty(imported).sizes().ok_or("a constant without sizes")?;
        let tensor = self.interpreter.constant(constant).map_err(|error| error.to_string())?;
        let values = tensor.f32s().map_err(|error| error.to_string())?;
        let spread = spread(rows, &shape, &values)?;
        let name = self.constants[constant].name.clone();
        if spread == *values
            && shape.len() == 1
            && self.constants[constant].ty.dtype() == Some(DType::F32)
        {
            return Ok(self.read(constant));
        }
        self.new_vector(name, &spread)
    }

    /// A value for every column that depends on the position.
    fn column_table(&mut self, rows: &Rows, value: Value) -> Result<Value, String> {
        let axis = row_axis(&self.graph.main, value)?;
        let rank = self.rank(value);
        let row_dimension = rows.axes.iter().position(|axis| *axis == [Factor::Rows]);
        if axis.map(|axis| rank - axis) != row_dimension.map(|axis| rows.axes.len() - axis) {
            return Err("values that do not run along the rows".into());
        }
        let table = self.positional.table(value, axis)?;
        if table.sets > 1 {
            return Err("values that change with the length of the sequence".into());
        }
        let mut shape: Vec<usize> = Vec::new();
        for (index, dim) in self.graph.main.shape(value).iter().enumerate() {
            shape.push(if Some(index) == axis { 1 } else { dim.as_size().unwrap_or(1) });
        }
        let mut wide = Vec::with_capacity(table.rows.len() / table.width.max(1) * rows.width);
        for row in table.rows.chunks_exact(table.width.max(1)) {
            wide.extend(spread(rows, &shape, row)?);
        }
        let count = wide.len() / rows.width.max(1);
        let name = format!("positions {}", self.tables.len());
        let constant = Constant::from_f32(name, &[count, rows.width], &wide);
        let constant = self.constants.push(constant);
        let table = self.read(constant);
        let operands = vec![self.positions, table];
        self.push(TableRows {}.into(), operands)
    }

    fn reduce(&mut self, reduce: &Reduce, operand: Value) -> Outcome {
        let mut rows = self.rows(operand)?;
        let last = rows.axes.len().saturating_sub(1);
        if reduce.axes != [last] {
            return Err("a reduction that is not over the last dimension".into());
        }
        let width = innermost(&rows)?;
        let value = self.heads(&rows, width)?;
        let axis = if width == rows.width { 1 } else { 2 };
        let op = Reduce { op: reduce.op, axes: vec![axis], keep: true };
        let value = self.push(op.into(), vec![value])?;
        let mut axes = Vec::new();
        for (index, axis) in rows.axes.iter().enumerate() {
            match stretch(axis) {
                _ if index == last => {
                    if reduce.keep {
                        axes.push(Vec::new());
                    }
                }
                Some((size, stride)) if size > 1 => axes.push(columns(size, stride / width)),
                _ => axes.push(axis.clone()),
            }
        }
        rows.width /= width;
        rows.axes = axes;
        rows.value = shaped(&mut self.body, value, &[rows.width]).map_err(text)?;
        Ok(Form::Rows(rows))
    }

    /// A guard against rows without keys, or a mask that replaces scores.
    fn select(&mut self, operands: &[Value]) -> Outcome {
        let [condition, a, b] = [0, 1, 2].map(|index| self.form(operands[index]));
        match (condition, a, b) {
            (Form::WeightsAreNan, _, Form::Weights(weights)) => Ok(Form::Weights(weights)),
            (Form::Positional, Form::Scores(scores), Form::Constant(fill))
                if self.scalar(fill).is_some_and(|fill| fill <= -1e4) =>
            {
                self.masked_scores(&scores, operands[0])
            }
            _ => Err("a choice between values that is no mask".into()),
        }
    }

    fn push(&mut self, op: Op, operands: Vec<Value>) -> Result<Value, String> {
        let origin = self.origin.clone();
        self.body.push1(op, operands, origin).map_err(text)
    }
}

/// The axes behind a reshape, an expansion or a transposition of a tensor whose last `kept` dimensions
/// stay and are not among them.
fn relay(op: &Op, axes: &[Axis], kept: usize) -> Option<Vec<Axis>> {
    fn leading<T>(all: &[T], kept: usize) -> Option<&[T]> {
        all.get(..all.len().checked_sub(kept)?)
    }
    match op {
        Op::Reshape(reshape) => reshaped(axes, leading(&reshape.shape, kept)?),
        Op::Expand(expand) => expanded(axes, leading(&expand.shape, kept)?),
        Op::Transpose(transpose) => {
            let order = leading(&transpose.order, kept)?;
            order.iter().map(|axis| axes.get(*axis).cloned()).collect()
        }
        _ => None,
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
fn innermost(rows: &Rows) -> Result<usize, String> {
    match rows.axes.last().and_then(|axis| stretch(axis)) {
        Some((width, stride))
            if width > 0 && (stride == 1 || width == 1) && rows.width.is_multiple_of(width) =>
        {
            Ok(width)
        }
        _ => Err("the last dimension is not a run of columns".into()),
    }
}

/// Values of a tensor that broadcasts to rows, one per column.
fn spread(rows: &Rows, shape: &[usize], values: &[f32]) -> Result<Vec<f32>, String> {
    let skipped = rows.axes.len().checked_sub(shape.len()).ok_or("a tensor of higher rank")?;
    for (axis, size) in rows.axes[skipped..].iter().zip(shape) {
        let own = axis_size(axis).and_then(|size| size.as_size());
        // A repeated column is there once, and has one value.
        if *size != 1 && axis.iter().any(|factor| matches!(factor, Factor::Repeat(_))) {
            return Err("a tensor that varies along repeated columns".into());
        }
        if *size != 1 && own != Some(*size) {
            return Err("a tensor that does not broadcast to the columns of a row".into());
        }
    }
    let indices = column_indices(rows);
    Ok(indices
        .iter()
        .map(|index| {
            let mut place = 0;
            for (size, index) in shape.iter().zip(&index[skipped..]) {
                place = place * size + if *size == 1 { 0 } else { *index };
            }
            values[place]
        })
        .collect())
}

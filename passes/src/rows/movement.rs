//! Ops that move values: to another layout, to fewer or more columns.

use weir_ir::{Dim, NodeData, Op, Symbol, Value};

use super::axes::{Axis, Factor, expanded, reshaped, stretch};
use super::columns::{concat, slice, unrepeated};
use super::form::{Form, Keys, Rows, Scores};
use super::form_rows::{Former, Outcome};
use super::translate::text;

impl Former<'_> {
    /// A value in another layout.
    pub(super) fn relaid(&self, node: &NodeData) -> Outcome {
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

    pub(super) fn slice(&mut self, node: &NodeData, op: &weir_ir::ops::Slice) -> Outcome {
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
    pub(super) fn gather(&mut self, axis: usize, operands: &[Value]) -> Outcome {
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

    pub(super) fn concat(&mut self, axis: usize, operands: &[Value]) -> Outcome {
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
    pub(super) fn update(&mut self, axis: usize, start: &Dim, operands: &[Value]) -> Outcome {
        if *start != Dim::symbol(Symbol::Past) {
            return Err(format!("rows are written at {start}, not behind the past ones"));
        }
        self.concat(axis, operands)
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

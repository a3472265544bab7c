//! Ops on each number by itself, with numbers, columns or other rows beside it, and reductions over columns.

use weir_ir::ops::binary::{Binary, BinaryOp};
use weir_ir::ops::reduce::Reduce;
use weir_ir::ops::unary::{Unary, UnaryOp};
use weir_ir::ops::{Cast, TableRows};
use weir_ir::{Const, Constant, DType, Op, Value};

use super::axes::{Factor, axis_size, columns, stretch};
use super::columns::{column_indices, shaped};
use super::form::{Form, Rows};
use super::form_rows::{Former, Outcome};
use super::translate::{innermost, text};
use crate::positional::row_axis;

/// Ops between a rounding and the cast of its result that are looked through: more than any exporter
/// writes.
const MAX_CHAIN: usize = 16;

impl Former<'_> {
    /// Another element type. All numbers of rows are f32 in the new graph, so that nothing is left of
    /// a cast to a type that holds the same numbers; truth values become 0 and 1.
    pub(super) fn cast(&mut self, operand: Value, to: DType) -> Outcome {
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

    pub(super) fn unary(&mut self, op: UnaryOp, operand: Value) -> Outcome {
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

    pub(super) fn binary(&mut self, op: BinaryOp, operands: [Value; 2]) -> Outcome {
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
    pub(super) fn column_constant(
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
    pub(super) fn column_table(&mut self, rows: &Rows, value: Value) -> Result<Value, String> {
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

    pub(super) fn reduce(&mut self, reduce: &Reduce, operand: Value) -> Outcome {
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
    pub(super) fn select(&mut self, operands: &[Value]) -> Outcome {
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

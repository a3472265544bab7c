//! Attention as exporters spell it: products of queries with past and new keys, scaled, capped,
//! masked, normalised, and their products with values.

use weir_ir::interpret::Interpreter;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{CausalAttention, Reshape};
use weir_ir::{Const, DType, Dim, InputRole, Op, Symbol, TensorType, Value};

use super::axes::{Axis, Factor, axis_size, columns, merged, pad, stretch};
use super::columns::shaped;
use super::form::{Form, Keys, Past, Rows, Scores};
use super::form_rows::{Former, Outcome};
use super::translate::text;

/// Columns of a query's leading dimensions: heads, if they run over whole heads in order.
fn heads_of(leading: &[Axis], width: usize) -> Option<usize> {
    match merged(leading.iter().flatten().cloned()).as_slice() {
        [] => Some(1),
        [Factor::Columns { size, stride }] if *stride == width => Some(*size),
        _ => None,
    }
}

/// Heads in a row, with the leading dimensions of its layout.
struct Heads<'a> {
    leading: &'a [Axis],
    count: usize,
    width: usize,
}

impl<'a> Heads<'a> {
    fn new(axes: &'a [Axis], row_width: usize, width: usize) -> Option<Heads<'a>> {
        let leading = axes.get(..axes.len().checked_sub(2)?)?;
        let count = row_width.checked_div(width)?;
        (count > 0 && count * width == row_width).then_some(Heads { leading, count, width })
    }

    /// Whether query heads share these in consecutive groups, as the kernel reads them. A product
    /// broadcasts the leading dimensions; which head meets a query head depends on where the repeated
    /// dimension stands, so every pair is looked at.
    fn are_shared_in_groups_by(&self, query: &Heads<'_>) -> bool {
        let sizes = query.leading.iter().map(|axis| axis_size(axis)?.as_size());
        let Some(sizes) = sizes.collect::<Option<Vec<_>>>() else { return false };
        let columns = |heads: &Heads<'_>| broadcast_columns(heads.leading, &sizes);
        let (Some(own), Some(theirs)) = (columns(self), columns(query)) else { return false };
        let group = query.count / self.count;
        query.count.is_multiple_of(self.count)
            && own
                .iter()
                .zip(&theirs)
                .all(|(own, theirs)| *own == theirs / query.width / group * self.width)
    }
}

/// The first column at every index of dimensions `sizes`, to which leading dimensions are broadcast;
/// `None` if those are others.
fn broadcast_columns(leading: &[Axis], sizes: &[usize]) -> Option<Vec<usize>> {
    let (added, outer) = match leading.len().checked_sub(sizes.len()) {
        Some(outer) => (0, outer),
        None => (sizes.len() - leading.len(), 0),
    };
    let (outside, leading) = leading.split_at(outer);
    if outside.iter().any(|axis| axis_size(axis).is_none_or(|size| size != Dim::number(1))) {
        return None;
    }
    let mut columns = vec![0];
    for (index, size) in sizes.iter().enumerate() {
        let axis = index.checked_sub(added).map_or(&[][..], |index| &leading[index]);
        let own = axis_size(axis)?.as_size()?;
        if own == 1 {
            columns = columns.iter().flat_map(|column| vec![*column; *size]).collect();
            continue;
        }
        if own != *size {
            return None;
        }
        for factor in axis {
            let (size, stride) = match factor {
                Factor::Columns { size, stride } => (*size, *stride),
                Factor::Repeat(size) => (*size, 0),
                Factor::Rows | Factor::Total => return None,
            };
            let walk = |column: &usize| {
                let column = *column;
                (0..size).map(move |index| column + index * stride)
            };
            columns = columns.iter().flat_map(walk).collect();
        }
    }
    Some(columns)
}

/// Least factor of masked scores: the -10000 of some exporters then still is below -150, and no f32
/// is as small as exp(-150).
const MASKED_SCALE: f32 = 1.0 / 64.0;

impl Former<'_> {
    /// Keys for a product: appended rows, or rows of a model without a cache.
    pub(super) fn as_keys(&self, form: &Form) -> Option<Keys> {
        match form {
            Form::Keys(keys) => Some(keys.clone()),
            Form::Rows(rows) => {
                let axes = rows.axes.iter().map(|axis| {
                    let swap = |factor: &Factor| match factor {
                        Factor::Rows => Factor::Total,
                        other => other.clone(),
                    };
                    axis.iter().map(swap).collect()
                });
                Some(Keys {
                    past: None,
                    new: rows.value,
                    row_width: rows.width,
                    axes: axes.collect(),
                    scale: 1.0,
                })
            }
            _ => None,
        }
    }

    /// `query [.., S, D] * key [.., D, T]`.
    pub(super) fn scores(&mut self, query: &Rows, keys: &Keys) -> Outcome {
        let rank = query.axes.len();
        let (true, Some(width)) = (rank >= 2, query.axes.last().and_then(|axis| stretch(axis)))
        else {
            return Err("queries without a head dimension".into());
        };
        let (width, leading) = (width.0, &query.axes[..rank - 2]);
        let heads = heads_of(leading, width)
            .filter(|heads| query.width > 0 && heads * width == query.width);
        let key_rank = keys.axes.len();
        let laid_out = key_rank >= 2
            && query.axes[rank - 2] == [Factor::Rows]
            && keys.axes[key_rank - 1] == [Factor::Total]
            && stretch(&keys.axes[key_rank - 2])
                .is_some_and(|found| found == (width, 1) || width == 1);
        let (Some(heads), true) = (heads, laid_out) else {
            return Err("a product of rows with rows that is not queries with keys".into());
        };
        let shares = Heads::new(&query.axes, query.width, width)
            .zip(Heads::new(&keys.axes, keys.row_width, width))
            .is_some_and(|(heads, shared)| shared.are_shared_in_groups_by(&heads));
        if !shares {
            return Err("query heads do not share key heads in consecutive groups".into());
        }
        let (mut query, scale) = self.unscaled(query);
        pad(&mut query.axes, key_rank);
        Ok(Form::Scores(Scores {
            query,
            scale: scale * keys.scale,
            keys: keys.clone(),
            heads,
            softcap: 0.0,
            squashed: false,
            mask: None,
        }))
    }

    /// A query before it was multiplied by a number, and the number.
    fn unscaled(&self, query: &Rows) -> (Rows, f32) {
        let mut query = query.clone();
        let mut scale = 1.0;
        while let Some(node) = self.body.maker(query.value) {
            let Op::Binary(binary) = &node.op else { break };
            let factor = self.scalar_of_new(node.operands[1]);
            let Some(factor) = factor else { break };
            match binary.op {
                BinaryOp::Mul => scale *= factor,
                BinaryOp::Div => scale /= factor,
                _ => break,
            }
            query.value = node.operands[0];
        }
        (query, scale)
    }

    /// Scores after an elementwise op with a number.
    pub(super) fn scaled_scores(&self, scores: &Scores, op: BinaryOp, number: f32) -> Outcome {
        let mut scores = scores.clone();
        let factor = match op {
            BinaryOp::Mul => number,
            BinaryOp::Div => 1.0 / number,
            _ => return Err(format!("{} of scores with a number", op.name())),
        };
        // Masked scores stay what they are if they stay far below all others.
        let kept = factor >= MASKED_SCALE && !scores.squashed && scores.softcap == 0.0;
        if scores.mask.is_some() && !kept {
            return Err("scores are scaled behind their mask".into());
        }
        if scores.squashed {
            // tanh(scale * s) * c, which the cap spells c * tanh(scale' * s / c).
            scores.softcap = factor;
            scores.scale *= factor;
            scores.squashed = false;
        } else if scores.softcap != 0.0 {
            return Err("scores are scaled behind their cap".into());
        } else {
            scores.scale *= factor;
        }
        Ok(Form::Scores(scores))
    }

    /// Scores with a positional mask added, or kept where a positional condition holds.
    pub(super) fn masked_scores(&self, scores: &Scores, mask: Value) -> Outcome {
        let mut scores = scores.clone();
        let window = self.positional.mask_window(mask)?;
        if scores.squashed {
            return Err("a mask between tanh and its factor".into());
        }
        // Two masks hold together: the shorter window wins.
        scores.mask = Some(match scores.mask {
            None | Some(0) => window,
            Some(known) if window == 0 => known,
            Some(known) => known.min(window),
        });
        Ok(Form::Scores(scores))
    }

    /// `weights [.., S, T] * value [.., T, D]`.
    pub(super) fn weighted_values(&mut self, weights: &Scores, values: &Keys) -> Outcome {
        let Some(window) = weights.mask else {
            return Err("attention without a causal mask".into());
        };
        if weights.squashed {
            return Err("tanh of scores without a factor".into());
        }
        let rank = values.axes.len();
        let width = values.axes.last().and_then(|axis| stretch(axis)).map(|(width, _)| width);
        let laid_out = rank >= 2 && values.axes[rank - 2] == [Factor::Total];
        let (Some(width), true) = (width, laid_out) else {
            return Err("weights are not multiplied with rows of values".into());
        };
        let mut weights = weights.clone();
        pad(&mut weights.query.axes, rank);
        self.attend(&weights, values, width, window, None)
    }

    /// The op `attention`, whose layout is given.
    pub(super) fn attention_op(
        &mut self,
        op: &weir_ir::ops::Attention,
        operands: &[Value],
    ) -> Outcome {
        let query = self.rows(operands[0])?;
        let forms = [self.form(operands[1]), self.form(operands[2])];
        let [Some(mut keys), Some(mut values)] = forms.map(|form| self.as_keys(&form)) else {
            return Err("keys or values that are not rows".into());
        };
        // The op itself lets query heads share those of keys, in consecutive groups.
        let n_heads = |value: Value| self.graph.main.shape(value).get(1).and_then(Dim::as_size);
        let group = n_heads(operands[0])
            .zip(n_heads(operands[1]))
            .and_then(|(heads, kv_heads)| heads.checked_div(kv_heads))
            .ok_or("an unknown number of heads")?;
        for shared in [&mut keys, &mut values] {
            let axis = shared.axes.get_mut(1).ok_or("keys or values without heads")?;
            axis.push(Factor::Repeat(group));
        }
        // [B, KV, T, D] here, [.., D, T] for a product.
        let rank = keys.axes.len();
        keys.axes.swap(rank - 2, rank - 1);
        let Form::Scores(mut scores) = self.scores(&query, &keys)? else {
            return Err("attention without scores".into());
        };
        scores.scale *= op.scale;
        scores.softcap = op.softcap;
        if op.causal {
            scores.mask = Some(op.window);
        }
        let mut rest = operands[3..].iter();
        if op.mask {
            let mask = *rest.next().ok_or("no mask")?;
            if self.is_no_mask(mask) {
                scores.mask = scores.mask.or(None);
            } else {
                let Form::Scores(masked) = self.masked_scores(&scores, mask)? else {
                    return Err("attention without scores".into());
                };
                scores = masked;
            }
        }
        let sinks = match rest.next() {
            Some(value) if op.sinks => Some(self.vector(*value)?),
            _ => None,
        };
        let Some(window) = scores.mask else {
            return Err("attention without a causal mask".into());
        };
        let width = values.axes.last().and_then(|axis| stretch(axis)).map_or(1, |(width, _)| width);
        self.attend(&scores, &values, width, window, sinks)
    }

    /// Whether a mask keeps every score.
    fn is_no_mask(&self, mask: Value) -> bool {
        let Form::Constant(constant) = self.form(mask) else { return false };
        let interpreter = Interpreter::new(self.graph);
        let Ok(tensor) = interpreter.constant(constant) else { return false };
        match tensor.dtype() {
            DType::Bool => tensor.bools().is_ok_and(|values| values.iter().all(|kept| *kept)),
            _ => tensor.f32s().is_ok_and(|values| values.iter().all(|added| *added == 0.0)),
        }
    }

    fn attend(
        &mut self,
        scores: &Scores,
        values: &Keys,
        value_width: usize,
        window: u32,
        sinks: Option<Value>,
    ) -> Outcome {
        if values.scale != 1.0 {
            return Err("values are scaled".into());
        }
        let keys = &scores.keys;
        let key_width = scores.query.width / scores.heads;
        let shares = Heads::new(&scores.query.axes, scores.query.width, key_width)
            .zip(Heads::new(&values.axes, values.row_width, value_width))
            .is_some_and(|(heads, shared)| shared.are_shared_in_groups_by(&heads));
        if !shares {
            return Err("query heads do not share value heads in consecutive groups".into());
        }
        let kv_heads = keys.row_width / key_width;
        let (layer, past) = self.pasts(keys, values, kv_heads, key_width, value_width)?;
        let query =
            shaped(&mut self.body, scores.query.value, &[scores.heads, key_width]).map_err(text)?;
        let key = shaped(&mut self.body, keys.new, &[kv_heads, key_width]).map_err(text)?;
        let value = shaped(&mut self.body, values.new, &[kv_heads, value_width]).map_err(text)?;
        let attention = CausalAttention {
            scale: scores.scale,
            softcap: scores.softcap,
            window,
            sinks: sinks.is_some(),
        };
        let mut operands = vec![query, key, value, past[0], past[1]];
        operands.extend(sinks);
        let origin = self.origin.clone();
        let results = self.body.push(attention.into(), operands, origin).map_err(text)?;
        self.present(layer, [results[1], results[2]])?;
        let width = scores.heads * value_width;
        let shape = vec![Symbol::Sequence.into(), width.into()];
        let flat =
            self.body.push1(Reshape { shape }.into(), vec![results[0]], None).map_err(text)?;
        // The query's layout with the value's width.
        let mut axes: Vec<Axis> = Vec::new();
        let rank = scores.query.axes.len();
        for axis in &scores.query.axes[..rank - 2] {
            axes.push(
                axis.iter()
                    .map(|factor| match factor {
                        Factor::Columns { size, stride } => Factor::Columns {
                            size: *size,
                            stride: stride / key_width * value_width,
                        },
                        other => other.clone(),
                    })
                    .collect(),
            );
        }
        axes.push(vec![Factor::Rows]);
        axes.push(columns(value_width, 1));
        Ok(Form::Rows(Rows { value: flat, width, axes, last_only: false }))
    }

    /// The past rows of an attention as parameters of the new graph.
    fn pasts(
        &mut self,
        keys: &Keys,
        values: &Keys,
        kv_heads: usize,
        key_width: usize,
        value_width: usize,
    ) -> Result<(u32, [Value; 2]), String> {
        let layer = match (&keys.past, &values.past) {
            (Some(key), Some(value)) if key.is_key && !value.is_key && key.layer == value.layer => {
                key.layer
            }
            (None, None) => self.next_layer(),
            _ => return Err("keys and values are not those of one layer's cache".into()),
        };
        if let Some(Past { heads, width, .. }) = &keys.past
            && (*heads, *width) != (kv_heads, key_width)
        {
            return Err("the cache has other heads than the attention".into());
        }
        let past = |former: &mut Self, role: InputRole, width: usize| {
            let shape = vec![kv_heads.into(), Dim::symbol(Symbol::Past), width.into()];
            former.param(role, TensorType::new(DType::F32, shape))
        };
        let key = past(self, InputRole::PastKey(layer), key_width);
        let value = past(self, InputRole::PastValue(layer), value_width);
        Ok((layer, [key, value]))
    }

    /// A vector constant of the imported graph as a value of the new one.
    pub(super) fn vector(&mut self, value: Value) -> Result<Value, String> {
        let Form::Constant(constant) = self.form(value) else {
            return Err("an operand that is not a constant".into());
        };
        self.wide_constant(constant)
    }

    /// Reads a constant as an f32 vector.
    pub(super) fn wide_constant(&mut self, constant: Const) -> Result<Value, String> {
        let ty = &self.constants[constant].ty;
        if ty.rank() == 1 && ty.dtype() == Some(DType::F32) {
            return Ok(self.read(constant));
        }
        let name = self.constants[constant].name.clone();
        let tensor = self.interpreter.constant(constant).map_err(|error| error.to_string())?;
        let values = tensor.f32s().map_err(|error| error.to_string())?;
        self.new_vector(name, &values)
    }
}

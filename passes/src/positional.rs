//! Values that depend on nothing but sizes and positions: masks and rotary tables before they have
//! a name.
//!
//! Exporters spell them in many ways, so they are recognised by evaluation: the interpreter computes
//! them for chosen numbers of past and new rows, and what comes out is compared with what a causal
//! mask, a sliding window or a table of positions would be.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use weir_ir::interpret::{Bindings, Data, EvalError, EvalFault, Interpreter, Tensor};
use weir_ir::{Body, DType, Graph, InputRole, Op, Value};

/// Evaluates the positional values of a graph's main body.
pub struct Positional<'g> {
    graph: &'g Graph,
    values: HashSet<Value>,
    switches: HashMap<Value, u32>,
    context: usize,
    /// The file has no cache: it computes all rows of a sequence at once, and the new rows are the
    /// last of them.
    whole: bool,
    windows: RefCell<HashMap<Value, Result<u32, String>>>,
    table_end: Cell<Option<usize>>,
    /// One for all questions: a file's table of 131,072 positions takes a second to decode, and every
    /// layer asks for some rows of it.
    interpreter: RefCell<Interpreter<'g>>,
}

/// A table computed from a positional value.
pub struct PositionTable {
    /// Values of a row: the value's sizes other than the row dimension, in order.
    pub width: usize,
    /// `sets * context` rows.
    pub rows: Vec<f32>,
    /// Number of sets, 1 or 2.
    pub sets: u32,
    /// Greatest length that uses the first of two sets; 0 with one.
    pub switch: u32,
}

/// The rows of a positional value, one a position.
struct TableRows {
    row_axis: Option<usize>,
    width: usize,
    values: Vec<f32>,
}

impl TableRows {
    fn row(&self, position: usize) -> &[f32] {
        &self.values[position * self.width..(position + 1) * self.width]
    }
}

/// Rows and columns `(past, new)` at which a mask is compared element by element.
const PROBES: [(usize, usize); 4] = [(0, 1), (0, 5), (3, 4), (7, 1)];

/// Longest context whose mask is computed with a row for every position (16 M scores).
const WHOLE_MASK: usize = 4096;

/// A masked score is this or less; exporters write -10000, the least float or -infinity.
const MASKED: f32 = -1e4;

impl<'g> Positional<'g> {
    /// Finds the positional values of a graph whose sequences have at most `context` rows.
    pub fn new(graph: &'g Graph, context: u32) -> Positional<'g> {
        let body = &graph.main;
        let mut values = HashSet::new();
        let mut switches: HashMap<Value, u32> = HashMap::new();
        for param in &body.params {
            let positional = matches!(
                param.role,
                InputRole::Positions | InputRole::AttentionMask | InputRole::Known
            );
            if positional {
                values.insert(param.value);
            }
        }
        for (_, node) in body.live() {
            if !node.operands.iter().all(|operand| values.contains(operand)) {
                continue;
            }
            let own = match &node.op {
                Op::ByLength(by_length) => Some(by_length.limit),
                _ => None,
            };
            let inherited = node.operands.iter().find_map(|operand| switches.get(operand).copied());
            for result in &node.results {
                values.insert(*result);
                if let Some(limit) = own.or(inherited) {
                    switches.insert(*result, limit);
                }
            }
        }
        let whole = !body
            .params
            .iter()
            .any(|param| matches!(param.role, InputRole::PastKey(_) | InputRole::PastValue(_)));
        let (windows, table_end) = (RefCell::default(), Cell::default());
        let context = context as usize;
        let interpreter = RefCell::new(Interpreter::new(graph));
        Positional { graph, values, switches, context, whole, windows, table_end, interpreter }
    }

    /// Rows of the shortest table of the file that was read behind its end.
    pub fn table_end(&self) -> Option<usize> {
        self.table_end.get()
    }

    /// Whether a value depends on nothing but constants, sizes and positions.
    pub fn contains(&self, value: Value) -> bool {
        self.values.contains(&value)
    }

    /// The value for `past` rows in the cache and `new` rows; for all of them if the file has no
    /// cache.
    pub fn at(&self, value: Value, past: usize, new: usize) -> Result<Tensor, EvalError> {
        self.at_length(value, past, new, past + new)
    }

    fn at_length(
        &self,
        value: Value,
        past: usize,
        new: usize,
        longest: usize,
    ) -> Result<Tensor, EvalError> {
        let mut interpreter = self.interpreter.borrow_mut();
        interpreter.longest = i64::try_from(longest).ok();
        let (past, new) = if self.whole { (0, past + new) } else { (past, new) };
        let bindings = Bindings::one_sequence(past, new);
        let inputs = |param: &weir_ir::graph::Param| {
            matches!(param.role, InputRole::Positions).then(|| {
                let rank = self.graph.main.ty(param.value).rank();
                let mut sizes = vec![1; rank.saturating_sub(1)];
                sizes.push(new);
                let positions = (past..past + new).map(|position| position as i64).collect();
                Tensor::from_i64(DType::I64, sizes, positions)
            })
        };
        let mut tensors = interpreter.evaluate(&[value], &bindings, &inputs)?;
        Ok(tensors.remove(0))
    }

    /// The window of a mask `[.., S, T]` (0 for none) if the mask is causal, else what it is.
    pub fn mask_window(&self, value: Value) -> Result<u32, String> {
        if let Some(known) = self.windows.borrow().get(&value) {
            return known.clone();
        }
        let found = self.find_window(value);
        self.windows.borrow_mut().insert(value, found.clone());
        found
    }

    fn find_window(&self, value: Value) -> Result<u32, String> {
        if self.whole && self.context > WHOLE_MASK {
            return Err(format!(
                "the mask of a file without a cache is not computed for more than {WHOLE_MASK} \
                 positions: a shorter --context can be had, or an export with past keys and values"
            ));
        }
        // One long row shows how far back the mask lets a query look.
        let rows = self.kept(value, self.context - 1, 1)?;
        let first = rows.iter().position(|kept| *kept).unwrap_or(self.context);
        if first >= self.context || !rows[first..].iter().all(|kept| *kept) {
            return Err("the mask of a row is not a run of keys that ends with its own".to_owned());
        }
        let window = if first == 0 { 0 } else { self.context - first };
        let mut probes = PROBES.to_vec();
        if window > 0 {
            // Around the first key that falls out of the window, whatever its length.
            probes.extend([(window - 1, 4), (window + 2, 3)]);
        }
        if window > 0 && window < 512 {
            probes.push((0, window + 3));
        }
        for (past, new) in probes {
            if past + new > self.context {
                continue;
            }
            let kept = self.kept(value, past, new)?;
            let total = past + new;
            for (index, kept) in kept.iter().enumerate() {
                let (query, key) = (past + index / total, index % total);
                let expected = key <= query && (window == 0 || key + window > query);
                if *kept != expected {
                    let verb = if *kept { "keeps" } else { "masks" };
                    return Err(format!(
                        "the mask is neither causal nor a causal window: the query at position \
                         {query} {verb} the key at position {key}"
                    ));
                }
            }
        }
        u32::try_from(window).map_err(|_| "the window is too long".to_owned())
    }

    /// Which of `[new, past + new]` scores a mask keeps.
    fn kept(&self, value: Value, past: usize, new: usize) -> Result<Vec<bool>, String> {
        let tensor = self.at(value, past, new).map_err(|error| error.to_string())?;
        let total = past + new;
        let sizes = tensor.sizes().to_vec();
        let (keys, queries) = match sizes.as_slice() {
            [.., queries, keys] => (*keys, *queries),
            [keys] => (*keys, 1),
            [] => (1, 1),
        };
        let leading: usize = sizes.iter().rev().skip(2).product();
        let rows = if self.whole { total } else { new };
        let fits = (keys == total || keys == 1) && (queries == rows || queries == 1);
        if leading == 0 || !fits {
            return Err(format!("a mask of shape {sizes:?} for {new} queries and {total} keys"));
        }
        let flat: Vec<bool> = match tensor.data() {
            Data::Bool(values) => values.to_vec(),
            _ => {
                let values = tensor.f32s().map_err(|error| error.to_string())?;
                values
                    .iter()
                    .map(|score| match *score {
                        0.0 => Ok(true),
                        score if score <= MASKED => Ok(false),
                        score => Err(format!(
                            "a bias that is no mask (here {score}) is added to scores, as ALiBi does"
                        )),
                    })
                    .collect::<Result<_, _>>()?
            }
        };
        // Some exporters write the mask out for every head.
        let (first, others) = flat.split_at(queries * keys);
        if others.chunks_exact(queries * keys).any(|other| other != first) {
            return Err("the heads have different masks".to_owned());
        }
        let at = |query: usize, key: usize| {
            let row = if queries == 1 { 0 } else { rows - new + query };
            first[row * keys + if keys == 1 { 0 } else { key }]
        };
        Ok((0..new)
            .flat_map(|query| (0..total).map(move |key| (query, key)))
            .map(|(q, k)| at(q, k))
            .collect())
    }

    /// The greatest length of a sequence whose rows are not those of `long`, which has as many
    /// rows as the context; 0 if there is none.
    ///
    /// Some exporters spell the switch of rotary factors as a choice by the greatest position of
    /// a call. The row of a position then is one thing while the sequence ends there and another
    /// in a longer one: it is found by evaluation, as everything that depends on positions.
    fn find_switch(&self, value: Value, long: &TableRows) -> Result<usize, String> {
        let alike = |length: usize, rows: &TableRows| -> Result<bool, String> {
            let row = rows.row(length - 1);
            let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits();
            let equal = |last: &[f32]| last.len() == row.len() && last.iter().zip(row).all(same);
            if self.whole {
                let rows = self.table_rows(value, long.row_axis, length)?;
                return Ok(equal(rows.row(length - 1)));
            }
            let tensor = self.at(value, length - 1, 1).map_err(|error| error.to_string())?;
            Ok(equal(&tensor.f32s().map_err(|error| error.to_string())?))
        };
        let powers = (0..usize::BITS - 1).map(|bit| 1usize << bit);
        let lengths: Vec<usize> = powers.take_while(|length| *length < self.context).collect();
        // All factors agree on the first positions, or nearly, so the longest that differs counts.
        let mut short = 0;
        for length in &lengths {
            if !alike(*length, long)? {
                short = *length;
            }
        }
        if short == 0 {
            return Ok(0);
        }
        let mut above = (short * 2).min(self.context);
        while above - short > 1 {
            let middle = short + (above - short) / 2;
            if alike(middle, long)? {
                above = middle;
            } else {
                short = middle;
            }
        }
        let rows = self.table_rows(value, long.row_axis, short)?;
        for length in lengths.into_iter().filter(|length| *length < short) {
            if !alike(length, &rows)? {
                return Err(format!(
                    "they depend on the length of the sequence in more than one step: {length}, \
                     {short} and {} positions differ",
                    self.context
                ));
            }
        }
        Ok(short)
    }

    /// The rows of a positional value in a call with a whole sequence of this length.
    fn table_rows(
        &self,
        value: Value,
        row_axis: Option<usize>,
        length: usize,
    ) -> Result<TableRows, String> {
        let tensor = self.at_length(value, 0, length, length).map_err(|error| {
            if let EvalFault::OutOfRange { size, .. } = error.fault {
                let end = self.table_end.get().map_or(size, |end| end.min(size));
                self.table_end.set(Some(end));
            }
            error.to_string()
        })?;
        let values = tensor.f32s().map_err(|error| error.to_string())?;
        let sizes = tensor.sizes();
        let inner: usize = row_axis.map_or(values.len(), |axis| sizes[axis + 1..].iter().product());
        let outer: usize = row_axis.map_or(1, |axis| sizes[..axis].iter().product());
        let mut rows = Vec::with_capacity(length * outer * inner);
        for position in 0..length {
            for block in 0..outer {
                let start = match row_axis {
                    Some(_) => (block * length + position) * inner,
                    None => 0,
                };
                rows.extend_from_slice(&values[start..start + inner]);
            }
        }
        Ok(TableRows { row_axis, width: outer * inner, values: rows })
    }

    /// A positional f32 value as a table over all positions of the context. `row_axis` is its
    /// dimension of size `sequence`; `None` if it does not depend on the position.
    pub fn table(&self, value: Value, row_axis: Option<usize>) -> Result<PositionTable, String> {
        let context = self.context;
        let long = self.table_rows(value, row_axis, context)?;
        let switch = match self.switches.get(&value) {
            Some(limit) => *limit as usize,
            None => self.find_switch(value, &long)?,
        };
        let width = long.width;
        // With a switch below the context there are two sets: one for sequences that stay short,
        // one for those that grow long, each for all positions that such a sequence may have.
        if switch == 0 || switch >= context {
            return Ok(PositionTable { width, rows: long.values, sets: 1, switch: 0 });
        }
        let mut rows = self.table_rows(value, row_axis, switch)?.values;
        // Rows beyond the length of a short sequence are never read.
        rows.resize(context * width, 0.0);
        rows.extend(long.values);
        let switch = u32::try_from(switch).map_err(|_| "the switch is too long".to_owned())?;
        Ok(PositionTable { width, rows, sets: 2, switch })
    }
}

#[cfg(test)]
mod tests;

/// The dimension of a positional value's shape that counts the new rows.
pub fn row_axis(body: &Body, value: Value) -> Result<Option<usize>, String> {
    let shape = body.shape(value);
    let mut axes = (0..shape.len()).filter(|axis| shape[*axis].as_number().is_none());
    match (axes.next(), axes.next()) {
        (None, _) => Ok(None),
        (Some(axis), None) if shape[axis] == weir_ir::Symbol::Sequence.into() => Ok(Some(axis)),
        _ => Err(format!("a value that depends on positions has the shape {shape:?}")),
    }
}

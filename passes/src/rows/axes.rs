//! What the dimensions of a tensor mean, relative to rows of values.
//!
//! A tensor of a language model is a set of rows `[sequence, width]` looked at in some layout:
//! `[1, heads, sequence, head_width]`, for example. Each of its dimensions is a list of factors,
//! outermost first: the rows themselves, a stretch of columns, or a repetition. Reshapes regroup
//! factors, transpositions permute dimensions, expansions add repetitions; no value moves.

use weir_ir::{Dim, Symbol};

/// Part of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Factor {
    /// The new rows.
    Rows,
    /// Past and new rows (keys and values of attention).
    Total,
    /// Columns `0, stride, 2 * stride, ..` of a row.
    Columns {
        /// How many.
        size: usize,
        /// Columns from one to the next.
        stride: usize,
    },
    /// The same values again.
    Repeat(usize),
}

/// A dimension: factors, outermost first; none for size 1.
pub type Axis = Vec<Factor>;

impl Factor {
    fn size(&self) -> Dim {
        match self {
            Factor::Rows => Symbol::Sequence.into(),
            Factor::Total => Dim::total(),
            Factor::Columns { size, .. } | Factor::Repeat(size) => (*size).into(),
        }
    }

    fn is_single(&self) -> bool {
        matches!(self, Factor::Columns { size: 1, .. } | Factor::Repeat(1))
    }
}

/// A dimension over columns.
pub fn columns(size: usize, stride: usize) -> Axis {
    if size == 1 { Vec::new() } else { vec![Factor::Columns { size, stride }] }
}

/// Joins neighbouring factors that walk one stretch of columns, and drops factors of size 1.
pub fn merged(factors: impl IntoIterator<Item = Factor>) -> Axis {
    let mut axis: Axis = Vec::new();
    for factor in factors {
        if factor.is_single() {
            continue;
        }
        match (axis.last_mut(), &factor) {
            (
                Some(Factor::Columns { size: outer, stride: outer_stride }),
                Factor::Columns { size, stride },
            ) if *outer_stride == size * stride => {
                *outer *= size;
                *outer_stride = *stride;
            }
            (Some(Factor::Repeat(outer)), Factor::Repeat(size)) => *outer *= size,
            _ => axis.push(factor),
        }
    }
    axis
}

/// The axes of the same tensor with other sizes; `None` if a size cuts through a factor that cannot
/// be cut.
pub fn reshaped(axes: &[Axis], shape: &[Dim]) -> Option<Vec<Axis>> {
    let mut factors: Vec<Factor> = axes.iter().flatten().cloned().collect();
    factors.retain(|factor| !factor.is_single());
    factors.reverse();
    let one = Dim::number(1);
    let mut result = Vec::with_capacity(shape.len());
    for size in shape {
        let mut rest = size.clone();
        let mut axis = Vec::new();
        while rest != one {
            let factor = factors.pop()?;
            if let Some(quotient) = rest.divided_exactly(&factor.size()) {
                rest = quotient;
                axis.push(factor);
                continue;
            }
            let wanted = rest.as_size().filter(|wanted| *wanted > 0)?;
            let (outer, inner) = cut(&factor, wanted)?;
            axis.push(outer);
            factors.push(inner);
            rest = one.clone();
        }
        result.push(merged(axis));
    }
    factors.is_empty().then_some(result)
}

/// A factor as `outer` times the rest.
fn cut(factor: &Factor, outer: usize) -> Option<(Factor, Factor)> {
    match factor {
        Factor::Columns { size, stride } if size % outer == 0 => {
            let inner = size / outer;
            Some((
                Factor::Columns { size: outer, stride: stride * inner },
                Factor::Columns { size: inner, stride: *stride },
            ))
        }
        Factor::Repeat(size) if size % outer == 0 => {
            Some((Factor::Repeat(outer), Factor::Repeat(size / outer)))
        }
        _ => None,
    }
}

/// The axes after an expansion to `shape`.
pub fn expanded(axes: &[Axis], shape: &[Dim]) -> Option<Vec<Axis>> {
    let added = shape.len().checked_sub(axes.len())?;
    shape
        .iter()
        .enumerate()
        .map(|(index, size)| {
            let axis = index.checked_sub(added).map_or(&[][..], |index| &axes[index]);
            if *size == axis_size(axis)? {
                return Some(axis.to_vec());
            }
            axis.is_empty().then(|| size.as_size().map(|size| vec![Factor::Repeat(size)]))?
        })
        .collect()
}

/// Adds dimensions of size 1 in front, as broadcasting does.
pub fn pad(axes: &mut Vec<Axis>, rank: usize) {
    let added = rank.saturating_sub(axes.len());
    axes.splice(..0, vec![Axis::new(); added]);
}

/// Size of a dimension.
pub fn axis_size(axis: &[Factor]) -> Option<Dim> {
    axis.iter().try_fold(Dim::number(1), |size, factor| size.times(&factor.size()))
}

/// The single stretch of columns that a dimension walks: size and stride.
pub fn stretch(axis: &[Factor]) -> Option<(usize, usize)> {
    match merged(axis.iter().cloned()).as_slice() {
        [] => Some((1, 1)),
        [Factor::Columns { size, stride }] => Some((*size, *stride)),
        _ => None,
    }
}

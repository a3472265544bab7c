//! Heads that stay with a thread, from the product that gives queries, keys and values to attention.
//!
//! What a thread wrote is best read by the same thread: it is in its nearest caches, where another's has
//! to come from those of another processor, and its next writing waits until that one has given it up.
//! With many rows ([`ROWS_BY_HEAD`](crate::kernels::attention::ROWS_BY_HEAD)) rotation and writing to the
//! cache are divided by heads, as attention is, and the product by runs of heads. That alone gains
//! nothing: where heads of two threads lie beside each other in a row, each processor asks for lines
//! behind those that it reads, and so takes the other one's. So heads lie apart, all rows of one
//! together, and are rotated where they lie. What attention gives is rounded head by head, too, before it
//! leaves the thread.

use super::{Kernel, Partition, Reach, Root, Step, View, conflict};
use crate::kernels::attention::ROWS_BY_HEAD;
use crate::kernels::matmul::Apart;
use crate::kernels::rounding::Source;
use crate::pack::GROUP;

/// Floats of a cache line.
const LINE: usize = 16;

/// A buffer whose heads lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsApart {
    /// Its number.
    pub buffer: usize,
    /// Heads, and values of one.
    pub heads: usize,
    /// See [`HeadsApart::heads`].
    pub width: usize,
    /// Floats from a head's row to its next, an odd number of lines.
    pub row: usize,
    /// Floats from a head's first row to the next head's, an odd number of lines.
    pub stride: usize,
}

impl HeadsApart {
    /// Bytes of all heads.
    pub fn bytes(&self) -> usize {
        self.heads * self.stride * 4
    }

    /// A view of whole heads that lay beside each other in each row.
    fn moved(&self, view: &View) -> View {
        let heads = view.width() / self.width;
        View {
            root: view.root,
            offset: view.offset / self.width * self.stride,
            row_stride: self.row,
            dims: vec![heads, self.width],
            strides: vec![self.stride, 1],
        }
    }
}

/// Rotates queries where they lie, if nothing else reads them there and only attention reads the result.
pub(super) fn rotate_in_place(kernels: &mut [Kernel], row_bytes: &mut [usize]) {
    for index in 0..kernels.len() {
        let Kernel::Rotary { x, y, .. } = &kernels[index] else { continue };
        let (from, to) = (x.clone(), y.clone());
        let (Root::Buffer(_), Root::Buffer(result)) = (from.root, to.root) else { continue };
        let reach = Reach::of(&from);
        let others = || kernels.iter().enumerate().filter(|(other, _)| *other != index);
        let is_read = others().any(|(_, other)| other.read().iter().any(|read| read.meets(&reach)));
        let is_else = others().any(|(_, other)| other.writes() == to.root);
        let mut readers = others().filter(|(_, other)| other.reads().contains(&to.root));
        let reader = match (readers.next(), readers.next()) {
            (Some((reader, Kernel::Attend { query, .. })), None) if *query == to => reader,
            _ => continue,
        };
        if is_read || is_else || from.root == to.root || from.dims != to.dims {
            continue;
        }
        if let Kernel::Attend { query, spec, .. } = &mut kernels[reader] {
            read_queries(query, &mut spec.query, from.clone());
        }
        if let Kernel::Rotary { y, .. } = &mut kernels[index] {
            *y = from;
        }
        row_bytes[result] = 0;
    }
}

/// Makes attention give rounded rows, if one rounding is all that reads what it gives: no row of floats
/// goes from thread to thread behind it, and nobody waits for all of them.
pub(super) fn round_in_attention(kernels: &mut Vec<Kernel>, row_bytes: &mut [usize]) {
    while let Some((place, reader)) = rounded_attention(kernels) {
        let Kernel::Rounding { spec: rounding, output: rounded, .. } = kernels.remove(reader)
        else {
            return;
        };
        let Kernel::Attend { spec, output, .. } = &mut kernels[place] else { return };
        if let Root::Buffer(means) = output.root {
            row_bytes[means] = 0;
        }
        spec.rounded = Some(rounding.activation);
        *output = View::rounded(rounded, rounding.activation);
    }
}

/// Attention that can do the rounding of what it gives, and that rounding.
fn rounded_attention(kernels: &[Kernel]) -> Option<(usize, usize)> {
    kernels.iter().enumerate().find_map(|(place, kernel)| {
        let Kernel::Attend { spec, output, .. } = kernel else { return None };
        let reads = |other: &usize| kernels[*other].reads().contains(&output.root);
        let mut readers = (0..kernels.len()).filter(reads);
        let (reader, None) = (readers.next()?, readers.next()) else { return None };
        let Kernel::Rounding { spec: rounding, input, .. } = &kernels[reader] else { return None };
        let is_whole = input.is_dense() && input.width() == output.width();
        let serves = is_whole
            && matches!(output.root, Root::Buffer(_))
            && rounding.source == Source::Row
            && spec.rounds(rounding.activation);
        serves.then_some((place, reader))
    })
}

/// Attention reads its queries at another place.
fn read_queries(query: &mut View, strides: &mut (usize, usize), from: View) {
    *strides = (from.row_stride, from.groups().map_or(0, |(_, stride, _)| stride));
    *query = from;
}

/// Lays heads apart that a product gives, where nothing but rotation, writing to the cache and attention
/// reads them.
pub(super) fn lay_apart(kernels: &mut [Kernel], max_rows: usize) -> Vec<HeadsApart> {
    if max_rows < ROWS_BY_HEAD {
        return Vec::new();
    }
    let found: Vec<HeadsApart> =
        (0..kernels.len()).filter_map(|index| product_of_heads(kernels, index, max_rows)).collect();
    for apart in &found {
        let root = Root::Buffer(apart.buffer);
        let change = |view: &mut View| {
            if view.root == root {
                *view = apart.moved(view);
            }
        };
        for kernel in &mut *kernels {
            match kernel {
                Kernel::Matmul { spec, output, .. } if output.root == root => {
                    change(output);
                    spec.output_stride = apart.row;
                    spec.apart = Apart::of(apart.width, apart.stride);
                }
                Kernel::Rotary { x, y, .. } => [x, y].into_iter().for_each(change),
                Kernel::Append { key, value, .. } => [key, value].into_iter().for_each(change),
                Kernel::Attend { query, spec, .. } if query.root == root => {
                    let moved = apart.moved(query);
                    read_queries(query, &mut spec.query, moved);
                }
                _ => {}
            }
        }
    }
    found
}

/// The heads that a kernel rotates, writes to the cache or attends with; nothing for others.
fn views_of_heads(kernel: &Kernel) -> Option<Vec<&View>> {
    match kernel {
        Kernel::Rotary { x, y, .. } => Some(vec![x, y]),
        Kernel::Append { key, value, .. } => Some(vec![key, value]),
        Kernel::Attend { query, .. } => Some(vec![query]),
        _ => None,
    }
}

/// How the heads that a kernel gives can lie apart, if it is a product of heads.
fn product_of_heads(kernels: &[Kernel], index: usize, max_rows: usize) -> Option<HeadsApart> {
    let Kernel::Matmul { spec, output, residual: None, .. } = &kernels[index] else { return None };
    let Root::Buffer(buffer) = output.root else { return None };
    let channels = spec.layout.channels;
    if output.offset != 0 || !output.is_dense() || output.width() != channels {
        return None;
    }
    let mut views = Vec::new();
    for (other, kernel) in kernels.iter().enumerate() {
        let touches = kernel.reads().contains(&output.root) || kernel.writes() == output.root;
        if other != index && touches {
            views.extend(views_of_heads(kernel)?);
        }
    }
    views.retain(|view| view.root == output.root);
    let (_, _, width) = views.first()?.groups()?;
    let are_heads = |view: &&View| {
        let is_heads =
            view.groups().is_some_and(|(_, stride, of_head)| (stride, of_head) == (width, width));
        is_heads && view.offset.is_multiple_of(width)
    };
    if !channels.is_multiple_of(width) || !views.iter().all(are_heads) {
        return None;
    }
    let row = (width.div_ceil(LINE) | 1) * LINE;
    let stride = (max_rows.checked_mul(row)?.div_ceil(LINE) | 1) * LINE;
    Apart::of(width, stride)?;
    Some(HeadsApart { buffer, heads: channels / width, width, row, stride })
}

/// Divides kernels by heads that may be, wherever it costs no barrier, and products by runs of heads.
pub(super) fn keep(steps: &mut [Step]) {
    for index in 0..steps.len() {
        let step = &steps[index];
        let meets =
            |other: &Step| other.phase == step.phase && conflict(&other.kernel, &step.kernel);
        let mut others = steps.iter().enumerate().filter(|(other, _)| *other != index);
        let by_head = step.kernel.heads().is_some() && !others.any(|(_, other)| meets(other));
        steps[index].by_head = by_head;
    }
    for index in 0..steps.len() {
        let runs = runs(steps, &steps[index]);
        let phase = steps[index].phase;
        let of_phase = steps.iter().filter(|step| step.phase == phase);
        let works: u32 = of_phase.map(Step::works).sum();
        let more = (runs.len() as u32).saturating_sub(2);
        if runs.len() > 2 && works + more <= weir_abi::WORKS {
            steps[index].runs = runs;
            for behind in steps[index + 1..].iter_mut().filter(|step| step.phase == phase) {
                behind.work += more;
            }
        }
    }
}

/// The runs of heads that a product's items are: of what reads its output, if that goes by heads.
fn runs(steps: &[Step], step: &Step) -> Vec<usize> {
    let (Kernel::Matmul { output, spec, .. }, Partition::Items { items, .. }) =
        (&step.kernel, step.partition())
    else {
        return Vec::new();
    };
    let mut runs = vec![0, items];
    for reader in steps.iter().filter(|reader| reader.kernel.reads().contains(&output.root)) {
        let goes_by_head = reader.by_head || matches!(reader.kernel, Kernel::Attend { .. });
        let Some(views) = views_of_heads(&reader.kernel).filter(|_| goes_by_head) else {
            return Vec::new();
        };
        for view in views.into_iter().filter(|view| view.root == output.root) {
            let [run, of_run] = match spec.apart {
                Some(Apart { groups, stride }) => {
                    [view.offset / stride * groups, view.offset % stride]
                }
                None => [view.offset / GROUP, view.offset % GROUP],
            };
            if of_run != 0 || output.offset != 0 {
                return Vec::new();
            }
            runs.push(run);
        }
    }
    runs.sort_unstable();
    runs.dedup();
    runs
}

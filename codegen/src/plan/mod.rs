//! The plan of a segment: kernels in order, the memory of every value, the places of barriers.
//!
//! A value is a [`View`] of a root: hidden rows, what the head gives, a weight or a buffer of the arena. Slices
//! and reshapes are views wherever strides permit. Kernels that depend on each other lie in
//! different *phases*, unless both divide the rows in the same way; between two phases is a barrier.
//! A buffer's bytes are used again only in a later phase. [`verify`] proves both promises from the
//! finished plan alone.

mod heads;
mod lower;
mod place;
mod verify;

#[cfg(test)]
mod tests;

pub use heads::HeadsApart;
pub use lower::{SegmentSource, lower_segment};
pub use verify::verify;

use std::ops::Range;

use crate::kernels::attention::{AttendSpec, CacheShape};
use crate::kernels::gated::{self, GatedSpec};
use crate::kernels::map::MapOp;
use crate::kernels::matmul::{self, Activation, MatmulSpec};
use crate::kernels::norm::NormKind;
use crate::kernels::reduce::ReduceSpec;
use crate::kernels::rotary::Rotation;
use crate::kernels::rounding::RoundingSpec;
use crate::pack::PackedLayout;
use crate::weights::WeightSlot;

/// Memory that a view lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Root {
    /// Hidden rows of the step.
    Hidden,
    /// What the head gives: logits, or hidden rows.
    Answer,
    /// The layer's cache.
    Cache,
    /// A buffer of the arena.
    Buffer(usize),
    /// A weight of the segment, by its slot.
    Weight(usize),
}

/// Where a value's elements lie. Offsets and strides count floats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Memory.
    pub root: Root,
    /// First element.
    pub offset: usize,
    /// From one row of the step to the next; 0 for weights.
    pub row_stride: usize,
    /// Sizes without the rows.
    pub dims: Vec<usize>,
    /// Strides of `dims`.
    pub strides: Vec<usize>,
}

impl View {
    /// A view whose inner elements are dense.
    pub fn dense(root: Root, row_stride: usize, dims: Vec<usize>) -> View {
        let strides = weir_ir::constant::row_major(&dims);
        View { root, offset: 0, row_stride, dims, strides }
    }

    /// Rounded rows, which have a layout of their own, and no sizes.
    fn rounded(root: Root, activation: Activation) -> View {
        let row_stride = activation.row_bytes() / 4;
        View { root, offset: 0, row_stride, dims: Vec::new(), strides: Vec::new() }
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether a row's elements are consecutive.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= size;
            fits
        })
    }

    /// The same elements with other sizes, if strides permit.
    pub fn reshaped(&self, dims: Vec<usize>) -> Option<View> {
        let (groups, group_stride, width) = self.groups()?;
        if self.is_dense() {
            let strides = weir_ir::constant::row_major(&dims);
            return Some(View { dims, strides, ..self.clone() });
        }
        // Dense runs of `width`: the new sizes may split the runs or their number, not cross them.
        let mut strides = vec![0; dims.len()];
        let (mut run, mut count) = (1, 1);
        for index in (0..dims.len()).rev() {
            if run < width {
                strides[index] = run;
                run *= dims[index];
            } else {
                strides[index] = group_stride * count;
                count *= dims[index];
            }
        }
        (run == width && count == groups).then(|| View { dims, strides, ..self.clone() })
    }

    /// Indices `start .. start + length` of an inner axis.
    pub fn sliced(&self, axis: usize, start: usize, length: usize) -> View {
        let mut view = self.clone();
        view.offset += start * view.strides[axis];
        view.dims[axis] = length;
        view
    }

    /// The row as `groups` runs of consecutive elements, each as long as the last dimension (or the
    /// whole row if it is dense): number, stride, length.
    pub fn groups(&self) -> Option<(usize, usize, usize)> {
        let (Some(&width), Some(&stride)) = (self.dims.last(), self.strides.last()) else {
            return Some((1, 1, 1));
        };
        if stride != 1 && width != 1 {
            return None;
        }
        let outer = self.dims.len() - 1;
        let mut groups = 1;
        let mut group_stride = 0;
        for index in (0..outer).rev() {
            if self.dims[index] == 1 {
                continue;
            }
            if groups == 1 {
                group_stride = self.strides[index];
            } else if self.strides[index] != group_stride * groups {
                return None;
            }
            groups *= self.dims[index];
        }
        Some((groups, if groups == 1 { width } else { group_stride }, width))
    }
}

/// Columns of the rows of some memory.
#[derive(Clone, Debug)]
struct Reach {
    root: Root,
    columns: Range<usize>,
}

impl Reach {
    /// All columns.
    fn whole(root: Root) -> Reach {
        Reach { root, columns: 0..usize::MAX }
    }

    /// From the first element of a view's rows to behind the last. Rounded rows have a layout of their own,
    /// and no sizes.
    fn of(view: &View) -> Reach {
        if view.dims.is_empty() {
            return Reach::whole(view.root);
        }
        let steps = view.dims.iter().zip(&view.strides);
        let last: usize = steps.map(|(size, stride)| size.saturating_sub(1) * stride).sum();
        Reach { root: view.root, columns: view.offset..view.offset + last + 1 }
    }

    fn meets(&self, other: &Reach) -> bool {
        let (ours, theirs) = (&self.columns, &other.columns);
        self.root == other.root && ours.start < theirs.end && theirs.start < ours.end
    }
}

/// How threads divide a kernel's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Rows of the step: what one thread writes it may read without a barrier.
    Rows,
    /// Rows of the step; with many rows so many heads of all rows.
    Heads(usize),
    /// This many items a row.
    RowItems(usize),
    /// This many items, whatever the rows; with many rows in parts, as threads come to them.
    Items {
        /// How many.
        items: usize,
        /// What the widest tiles have, so that parts are best multiples of it.
        together: usize,
        /// Multiplications of a row, of which many rows make many.
        multiplications: usize,
    },
    /// The kernel gets thread, number of threads and number of the work, and divides it itself.
    Team,
}

/// A rotation with the tables of its cosines and sines.
#[derive(Clone, Debug)]
pub struct Angles {
    /// Which values make pairs.
    pub rotation: Rotation,
    /// Cosines by position.
    pub cos: View,
    /// Sines by position.
    pub sin: View,
}

/// A kernel with its operands.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "operands are named as in the kernels' files")]
pub enum Kernel {
    /// Rows of the embedding table by token.
    Embed { table: usize, layout: PackedLayout, output: View },
    /// Rows of a table by position.
    TableRows { table: View, output: View },
    /// The hidden rows that the head is asked for.
    TakeRows { output: View, hidden_width: usize },
    /// RMS or layer norm.
    Norm { kind: NormKind, epsilon: f32, x: View, weight: View, bias: Option<View>, y: View },
    /// Rotation by position.
    Rotary { x: View, y: View, angles: Angles },
    /// The turn of heads for a cache with codes of four bits.
    Turn { x: View, y: View },
    /// Elementwise function.
    Map { op: MapOp, inputs: Vec<View>, output: View },
    /// Reduction of the last axis.
    Reduce { spec: ReduceSpec, x: View, y: View },
    /// Rounds rows, or what is computed from them, for products.
    Rounding { spec: RoundingSpec, input: View, second: Option<View>, output: Root },
    /// Matrix product.
    Matmul {
        spec: MatmulSpec,
        input: View,
        weight: usize,
        bias: Option<View>,
        residual: Option<View>,
        output: View,
    },
    /// Gate and up of a product, gated and rounded.
    Gated {
        spec: GatedSpec,
        input: View,
        weight: usize,
        bias: Option<View>,
        output: Root,
        shared: Root,
    },
    /// Writes keys, rotated on the way if there are angles, and values of the rows into the cache.
    Append {
        cache: CacheShape,
        key: View,
        value: View,
        angles: Option<Angles>,
        reservoir: Option<u32>,
    },
    /// Attention over the rows' ranges of the cache.
    Attend { spec: AttendSpec, query: View, sinks: Option<View>, output: View, shared: Root },
}

impl Kernel {
    /// Memory read.
    pub fn reads(&self) -> Vec<Root> {
        self.read().into_iter().map(|reach| reach.root).collect()
    }

    /// Memory read, and which columns of it.
    fn read(&self) -> Vec<Reach> {
        let mut views: Vec<&View> = Vec::new();
        let mut roots = Vec::new();
        match self {
            Kernel::Embed { table, .. } => roots.push(Root::Weight(*table)),
            Kernel::TableRows { table, .. } => views.push(table),
            Kernel::TakeRows { .. } => roots.push(Root::Hidden),
            Kernel::Norm { x, weight, bias, .. } => {
                views.extend([x, weight]);
                views.extend(bias);
            }
            Kernel::Rotary { x, angles, .. } => views.extend([x, &angles.cos, &angles.sin]),
            Kernel::Map { inputs, .. } => views.extend(inputs),
            Kernel::Turn { x, .. } | Kernel::Reduce { x, .. } => views.push(x),
            Kernel::Rounding { input, second, .. } => {
                views.push(input);
                views.extend(second);
            }
            Kernel::Matmul { input, weight, bias, residual, .. } => {
                roots.push(Root::Weight(*weight));
                views.push(input);
                views.extend(bias);
                views.extend(residual);
            }
            Kernel::Gated { input, weight, bias, shared, .. } => {
                roots.extend([Root::Weight(*weight), *shared]);
                views.push(input);
                views.extend(bias);
            }
            Kernel::Append { key, value, angles, .. } => {
                views.extend([key, value]);
                views.extend(angles.iter().flat_map(|angles| [&angles.cos, &angles.sin]));
            }
            Kernel::Attend { query, sinks, shared, .. } => {
                roots.extend([Root::Cache, *shared]);
                views.push(query);
                views.extend(sinks);
            }
        }
        let whole = roots.into_iter().map(Reach::whole);
        whole.chain(views.into_iter().map(Reach::of)).collect()
    }

    /// Memory written.
    pub fn writes(&self) -> Root {
        self.written().root
    }

    /// Memory written, and which columns of it.
    fn written(&self) -> Reach {
        match self {
            Kernel::Embed { output, .. }
            | Kernel::TableRows { output, .. }
            | Kernel::TakeRows { output, .. }
            | Kernel::Map { output, .. }
            | Kernel::Matmul { output, .. }
            | Kernel::Attend { output, .. } => Reach::of(output),
            Kernel::Norm { y, .. }
            | Kernel::Rotary { y, .. }
            | Kernel::Turn { y, .. }
            | Kernel::Reduce { y, .. } => Reach::of(y),
            Kernel::Rounding { output, .. } | Kernel::Gated { output, .. } => Reach::whole(*output),
            Kernel::Append { .. } => Reach::whole(Root::Cache),
        }
    }

    /// Whether threads may take parts of it as they come to it.
    pub fn is_work(&self) -> bool {
        matches!(self.partition(), Partition::Items { .. } | Partition::Team)
    }

    /// Heads of a row, where threads may divide these instead of rows.
    pub fn heads(&self) -> Option<usize> {
        match self {
            Kernel::Rotary { x, .. } => Some(x.groups().map_or(1, |(heads, ..)| heads)),
            Kernel::Append { cache, .. } => Some(cache.kv_heads),
            _ => None,
        }
    }

    /// How threads divide it.
    pub fn partition(&self) -> Partition {
        match self {
            Kernel::Rounding { spec, .. } => Partition::RowItems(spec.activation.items_per_row()),
            Kernel::Matmul { spec, .. } => Partition::Items {
                items: spec.groups(),
                together: matmul::TOGETHER,
                multiplications: spec.multiplications(),
            },
            Kernel::Gated { spec, .. } => Partition::Items {
                items: spec.units(),
                together: gated::TOGETHER,
                multiplications: spec.product.multiplications(),
            },
            Kernel::Attend { .. } => Partition::Team,
            _ => Partition::Rows,
        }
    }
}

/// A kernel in its phase.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kernel.
    pub kernel: Kernel,
    /// Barriers before it.
    pub phase: usize,
    /// Its number among the works of the phase ([`Kernel::is_work`]); of its runs the first one's.
    pub work: u32,
    /// Whether threads divide heads where there are many rows ([`Kernel::heads`]).
    pub by_head: bool,
    /// Where its items are runs of heads that threads divide one by one where there are many rows
    /// (queries, keys, values), the first item of each run and the one behind the last.
    pub runs: Vec<usize>,
}

impl Step {
    /// A kernel in its phase, whose threads divide rows or items.
    pub fn new(kernel: Kernel, phase: usize) -> Step {
        Step { kernel, phase, work: 0, by_head: false, runs: Vec::new() }
    }

    /// How threads divide it.
    pub fn partition(&self) -> Partition {
        match self.kernel.heads().filter(|_| self.by_head) {
            Some(heads) => Partition::Heads(heads),
            None => self.kernel.partition(),
        }
    }

    /// Numbers of works that it needs.
    pub fn works(&self) -> u32 {
        match self.runs.len() {
            0 => self.kernel.is_work().into(),
            bounds => bounds as u32 - 1,
        }
    }
}

/// A buffer of the arena.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Bytes of a row, a multiple of 4.
    pub row_bytes: usize,
    /// Bytes for all rows, a multiple of 64.
    pub bytes: usize,
    /// Whether its heads lie apart, instead of its rows behind each other.
    pub apart: Option<HeadsApart>,
    /// First byte in the arena, a multiple of 64.
    pub offset: usize,
    /// First and last phase that uses it.
    pub live: (usize, usize),
}

/// A planned segment.
#[derive(Clone, Debug)]
pub struct SegmentPlan {
    /// Name, for messages and symbols.
    pub name: String,
    /// Kernels in order.
    pub steps: Vec<Step>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Weights, in the order of the segment's offsets.
    pub weights: Vec<WeightSlot>,
    /// Bytes of arena that it needs.
    pub arena_bytes: usize,
    /// Most rows of a call.
    pub max_rows: usize,
    /// Whether its rows are those of the head (`head_row_count`) instead of the step's.
    pub head: bool,
}

/// Whether two kernels touch the same memory, one of them writing.
fn conflict(earlier: &Kernel, later: &Kernel) -> bool {
    let (first, second) = (earlier.written(), later.written());
    later.read().iter().chain([&second]).any(|reach| reach.meets(&first))
        || earlier.read().iter().any(|reach| reach.meets(&second))
}

/// Whether there has to be a barrier between two kernels.
fn needs_barrier(earlier: &Step, later: &Step) -> bool {
    let are_rows = [earlier, later].iter().all(|step| step.partition() == Partition::Rows);
    conflict(&earlier.kernel, &later.kernel) && !are_rows
}

//! Proves a plan from its result alone: no overlap of live buffers, no missing barrier, no view
//! beyond its buffer.

use weir_abi::WORKS;

use super::{Kernel, Reach, Root, SegmentPlan, View, needs_barrier};
use crate::error::CodegenError;

/// Checks a plan.
pub fn verify(plan: &SegmentPlan) -> Result<(), CodegenError> {
    let fail = |message: String| CodegenError::Plan { segment: plan.name.clone(), message };
    for (index, step) in plan.steps.iter().enumerate() {
        let works = step.work..step.work + step.works();
        if works.end > WORKS {
            return Err(fail(format!("there is no work number {}", works.end - 1)));
        }
        for (before, earlier) in plan.steps[..index].iter().enumerate() {
            if earlier.phase > step.phase {
                return Err(fail(format!("kernels {before} and {index} change their order")));
            }
            if earlier.phase == step.phase && needs_barrier(earlier, step) {
                return Err(fail(format!("no barrier between kernels {before} and {index}")));
            }
            let others = earlier.work..earlier.work + earlier.works();
            let are_one = works.start < others.end && others.start < works.end;
            if earlier.phase == step.phase && are_one {
                return Err(fail(format!("kernels {before} and {index} are one work")));
            }
        }
        if let Kernel::Matmul { input, output, .. } = &step.kernel
            && Reach::of(input).meets(&Reach::of(output))
        {
            return Err(fail(format!("kernel {index} writes over what it reads")));
        }
        let mut roots = step.kernel.reads();
        roots.push(step.kernel.writes());
        for root in roots {
            let Root::Buffer(buffer) = root else { continue };
            let (first, last) = plan.buffers[buffer].live;
            if !(first..=last).contains(&step.phase) {
                return Err(fail(format!("kernel {index} uses buffer {buffer} outside its life")));
            }
        }
        for view in views(&step.kernel) {
            let Root::Buffer(buffer) = view.root else { continue };
            let buffer = &plan.buffers[buffer];
            let last: usize =
                view.dims.iter().zip(&view.strides).map(|(size, stride)| (size - 1) * stride).sum();
            let leaves = match &buffer.apart {
                None => {
                    (view.offset + last + 1) * 4 > buffer.row_bytes
                        || view.row_stride * 4 != buffer.row_bytes
                }
                // Rows of a head stay in front of the next one, whose rows they would overwrite.
                Some(apart) => {
                    let of_head = (plan.max_rows - 1) * apart.row + apart.width;
                    let is_heads = view.offset.is_multiple_of(apart.stride)
                        && view.groups().is_some_and(|(heads, stride, width)| {
                            width == apart.width && (heads == 1 || stride == apart.stride)
                        });
                    !is_heads
                        || view.row_stride != apart.row
                        || of_head > apart.stride
                        || (view.offset + last + 1 + (plan.max_rows - 1) * apart.row) * 4
                            > buffer.bytes
                }
            };
            if leaves {
                return Err(fail(format!("kernel {index}: {view:?} leaves its buffer")));
            }
        }
    }
    for (index, buffer) in plan.buffers.iter().enumerate() {
        let end = buffer.offset + buffer.bytes;
        if buffer.offset % 64 != 0
            || end > plan.arena_bytes
            || buffer.bytes
                < buffer.apart.map_or(buffer.row_bytes * plan.max_rows, |apart| apart.bytes())
        {
            return Err(fail(format!("buffer {index} does not lie in the arena")));
        }
        for (other_index, other) in plan.buffers[..index].iter().enumerate() {
            let together = other.live.0 <= buffer.live.1 && buffer.live.0 <= other.live.1;
            let overlap = other.offset < end && buffer.offset < other.offset + other.bytes;
            if together && overlap {
                return Err(fail(format!("buffers {other_index} and {index} overlap")));
            }
        }
    }
    Ok(())
}

/// Views of f32 rows. Quantised rows have a layout of their own.
fn views(kernel: &Kernel) -> Vec<&View> {
    match kernel {
        Kernel::Embed { output, .. } | Kernel::TakeRows { output, .. } => vec![output],
        Kernel::TableRows { output, .. } => vec![output],
        Kernel::Norm { x, y, .. }
        | Kernel::Rotary { x, y, .. }
        | Kernel::Turn { x, y }
        | Kernel::Reduce { x, y, .. } => vec![x, y],
        Kernel::Map { inputs, output, .. } => inputs.iter().chain([output]).collect(),
        Kernel::Rounding { input, second, .. } => {
            let second = second.iter().filter(|view| !matches!(view.root, Root::Weight(_)));
            [input].into_iter().chain(second).collect()
        }
        Kernel::Matmul { residual, output, .. } => residual.iter().chain([output]).collect(),
        Kernel::Gated { input, spec, .. } if spec.product.activation().is_none() => vec![input],
        Kernel::Gated { .. } => Vec::new(),
        Kernel::Append { key, value, .. } => vec![key, value],
        Kernel::Attend { query, output, .. } => vec![query, output],
    }
}

//! Gives kernels their phases and buffers their offsets.
//!
//! First fit by size: buffers in falling order of size, each at the lowest offset that is free in
//! all its phases. Deterministic: ties keep the order of creation.

use weir_abi::WORKS;

use super::{Buffer, HeadsApart, Kernel, Root, Step, heads, needs_barrier};

/// Bytes from one buffer to the next are multiples of this: a cache line.
const ALIGN: usize = 64;

/// Phases of kernels in order: each as early as its conflicts with earlier ones permit, and as there are
/// numbers for works.
pub(super) fn phases(kernels: Vec<Kernel>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(kernels.len());
    for kernel in kernels {
        let phase = steps.last().map_or(0, |step| step.phase);
        let beside: Vec<&Step> = steps.iter().filter(|step| step.phase == phase).collect();
        let works = beside.iter().map(|step| step.works()).sum();
        let mut step = Step::new(kernel, phase);
        if beside.iter().any(|earlier| needs_barrier(earlier, &step))
            || works + step.works() > WORKS
        {
            step.phase += 1;
        } else {
            step.work = works;
        }
        steps.push(step);
    }
    heads::keep(&mut steps);
    steps
}

/// Live ranges and offsets of buffers with the given bytes a row, some of which have their heads apart;
/// returns the arena's bytes too.
pub(super) fn buffers(
    steps: &[Step],
    row_bytes: &[usize],
    apart: &[HeadsApart],
    rows: usize,
) -> (Vec<Buffer>, usize) {
    let buffer = |(index, row_bytes): (usize, &usize)| {
        let apart = apart.iter().find(|apart| apart.buffer == index).copied();
        let bytes = apart.map_or(row_bytes * rows, |apart| apart.bytes());
        let bytes = bytes.next_multiple_of(ALIGN);
        Buffer { row_bytes: *row_bytes, bytes, apart, offset: 0, live: (usize::MAX, 0) }
    };
    let mut buffers: Vec<Buffer> = row_bytes.iter().enumerate().map(buffer).collect();
    for step in steps {
        let mut roots = step.kernel.reads();
        roots.push(step.kernel.writes());
        for root in roots {
            if let Root::Buffer(index) = root {
                let live = &mut buffers[index].live;
                *live = (live.0.min(step.phase), live.1.max(step.phase));
            }
        }
    }
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(buffers[*index].bytes));
    let mut placed: Vec<usize> = Vec::new();
    let mut arena = 0;
    for index in order {
        let Buffer { bytes, live, .. } = buffers[index];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .map(|other| &buffers[*other])
            .filter(|other| other.live.0 <= live.1 && live.0 <= other.live.1)
            .map(|other| (other.offset, other.offset + other.bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (begin, end) in taken {
            if offset + bytes <= begin {
                break;
            }
            offset = offset.max(end);
        }
        buffers[index].offset = offset;
        arena = arena.max(offset + bytes);
        placed.push(index);
    }
    (buffers, arena)
}

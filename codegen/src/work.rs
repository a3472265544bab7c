//! What a step of a compiled model must read and compute, counted from its plans.
//!
//! Reading is what no arrangement avoids: each weight once a call, a table's row per row that asks
//! for it, each kept cache row once per sequence. Operations are multiplications and additions of
//! matrix products and of attention; norms, rotary and elementwise functions are left out (under one
//! in a hundred of a product's), so that a share of the peak is, if anything, told too low.

use weir_ir::verify::Verified;

use crate::error::CodegenError;
use crate::generate::{Options, Plans};
use crate::kernels::matmul::MatmulSpec;
use crate::kernels::rounding::Source;
use crate::pack::GROUP;
use crate::plan::{Kernel, SegmentPlan};

/// The work of all segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWork {
    /// Segment `embed`.
    pub embed: SegmentWork,
    /// Segment `layer` of each kind.
    pub kinds: Vec<SegmentWork>,
    /// Segment `head`.
    pub head: SegmentWork,
}

/// The work of one segment, kernel by kernel in the order in which they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentWork {
    /// Name of the segment.
    pub name: String,
    /// Its kernels.
    pub kernels: Vec<KernelWork>,
}

/// The work of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelWork {
    /// What it is.
    pub name: String,
    /// Weight bytes read by a call, however many rows it has.
    pub call_bytes: u64,
    /// Table bytes read by a row.
    pub row_bytes: u64,
    /// Bytes of a row of the cache that it reads, outside of a block with a number format of its own: the
    /// tables have those of its rows. 0 if it reads none.
    pub cached_row_bytes: u64,
    /// Operations on integers, per row.
    pub integer_operations: u64,
    /// Of these, what AMX does in tiles of bf16 in a call of [`weir_abi::TILE_ROWS`] rows or more.
    pub tile_operations: u64,
    /// Operations on floats, per row.
    pub float_operations: u64,
    /// Of these, products of bf16 with bf16.
    pub bf16_operations: u64,
    /// Operations on integers, per row and cache row that it attends to.
    pub attended_integer_operations: u64,
    /// Operations on floats, per row and cache row that it attends to.
    pub attended_float_operations: u64,
    /// Of these, products of bf16 with bf16.
    pub attended_bf16_operations: u64,
}

/// Counts the work of a model without generating code.
pub fn model_work(
    verified: Verified<'_>,
    options: &Options<'_>,
) -> Result<ModelWork, CodegenError> {
    let plans = Plans::of(verified.graph(), options)?;
    Ok(ModelWork {
        embed: segment_work(&plans.embed),
        kinds: plans.kinds.iter().map(|kind| segment_work(&kind.plan)).collect(),
        head: segment_work(&plans.head),
    })
}

fn segment_work(plan: &SegmentPlan) -> SegmentWork {
    SegmentWork {
        name: plan.name.clone(),
        kernels: plan.steps.iter().map(|step| kernel_work(&step.kernel)).collect(),
    }
}

fn product_work(spec: &MatmulSpec, what: &str) -> KernelWork {
    let layout = spec.layout;
    let operations = 2 * (layout.channels * layout.reduction) as u64;
    let is_integer = spec.compute.is_integer();
    KernelWork {
        name: format!("{what} {} {}x{}", layout.format.name(), layout.channels, layout.reduction),
        call_bytes: layout.bytes() as u64,
        integer_operations: if is_integer { operations } else { 0 },
        float_operations: if is_integer { 0 } else { operations },
        bf16_operations: if spec.is_all_bf16() { operations } else { 0 },
        // As the plan has it, which is how AMX's kernels are.
        tile_operations: if is_integer && spec.in_bf16 { operations } else { 0 },
        ..KernelWork::default()
    }
}

fn kernel_work(kernel: &Kernel) -> KernelWork {
    let named = |name: &str| KernelWork { name: name.to_owned(), ..KernelWork::default() };
    match kernel {
        Kernel::Embed { layout, .. } => {
            KernelWork { row_bytes: (layout.group_bytes() / GROUP) as u64, ..named("embed") }
        }
        Kernel::TableRows { output, .. } => {
            KernelWork { row_bytes: 4 * output.width() as u64, ..named("table-rows") }
        }
        Kernel::TakeRows { .. } => named("take-rows"),
        Kernel::Norm { .. } => named("norm"),
        Kernel::Rotary { .. } => named("rotary"),
        Kernel::Turn { .. } => named("turn"),
        Kernel::Map { op, .. } => named(&format!("map {op:?}").to_lowercase()),
        Kernel::Reduce { .. } => named("reduce"),
        Kernel::Rounding { spec, .. } => {
            let before = match spec.source {
                Source::Row => "",
                Source::RmsNorm { .. } => "norm, ",
                Source::Gated { .. } => "gate, ",
            };
            named(&format!("{before}quantise {}", spec.activation.row_bytes()))
        }
        Kernel::Matmul { spec, .. } => product_work(spec, "matmul"),
        Kernel::Gated { spec, .. } => product_work(&spec.product, "matmul, gate, quantise"),
        Kernel::Append { angles: Some(_), .. } => named("rotary, append"),
        Kernel::Append { angles: None, .. } => named("append"),
        Kernel::Attend { spec, .. } => {
            let widths = (spec.cache.key_width + spec.cache.value_width) as u64;
            let operations = 2 * spec.score.heads as u64 * widths;
            let is_integer = spec.cache.number.is_coded();
            KernelWork {
                cached_row_bytes: spec.cache.row_bytes() as u64,
                attended_integer_operations: if is_integer { operations } else { 0 },
                attended_float_operations: if is_integer { 0 } else { operations },
                attended_bf16_operations: if spec.is_all_bf16() { operations } else { 0 },
                ..named(if spec.rounded.is_some() { "attend, quantise" } else { "attend" })
            }
        }
    }
}

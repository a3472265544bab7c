//! Segments: a plan's kernels, called in order with barriers between phases.
//!
//! A segment is entered by every thread of the team. Each calls every kernel with its own share of
//! the work, or, with many rows, with one part after another until the team has taken all; a barrier
//! stands between phases and at the end, so that the caller may go on.

use std::mem::offset_of;

use weir_abi::{IsaLevel, MOST_ITEMS, StepContext, TakeOf};

use crate::emit::{
    Assembly, Body, EmitError, FuncId, InstBuilder, IntCC, POINTER, Value, Work, segment_signature,
};
use crate::kernels::append::{AppendSpec, emit_append};
use crate::kernels::attention::{ROWS_BY_HEAD, emit_attend};
use crate::kernels::gated::emit_gated;
use crate::kernels::map::{MapSpec, emit_map};
use crate::kernels::matmul::{LEAST_IN_PARTS, MULTIPLICATIONS_IN_PARTS, emit_matmul};
use crate::kernels::norm::{NormSpec, emit_norm};
use crate::kernels::reduce::emit_reduce;
use crate::kernels::rotary::{RotarySpec, emit_rotary};
use crate::kernels::rounding::emit_rounding;
use crate::kernels::rows::{RowNumbers, emit_embed, emit_rows};
use crate::kernels::turn::{TurnSpec, emit_turn};
use crate::plan::{Kernel, Partition, Root, SegmentPlan, View};

/// Emits a planned segment for a level; with `profile` every kernel has a phase of its own.
pub fn emit_segment(
    assembly: &mut Assembly,
    plan: &SegmentPlan,
    level: IsaLevel,
    profile: bool,
) -> Result<FuncId, EmitError> {
    let kernels = plan
        .steps
        .iter()
        .map(|step| emit_kernel(assembly, &step.kernel, level))
        .collect::<Result<Vec<_>, _>>()?;
    let id = assembly.declare(&format!("{}-{}", plan.name, level.name()), segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        let count = if plan.head {
            offset_of!(StepContext, head_row_count)
        } else {
            offset_of!(StepContext, rows)
        };
        let rows = b.load_count(context, count as i32);
        let frame = Frame { plan, context, rows };
        let by_head = b.has_rows(rows, threads, ROWS_BY_HEAD);
        let mut phase = 0;
        for (index, (step, kernel)) in plan.steps.iter().zip(kernels).enumerate() {
            if step.phase != phase || (profile && index > 0) {
                b.barrier(context, thread);
                phase = step.phase;
            }
            let items = match step.partition() {
                Partition::Rows | Partition::Heads(_) => rows,
                Partition::RowItems(per_row) => b.mul_const(rows, per_row as i64),
                Partition::Items { items, .. } => b.int(items as i64),
                Partition::Team => {
                    let mut arguments = frame.arguments(b, &step.kernel);
                    let work = b.int(step.work.into());
                    arguments.extend([thread, threads, work]);
                    b.call(kernel, &arguments);
                    continue;
                }
            };
            let compute = |b: &mut Body<'_>, part: [Value; 2]| {
                let mut arguments = frame.arguments(b, &step.kernel);
                arguments.extend(part);
                if let Some(heads) = step.kernel.heads() {
                    arguments.extend([0, heads].map(|head| b.int(head as i64)));
                }
                if matches!(step.kernel, Kernel::Matmul { .. } | Kernel::Gated { .. }) {
                    arguments
                        .push(b.load_count(context, offset_of!(StepContext, reads_far) as i32));
                }
                b.call(kernel, &arguments);
            };
            let by_rule = |b: &mut Body<'_>| {
                let (begin, end) = b.partition(items, thread, threads);
                let any = b.compare(IntCC::SignedLessThan, begin, end);
                b.if_then(any, |b| compute(b, [begin, end]));
                Vec::new()
            };
            match step.partition() {
                Partition::Items { items, together, multiplications }
                    if items < MOST_ITEMS as usize =>
                {
                    let in_parts = comes_in_parts(b, rows, threads, multiplications);
                    let taken = Taken { place: [context, thread], work: step.work, together };
                    let whole = |b: &mut Body<'_>| {
                        taken.for_parts(b, &[0, items], &[TakeOf::Any], compute);
                        Vec::new()
                    };
                    let in_runs = |b: &mut Body<'_>| {
                        taken.for_parts(b, &step.runs, &[TakeOf::Own, TakeOf::Any], compute);
                        Vec::new()
                    };
                    let take = |b: &mut Body<'_>| match step.runs.is_empty() {
                        true => whole(b),
                        false => b.if_else(by_head, in_runs, whole),
                    };
                    b.if_else(in_parts, take, by_rule);
                }
                Partition::Heads(heads) => {
                    let call = |b: &mut Body<'_>, part: [Value; 4]| {
                        let mut arguments = frame.arguments(b, &step.kernel);
                        arguments.extend(part);
                        b.call(kernel, &arguments);
                    };
                    let of_all_rows = |b: &mut Body<'_>| {
                        for_heads(b, [rows, thread, threads], heads, |b, part| match step.kernel {
                            Kernel::Append { .. } => head_by_head(b, part, call),
                            _ => call(b, part),
                        });
                        Vec::new()
                    };
                    b.if_else(by_head, of_all_rows, by_rule);
                }
                _ => drop(by_rule(b)),
            }
        }
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

/// A kernel whose items threads take in parts.
struct Taken {
    /// The context, and this thread.
    place: [Value; 2],
    /// Number of its first work.
    work: u32,
    /// Of how many items parts are whole multiples where they can be.
    together: usize,
}

impl Taken {
    /// Parts of its runs, each a work of its own: of all runs from one's share, before they are taken from
    /// the next one's. The bounds of the runs are the first item of each and the one behind the last.
    fn for_parts(
        &self,
        b: &mut Body<'_>,
        bounds: &[usize],
        shares: &[TakeOf],
        compute: impl Fn(&mut Body<'_>, [Value; 2]),
    ) {
        for of in shares {
            for (number, run) in bounds.windows(2).enumerate() {
                let number = b.int(i64::from(self.work) + number as i64);
                let items = b.int((run[1] - run[0]) as i64);
                let work = Work { number, items, together: self.together as u32, of: *of };
                b.for_parts(self.place, &work, |b, part| {
                    let part = part.map(|item| b.add_const(item, run[0] as i64));
                    compute(b, part);
                });
            }
        }
    }
}

/// A thread's share of the heads of all rows, head by head: for some of the rows of its first head, for
/// all rows of those between, for some of its last head. The body gets first row, row behind the last,
/// first head and head behind the last.
fn for_heads(
    b: &mut Body<'_>,
    [rows, thread, threads]: [Value; 3],
    heads: usize,
    body: impl Fn(&mut Body<'_>, [Value; 4]),
) {
    let all = b.mul_const(rows, heads as i64);
    let (begin, end) = b.partition(all, thread, threads);
    let zero = b.int(0);
    let first = b.ins().udiv(begin, rows);
    let last = b.ins().udiv(end, rows);
    let [of_first, of_last] = [(begin, first), (end, last)].map(|(item, head)| {
        let before = b.mul(head, rows);
        b.sub(item, before)
    });
    let is_one = b.compare(IntCC::Equal, first, last);
    let behind_first = b.add_const(first, 1);
    let behind_last = b.add_const(last, 1);
    let end_of_first = b.select(is_one, of_last, rows);
    let begin_of_last = b.select(is_one, of_last, zero);
    let parts = [
        [of_first, end_of_first, first, behind_first],
        [zero, rows, behind_first, last],
        [begin_of_last, of_last, last, behind_last],
    ];
    for part in parts {
        let has_rows = b.compare(IntCC::SignedLessThan, part[0], part[1]);
        let has_heads = b.compare(IntCC::SignedLessThan, part[2], part[3]);
        let any = b.ins().band(has_rows, has_heads);
        b.if_then(any, |b| body(b, part));
    }
}

/// All rows of one head before those of the next, which lie apart: as a stream, that is. From head to head
/// in each row writing to the cache took twice as long where two processors share no cache.
fn head_by_head(
    b: &mut Body<'_>,
    [row, last_row, head, last_head]: [Value; 4],
    call: impl Fn(&mut Body<'_>, [Value; 4]),
) {
    b.for_range(head, last_head, 1, |b, head| {
        let behind = b.add_const(head, 1);
        call(b, [row, last_row, head, behind]);
    });
}

/// Whether threads take parts of a product: each has multiplications enough that asking is nothing.
fn comes_in_parts(b: &mut Body<'_>, rows: Value, threads: Value, multiplications: usize) -> Value {
    let has_rows = b.has_rows(rows, threads, LEAST_IN_PARTS);
    let all = b.mul_const(rows, multiplications as i64);
    let wanted = b.mul_const(threads, MULTIPLICATIONS_IN_PARTS as i64);
    let are_enough = b.compare(IntCC::SignedGreaterThanOrEqual, all, wanted);
    b.ins().band(has_rows, are_enough)
}

fn map_spec(op: crate::kernels::map::MapOp, inputs: &[View], output: &View) -> MapSpec {
    let strides =
        inputs.iter().chain([output]).map(|view| (view.row_stride, view.strides.clone())).collect();
    MapSpec { op, dims: output.dims.clone(), strides }
}

/// From row to row, from run to run.
fn run_strides(view: &View) -> (usize, usize) {
    (view.row_stride, view.groups().map_or(0, |(_, stride, _)| stride))
}

fn emit_kernel(
    assembly: &mut Assembly,
    kernel: &Kernel,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    match kernel {
        Kernel::Embed { layout, output, .. } => emit_embed(assembly, layout, output.row_stride),
        Kernel::TableRows { table, output } => {
            let width = output.width();
            let stride = table.strides.first().copied().unwrap_or(width);
            emit_rows(assembly, RowNumbers::Positions, width, stride, output.row_stride)
        }
        Kernel::TakeRows { output, hidden_width } => emit_rows(
            assembly,
            RowNumbers::HeadRows,
            *hidden_width,
            *hidden_width,
            output.row_stride,
        ),
        Kernel::Norm { kind, epsilon, x, bias, y, .. } => {
            let (groups, _, width) = x.groups().unwrap_or((1, 0, x.width()));
            let spec = NormSpec {
                kind: *kind,
                epsilon: *epsilon,
                bias: bias.is_some(),
                groups,
                width,
                x: run_strides(x),
                y: run_strides(y),
            };
            emit_norm(assembly, &spec)
        }
        Kernel::Rotary { x, y, angles } => {
            let (heads, _, head_width) = x.groups().unwrap_or((1, 0, x.width()));
            let spec = RotarySpec {
                heads,
                head_width,
                rotation: angles.rotation,
                x: run_strides(x),
                y: run_strides(y),
            };
            emit_rotary(assembly, &spec)
        }
        Kernel::Turn { x, y } => {
            let (heads, _, head_width) = x.groups().unwrap_or((1, 0, x.width()));
            let spec = TurnSpec { heads, head_width, x: run_strides(x), y: run_strides(y) };
            emit_turn(assembly, &spec)
        }
        Kernel::Map { op, inputs, output } => emit_map(assembly, &map_spec(*op, inputs, output)),
        Kernel::Reduce { spec, .. } => emit_reduce(assembly, spec),
        Kernel::Rounding { spec, .. } => emit_rounding(assembly, &spec.at(level), level),
        Kernel::Matmul { spec, .. } => emit_matmul(assembly, &spec.at(level), level),
        Kernel::Gated { spec, .. } => emit_gated(assembly, &spec.at(level), level),
        Kernel::Append { cache, key, value, angles, reservoir } => {
            let spec = AppendSpec {
                cache: *cache,
                key: run_strides(key),
                value: run_strides(value),
                rotation: angles.as_ref().map(|angles| angles.rotation),
                reservoir: *reservoir,
            };
            emit_append(assembly, &spec, level)
        }
        Kernel::Attend { spec, .. } => emit_attend(assembly, spec, level),
    }
}

/// What addresses are made from.
struct Frame<'a> {
    plan: &'a SegmentPlan,
    context: Value,
    rows: Value,
}

impl Frame<'_> {
    fn field(&self, b: &mut Body<'_>, offset: usize) -> Value {
        b.load(POINTER, self.context, offset as i32)
    }

    fn root(&self, b: &mut Body<'_>, root: Root) -> Value {
        match root {
            Root::Hidden => self.field(b, offset_of!(StepContext, hidden)),
            Root::Answer => self.field(b, offset_of!(StepContext, logits)),
            Root::Cache => b.int(0),
            Root::Buffer(index) => {
                let arena = self.field(b, offset_of!(StepContext, arena));
                b.add_const(arena, self.plan.buffers[index].offset as i64)
            }
            Root::Weight(slot) => {
                let weights = self.field(b, offset_of!(StepContext, weights));
                let offsets = self.field(b, offset_of!(StepContext, segment_weights));
                let offset = b.load(POINTER, offsets, slot as i32 * 8);
                b.add(weights, offset)
            }
        }
    }

    fn view(&self, b: &mut Body<'_>, view: &View) -> Value {
        let root = self.root(b, view.root);
        b.add_const(root, view.offset as i64 * 4)
    }

    fn optional(&self, b: &mut Body<'_>, view: Option<&View>) -> Value {
        match view {
            Some(view) => self.view(b, view),
            None => b.int(0),
        }
    }

    /// A kernel's arguments before its share of the work.
    fn arguments(&self, b: &mut Body<'_>, kernel: &Kernel) -> Vec<Value> {
        match kernel {
            Kernel::Embed { table, output, .. } => {
                vec![self.context, self.root(b, Root::Weight(*table)), self.view(b, output)]
            }
            Kernel::TableRows { table, output } => {
                vec![self.context, self.view(b, table), self.view(b, output)]
            }
            Kernel::TakeRows { output, .. } => {
                vec![self.context, self.root(b, Root::Hidden), self.view(b, output)]
            }
            Kernel::Norm { x, weight, bias, y, .. } => vec![
                self.view(b, x),
                self.view(b, weight),
                self.optional(b, bias.as_ref()),
                self.view(b, y),
            ],
            Kernel::Rotary { x, y, angles } => vec![
                self.context,
                self.view(b, x),
                self.view(b, &angles.cos),
                self.view(b, &angles.sin),
                self.view(b, y),
            ],
            Kernel::Map { inputs, output, .. } => vec![
                self.view(b, &inputs[0]),
                self.optional(b, inputs.get(1)),
                self.optional(b, inputs.get(2)),
                self.view(b, output),
            ],
            Kernel::Turn { x, y } | Kernel::Reduce { x, y, .. } => {
                vec![self.view(b, x), self.view(b, y)]
            }
            Kernel::Rounding { input, second, output, .. } => {
                let mut arguments = vec![self.view(b, input)];
                arguments.extend(second.as_ref().map(|second| self.view(b, second)));
                arguments.push(self.root(b, *output));
                arguments
            }
            Kernel::Matmul { input, weight, bias, residual, output, .. } => vec![
                self.view(b, input),
                self.root(b, Root::Weight(*weight)),
                self.view(b, output),
                self.optional(b, bias.as_ref()),
                self.optional(b, residual.as_ref()),
                self.rows,
            ],
            Kernel::Gated { input, weight, bias, output, shared, .. } => vec![
                self.view(b, input),
                self.root(b, Root::Weight(*weight)),
                self.root(b, *output),
                self.optional(b, bias.as_ref()),
                self.root(b, *shared),
                self.rows,
            ],
            Kernel::Append { key, value, angles, .. } => vec![
                self.context,
                self.view(b, key),
                self.view(b, value),
                self.optional(b, angles.as_ref().map(|angles| &angles.cos)),
                self.optional(b, angles.as_ref().map(|angles| &angles.sin)),
            ],
            Kernel::Attend { query, sinks, output, shared, .. } => vec![
                self.context,
                self.view(b, query),
                self.optional(b, sinks.as_ref()),
                self.view(b, output),
                self.root(b, *shared),
            ],
        }
    }
}

//! What steps of a model had to read and compute, so that their time can be judged.
//!
//! The compiler counts per kernel ([`WorkFacts`]); here rows and calls are counted and multiplied.
//! Nothing is measured or guessed: a cache row is read once per sequence and call, a weight once per
//! call.

use std::ops::{AddAssign, Sub};

use weir_abi::{CacheRange, FURTHER, RowSpans, TILE_ROWS};

use crate::cache::{LayerShape, Placement, Seat};
use crate::facts::{KernelFacts, SegmentFacts, WorkFacts};
use crate::forward::{ModelShape, StepRow, layer_shapes};
use crate::{CompiledModel, RuntimeError};

/// Bytes read and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes that had to be read.
    pub bytes: u64,
    /// Multiplications and additions of integers.
    pub integer_operations: u64,
    /// Of these, what AMX does in tiles of bf16.
    pub tile_operations: u64,
    /// Multiplications and additions of floats.
    pub float_operations: u64,
    /// Of these, products of bf16 with bf16.
    pub bf16_operations: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.bytes += other.bytes;
        self.integer_operations += other.integer_operations;
        self.tile_operations += other.tile_operations;
        self.float_operations += other.float_operations;
        self.bf16_operations += other.bf16_operations;
    }
}

/// How much a segment had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Calls.
    pub calls: u64,
    /// Rows of all calls.
    pub rows: u64,
    /// Of these, rows of calls of [`TILE_ROWS`] or more.
    pub tile_rows: u64,
    /// Cache rows that these attended to, summed over rows.
    pub attended: u64,
    /// Cache rows that had to be read, once per sequence and call.
    pub cached: u64,
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.calls += other.calls;
        self.rows += other.rows;
        self.tile_rows += other.tile_rows;
        self.attended += other.attended;
        self.cached += other.cached;
    }
}

impl Load {
    /// So many calls of so many rows together.
    fn of(calls: u64, rows: u64) -> Load {
        let tile_rows = if rows >= calls * TILE_ROWS { rows } else { 0 };
        Load { calls, rows, tile_rows, ..Load::default() }
    }

    /// The work of a kernel under this load.
    pub fn work(&self, kernel: &KernelFacts) -> Work {
        Work {
            bytes: self.calls * kernel.call_bytes
                + self.rows * kernel.row_bytes
                + self.cached * kernel.cached_row_bytes,
            integer_operations: self.rows * kernel.integer_operations
                + self.attended * kernel.attended_integer_operations,
            tile_operations: self.tile_rows * kernel.tile_operations,
            float_operations: self.rows * kernel.float_operations
                + self.attended * kernel.attended_float_operations,
            bf16_operations: self.rows * kernel.bf16_operations
                + self.attended * kernel.attended_bf16_operations,
        }
    }

    fn all(&self, segment: &SegmentFacts) -> Work {
        let mut work = Work::default();
        segment.kernels.iter().for_each(|kernel| work += self.work(kernel));
        work
    }
}

/// The loads of all segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Segment `embed`.
    pub embed: Load,
    /// Segment `layer` of each kind.
    pub kinds: Vec<Load>,
    /// Segment `head`.
    pub head: Load,
}

impl Loads {
    /// What was added since an earlier count.
    pub fn since(&self, earlier: &Loads) -> Loads {
        let nothing = Load::default();
        let before = |index: usize| earlier.kinds.get(index).unwrap_or(&nothing);
        let kinds = self.kinds.iter().enumerate();
        Loads {
            embed: self.embed - earlier.embed,
            kinds: kinds.map(|(index, load)| *load - *before(index)).collect(),
            head: self.head - earlier.head,
        }
    }
}

impl Sub for Load {
    type Output = Load;

    fn sub(self, other: Load) -> Load {
        Load {
            calls: self.calls - other.calls,
            rows: self.rows - other.rows,
            tile_rows: self.tile_rows - other.tile_rows,
            attended: self.attended - other.attended,
            cached: self.cached - other.cached,
        }
    }
}

/// Counts the loads of a model's steps.
pub struct WorkCounter {
    facts: WorkFacts,
    /// Kind and layout of each layer.
    layers: Vec<(usize, LayerShape)>,
    max_rows: u32,
    head_rows: u64,
    loads: Loads,
}

impl WorkCounter {
    /// A counter for a model with the facts that its compiler wrote.
    pub fn new(model: &CompiledModel, facts: &WorkFacts) -> Result<WorkCounter, RuntimeError> {
        if facts.kinds.len() != model.kinds().len() {
            return Err(RuntimeError::Tables(format!(
                "work of {} layer kinds instead of {}",
                facts.kinds.len(),
                model.kinds().len()
            )));
        }
        let layers = model.layers().iter();
        let shapes = layer_shapes(model, model.layouts());
        Ok(WorkCounter {
            facts: facts.clone(),
            layers: layers.map(|layer| layer.kind as usize).zip(shapes).collect(),
            max_rows: model.header().max_rows,
            head_rows: u64::from(model.header().max_head_rows),
            loads: Loads { kinds: vec![Load::default(); facts.kinds.len()], ..Loads::default() },
        })
    }

    /// What has been counted since the beginning.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// What the compiler counted.
    pub fn facts(&self) -> &WorkFacts {
        &self.facts
    }

    /// The work of these loads.
    pub fn work(&self, loads: &Loads) -> Work {
        let mut work = loads.embed.all(&self.facts.embed);
        for (load, kind) in loads.kinds.iter().zip(&self.facts.kinds) {
            work += load.all(kind);
        }
        work += loads.head.all(&self.facts.head);
        work
    }

    /// Counts a step.
    pub fn step(&mut self, rows: &[StepRow], head_rows: usize) {
        self.loads.embed += Load::of(1, rows.len() as u64);
        let mut known: Vec<(&LayerShape, Load)> = Vec::new();
        for (kind, layer) in &self.layers {
            let is_alike =
                |other: &LayerShape| other.layout == layer.layout && other.by_head == layer.by_head;
            let load = match known.iter().find(|(other, _)| is_alike(other)) {
                Some((_, load)) => *load,
                None => {
                    let load = step_load(layer, rows);
                    known.push((layer, load));
                    load
                }
            };
            self.loads.kinds[*kind] += load;
        }
        self.head(head_rows as u64);
    }

    /// Counts a call of the head.
    pub fn head(&mut self, rows: u64) {
        let calls = rows.div_ceil(self.head_rows.max(1));
        self.loads.head += Load::of(calls, rows);
    }

    /// Counts a prompt that is computed layer by layer, without its logits.
    pub fn long_prompt(&mut self, shape: &ModelShape, length: u32) {
        let rows = u64::from(length);
        let tiles = u64::from(length.div_ceil(self.max_rows.max(1)));
        self.loads.embed += Load::of(tiles, rows);
        for (kind, layer) in &self.layers {
            let layout = &layer.layout;
            let placement = Placement::new(layout, length);
            // A layer that would drop rows keeps all while it computes.
            let dense =
                shape.direct_rows < length && layout.prompt_rows() < length && layout.window == 0;
            let read = |p: u32| match dense {
                true => u64::from(p) + 1,
                false => read(&placement.spans(Seat::default(), p), layer),
            };
            let lasts = (0..length).filter(|p| (p + 1) % self.max_rows == 0 || p + 1 == length);
            self.loads.kinds[*kind] += Load {
                attended: (0..length).map(read).sum(),
                cached: lasts.map(read).sum(),
                ..Load::of(tiles, rows)
            };
        }
    }
}

/// Rows that a row reads of each head; of those that heads have different numbers of their mean.
fn read(spans: &RowSpans, layer: &LayerShape) -> u64 {
    let rows = |range: &CacheRange| {
        if range.first != FURTHER {
            return u64::from(range.rows);
        }
        let of_head =
            |selected: &u32| u64::from((selected - layer.layout.selected).min(range.rows));
        let of_all: u64 = layer.by_head.iter().map(of_head).sum();
        of_all.div_ceil(layer.by_head.len().max(1) as u64)
    };
    spans.ranges[..spans.range_count as usize].iter().map(rows).sum()
}

/// Rows of one sequence follow each other, and the last of them reads at least what the others do.
fn step_load(layer: &LayerShape, rows: &[StepRow]) -> Load {
    let mut load = Load::of(1, rows.len() as u64);
    for sequence in rows.chunk_by(|a, b| a.slot == b.slot) {
        let placement = Placement::new(&layer.layout, sequence[0].prompt_rows);
        let spans = |row: &StepRow| placement.spans(Seat::own(row.slot), row.position);
        let reads = sequence.iter().map(|row| read(&spans(row), layer));
        let mut most = 0;
        for rows in reads {
            load.attended += rows;
            most = most.max(rows);
        }
        load.cached += most;
    }
    load
}

#[cfg(test)]
mod tests {
    use weir_abi::{CacheLayout, CachePolicy, KindEntry};

    use super::*;

    fn full(rows: u32) -> CacheLayout {
        CacheLayout {
            policy: CachePolicy::Full as u32,
            elastic: 0,
            sinks: 0,
            selected: 0,
            recent: 0,
            rows,
            window: 0,
            observed: 0,
            pool: 1,
            growth: 0,
            in_flight: 0,
            reservoir: 0,
            reselect: 0,
            redundancy: 0,
            block_rows: 0,
            further: 0,
            first_head: 0,
            second: 0,
            second_share: 0,
        }
    }

    fn kind() -> KindEntry {
        KindEntry {
            heads: 2,
            kv_heads: 1,
            key_width: 1,
            value_width: 1,
            key_row_bytes: 4,
            value_row_bytes: 4,
            block_key_row_bytes: 0,
            block_value_row_bytes: 0,
        }
    }

    fn row(slot: u32, position: u32) -> StepRow {
        StepRow { token: 0, position, slot, prompt_rows: 4, rotary_set: 0 }
    }

    #[test]
    fn a_sequence_reads_its_rows_once_and_attends_row_by_row() {
        let rows = [row(0, 2), row(0, 3), row(1, 9)];
        let load = step_load(&LayerShape::alike(kind(), full(16)), &rows);
        assert_eq!(load, Load { attended: 3 + 4 + 10, cached: 4 + 10, ..Load::of(1, 3) });
    }

    #[test]
    fn work_is_facts_times_load() {
        let kernel = KernelFacts {
            name: "k".into(),
            call_bytes: 100,
            row_bytes: 10,
            cached_row_bytes: 3,
            integer_operations: 7,
            tile_operations: 6,
            float_operations: 5,
            bf16_operations: 3,
            attended_integer_operations: 4,
            attended_float_operations: 2,
            attended_bf16_operations: 1,
        };
        let load = Load { attended: 17, cached: 14, ..Load::of(2, 3) };
        let expected = Work {
            bytes: 200 + 30 + 42,
            integer_operations: 21 + 68,
            tile_operations: 0,
            float_operations: 15 + 34,
            bf16_operations: 9 + 17,
        };
        assert_eq!(load.work(&kernel), expected);
        let many = Load::of(2, 2 * TILE_ROWS);
        assert_eq!(many.work(&kernel).tile_operations, 2 * TILE_ROWS * 6);
    }
}

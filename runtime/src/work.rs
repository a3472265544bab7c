//! What steps of a model had to read and compute, so that their time can be judged.
//!
//! The compiler counts per kernel ([`WorkFacts`]); here rows and calls are counted and multiplied.
//! Nothing is measured or guessed: a cache row is read once per sequence and call, a weight once per
//! call.

use std::ops::{AddAssign, Sub};

use weir_abi::{CachePolicy, CacheRange, FURTHER, KindEntry, RowSpans, TILE_ROWS};

use crate::cache::{LayerShape, Placement, Seat};
use crate::facts::{KernelFacts, SegmentFacts, WorkFacts};
use crate::forward::{Past, StepRow, layer_shapes, tile_rows};
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
    /// Bytes of cache rows that had to be read, once per sequence and call. Bytes and not rows, for those
    /// of a block may have a number format of their own.
    pub cached_bytes: u64,
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.calls += other.calls;
        self.rows += other.rows;
        self.tile_rows += other.tile_rows;
        self.attended += other.attended;
        self.cached_bytes += other.cached_bytes;
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
        let cached_bytes = if kernel.cached_row_bytes > 0 { self.cached_bytes } else { 0 };
        Work {
            bytes: self.calls * kernel.call_bytes + self.rows * kernel.row_bytes + cached_bytes,
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
            cached_bytes: self.cached_bytes - other.cached_bytes,
        }
    }
}

/// Counts the loads of a model's steps.
pub struct WorkCounter {
    facts: WorkFacts,
    /// Kind and layout of each layer.
    layers: Vec<(usize, LayerShape)>,
    /// Rows of a tile of a long prompt.
    tile_rows: u32,
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
        let header = model.header();
        let tile_rows = tile_rows(header.max_rows as usize, header.hidden_width as usize);
        let layers = model.layers().iter();
        let shapes = layer_shapes(model, model.layouts());
        Ok(WorkCounter {
            facts: facts.clone(),
            layers: layers.map(|layer| layer.kind as usize).zip(shapes).collect(),
            tile_rows: tile_rows as u32,
            head_rows: u64::from(header.max_head_rows),
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
            let is_alike = |other: &LayerShape| {
                (other.kind, other.layout) == (layer.kind, layer.layout)
                    && other.by_head == layer.by_head
            };
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

    /// Counts a prompt of so many rows that is computed layer by layer, without its logits, behind those
    /// of its slot if it goes on behind any.
    pub fn long_prompt(&mut self, length: u32, past: Option<Past>) {
        let tiles = u64::from(length.div_ceil(self.tile_rows));
        self.loads.embed += Load::of(tiles, length.into());
        for (kind, layer) in &self.layers {
            let (attended, cached_bytes) = prompt_reads(layer, length, past, self.tile_rows);
            self.loads.kinds[*kind] +=
                Load { attended, cached_bytes, ..Load::of(tiles, length.into()) };
        }
    }
}

/// What a row reads of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reads {
    /// Rows of each head; of those that heads have different numbers of their mean.
    rows: u64,
    /// Bytes of all heads.
    bytes: u64,
}

impl Reads {
    fn of(spans: &RowSpans, layer: &LayerShape) -> Reads {
        let mut reads = Reads::default();
        for range in &spans.ranges[..spans.range_count as usize] {
            let of_heads = rows_of_heads(range, layer);
            reads.rows += of_heads.div_ceil(u64::from(layer.kind.kv_heads).max(1));
            reads.bytes += of_heads * row_bytes(&layer.kind, is_of_block(range, layer));
        }
        reads
    }

    /// Those of so many rows outside of a block.
    fn dense(rows: u32, kind: &KindEntry) -> Reads {
        let rows = u64::from(rows);
        Reads { rows, bytes: rows * u64::from(kind.kv_heads) * row_bytes(kind, false) }
    }
}

/// Rows of a range, summed over key/value heads.
fn rows_of_heads(range: &CacheRange, layer: &LayerShape) -> u64 {
    if range.first != FURTHER {
        return u64::from(range.rows) * u64::from(layer.kind.kv_heads);
    }
    let of_head = |selected: &u32| u64::from((selected - layer.layout.selected).min(range.rows));
    layer.by_head.iter().map(of_head).sum()
}

/// Whether rows lie in a block with a number format of its own, which no range leaves. Where heads have
/// rows behind all others, that is nothing or all of the cache.
fn is_of_block(range: &CacheRange, layer: &LayerShape) -> bool {
    let block_rows = layer.layout.block_rows;
    block_rows > 0 && (range.first < block_rows || range.first == FURTHER)
}

/// Bytes of a row of one head, keys and values.
fn row_bytes(kind: &KindEntry, is_of_block: bool) -> u64 {
    let [keys, values] = match is_of_block {
        true => [kind.block_key_row_bytes, kind.block_value_row_bytes],
        false => [kind.key_row_bytes, kind.value_row_bytes],
    };
    u64::from(keys) + u64::from(values)
}

/// Rows of one sequence follow each other, and the last of them reads at least what the others do.
fn step_load(layer: &LayerShape, rows: &[StepRow]) -> Load {
    let mut load = Load::of(1, rows.len() as u64);
    for sequence in rows.chunk_by(|a, b| a.slot == b.slot) {
        let placement = Placement::new(&layer.layout, sequence[0].prompt_rows);
        let spans = |row: &StepRow| placement.spans(Seat::own(row.slot), row.position);
        let mut most = 0;
        for reads in sequence.iter().map(|row| Reads::of(&spans(row), layer)) {
            load.attended += reads.rows;
            most = most.max(reads.bytes);
        }
        load.cached_bytes += most;
    }
    load
}

/// Rows that those of a long prompt attend to in a layer, and bytes that its tiles read.
fn prompt_reads(layer: &LayerShape, length: u32, past: Option<Past>, tile_rows: u32) -> (u64, u64) {
    let layout = &layer.layout;
    let first = past.map_or(0, |past| past.rows);
    let placement = Placement::new(layout, first + length);
    let drops = CachePolicy::from_number(layout.policy).is_some_and(CachePolicy::drops_rows);
    // A layer that drops rows keeps all of the prompt's while it computes, in the ring's format, behind
    // those that its slot holds. What it has dropped before the prompt in front of this one does not
    // matter: a cache that has dropped any holds as many rows without them.
    let before = match past {
        Some(Past { rows, prompt_rows }) => {
            drops.then(|| Placement::new(layout, prompt_rows).live(rows).count())
        }
        None => (drops && length > layout.prompt_rows()).then_some(0),
    };
    let reads = |row: u32| match before {
        Some(before) => Reads::dense(before + row + 1, &layer.kind),
        None => Reads::of(&placement.spans(Seat::default(), first + row), layer),
    };
    let lasts = (0..length).filter(|row| (row + 1) % tile_rows == 0 || row + 1 == length);
    ((0..length).map(|row| reads(row).rows).sum(), lasts.map(|row| reads(row).bytes).sum())
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
        let cached_bytes = 8 * (4 + 10);
        assert_eq!(load, Load { attended: 3 + 4 + 10, cached_bytes, ..Load::of(1, 3) });
    }

    /// Keeps 1 + 3 selected + 4 recent rows.
    fn bounded(block_rows: u32) -> CacheLayout {
        let policy = CachePolicy::Snapstream as u32;
        CacheLayout { policy, sinks: 1, selected: 3, recent: 4, block_rows, ..full(8) }
    }

    fn kind_with_block() -> KindEntry {
        KindEntry { block_key_row_bytes: 1, block_value_row_bytes: 2, ..kind() }
    }

    #[test]
    fn rows_of_a_block_count_in_its_own_format() {
        let rows = [StepRow { prompt_rows: 20, ..row(0, 20) }];
        for (kind, block_rows, bytes) in [
            (kind(), 0, 8 * 8),
            (kind_with_block(), 4, 4 * 3 + 4 * 8),
            (kind_with_block(), 8, 8 * 3),
        ] {
            let load = step_load(&LayerShape::alike(kind, bounded(block_rows)), &rows);
            assert_eq!((load.attended, load.cached_bytes), (8, bytes), "{block_rows} rows");
        }
    }

    #[test]
    fn further_rows_of_some_heads_have_the_format_of_the_others() {
        let rows = [StepRow { prompt_rows: 20, ..row(0, 20) }];
        for (block_rows, row_bytes) in [(0, 8), (8, 3)] {
            let layer = LayerShape {
                kind: KindEntry { kv_heads: 2, ..kind_with_block() },
                layout: CacheLayout { further: 5, ..bounded(block_rows) },
                by_head: [3, 8].into(),
            };
            let load = step_load(&layer, &rows);
            assert_eq!((load.attended, load.cached_bytes), (8 + 3, (2 * 8 + 5) * row_bytes));
        }
    }

    #[test]
    fn a_long_prompt_reads_the_rows_that_it_goes_on_behind() {
        let past = Some(Past { rows: 10, prompt_rows: 8 });
        let layer = |layout| LayerShape::alike(kind_with_block(), layout);
        // Tiles of two rows and one.
        let of = |layout, past| prompt_reads(&layer(layout), 3, past, 2);
        assert_eq!(of(full(16), None), (1 + 2 + 3, 8 * (2 + 3)));
        assert_eq!(of(full(16), past), (11 + 12 + 13, 8 * (12 + 13)));
        // Eight rows are there, which lie in the ring's format while the prompt is computed.
        assert_eq!(of(bounded(4), past), (9 + 10 + 11, 8 * (10 + 11)));
        // A prompt that fits goes straight to its place, a longer one stays whole until it is selected from.
        assert_eq!(of(bounded(8), None), (1 + 2 + 3, 3 * (2 + 3)));
        let nine = prompt_reads(&layer(bounded(8)), 9, None, 4);
        assert_eq!(nine, ((1..=9).sum(), 8 * (4 + 8 + 9)));
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
        let load = Load { attended: 17, cached_bytes: 42, ..Load::of(2, 3) };
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

//! A compiled model in memory, whose segments one thread or two call.

use super::*;

static PAIR: LazyLock<Barrier> = LazyLock::new(|| Barrier::new(2));
pub(super) static PAIR_IN_USE: Mutex<()> = Mutex::new(());

extern "C" fn wait_alone(_: *const c_void, _: u32) {}
extern "C" fn wait_for_pair(_: *const c_void, _: u32) {
    if PAIR.wait().is_leader() {
        *TAKEN.lock().unwrap() = [0; WORKS as usize];
    }
    PAIR.wait();
}

/// Items taken of each work of the pair, in order and whoever asks.
static TAKEN: Mutex<[u32; WORKS as usize]> = Mutex::new([0; WORKS as usize]);

extern "C" fn take(_: *const c_void, _: u32, work: u32, items: u32, _: u32, _: u32) -> u64 {
    let begin = &mut TAKEN.lock().unwrap()[work as usize];
    if *begin == items {
        return 0;
    }
    *begin += 1;
    u64::from(*begin - 1) << 32 | u64::from(*begin)
}
extern "C" fn report(_: *const c_void, fault: u32, detail: u32) {
    panic!("fault {fault} {detail}");
}

/// A model's tables.
pub(super) struct Header(pub(super) Vec<u8>);

impl Header {
    pub(super) fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.0[offset..offset + 8].try_into().unwrap())
    }

    pub(super) fn half(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.0[offset..offset + 4].try_into().unwrap())
    }

    /// Weight offsets from an index on.
    pub(super) fn offsets(&self, first: u32) -> Vec<u64> {
        let table = self.word(offset_of!(ModelHeader, weight_offsets)) as usize;
        let count = self.word(offset_of!(ModelHeader, weight_offsets) + 8) as usize;
        (first as usize..count).map(|index| self.word(table + 8 * index)).collect()
    }

    pub(super) fn layer_weights(&self, layer: usize) -> Vec<u64> {
        let table = self.word(offset_of!(ModelHeader, layers)) as usize;
        let entry = table + layer * size_of::<LayerEntry>();
        self.offsets(self.half(entry + offset_of!(LayerEntry, weights)))
    }
}

/// A compiled model with its memory.
pub(super) struct Machine {
    pub(super) code: ExecutableCode,
    pub(super) header: Header,
    pub(super) weights: Vec<u8>,
    pub(super) arena: Vec<u8>,
    pub(super) hidden: Vec<f32>,
    /// Per layer.
    pub(super) keys: Vec<Vec<f32>>,
    pub(super) values: Vec<Vec<f32>>,
    pub(super) level: &'static str,
    pub(super) threads: u32,
}

pub(super) const PLANE: usize = KV * CONTEXT * HEAD_WIDTH;

/// A key row of slot 0 out of its block.
pub(super) fn key(plane: &[f32], head: usize, row: usize) -> Vec<f32> {
    let block = (head * CONTEXT + row / KEY_BLOCK * KEY_BLOCK) * HEAD_WIDTH;
    (0..HEAD_WIDTH).map(|d| plane[block + d * KEY_BLOCK + row % KEY_BLOCK]).collect()
}

/// One row: token, position, slot.
pub(super) type Row = (u32, u32, u32);

impl Machine {
    pub(super) fn new(graph: &Graph, level: IsaLevel, threads: u32) -> Machine {
        Machine::with(graph, level, threads, None)
    }

    pub(super) fn with(
        graph: &Graph,
        level: IsaLevel,
        threads: u32,
        compute: Option<Compute>,
    ) -> Machine {
        let verified = weir_ir::verify::verify(graph, Stage::Fixed).unwrap();
        let options = Options { compute, ..options() };
        let image = generate(verified, &options).unwrap().image;
        let mut weights = vec![0; image.weights.bytes as usize];
        for piece in &image.weights.pieces {
            let begin = piece.offset as usize;
            (piece.fill)(&mut weights[begin..begin + piece.bytes as usize]).unwrap();
        }
        let poison = vec![f32::from_bits(POISON); 2 * PLANE];
        let mut machine = Machine {
            code: ExecutableCode::new(&image.code).unwrap(),
            header: Header(image.tables),
            weights,
            arena: Vec::new(),
            hidden: vec![f32::from_bits(POISON); ROWS * WIDTH],
            keys: vec![poison.clone(); LAYERS],
            values: vec![poison; LAYERS],
            level: level.name(),
            threads,
        };
        let arena = machine.header.word(offset_of!(ModelHeader, arena_bytes)) as usize;
        machine.arena = vec![0xff; arena + 64];
        machine
    }

    pub(super) fn context(&mut self) -> StepContext {
        let arena = self.arena.as_mut_ptr();
        StepContext {
            weights: self.weights.as_ptr(),
            arena: arena.wrapping_add(arena.align_offset(64)),
            hidden: self.hidden.as_mut_ptr(),
            barrier: if self.threads == 1 { wait_alone } else { wait_for_pair },
            take,
            fault: report,
            ..crate::kernels::tests::context()
        }
    }

    pub(super) fn call(&self, segment: &str, context: &StepContext) {
        let address = std::ptr::from_ref(context) as u64;
        let enter = |thread: u32| {
            self.code.call_kernel(
                segment,
                &mut [
                    Argument::Count(address),
                    Argument::Count(thread.into()),
                    Argument::Count(self.threads.into()),
                ],
            );
        };
        std::thread::scope(|scope| {
            for thread in 1..self.threads {
                scope.spawn(move || enter(thread));
            }
            enter(0);
        });
    }

    pub(super) fn layer_call(&mut self, layer: usize, spans: &[RowSpans]) -> LayerCall {
        let row = (HEAD_WIDTH * 4) as u64;
        LayerCall {
            keys: self.keys[layer].as_mut_ptr().cast(),
            values: self.values[layer].as_mut_ptr().cast(),
            key_slot_stride: PLANE as u64 * 4,
            key_head_stride: CONTEXT as u64 * row,
            value_slot_stride: PLANE as u64 * 4,
            value_head_stride: CONTEXT as u64 * row,
            spans: spans.as_ptr(),
            ..nothing_observed()
        }
    }

    /// One step; logits of all rows.
    pub(super) fn step(&mut self, rows: &[Row]) -> Vec<Vec<f32>> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.0).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.1).collect();
        let spans: Vec<RowSpans> = rows
            .iter()
            .map(|(_, position, slot)| {
                let mut span =
                    RowSpans { write_slot: *slot, write_row: *position, ..Default::default() };
                // Two ranges, so that their joint is tested.
                let first = (*position).min(3);
                span.ranges[0] = CacheRange { slot: *slot, first: 0, rows: first };
                span.ranges[1] = CacheRange { slot: *slot, first, rows: position + 1 - first };
                span.range_count = 2;
                span
            })
            .collect();
        let count = rows.len() as u32;
        let base = StepContext {
            tokens: tokens.as_ptr(),
            positions: positions.as_ptr(),
            rotary_rows: positions.as_ptr(),
            rows: count,
            ..self.context()
        };
        let embed = self.header.offsets(self.header.half(offset_of!(ModelHeader, embed_weights)));
        let level = self.level;
        let name = |segment: &str| format!("{segment}-{level}");
        self.call(&name("embed"), &StepContext { segment_weights: embed.as_ptr(), ..base });
        for layer in 0..LAYERS {
            let weights = self.header.layer_weights(layer);
            let call = self.layer_call(layer, &spans);
            let context = StepContext { segment_weights: weights.as_ptr(), layer: &call, ..base };
            self.call(&name("layer-0"), &context);
        }
        let head = self.header.offsets(self.header.half(offset_of!(ModelHeader, head_weights)));
        let wanted: Vec<u32> = (0..count).collect();
        let mut logits = vec![7.0f32; rows.len() * VOCABULARY + 16];
        let context = StepContext {
            segment_weights: head.as_ptr(),
            head_rows: wanted.as_ptr(),
            logits: logits.as_mut_ptr(),
            head_row_count: count,
            ..base
        };
        self.call(&name("head"), &context);
        assert!(logits[rows.len() * VOCABULARY..].iter().all(|value| *value == 7.0));
        logits.chunks(VOCABULARY).take(rows.len()).map(<[f32]>::to_vec).collect()
    }
}

/// A layer's call without planes, rows and observed queries.
pub(super) fn nothing_observed() -> LayerCall {
    LayerCall {
        keys: std::ptr::null_mut(),
        values: std::ptr::null_mut(),
        key_slot_stride: 0,
        key_head_stride: 0,
        value_slot_stride: 0,
        value_head_stride: 0,
        spans: null(),
        observed_queries: std::ptr::null_mut(),
        observed_lse: std::ptr::null_mut(),
        observed_from: 0,
        layer: 0,
        key_ring: 0,
        value_ring: 0,
        block_rows: 0,
        heads: null(),
    }
}

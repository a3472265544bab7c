//! Tables that the compiler writes and the runtime reads.
//!
//! Offsets named `*_offset` count bytes from the start of the tables region unless their
//! documentation names another region. All tables are 8-byte aligned and little endian.

/// A run of bytes in the tables region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blob {
    /// First byte, from the start of the tables region.
    pub offset: u64,
    /// Length in bytes; 0 when absent.
    pub bytes: u64,
}

/// A table of equally sized entries in the tables region.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// First entry, from the start of the tables region.
    pub offset: u64,
    /// Number of entries.
    pub count: u64,
}

/// The head of the tables region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelHeader {
    /// [`crate::MAGIC`].
    pub magic: [u8; 8],
    /// [`crate::ABI_VERSION`].
    pub abi_version: u32,
    /// Zero.
    pub reserved: u32,
    /// BLAKE3 of this header with this field zero.
    pub header_digest: [u8; 32],
    /// BLAKE3 of the tables region after the header.
    pub tables_digest: [u8; 32],
    /// BLAKE3 of the code region.
    pub code_digest: [u8; 32],
    /// BLAKE3 of the weights region.
    pub weights_digest: [u8; 32],
    /// Bytes of the tables region, header included.
    pub tables_bytes: u64,
    /// Bytes of the code region.
    pub code_bytes: u64,
    /// Bytes of the weights region.
    pub weights_bytes: u64,
    /// Token ids: the logits of a row, or, of a model that gives none, entries of its embedding.
    pub vocabulary: u32,
    /// f32 values of a hidden row.
    pub hidden_width: u32,
    /// Positions that a sequence may have: prompt and generated rows together.
    pub context: u32,
    /// Largest number of rows of one step (M_max).
    pub max_rows: u32,
    /// Largest number of rows that one call of the head takes.
    pub max_head_rows: u32,
    /// Slots that the compiler laid the cache out for; the runtime may be asked for fewer.
    pub slots: u32,
    /// Number of rotary table sets (1, or 2 for a model that switches factors by length).
    pub rotary_sets: u32,
    /// A sequence whose greatest length exceeds this uses the second rotary set; 0 with one set.
    pub rotary_switch: u32,
    /// Number of a [`HeadResult`].
    pub head_result: u32,
    /// f32 values that the head gives for a row.
    pub head_width: u32,
    /// Bytes of the arena: all buffers of a step, planned at compile time.
    pub arena_bytes: u64,
    /// [`LevelEntry`] per ISA level, lowest first.
    pub levels: Table,
    /// [`KindEntry`] per layer kind.
    pub kinds: Table,
    /// [`LayerEntry`] per layer, in order.
    pub layers: Table,
    /// [`CacheLayout`] per distinct cache layout.
    pub layouts: Table,
    /// `u32` numbers of selected rows by key/value head that cache layouts refer to.
    pub head_rows: Table,
    /// `u64` weight offsets (from the start of the weights region) that layers refer to.
    pub weight_offsets: Table,
    /// Index of the embed segment's first weight offset in `weight_offsets`.
    pub embed_weights: u32,
    /// Index of the head segment's first weight offset in `weight_offsets`.
    pub head_weights: u32,
    /// Packed tokenizer (see the tokenizer crate), or empty.
    pub tokenizer: Blob,
    /// Chat template (UTF-8, Jinja), or empty.
    pub chat_template: Blob,
    /// Facts of the model as JSON (UTF-8): name, special tokens, sampling defaults, build.
    pub facts: Blob,
    /// [`SymbolEntry`] per function of the code region, for tools and checks.
    pub symbols: Table,
    /// Names that symbols point to.
    pub names: Blob,
}

/// What the head gives for a row.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadResult {
    /// Logits of the next token.
    Logits = 0,
    /// The row behind the last norm, from which embeddings are made.
    Hidden = 1,
}

impl HeadResult {
    /// The result with the given number, if there is one.
    pub fn from_number(number: u32) -> Option<HeadResult> {
        [HeadResult::Logits, HeadResult::Hidden].into_iter().find(|head| *head as u32 == number)
    }
}

/// Instruction sets that code is emitted for, in rising order of preference.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// Everything in 128-bit vectors by Cranelift; needs x86-64-v3. The pinned variant for
    /// comparing machines and the partner of the interpreter.
    Portable = 0,
    /// AVX2, FMA, F16C (x86-64-v3).
    Avx2 = 1,
    /// The same with AVX-VNNI.
    AvxVnni = 2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512 = 3,
    /// The same instructions in an order of their own, for processors that add bytes in units apart
    /// from those that multiply (AMD's): many rows of int4 are summed in pairs. And BF16, by which
    /// products of bf16 are computed. Same bits but for numbers below 2⁻¹²⁶ in products of bf16.
    Avx512Pairs = 4,
    /// AVX-512 with BF16, and AMX tiles of bytes and bf16, which a program asks its system for.
    Amx = 5,
}

impl IsaLevel {
    /// All levels, lowest first.
    pub const ALL: [IsaLevel; 6] = [
        IsaLevel::Portable,
        IsaLevel::Avx2,
        IsaLevel::AvxVnni,
        IsaLevel::Avx512,
        IsaLevel::Avx512Pairs,
        IsaLevel::Amx,
    ];

    /// The level with the given number, if there is one.
    pub fn from_number(number: u32) -> Option<IsaLevel> {
        Self::ALL.into_iter().find(|level| *level as u32 == number)
    }

    /// Name in options, symbols and output.
    pub fn name(self) -> &'static str {
        match self {
            IsaLevel::Portable => "portable",
            IsaLevel::Avx2 => "avx2",
            IsaLevel::AvxVnni => "avx-vnni",
            IsaLevel::Avx512 => "avx512",
            IsaLevel::Avx512Pairs => "avx512-pairs",
            IsaLevel::Amx => "amx",
        }
    }
}

/// The segments of one ISA level. Offsets count from the start of the code region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelEntry {
    /// Number of an [`IsaLevel`].
    pub level: u32,
    /// Zero.
    pub reserved: u32,
    /// Segment `embed`: token ids to hidden rows.
    pub embed: u64,
    /// Segment `head`: chosen hidden rows to what the head gives for them.
    pub head: u64,
    /// `KindCode` per layer kind.
    pub kinds: Table,
}

/// Segments of one layer kind on one level. Offsets count from the start of the code region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindCode {
    /// Segment `layer`: hidden rows in place, cache rows written and read.
    pub layer: u64,
    /// Segment `observe`: scores of the candidates of a prompt (section 4.2 and 4.3 of the method).
    pub observe: u64,
    /// Segment `compact`: selection and write into the slot (sections 4.4 and 4.5).
    pub compact: u64,
}

/// What the runtime must know of a layer kind to lay out memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindEntry {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values of a key row of one head.
    pub key_width: u32,
    /// Values of a value row of one head.
    pub value_width: u32,
    /// Bytes of a key row of one head.
    pub key_row_bytes: u32,
    /// Bytes of a value row of one head.
    pub value_row_bytes: u32,
    /// Bytes of a key row of one head in a block with a number format of its own; 0 if the kind has none.
    pub block_key_row_bytes: u32,
    /// The same of a value row.
    pub block_value_row_bytes: u32,
}

/// One layer of the model.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerEntry {
    /// Index into the kinds.
    pub kind: u32,
    /// Index into the cache layouts.
    pub layout: u32,
    /// Index of the layer's first weight offset.
    pub weights: u32,
    /// Number of weight offsets.
    pub weight_count: u32,
}

/// How a cache chooses what to keep.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CachePolicy {
    /// Every row is kept: C is the context.
    Full = 0,
    /// Sinks and a ring.
    Stream = 1,
    /// Sinks, rows selected at the end of the prompt, and a ring.
    Snapstream = 2,
    /// A ring that holds the window of a sliding-window layer and the rows of one step.
    Window = 3,
    /// As `Snapstream`, with room beside it for generated rows.
    Snapkv = 4,
    /// As `Snapstream`, with rows selected by lot.
    Random = 5,
}

impl CachePolicy {
    /// All policies.
    pub const ALL: [CachePolicy; 6] = [
        CachePolicy::Full,
        CachePolicy::Stream,
        CachePolicy::Snapstream,
        CachePolicy::Window,
        CachePolicy::Snapkv,
        CachePolicy::Random,
    ];

    /// The policy with the given number, if there is one.
    pub fn from_number(number: u32) -> Option<CachePolicy> {
        CachePolicy::ALL.into_iter().find(|policy| *policy as u32 == number)
    }

    /// Whether it keeps the first and the last rows of a prompt that is longer than its rows, and
    /// some between them or none.
    pub fn drops_rows(self) -> bool {
        !matches!(self, CachePolicy::Full | CachePolicy::Window)
    }

    /// Name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            CachePolicy::Full => "full",
            CachePolicy::Stream => "stream",
            CachePolicy::Snapstream => "snapstream",
            CachePolicy::Snapkv => "snapkv",
            CachePolicy::Random => "random",
            CachePolicy::Window => "window",
        }
    }
}

/// Rows of one layer's cache per slot and head; the letters are those of the method's document.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheLayout {
    /// Number of a [`CachePolicy`].
    pub policy: u32,
    /// 1: selected rows that a prompt does not need become ring rows; 0: the ring is fixed.
    pub elastic: u32,
    /// S.
    pub sinks: u32,
    /// K; the least of any head where heads have different numbers.
    pub selected: u32,
    /// R.
    pub recent: u32,
    /// Rows of a plane per head: S + K + R, which prompts fill, `growth`, `in_flight` and `reservoir`.
    pub rows: u32,
    /// Sliding window of the attention itself in rows, 0 for none. A query at position q reads
    /// keys p with q - window < p <= q.
    pub window: u32,
    /// w: queries at the end of a prompt that score (0 unless rows are selected).
    pub observed: u32,
    /// Pooling width (odd).
    pub pool: u32,
    /// Rows of a plane beside C, which no prompt fills: room for generated ones.
    pub growth: u32,
    /// D: rows of the ring that no prompt fills and no query reads beside the others, so that the rows
    /// of as many tokens, the last ones guessed, can be written in one step and taken back. Those of a
    /// ring for a window are among the rows of a step that it has beside the window.
    pub in_flight: u32,
    /// N: the last rows of a plane, a sample of those that have left the ring. No prompt fills them.
    pub reservoir: u32,
    /// 1: rows are selected from anew when a plane is full, which then has room for a prompt's rows and
    /// `growth` more; 0: its ring turns.
    pub reselect: u32,
    /// Percent of the scores of rows that are selected anew that is their redundancy; 0: it does not
    /// count.
    pub redundancy: u32,
    /// Rows that have the block's number format, the first ones: S + K where the ring has another, all
    /// where only prompts that are longer than a plane have another; 0 if all have one.
    pub block_rows: u32,
    /// Rows beside K that the head with the most selects; 0 if all heads have K.
    pub further: u32,
    /// Where heads differ, the index of the first one's K in `ModelHeader::head_rows`; those of the
    /// layer's other key/value heads follow.
    pub first_head: u32,
    /// Rows of a prompt, of each key/value head, that are asked beside the last w; 0: none.
    pub second: u32,
    /// Percent of the selected rows that are chosen by what these attend to.
    pub second_share: u32,
}

impl CacheLayout {
    /// Rows that are kept of a prompt. A longer one is compacted.
    pub fn prompt_rows(&self) -> u32 {
        let beside = [self.growth, self.in_flight, self.reservoir];
        beside.into_iter().fold(self.rows, u32::saturating_sub)
    }

    /// Queries at the end of a prompt that are kept until it is compacted: all of a prompt where rows may
    /// be asked beside those that score.
    pub fn kept_queries(&self) -> u32 {
        if self.second > 0 { u32::MAX } else { self.observed }
    }
}

/// A named function of the code region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolEntry {
    /// First byte of the name in the names blob.
    pub name_offset: u32,
    /// Bytes of the name.
    pub name_bytes: u32,
    /// First byte of the function in the code region.
    pub code_offset: u64,
    /// Bytes of the function.
    pub code_bytes: u64,
}

/// Where the three regions lie, written into the static slot of an executable or library.
///
/// Displacements count from the address of the slot itself, so that the place where the kernel
/// loads the program does not matter. The slot is read volatile: the compiler of the runtime must
/// not believe its initial value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSlot {
    /// [`SLOT_EMPTY`] in a runtime without a model, [`SLOT_FILLED`] with one.
    pub magic: [u8; 16],
    /// From the slot to the code region.
    pub code: i64,
    /// From the slot to the tables region.
    pub tables: i64,
    /// From the slot to the weights region.
    pub weights: i64,
    /// Bytes of the code region.
    pub code_bytes: u64,
    /// Bytes of the tables region.
    pub tables_bytes: u64,
    /// Bytes of the weights region.
    pub weights_bytes: u64,
}

/// Magic of a slot without a model; the container writer looks for it.
pub const SLOT_EMPTY: [u8; 16] = *b"weir slot empty.";
/// Magic of a slot with a model.
pub const SLOT_FILLED: [u8; 16] = *b"weir slot filled";

/// Bytes that follow the weights region in a file. They are the last bytes of the file, so that a
/// truncated one is recognised without reading the weights.
pub const END_MARK: [u8; 16] = *b"weir model ends.";

/// Head of an ELF note whose description begins at a multiple of 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteHead {
    /// Bytes of the name with its final zero: those of [`NOTE_NAME`].
    pub name_bytes: u32,
    /// Bytes of the description.
    pub description_bytes: u32,
    /// [`NOTE_ROOM`] or [`NOTE_SLOT`].
    pub kind: u32,
    /// [`NOTE_NAME`].
    pub name: [u8; 12],
}

/// Owner of our ELF notes. Twelve bytes, so that the description is aligned under either of the
/// two paddings (4 and 8) that readers of notes use.
pub const NOTE_NAME: [u8; 12] = *b"weir-model\0\0";
/// A note without meaning: the container writer lets the program header table grow over it.
pub const NOTE_ROOM: u32 = 1;
/// The note that follows it; its description is the [`ModelSlot`].
pub const NOTE_SLOT: u32 = 2;
/// Bytes of the first note's description: room for ten more program headers.
pub const NOTE_ROOM_BYTES: usize = 560;

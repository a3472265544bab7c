//! Probes: small segments that say how fast a machine can go.
//!
//! They lie in every compiled model beside its own code, so that a program without a compiler can
//! tell its figures as shares of what the machine does. A probe reads two numbers at
//! [`StepContext::segment_weights`](crate::StepContext::segment_weights): its count and the number
//! of passes.

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Probe {
    /// Reads memory at [`StepContext::weights`](crate::StepContext::weights), a share per thread in
    /// whole pages, `passes` times; the count is in bytes.
    Read,
    /// Multiplies and adds in f32, in vectors of 128 bits.
    Float128,
    /// The same in 256 bits.
    Float256,
    /// The same in 512 bits.
    Float512,
    /// Multiplies bytes and adds pairs in 16 bits, 128 bits at a time (`pmaddubsw`, `paddw`).
    Bytes128,
    /// The same in 256 bits.
    Bytes256,
    /// Multiplies bytes and adds four products in 32 bits, 256 bits at a time (`vpdpbusd` of
    /// AVX-VNNI).
    ByteDots256,
    /// The same in 512 bits (AVX-512 VNNI).
    ByteDots512,
    /// Multiplies bf16 pairs and adds them in f32, 512 bits at a time (`vdpbf16ps`).
    Bf16Dots512,
    /// Multiplies 16 rows of 64 bytes with 16 columns of them and adds in 32 bits (`tdpbssd`).
    ByteTiles,
    /// Multiplies 16 rows of 32 bf16 with 16 columns of them and adds in f32 (`tdpbf16ps`).
    Bf16Tiles,
}

/// Instructions of a turn of a probe of arithmetic, whose sums are independent: more than latency
/// times instructions per cycle. Tiles have six sums, added to in turn.
pub const PROBE_SUMS: u64 = 12;

impl Probe {
    /// All probes.
    pub const ALL: [Probe; 11] = [
        Probe::Read,
        Probe::Float128,
        Probe::Float256,
        Probe::Float512,
        Probe::Bytes128,
        Probe::Bytes256,
        Probe::ByteDots256,
        Probe::ByteDots512,
        Probe::Bf16Dots512,
        Probe::ByteTiles,
        Probe::Bf16Tiles,
    ];

    /// Symbol of the segment.
    pub fn symbol(self) -> &'static str {
        match self {
            Probe::Read => "probe-read",
            Probe::Float128 => "probe-f32-fma-128",
            Probe::Float256 => "probe-f32-fma-256",
            Probe::Float512 => "probe-f32-fma-512",
            Probe::Bytes128 => "probe-int8-maddubs-128",
            Probe::Bytes256 => "probe-int8-maddubs-256",
            Probe::ByteDots256 => "probe-int8-vnni-256",
            Probe::ByteDots512 => "probe-int8-vnni-512",
            Probe::Bf16Dots512 => "probe-bf16-dot-512",
            Probe::ByteTiles => "probe-int8-amx",
            Probe::Bf16Tiles => "probe-bf16-amx",
        }
    }

    /// Multiplications and additions of one instruction (or pair) of a probe of arithmetic.
    pub fn operations(self) -> u64 {
        match self {
            Probe::Read => 0,
            Probe::Float128 => 8,
            Probe::Float256 => 16,
            Probe::Float512 => 32,
            Probe::Bytes128 => 32,
            Probe::Bytes256 | Probe::ByteDots256 => 64,
            Probe::ByteDots512 => 128,
            Probe::Bf16Dots512 => 64,
            Probe::ByteTiles => 2 * 16 * 16 * 64,
            Probe::Bf16Tiles => 2 * 16 * 16 * 32,
        }
    }
}

//! The compiled model before it has a container: code, tables and weights.
//!
//! Code is one position-independent run of bytes without imports; every reference inside it is
//! already resolved. Weights are a list of pieces that are packed only when they are written, so
//! that a model larger than memory can be compiled: a writer needs room for one piece at a time.

/// A named function or datum of the code region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name, unique in the image.
    pub name: String,
    /// First byte, from the start of the code.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Machine code of all segments and kernels on all ISA levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeImage {
    /// The bytes, position independent.
    pub bytes: Vec<u8>,
    /// Functions in order of their offsets.
    pub symbols: Vec<Symbol>,
}

/// A number of a weight that cannot be computed with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{what} {index} of row {row} is {number}, not a finite number")]
pub struct NotFinite {
    /// What kind of number: an element, a scale, a zero point.
    pub what: &'static str,
    /// Which one of its row.
    pub index: usize,
    /// Row of the weight.
    pub row: usize,
    /// The number.
    pub number: f32,
}

impl NotFinite {
    /// Checks the numbers of a row.
    pub fn check(what: &'static str, row: usize, numbers: &[f32]) -> Result<(), NotFinite> {
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(()),
            Some(index) => Err(NotFinite { what, index, row, number: numbers[index] }),
        }
    }
}

/// Writes the bytes of a weight into a zeroed buffer of exactly their length, unless the weight
/// holds numbers that nobody can compute with.
pub type FillWeight<'a> = Box<dyn Fn(&mut [u8]) -> Result<(), NotFinite> + Send + Sync + 'a>;

/// One packed weight: where it lies and how its bytes are made.
pub struct WeightPiece<'a> {
    /// First byte, from the start of the weights region.
    pub offset: u64,
    /// Length in bytes. Bytes between pieces are zero.
    pub bytes: u64,
    /// Name of the weight, for progress and errors.
    pub name: String,
    /// Writes exactly `bytes` bytes into a zeroed buffer.
    pub fill: FillWeight<'a>,
}

/// The weights region, not yet packed. Pieces are in order and do not overlap.
#[derive(Default)]
pub struct WeightImage<'a> {
    /// Length of the region in bytes.
    pub bytes: u64,
    /// What lies in it.
    pub pieces: Vec<WeightPiece<'a>>,
}

/// Everything that a container or the JIT needs.
pub struct ModelImage<'a> {
    /// Code region.
    pub code: CodeImage,
    /// Tables region; its header's `code_digest`, `weights_digest` and `header_digest` are zero
    /// until a writer, which sees all bytes, fills them.
    pub tables: Vec<u8>,
    /// Weights region.
    pub weights: WeightImage<'a>,
}

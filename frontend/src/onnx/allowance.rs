//! How many bytes an import may make beside those of the file.
//!
//! Contents that no file holds (ranges, coordinates, scales written out, elements of shapes) are each
//! bounded where they are made; nodes that make them are short, so that their sum is bounded here.

use weir_ir::Dim;
use weir_ir::ops::Known;

/// Bytes of one import, some five times the most that models have: two tables for long contexts that a
/// condition chooses between (50 MB each of 128 Ki positions), the scales of products of integers (60
/// MB), and shapes of some elements at each of some 10000 nodes (up to 80 MB as they are counted below).
pub const MOST_MADE: usize = 1 << 30;

/// A number in a list: a `Dim` and its one term in a map of its own, whose node has room for eleven.
const NUMBER: usize = 168;
/// The most that a polynomial of 64 terms takes.
const POLYNOMIAL: usize = 2 << 10;

/// What an import has made so far.
#[derive(Debug, Default)]
pub struct Allowance {
    made: usize,
}

impl Allowance {
    /// Takes bytes; `None` if they are more than are left, of which then there are none.
    pub fn take(&mut self, bytes: usize) -> Option<()> {
        self.made = self.made.saturating_add(bytes);
        (!self.is_spent()).then_some(())
    }

    /// Whether somebody has asked for more than there was.
    pub fn is_spent(&self) -> bool {
        self.made > MOST_MADE
    }
}

/// Bytes of a list of numbers.
pub fn numbers(count: usize) -> usize {
    count.saturating_mul(NUMBER)
}

/// Bytes of a list.
pub fn list(elements: &[Dim]) -> usize {
    let size = |dim: &Dim| if dim.as_number().is_some() { NUMBER } else { POLYNOMIAL };
    elements.iter().map(size).fold(0, usize::saturating_add)
}

/// Bytes of what is known of a value.
pub fn known(known: Option<&Known>) -> usize {
    match known {
        Some(Known::Elements(elements)) => list(elements),
        Some(Known::Fill(_)) | None => 0,
    }
}

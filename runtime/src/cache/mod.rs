//! The slot cache: for every layer a fixed block of key and value rows per slot.
//!
//! Which row a position occupies is pure arithmetic ([`Placement`]); the bytes are one anonymous
//! mapping that is made once ([`SlotCache`]). Slots are claimed and released, never resized.

mod placement;
mod planes;

pub use placement::{KeptRows, LiveRows, Placement};
pub(crate) use planes::strides;
pub use planes::{LayerShape, SlotCache};

//! The slot cache: for every layer a fixed block of key and value rows per slot.
//!
//! Which row a position occupies is pure arithmetic ([`Placement`]); the bytes are one anonymous
//! mapping that is made once ([`SlotCache`]). Slots are claimed and released, never resized. Some may have
//! no block of their own ([`Pool`]): those of samples that read the block of the slot of their prompt.

mod heads;
mod placement;
mod planes;
mod pools;

pub use placement::{KeptRows, LiveRows, Placement};
pub(crate) use planes::strides;
pub use planes::{LayerShape, SlotCache, SlotCount};
pub use pools::{Pool, Seat};

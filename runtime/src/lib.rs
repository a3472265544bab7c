//! Runs compiled models.

pub mod weights;

//! Layers: repetitions found and held once, and the last step to numbers.

pub mod drop_constants;
pub mod fix_shapes;
pub mod fold_layers;

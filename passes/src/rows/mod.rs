//! From tensors with batch, head and row dimensions in any order to rows: `[sequence, width]`.

mod attention;
pub mod axes;
mod columns;
mod elementwise;
mod form;
pub mod form_rows;
mod movement;
mod translate;

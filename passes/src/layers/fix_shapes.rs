//! Replaces the last symbol: the new rows of one sequence become the rows of a step.
//!
//! Before:  v1: f32[sequence, 64]
//! After:   v1: f32[rows, 64]
//!
//! Needs: stage `Sparse`.
//! Gives: stage `Fixed`.

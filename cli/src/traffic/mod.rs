//! Requests over time and what becomes of them: what measuring a server (`load`) and simulating one
//! (`simulate`) have in common.
//!
//! Arrivals, prompts and random draws on one side, figures, reports and drawings on the other. Nothing
//! here sends or computes anything, so both commands offer the same traffic and tell the same figures.

pub mod arrivals;
pub mod chart;
pub mod dataset;
mod draws;
pub mod measure;
pub mod offer;
pub mod outcome;
pub mod report;
pub mod trace;

pub use draws::Draws;

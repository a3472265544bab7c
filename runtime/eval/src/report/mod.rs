//! What a run found out, for people and for programs.

mod chart;
mod json;
mod table;

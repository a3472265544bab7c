//! Tests of the importer over whole models: exported ones, and a tiny one broken in many ways.

mod broken;
mod budgets;
mod codebook;
mod decoders;
mod files;
mod fixtures;
mod goldens;
mod integers;
mod operators;
mod tiny;

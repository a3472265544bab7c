//! Suites over whole models.
fn main() {}

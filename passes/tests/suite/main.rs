//! One binary for all tests of the passes over whole models.

mod files;
mod goldens;

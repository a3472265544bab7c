//! The runtime that outputs begin with, built with this crate (see `build.rs`).

use super::ContainerError;

/// The static program without a model; empty if the compiler was built without it.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime-program"));
/// The same runtime as an object for other people's programs.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime-object"));

/// The program that the executable writer extends.
pub(super) fn program() -> Result<&'static [u8], ContainerError> {
    present(PROGRAM, "exe")
}

/// The object that the library writer puts beside the model.
pub(super) fn object() -> Result<&'static [u8], ContainerError> {
    present(OBJECT, "lib")
}

fn present(bytes: &'static [u8], emit: &'static str) -> Result<&'static [u8], ContainerError> {
    if bytes.is_empty() { Err(ContainerError::NoRuntime(emit)) } else { Ok(bytes) }
}

//! Containers of a compiled model: executable, relocatable object, library archive.
//!
//! This folder is the only place of the compiler that knows how such files look. A writer streams
//! the model's regions into a temporary file beside the output and renames it when it is whole. The
//! same image gives the same bytes.

mod error;
mod executable;
mod library;
mod object_file;
mod output;
pub(crate) mod regions;
mod runtime;
mod sections;
#[cfg(test)]
mod tests;

pub use error::ContainerError;
pub use executable::write_executable;
pub use library::write_library;
pub use object_file::write_object;

/// Called while a container is written: bytes done, bytes in total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Alignment of regions in files and memory.
const PAGE_BYTES: u64 = 4096;
/// A large page of x86-64.
const LARGE_PAGE_BYTES: u64 = 2 << 20;

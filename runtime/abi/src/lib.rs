//! The contract between the compiler and the runtime: what lies in a compiled model and what a
//! segment of model code receives when it is called.
//!
//! Both sides use these `#[repr(C)]` types and nothing else of each other. Everything that lies in
//! a file is position independent: places are offsets, never pointers, and every offset says from
//! where it counts. Pointers occur only in the call structures at the end of this file, which the
//! runtime fills before each call.
//!
//! A compiled model is three regions:
//!
//! | region | access | content |
//! |---|---|---|
//! | code | read, execute | segments and kernels of all ISA levels; no undefined symbol |
//! | tables | read | [`ModelHeader`], the tables it points to, tokenizer, template, facts |
//! | weights | read | packed weights, page aligned |

mod call;
mod probe;
mod table;

pub use call::*;
pub use probe::*;
pub use table::*;

/// Version of every structure in this crate. A runtime opens only files of its own version.
pub const ABI_VERSION: u32 = 14;

/// First eight bytes of the tables region.
pub const MAGIC: [u8; 8] = *b"WEIRMDL\0";

//! Patterns of exporters raised to named ops. Every file recognises one thing; which implementation
//! it gets is decided later.

pub mod linear;

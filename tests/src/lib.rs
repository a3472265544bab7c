//! What the suites share: where models lie, what their golden files hold, how results are compared,
//! and the systems under test behind one trait.

pub mod activations;
pub mod browser;
pub mod compare;
pub mod golden;
pub mod perplexity;
pub mod places;
pub mod server;
pub mod systems;

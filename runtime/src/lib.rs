//! Runs compiled models: opens them, keeps their caches, serves requests.
//!
//! ```no_run
//! use weir_runtime::{Model, Request, RuntimeOptions};
//!
//! # fn main() -> Result<(), weir_runtime::RuntimeError> {
//! let model = Model::open("tales")?;
//! let mut engine = model.engine(&RuntimeOptions::default())?;
//! let prompt = model.encode("Once upon a time")?;
//! let answers = engine.generate(vec![Request { prompt, ..Request::default() }])?;
//! println!("{}", answers[0].text);
//! # Ok(())
//! # }
//! ```
//!
//! The flow of a step: [`scheduler`] plans, [`forward`] calls the model's segments on the [`team`],
//! [`sampling`] chooses, [`text`] turns tokens into characters; [`engine`] joins them. There is no
//! arithmetic of a model here: that is compiled code, reached through `weir_abi`.

pub mod cache;
pub mod command;
pub mod comparison;
pub mod constraint;
pub mod cores;
pub mod drafts;
pub mod engine;
mod error;
pub mod facts;
mod ffi;
pub mod forward;
pub mod machine;
pub mod memory;
mod model;
pub mod notation;
pub mod probe;
pub mod sampling;
pub mod scheduler;
pub mod serve;
pub mod team;
pub mod template;
pub mod text;
pub mod weights;
pub mod work;

pub use constraint::{Constraint, ConstraintError, ConstraintFault, Grammar, Grammars};
pub use engine::{
    Completion, Engine, Event, FinishReason, History, Request, RequestId, RequestRules, Usage,
};
pub use error::{RequestError, RuntimeError};
pub use forward::RuntimeOptions;
pub use model::{Model, SeenChat};
pub use sampling::SamplingOptions;
pub use weights::{CompiledModel, ModelError};

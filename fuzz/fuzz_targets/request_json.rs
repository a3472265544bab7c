//! JSON of requests, through the functions that the server reads it with: what is accepted keeps to
//! the limits.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_runtime::Model;

static MODEL: LazyLock<Model> = LazyLock::new(weir_fuzz::artefact::model);

fuzz_target!(|body: &[u8]| weir_runtime::serve::fuzzing::read(&MODEL, body));

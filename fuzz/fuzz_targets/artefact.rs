//! The tables of compiled models: those of a whole one, changed by the input, with lengths and
//! checksums made right again, so that what lies behind them is reached.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|changes: &[u8]| weir_fuzz::artefact::check(changes));

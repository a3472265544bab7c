//! Where rows lie in a slot, against a cache that is a list of rows and the positions they hold.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|numbers: [u8; 7]| weir_fuzz::placement::check(numbers));

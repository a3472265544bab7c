//! The text form of graphs: what parses is printed, and what is printed parses to the same graph.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_ir::text::{digest, parse, parse_with, print};
use weir_ir::verify;

fuzz_target!(|text: &str| {
    let Ok(graph) = parse(text) else { return };
    // Larger constants are printed as digests, which only their owner can read back.
    let store = |name: &str, wanted: u64| {
        graph.constants.values().find(|c| c.name == name && digest(c) == wanted).cloned()
    };
    let again = parse_with(&print(&graph), &store).expect("a printed graph parses");
    // The parser numbers values anew, in the order of their definition: once is enough.
    let printed = print(&again);
    let last = parse_with(&printed, &store).expect("a printed graph parses");
    assert_eq!(print(&last), printed);
    let _ = verify(&graph, graph.stage);
});

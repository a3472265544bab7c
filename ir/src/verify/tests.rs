//! One wrong thing at a time in a good graph.

use super::verify;
use crate::text::{EXAMPLE, parse};

/// The example with a text replaced gives errors that mention each expectation.
fn check(from: &str, to: &str, expected: &str) {
    assert!(EXAMPLE.contains(from), "{from}");
    let graph = parse(&EXAMPLE.replace(from, to)).unwrap();
    let errors = verify(&graph, graph.stage).expect_err(to);
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(messages.iter().any(|message| message.contains(expected)), "{messages:#?}");
}

#[test]
fn broken_promises_are_named() {
    check("graph @Sparse", "graph @Cached", "k0: has a layout too early");
    check("graph @Sparse", "graph @Canonical", "has caches before stage Cached");
    check("graph @Sparse", "graph @Fixed", "mentions sequence at Fixed");
    check("observed=2", "observed=3", "3 observed rows are more than 2 recent rows");
    check("pool=3", "pool=4", "pooling width 4 is even");
    check("pool=3", "pool=3 redundancy=9", "redundancy of 9 % of the scores of rows selected anew");
    check("pool=3", "pool=3 second=4 second_share=0", "4 rows asked again for 0 % of the selected");
    check("pool=3", "pool=3 second=0 second_share=9", "0 rows asked again for 9 % of the selected");
    check("pool=3", "pool=3 second=1 second_share=101", "1 rows asked again for 101 %");
    check(
        "snapstream elastic=true sinks=1 selected=2 recent=2 observed=2 pool=3",
        "random elastic=true sinks=1 selected=2 recent=2 observed=2 pool=3 second=4 second_share=9",
        "policy random asks no row",
    );
    check("recent=2", "recent=0", "a cache needs at least one recent row");
    check("key_width=2", "key_width=3", "do not fit k0");
    check(
        " policy=snapstream elastic=true sinks=1 selected=2 recent=2 observed=2 pool=3",
        "",
        "k0: has no layout",
    );
    check("type=f32", "type=i4 block=i8", "k0: has a block of i8 with a ring of i4");
    check("type=f32", "type=f32 block=f16", "k0: has a block of f16 with a ring of f32");
    check(
        "type=f32 window=0 policy=snapstream elastic=true sinks=1 selected=2 recent=2 observed=2 \
         pool=3",
        "type=f16 block=i8 window=0",
        "k0: has a type of its block and no block",
    );
    check("pool=3", "pool=3 by_head=[2,2]", "selected=2 is not the least of different [2, 2]");
    check("pool=3", "pool=3 by_head=[3,4]", "selected=2 is not the least of different [3, 4]");
    check("pool=3", "pool=3 by_head=[2,4]", "k0: has rows of 2 heads and 1 heads");
    check("pool=3", "pool=3 by_head=[2,4] reservoir=1", "neither with a reservoir");
    check(
        "type=f32 window=0 policy=snapstream elastic=true sinks=1 selected=2 recent=2 observed=2 \
         pool=3",
        "type=f32 block=i8 window=0 policy=snapstream elastic=true sinks=1 selected=2 recent=2 \
         observed=2 pool=3 by_head=[2,4]",
        "k0: has rows by head and a type of its block",
    );
    check("layer=0 kv", "layer=1 kv", "k0 is of layer 1, not 0");
    check("  cache_append(v6, v6) {cache=k0}\n", "", "does not append to k0");
    check("weights=[c1, c2]", "weights=[c2, c1]", "weight c2 is f32[2, 2], not f32[2]");
    check("weights=[c1, c2]", "weights=[c1, c7]", "c7 does not exist");
    check("weights=[c1, c2]", "weights=[c1]", "kind0 has 2 weights, the layer 1");
    check("kind=kind0", "kind=kind4", "kind4 does not exist");
    check("constant=c0", "constant=c9", "c9 does not exist");
    check("v5: f32[sequence, 4]", "v5: f32[sequence, 5]", "the rule says f32[sequence, 4]");
    check("{op=add}", "{op=and}", "and of f32[sequence, 2]");
    check(
        "= rms_norm(v0, v2) {epsilon=0.00001}",
        "= softmax(v0) {axis=1}",
        "is not legal at Sparse",
    );
}

#[test]
fn caches_have_five_number_formats_and_blocks_their_own() {
    for name in ["f32", "f16", "bf16", "i8", "i4", "f32 block=i8", "f16 block=i4", "i8 block=i4"] {
        let text = EXAMPLE.replace("type=f32", &format!("type={name}"));
        let graph = parse(&text).unwrap();
        assert!(verify(&graph, graph.stage).is_ok(), "{name}");
        assert_eq!(crate::text::print(&graph), text);
    }
}

#[test]
fn rows_by_head_are_read_and_written() {
    let text = EXAMPLE.replace("pool=3", "pool=3 by_head=[2,17,4]");
    assert_eq!(crate::text::print(&parse(&text).unwrap()), text);
    for wrong in ["[2,x]", "[]", "2,4", "[2,-4]"] {
        assert!(parse(&EXAMPLE.replace("pool=3", &format!("pool=3 by_head={wrong}"))).is_err());
    }
}

#[test]
fn second_queries_are_read_and_written() {
    let text = EXAMPLE.replace("pool=3", "pool=3 redundancy=7 second=64 second_share=25");
    assert_eq!(crate::text::print(&parse(&text).unwrap()), text);
    assert!(parse(&EXAMPLE.replace("pool=3", "pool=3 second=64 second_share=x")).is_err());
}

#[test]
fn a_graph_edited_into_nonsense_is_refused() {
    use crate::entity::{Entity, Node, Value};
    let good = parse(EXAMPLE).unwrap();
    let edits: [fn(&mut crate::Graph); 6] = [
        |graph| graph.main.order.swap(0, 1),
        |graph| graph.main.order.push(Node::new(99)),
        |graph| graph.main.order.push(Node::new(0)),
        |graph| graph.main.results[0].value = Value::new(77),
        |graph| graph.main.params[0].value = Value::new(78),
        |graph| graph.main.nodes[Node::new(1)].operands[0] = Value::new(1000),
    ];
    for (index, edit) in edits.into_iter().enumerate() {
        let mut graph = good.clone();
        edit(&mut graph);
        assert!(verify(&graph, graph.stage).is_err(), "edit {index}");
        // The interpreter answers as well.
        let session = crate::interpret::Session::new(&graph);
        let _ = session.and_then(|mut session| session.prefill(&[0, 1]));
    }
}

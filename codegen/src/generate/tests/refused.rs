//! Graphs and options that are refused, and what is said of them.

use super::*;

/// What planning or generating says.
fn refusal(graph: &Graph, options: &Options<'_>) -> String {
    let verified = weir_ir::verify::verify(graph, Stage::Fixed).unwrap();
    match generate(verified, options) {
        Ok(_) => "compiled".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// What planning says of a graph that need not be as verifying wants it.
fn refused_plan(graph: &Graph) -> String {
    match Plans::of(graph, &options()) {
        Ok(_) => "planned".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn read(graph: &mut Graph, constant: Const) -> Value {
    let ty = graph.constants[constant].ty.clone();
    graph.main.push_typed(Op::read_constant(constant), vec![], vec![(ty, None)], None)[0]
}

fn push(graph: &mut Graph, op: impl Into<Op>, operands: &[Value]) -> Value {
    graph.main.push1(op.into(), operands.to_vec(), None).unwrap()
}

/// Hidden rows in front of the head.
fn normed(graph: &Graph) -> Value {
    graph.main.maker(graph.main.results[0].value).unwrap().operands[0]
}

/// The graph ends with a head of its own for these rows.
fn set_head(graph: &mut Graph, hidden: Value, tokens: usize) {
    let weight = matrix(graph, 7, &[tokens, WIDTH], 0.0, 1.0);
    let weight = read(graph, weight);
    let linear = ops::linear::Linear { bias: false, residual: false };
    graph.main.results[0].value = push(graph, linear, &[hidden, weight]);
    graph.main.remove_dead();
}

#[test]
fn a_head_of_more_tokens_than_there_are_embeddings_is_refused() {
    let with_head = |tokens: usize, role: OutputRole| {
        let mut graph = model(0.0, &full());
        let hidden = normed(&graph);
        set_head(&mut graph, hidden, tokens);
        graph.main.results[0].role = role;
        refusal(&graph, &options())
    };
    let refused = "main: a head of 38 tokens over 37 embeddings is not supported";
    assert_eq!(with_head(VOCABULARY + 1, OutputRole::Logits), refused);
    assert_eq!(with_head(VOCABULARY, OutputRole::Logits), "compiled");
    assert_eq!(with_head(VOCABULARY - 2, OutputRole::Logits), "compiled");
    // Nothing is looked up for what is no token.
    assert_eq!(with_head(VOCABULARY + 1, OutputRole::Hidden), "compiled");
}

#[test]
fn options_of_nothing_are_refused_by_name() {
    let graph = model(0.0, &full());
    for (none, what) in [
        (Options { max_rows: 0, ..options() }, "rows of a step"),
        (Options { max_head_rows: 0, ..options() }, "rows of the head"),
        (Options { slots: 0, ..options() }, "slots"),
        (Options { context: 0, ..options() }, "context"),
    ] {
        assert_eq!(refusal(&graph, &none), format!("{what}: 0 is not possible"));
    }
}

#[test]
fn graphs_without_the_parts_of_a_model_are_refused() {
    let of = |change: fn(&mut Graph)| {
        let mut graph = model(0.0, &full());
        change(&mut graph);
        refused_plan(&graph)
    };
    assert_eq!(of(|_| {}), "planned");
    assert_eq!(of(|graph| graph.stage = Stage::Cached), "graph: stage Cached instead of Fixed");
    assert_eq!(
        of(|graph| graph.main.results[0].role = OutputRole::Other),
        "main: its result is not exactly logits or hidden rows"
    );
    let without_layers = of(|graph| {
        let first = graph.main.live().find(|(_, node)| matches!(node.op, Op::Layer(_)));
        let embedded = first.unwrap().1.operands[0];
        set_head(graph, embedded, VOCABULARY);
    });
    assert_eq!(without_layers, "main: a model without layers that repeat is not supported");
    let layer_behind = of(|graph| {
        let layer = graph.main.live().find(|(_, node)| matches!(node.op, Op::Layer(_)));
        let layer = layer.unwrap().1.clone();
        let operands = vec![normed(graph), layer.operands[1]];
        let result = vec![(rows(&[WIDTH]), None)];
        let hidden = graph.main.push_typed(layer.op, operands, result, None)[0];
        set_head(graph, hidden, VOCABULARY);
    });
    assert!(layer_behind.ends_with(": a layer after the head"), "{layer_behind}");
    let without_cache = of(|graph| {
        let layer = graph.main.live().find(|(_, node)| matches!(node.op, Op::Layer(_)));
        let layer = layer.unwrap().0;
        if let Op::Layer(layer) = &mut graph.main.nodes[layer].op {
            layer.cache = None;
        }
    });
    assert!(without_cache.ends_with(": a layer without a cache"), "{without_cache}");
}

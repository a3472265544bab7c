//! Files without a cache, whose masks and tables have a row for every position of the sequence.

use weir_ir::text::parse;
use weir_ir::{Body, Graph, Value};

use super::Positional;

/// A mask that looks back `window` keys, and a table of positions.
fn graph(window: i64) -> Graph {
    parse(&format!(
        "graph @Imported
const c0 \"window\": i64[] = [{window}]
const c1 \"kept\": f32[] = [0.0]
const c2 \"masked\": f32[] = [-inf]
main {{
  param v0: i64[1, sequence] \"input_ids\" tokens
  v1: i64[sequence] = range() {{dtype=i64, start=0, step=1, length=sequence}}
  v2: i64[sequence, 1] = reshape(v1) {{shape=[sequence, 1]}}
  v3: bool[sequence, sequence] = binary(v1, v2) {{op=less_or_equal}}
  v4: i64[] = const() {{constant=c0}} @ \"window\"
  v5: i64[sequence, 1] = binary(v2, v4) {{op=sub}}
  v6: bool[sequence, sequence] = binary(v1, v5) {{op=greater}}
  v7: bool[sequence, sequence] = binary(v3, v6) {{op=and}}
  v8: f32[] = const() {{constant=c1}} @ \"kept\"
  v9: f32[] = const() {{constant=c2}} @ \"masked\"
  v10: f32[sequence, sequence] = select(v7, v8, v9)
  v11: f32[sequence, 1] = cast(v2) {{to=f32}}
  return v10 other
  return v11 other
}}
"
    ))
    .unwrap()
}

fn result(body: &Body, index: usize) -> Value {
    body.results[index].value
}

#[test]
fn masks_of_all_rows_are_read_from_the_end() {
    for (window, expected) in [(100, 0), (3, 3)] {
        let graph = graph(window);
        let positional = Positional::new(&graph, 12);
        assert_eq!(positional.mask_window(result(&graph.main, 0)), Ok(expected));
    }
}

#[test]
fn tables_of_all_rows_have_one_set() {
    let graph = graph(3);
    let table = Positional::new(&graph, 12).table(result(&graph.main, 1), Some(0)).unwrap();
    assert_eq!((table.sets, table.switch, table.width), (1, 0, 1));
    assert_eq!(table.rows[..4], [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn a_mask_that_would_be_too_long_is_refused_with_the_remedy() {
    let graph = graph(3);
    let refused = Positional::new(&graph, 5000).mask_window(result(&graph.main, 0)).unwrap_err();
    assert!(refused.contains("a shorter --context"), "{refused}");
}

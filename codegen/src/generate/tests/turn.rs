//! Where keys and queries are turned, and what a cache of four bits is to kernels.

use super::*;
use crate::kernels::attention::{CacheShape, CacheType};

fn model_in(format: CacheFormat, block: Option<CacheFormat>, rows: &CacheRows) -> Graph {
    let mut graph = model(0.0, rows);
    for (_, cache) in graph.caches.iter_mut() {
        (cache.format, cache.block) = (format, block);
    }
    graph
}

fn bounded() -> CacheRows {
    let ring = CacheRows::ring(KvPolicy::Snapstream, 8);
    CacheRows { sinks: 2, selected: 10, observed: 4, ..ring }
}

#[test]
fn keys_and_queries_are_turned_where_some_rows_are_int4() {
    use CacheFormat::{F16, F32, I4, I8};
    for (format, block, rows) in [
        (F32, None, full()),
        (I8, None, bounded()),
        (F16, Some(I8), bounded()),
        (I4, None, full()),
        (I4, None, bounded()),
        (I8, Some(I4), bounded()),
        (F16, Some(I4), bounded()),
    ] {
        let graph = model_in(format, block, &rows);
        let plans = Plans::of(&graph, &options()).unwrap();
        let [kind] = plans.kinds.as_slice() else { panic!("one kind") };
        let kernels = || kind.plan.steps.iter().map(|step| &step.kernel);
        let is_turned = |root: Root| {
            let writes = |kernel: &&Kernel| kernel.writes() == root;
            matches!(kernels().rfind(writes), Some(Kernel::Turn { .. }))
        };
        let expected = [format, block.unwrap_or(format)].contains(&I4);
        for kernel in kernels() {
            match kernel {
                Kernel::Append { key, angles, .. } => {
                    assert_eq!(is_turned(key.root), expected, "{format:?} {block:?}");
                    // Others are rotated on their way into the cache.
                    assert_eq!(angles.is_none(), expected);
                }
                Kernel::Attend { query, .. } => assert_eq!(is_turned(query.root), expected),
                _ => {}
            }
        }
        let turns = kernels().filter(|kernel| matches!(kernel, Kernel::Turn { .. })).count();
        assert_eq!(turns, if expected { 2 } else { 0 });
    }
}

/// A longer prompt than the cache has rows of int8.
#[test]
fn int4_is_a_block_as_long_as_a_cache_that_drops_rows() {
    for (rows, expected) in [
        (full(), (CacheType::Int4, None, 0)),
        (bounded(), (CacheType::Int8, Some(CacheType::Int4), 20)),
    ] {
        let graph = model_in(CacheFormat::I4, None, &rows);
        let plans = Plans::of(&graph, &options()).unwrap();
        let kind = &plans.kinds[0];
        let shape = kind.attend.cache;
        let cache = graph.caches.values().next().unwrap();
        let block_rows =
            layout(cache, &Op::read_constant(Const::new(0)), &mut Vec::new()).unwrap().block_rows;
        assert_eq!((shape.number, shape.block, block_rows), expected);
        let of_int4 = CacheShape { number: CacheType::Int4, block: None, ..shape };
        let entry = kind_entry(&kind.attend);
        let row_bytes = match block_rows {
            0 => [entry.key_row_bytes, entry.value_row_bytes],
            _ => [entry.block_key_row_bytes, entry.block_value_row_bytes],
        };
        let row_bytes: u32 = row_bytes.iter().sum();
        assert_eq!((row_bytes * entry.kv_heads) as usize, of_int4.row_bytes());
    }
}

//! The number format of caches that nobody chose.

use weir_ir::text::parse;
use weir_ir::{CacheFormat, DType, RowFormats};

use super::{Keep, Products};
use crate::kv::policy::KvOptions;

/// What a layer's keys come through, and the format of its weights.
fn chosen(width: u32, weight: &str, bias: bool, is_normed: bool) -> CacheFormat {
    chosen_for(None, width, weight, bias, is_normed)
}

/// The same where it is said what products round to.
fn chosen_for(
    activations: Option<DType>,
    width: u32,
    weight: &str,
    bias: bool,
    is_normed: bool,
) -> CacheFormat {
    let bias_of_key = if bias { ", v2" } else { "" };
    let normed = if is_normed { "v6" } else { "v5" };
    let text = format!(
        "graph @Cached
cache k0 layer=0 kv_heads=1 key_width={width} value_width={width} type=f32 window=0
main {{
  param v0: f32[sequence, 64] operand
  param v1: {weight}[{width}, 64] operand
  param v2: f32[{width}] operand
  param v3: {weight}[{width}, 64] operand
  v4: f32[sequence, {width}] = linear(v0, v1{bias_of_key}) {{bias={bias}, residual=false}}
  v5: f32[sequence, 1, {width}] = reshape(v4) {{shape=[sequence, 1, {width}]}}
  v6: f32[sequence, 1, {width}] = rms_norm(v5, v2) {{epsilon=0.00001}}
  v7: f32[sequence, 1, {width}] = reshape({normed}) {{shape=[sequence, 1, {width}]}}
  v8: f32[sequence, {width}] = linear(v0, v3) {{bias=false, residual=false}}
  v9: f32[sequence, 1, {width}] = reshape(v8) {{shape=[sequence, 1, {width}]}}
  cache_append(v7, v9) {{cache=k0}}
  return v0 other
}}
"
    );
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Products { activations }.cache_format(&graph)
}

#[test]
fn rows_are_codes_where_scales_suit_them() {
    let int4 = "int4<block=32, scale=f16, zero=8>";
    assert_eq!(chosen(32, int4, false, false), CacheFormat::I8);
    assert_eq!(chosen(31, int4, false, false), CacheFormat::F16);
    // A few numbers of keys with biases outweigh the others, unless a norm follows.
    assert_eq!(chosen(64, int4, true, false), CacheFormat::F16);
    assert_eq!(chosen(64, int4, true, true), CacheFormat::I8);
    assert_eq!(chosen(64, "f32", false, false), CacheFormat::F32);
    assert_eq!(chosen(16, "bf16", false, false), CacheFormat::BF16);
    assert_eq!(chosen(64, "bf16", true, false), CacheFormat::F16);
    assert_eq!(chosen(64, "bf16", true, true), CacheFormat::BF16);
    // What is said of all products counts, not their weights.
    let [in_bf16, in_f32] =
        [DType::BF16, DType::F32].map(|dtype| chosen_for(Some(dtype), 64, int4, false, false));
    assert_eq!([in_bf16, in_f32], [CacheFormat::BF16, CacheFormat::F32]);
    let biased = chosen_for(Some(DType::BF16), 64, int4, true, false);
    assert_eq!(biased, CacheFormat::F16);
}

/// Rows that only some heads have lie among those of the ring's format.
#[test]
fn rows_by_head_have_one_number_format() {
    let text = "graph @Cached
cache k0 layer=0 kv_heads=2 key_width=8 value_width=8 type=f32 window=0
main {
  param v0: f32[sequence, 64] operand
  return v0 other
}
";
    let graph = parse(text).unwrap();
    let kv = KvOptions::parse("snapstream,rows=64,sinks=4,recent=16,budget=30:90").unwrap();
    let keep = |format| {
        let mut graph = graph.clone();
        let rings = Keep { kv: &kv, format: Some(format), activations: None, context: 256 }
            .rows(&mut graph, 12);
        rings.map(|_| graph.caches.values().next().and_then(|cache| cache.layout.clone()).unwrap())
    };
    let rows = keep(CacheFormat::I4.into()).unwrap();
    assert_eq!((rows.selected, rows.by_head), (10, vec![10, 70]));
    let parts = RowFormats { ring: CacheFormat::F16, block: Some(CacheFormat::I4) };
    let error = keep(parts).unwrap_err().to_string();
    assert!(
        error.starts_with("a budget by head and a number format of the block exclude"),
        "{error}"
    );
}

/// What re-selection computes again looks as far back in a layer's window as it did before.
#[test]
fn rows_that_are_computed_again_fit_beside_a_window() {
    let cache = "kv_heads=1 key_width=8 value_width=8 type=f32";
    let text = format!(
        "graph @Cached
cache k0 layer=0 {cache} window=9
cache k1 layer=1 {cache} window=0
main {{
  param v0: f32[sequence, 64] operand
  return v0 other
}}
"
    );
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let kv = KvOptions::parse("snapstream,rows=64,recent=16,window=12,reselect=8").unwrap();
    let format = Some(CacheFormat::F32.into());
    let keep = Keep { kv: &kv, format, activations: None, context: 256 };
    assert_eq!(keep.rows(&mut graph.clone(), 12), Ok(1));
    let error = keep.rows(&mut graph.clone(), 11).unwrap_err().to_string();
    assert!(error.starts_with("reselect= computes 12 observed rows again, more than the 11 rows"));
}

//! Models with random weights: written, compiled and run, tied and untied.

use std::fs;
use std::path::Path;

use weir::{
    ComputeOption, KvTypeOption, ModelOptions, Progress, ReportOptions, load, lower, write_model,
};
use weir_frontend::synthetic::Shape;
use weir_ir::CacheFormat;
use weir_runtime::{Model, Request, RuntimeOptions};

fn tiny(tied: bool) -> Shape {
    Shape {
        name: "tiny",
        hidden: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_width: 16,
        inner: 96,
        vocabulary: 320,
        context: 128,
        tied,
        rope_base: 10_000.0,
        rope_factor: Some(8.0),
    }
}

fn write(shape: &Shape, seed: u64, output: &Path) {
    write_model(shape, seed, output, &Progress::new(true)).expect("the model is written");
}

fn options(model: &Path) -> ModelOptions {
    ModelOptions {
        model: model.to_path_buf(),
        slots: 2,
        context: None,
        kv: vec!["full".to_owned()],
        kv_rows: None,
        draft: 0,
        kv_budget: None,
        kv_dtype: Vec::new(),
        weights: None,
        calibrate: None,
        calibrate_tokens: weir::DEFAULT_CALIBRATE_TOKENS,
        compute: None,
        step_rows: 16,
        links_under: None,
    }
}

#[test]
fn a_made_model_compiles_and_runs() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for tied in [true, false] {
        let place = folder.path().join(format!("tied-{tied}"));
        write(&tiny(tied), 1, &place);
        let compiled = load(&options(&place), &ReportOptions::default(), &Progress::new(true))
            .expect("compiles");
        let model = Model::new(compiled).expect("a whole model");
        let prompt = model.encode("made to measure").expect("a tokenizer for every text");
        let mut engine = model.engine(&RuntimeOptions::default()).expect("an engine");
        let request =
            Request { prompt, max_tokens: Some(8), ignore_eos: true, ..Request::default() };
        let answers = engine.generate(vec![request.clone(), request]).expect("answers");
        assert_eq!(answers[0].ids.len(), 8);
        assert_eq!(answers[0].ids, answers[1].ids);
    }
}

#[test]
fn files_depend_on_shape_and_seed_only() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let places = [1, 1, 2].map(|seed| {
        let place =
            folder.path().join(format!("{seed}-{}", folder.path().read_dir().unwrap().count()));
        write(&tiny(true), seed, &place);
        place
    });
    let mut names: Vec<_> = places[0]
        .read_dir()
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 6, "{names:?}");
    for name in names {
        let [first, again, other] =
            [0, 1, 2].map(|at| fs::read(places[at].join(&name)).expect("a file"));
        assert_eq!(first, again, "{name:?}");
        assert_eq!(first != other, name == tiny(true).weights_file(), "{name:?}");
    }
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let place = folder.path().join("model");
    write(&tiny(true), 1, &place);
    let again = write_model(&tiny(true), 1, &place, &Progress::new(true));
    assert_eq!(again.expect_err("it is there").code, 2);
    let beneath = write_model(&tiny(true), 1, &place.join("none/model"), &Progress::new(true));
    assert_eq!(beneath.expect_err("no directory").code, 2);
}

/// The cache's number format follows the arithmetic of the products, unless it is chosen.
#[test]
fn the_cache_is_as_exact_as_the_products() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let [narrow, wide] = ["narrow", "wide"].map(|name| folder.path().join(name));
    write(&tiny(true), 1, &narrow);
    write(&Shape { heads: 2, kv_heads: 1, head_width: 32, ..tiny(true) }, 1, &wide);
    let f32_products = Some(ComputeOption::F32);
    for (weights, compute, kv_dtype, expected) in [
        ("f32", None, None, CacheFormat::F32),
        ("f16", None, None, CacheFormat::F32),
        ("bf16", None, None, CacheFormat::BF16),
        // Rows of 16 numbers are too short for scales.
        ("int8", None, None, CacheFormat::F16),
        ("int4", Some(ComputeOption::Int8), None, CacheFormat::F16),
        ("int8", Some(ComputeOption::Int8Row), None, CacheFormat::F16),
        // The table of embeddings is no product, the head is one.
        ("f32,head=int8", None, None, CacheFormat::F16),
        ("f32", Some(ComputeOption::Bf16), None, CacheFormat::BF16),
        // What layers round to counts more than the head.
        ("bf16,head=int8", None, None, CacheFormat::BF16),
        ("int4", f32_products, None, CacheFormat::F32),
        ("bf16", f32_products, None, CacheFormat::F32),
        ("int4", f32_products, Some(KvTypeOption::F16), CacheFormat::F16),
        ("int4", None, Some(KvTypeOption::F32), CacheFormat::F32),
        ("f32", None, Some(KvTypeOption::Bf16), CacheFormat::BF16),
        ("f32", None, Some(KvTypeOption::Int8), CacheFormat::I8),
        ("int8", None, Some(KvTypeOption::Int4), CacheFormat::I4),
    ] {
        let rounds_in_layers = weights.starts_with("int") && compute != f32_products;
        for (place, is_wide) in [(&narrow, false), (&wide, true)] {
            let weights = Some(weights.to_owned());
            let options = ModelOptions {
                weights,
                compute,
                kv_dtype: kv_dtype.into_iter().collect(),
                ..options(place)
            };
            let lowered = lower(&options, &ReportOptions::default(), &Progress::new(true))
                .expect("goes through the passes");
            let caches = lowered.graph.caches.values().map(|cache| cache.format);
            let follows = kv_dtype.is_none() && rounds_in_layers && is_wide;
            let expected = if follows { CacheFormat::I8 } else { expected };
            assert_eq!(caches.collect::<Vec<_>>(), [expected; 2], "{options:?}");
        }
    }
}

/// A block has its own number format under policies that have one, and the ring's is that of all rows
/// elsewhere.
#[test]
fn blocks_have_a_format_where_there_are_blocks() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let model = folder.path().join("narrow");
    write(&tiny(true), 1, &model);
    let kv_dtype = KvTypeOption::Parts { block: CacheFormat::I4, ring: CacheFormat::F16 };
    let rows = "snapstream,rows=32,sinks=2,recent=8,window=4";
    for (kv, block) in [(rows, Some(CacheFormat::I4)), ("full", None)] {
        let options =
            ModelOptions { kv: vec![kv.to_owned()], kv_dtype: vec![kv_dtype], ..options(&model) };
        let lowered = lower(&options, &ReportOptions::default(), &Progress::new(true))
            .expect("goes through the passes");
        for cache in lowered.graph.caches.values() {
            assert_eq!((cache.format, cache.block), (CacheFormat::F16, block), "{kv}");
        }
    }
}

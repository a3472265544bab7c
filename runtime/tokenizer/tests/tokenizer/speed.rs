//! Bounds on time that hold with room to spare on any machine, and measurements to print.
//!
//! `cargo test --release -p weir-tokenizer speed -- --nocapture` prints the numbers.

use std::time::Instant;

use crate::{data, open, shared};

#[test]
fn speed_grows_linearly_with_one_long_word() {
    let tokenizer = open(&data("mistral"));
    let time = |len: usize| {
        let text = "ab".repeat(len / 2);
        let start = Instant::now();
        assert!(!tokenizer.encode(&text, false).unwrap().is_empty());
        start.elapsed()
    };
    let (short, long) = (time(20_000), time(320_000));
    println!("one word of 20 kB: {short:?}, of 320 kB: {long:?}");
    // Sixteen times the length; quadratic merging would take 256 times as long.
    assert!(long < 100 * short, "{long:?} against {short:?}");
}

#[test]
fn speed_with_a_published_vocabulary() {
    let Some(root) = shared("data/tokenizers/qwen2") else { return };
    let start = Instant::now();
    let table = weir_tokenizer::pack(&crate::variants::qwen2(&root)).unwrap();
    println!("pack: {:?}, {} bytes", start.elapsed(), table.len());
    let start = Instant::now();
    let tokenizer = weir_tokenizer::Tokenizer::open(table).unwrap();
    let opened = start.elapsed();
    let ids = tokenizer.encode("Once upon a time, there was a little girl.", true).unwrap();
    println!("open: {opened:?}; with the first encode: {:?}", start.elapsed());
    assert!(start.elapsed().as_millis() < 50);
    let start = Instant::now();
    let text =
        "Once upon a time, in 1984, there were 3 children: 日本語, naïve café!\n\n    x += 1;\n"
            .repeat(12_000);
    let many = tokenizer.encode(&text, true).unwrap();
    println!("encode {} bytes to {} ids: {:?}", text.len(), many.len(), start.elapsed());
    let start = Instant::now();
    assert_eq!(tokenizer.decode(&many, false), text);
    println!("decode: {:?}", start.elapsed());
    assert!(!ids.is_empty());
}

#[test]
fn speed_with_monotonous_texts() {
    for name in crate::DATA {
        let tokenizer = open(&data(name));
        for unit in [" ", "\n", " \n", "a", "A", "1", "!", "é", "日", "\u{301}", "<", "<s>"] {
            let text = unit.repeat(200_000 / unit.len());
            let start = Instant::now();
            let ids = tokenizer.encode(&text, false).expect("within the step budget");
            let took = start.elapsed();
            println!("{name}: {unit:?} to {} ids in {took:?}", ids.len());
            assert!(took.as_secs() < 5, "{name}: {unit:?} took {took:?}");
        }
    }
}

//! Damaged tables and files: an error or a wrong answer, never a panic or an endless loop.

use serde_json::{Value, json};
use weir_tokenizer::{Tokenizer, pack};

use crate::data;

fn use_it(bytes: Vec<u8>) {
    let Ok(tokenizer) = Tokenizer::open(bytes) else { return };
    let text = "Hello <s>the  wörld</s> 12 ab\n";
    let _ = tokenizer.encode(text, true);
    let ids: Vec<u32> = (0..tokenizer.vocabulary().min(40)).collect();
    let _ = tokenizer.decode(&ids, true);
    for id in 0..3 {
        let _ = (tokenizer.token_text(id), tokenizer.token_bytes(id), tokenizer.is_special(id));
    }
    let _ = (tokenizer.token_id("a"), tokenizer.leading_ids());
}

/// A table of every section, small enough to break at every byte.
fn small_table() -> Vec<u8> {
    let file = json!({
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": true, "lstrip": true,
            "rstrip": true, "normalized": false, "special": true},
            {"id": 1, "content": "the", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": false}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?>[a-l]+?b)|(?<=o)[a-z]*(?!x)|(?:lo|d){1,2}"},
                "behavior": "MergedWithNext", "invert": false},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace",
            "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<s>", "byte_fallback": true, "fuse_unk": true,
            "vocab": {"<s>": 0, "the": 1, "a": 2, "b": 3, "ab": 4, "l": 5, "o": 6, "lo": 7,
                "▁": 8, "<0xC3>": 9, "llo": 10},
            "merges": ["a b", "l o", ["l", "lo"]]}
    });
    pack(&serde_json::to_vec(&file).unwrap()).unwrap()
}

#[test]
fn every_truncation_is_an_error() {
    let table = small_table();
    use_it(table.clone());
    for len in 0..table.len() {
        assert!(Tokenizer::open(table[..len].to_vec()).is_err(), "{len} bytes");
    }
}

#[test]
fn no_flipped_byte_panics() {
    let table = small_table();
    for position in 0..table.len() {
        for flip in [0x01, 0x02, 0x10, 0x80, 0xff] {
            let mut broken = table.clone();
            broken[position] ^= flip;
            use_it(broken);
        }
    }
    for name in ["llama", "mistral"] {
        let table = pack(&data(name)).unwrap();
        for position in (0..table.len()).step_by(table.len() / 500) {
            let mut broken = table.clone();
            broken[position] ^= 0x41;
            use_it(broken);
        }
    }
}

#[test]
fn the_same_file_packs_to_the_same_bytes() {
    for name in crate::DATA {
        assert_eq!(pack(&data(name)).unwrap(), pack(&data(name)).unwrap(), "{name}");
    }
}

/// Pointers to every value of the file, of long lists and objects to the first three.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().take(3).enumerate() {
                places(item, &format!("{at}/{index}"), out);
            }
        }
        Value::Object(members) => {
            let few = if members.len() > 20 { 3 } else { members.len() };
            for (key, member) in members.iter().take(few) {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(member, &format!("{at}/{key}"), out);
            }
        }
        _ => {}
    }
}

#[test]
fn no_wrong_value_in_the_file_panics() {
    for name in ["llama", "mistral"] {
        let file: Value = serde_json::from_slice(&data(name)).unwrap();
        let mut all = Vec::new();
        places(&file, "", &mut all);
        for place in all {
            for wrong in [
                Value::Null,
                json!(true),
                json!(-1),
                json!(4_294_967_296u64),
                json!(""),
                json!("x"),
                json!("(?<"),
                json!([]),
                json!({}),
                json!({"type": "Sequence"}),
            ] {
                let mut broken = file.clone();
                *broken.pointer_mut(&place).unwrap() = wrong;
                if let Ok(table) = pack(&serde_json::to_vec(&broken).unwrap()) {
                    use_it(table);
                }
            }
        }
    }
}

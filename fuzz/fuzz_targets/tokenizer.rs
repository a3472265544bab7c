//! Packing of `tokenizer.json`, opening of packed tables, and text to ids and back.
//!
//! An input that begins with `{` is a `tokenizer.json`; one that begins with the magic is a packed
//! table; any other is text for a byte-level tokenizer, which gives every text back as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_tokenizer::{Tokenizer, pack};

/// Characters of a text: patterns may go back over it, and long ones teach nothing new.
const LONGEST: usize = 2048;

fn exercise(table: Vec<u8>) {
    let Ok(tokenizer) = Tokenizer::open(table) else { return };
    for text in ["Hello <s>the  w\u{f6}rld</s> 12 ab\n", "", "\u{301}a\u{ac00}\u{10ffff}"] {
        let _ = tokenizer.encode(text, true);
    }
    let ids: Vec<u32> = (0..tokenizer.vocabulary().saturating_add(2).min(40)).collect();
    let _ = tokenizer.decode(&ids, true);
    for id in ids {
        let _ = (tokenizer.token_text(id), tokenizer.token_bytes(id), tokenizer.is_special(id));
    }
    let _ = (tokenizer.token_id("a"), tokenizer.leading_ids());
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.starts_with(b"{") {
        if let Ok(table) = pack(bytes) {
            assert!(Tokenizer::open(table.clone()).is_ok(), "a packed table opens");
            exercise(table);
        }
    } else if bytes.starts_with(b"WEIRTOK") {
        exercise(bytes.to_vec());
    } else if let Ok(text) = std::str::from_utf8(bytes) {
        if text.len() > LONGEST {
            return;
        }
        let ids = weir_fuzz::byte_level().encode(text, false).expect("every text has ids");
        assert_eq!(weir_fuzz::byte_level().decode(&ids, false), text);
    }
});

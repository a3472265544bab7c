//! Equality with the `tokenizers` crate on written and generated texts.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_tokenizer::Tokenizer;

use crate::{DATA, data, files_below, open, shared};

/// Texts that have tripped tokenizers before.
const TEXTS: [&str; 30] = [
    "",
    " ",
    "   ",
    "Hello, world!",
    "  leading and trailing  ",
    "it's John's, WE'LL see'S I'd've",
    "tabs\tand\r\nCRLF\r\n\r\n\nand  double   spaces    ",
    "\n\n\n",
    "0123456789 1,234.56 ٣٤٥ ½ Ⅷ",
    "naïve café cafe\u{301} \u{301}alone e\u{301}\u{323}",
    "日本語のテキスト、漢字とカナ。한국어 ภาษาไทย",
    "Привет мир! Γειά σου Κόσμε ΟΔΥΣΣΕΥΣ",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 😀🏽 tone",
    "مرحبا بالعالم עברית",
    "def f(x):\n    return x ** 2  # code\n\tif (a!=b){c->d;}",
    "https://example.org/a?b=c&d=%20#e",
    "<s>Hello</s> <unk> [INST] x [/INST]",
    "<|begin_of_text|>a<|end_of_text|> <|im_start|>user\nhi<|im_end|>",
    "<|im_start|><|im_start|>x<|im_end",
    "<|endoftext|> <|bos|> <|user|>\n<|start_story|>",
    "▁meta▁▁space▁",
    "Ġbyte ĊĠlevel",
    "<0x0A> <0xE2><0x82>",
    "\u{0}\u{1}\u{7f}\u{ad}\u{200b}\u{feff}",
    "\u{a0}\u{2003}\u{3000}wide spaces\u{85}\u{2028}x",
    "ﬁ ① Å Ω ㍿ \u{1100}\u{1161}\u{11a8}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---===***___(((",
    "\u{10ffff}\u{e000}\u{1f9ff}\u{fffd}",
    "The the THE tHe, once upon a time there was a little girl.",
];

/// One reference tokenizer and ours, from the same file.
pub(crate) struct Pair {
    name: String,
    reference: tokenizers::Tokenizer,
    pub(crate) ours: Tokenizer,
}

impl Pair {
    pub(crate) fn new(name: impl Into<String>, json: &[u8]) -> Self {
        let name = name.into();
        let reference = tokenizers::Tokenizer::from_bytes(json)
            .unwrap_or_else(|error| panic!("{name}: the reference refuses the file: {error}"));
        Self { name, reference, ours: open(json) }
    }

    pub(crate) fn check_text(&self, text: &str) {
        let name = &self.name;
        for special in [false, true] {
            let expected = self.reference.encode_fast(text, special).unwrap();
            let ids = self.ours.encode(text, special).unwrap();
            assert_eq!(ids, expected.get_ids(), "{name}: encoding {text:?}");
            self.check_ids(&ids);
        }
    }

    pub(crate) fn check_ids(&self, ids: &[u32]) {
        for skip in [false, true] {
            let expected = self.reference.decode(ids, skip).unwrap();
            assert_eq!(self.ours.decode(ids, skip), expected, "{}: decoding {ids:?}", self.name);
            let mut stream = self.ours.decode_stream(skip);
            let mut text = String::new();
            for &id in ids {
                stream.push(id, &mut text);
            }
            stream.finish(&mut text);
            // Such a stream has given characters out that the reference takes back when it decodes the
            // whole; `variants::streamed_bytes` says what becomes of them.
            if !self.has_malformed_bytes(ids, skip) {
                assert_eq!(text, expected, "{}: streaming {ids:?}", self.name);
            }
        }
    }

    /// Whether a run of byte tokens is no UTF-8.
    fn has_malformed_bytes(&self, ids: &[u32], skip: bool) -> bool {
        let shown = ids.iter().filter(|&&id| !(skip && self.ours.is_special(id)));
        let bytes: Vec<Option<u8>> = shown
            .filter_map(|&id| self.ours.token_text(id))
            .map(|text| {
                let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
                u8::from_str_radix(digits, 16).ok()
            })
            .collect();
        bytes.split(Option::is_none).any(|run| {
            let run: Vec<u8> = run.iter().flatten().copied().collect();
            std::str::from_utf8(&run).is_err()
        })
    }

    pub(crate) fn check_vocabulary(&self) {
        let size = self.reference.get_vocab(true).values().max().map_or(0, |id| id + 1);
        assert_eq!(self.ours.vocabulary(), size, "{}", self.name);
        for id in 0..size + 3 {
            let text = self.reference.id_to_token(id);
            assert_eq!(self.ours.token_text(id), text.as_deref(), "{} {id}", self.name);
            if let Some(text) = text {
                let expected = self.reference.token_to_id(&text);
                assert_eq!(self.ours.token_id(&text), expected, "{} {text:?}", self.name);
                let special = self.reference.get_added_vocabulary().is_special_token(&text);
                assert_eq!(self.ours.is_special(id), special, "{} {text:?}", self.name);
            }
        }
    }

    /// Written texts, then `cases` generated ones and as many id sequences (more in proportion
    /// where `PROPTEST_CASES` asks for more than its 256).
    pub(crate) fn check(&self, cases: u32) {
        self.check_vocabulary();
        for text in TEXTS {
            self.check_text(text);
        }
        let wanted = Config::default();
        let cases = cases * wanted.cases / 256;
        let config = Config { cases, failure_persistence: None, ..wanted };
        let mut runner = TestRunner::new(config);
        let specials = self.specials();
        runner
            .run(&text(specials), |text| {
                self.check_text(&text);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let ids = prop::collection::vec(0..self.ours.vocabulary() + 2, 1..20);
        runner
            .run(&ids, |ids| {
                self.check_ids(&ids);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    fn specials(&self) -> Vec<String> {
        let added = self.reference.get_added_tokens_decoder();
        let mut tokens: Vec<String> = added.into_values().map(|token| token.content).collect();
        tokens.sort();
        tokens.push("<".to_owned());
        tokens
    }
}

/// Characters of the scripts that texts are written in; punctuation and accents of scripts added
/// since Unicode 9, which the reference does not know as such, are left out.
fn any_common_character() -> impl Strategy<Value = char> {
    prop_oneof![
        prop::char::range('\u{0}', '\u{24f}'),
        prop::char::range('\u{300}', '\u{36f}'),
        prop::char::range('\u{370}', '\u{3ff}'),
        prop::char::range('\u{400}', '\u{4ff}'),
        prop::char::range('\u{900}', '\u{97c}'),
        prop::char::range('\u{1100}', '\u{11ff}'),
        prop::char::range('\u{1e00}', '\u{1eff}'),
        prop::char::range('\u{2000}', '\u{214f}'),
        prop::char::range('\u{3000}', '\u{30ff}'),
        prop::char::range('\u{4e00}', '\u{9fa5}'),
        prop::char::range('\u{ac00}', '\u{d7a3}'),
        prop::char::range('\u{f900}', '\u{fa6d}'),
        prop::char::range('\u{ff00}', '\u{ffef}'),
        prop::char::range('\u{1f600}', '\u{1f64f}'),
    ]
}

fn text(specials: Vec<String>) -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-zA-Z]{1,8}",
        2 => " {1,4}",
        1 => "[ \t\r\n]{1,4}",
        1 => "[0-9]{1,7}",
        1 => "[!-/:-@\\[-`{-~]{1,4}",
        1 => Just("'s".to_owned()),
        1 => Just("▁".to_owned()),
        1 => Just("👩‍👩‍👧".to_owned()),
        2 => prop::sample::select(specials),
        3 => prop::collection::vec(any_common_character(), 1..6).prop_map(String::from_iter),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

#[test]
fn small_tokenizers_equal_the_reference() {
    for name in DATA {
        Pair::new(name, &data(name)).check(150);
    }
}

#[test]
fn models_beside_the_checkout_equal_the_reference() {
    for folder in ["fixtures/hf", "models"] {
        let Some(root) = shared(folder) else { continue };
        for path in files_below(&root, "tokenizer.json") {
            Pair::new(path.display().to_string(), &std::fs::read(&path).unwrap()).check(60);
        }
    }
}

#[test]
fn published_vocabularies_equal_the_reference() {
    let Some(root) = shared("data/tokenizers") else { return };
    for path in files_below(&root, "tokenizer.json") {
        Pair::new(path.display().to_string(), &std::fs::read(&path).unwrap()).check(200);
    }
    let qwen = root.join("qwen2");
    Pair::new("qwen2 of 151643", &crate::variants::qwen2(&qwen)).check(200);
    let llama = Pair::new("llama3 of 128000", &crate::variants::llama3(&root.join("llama3")));
    assert_eq!(llama.ours.encode("Hello world", false).unwrap(), [9906, 1917]);
    llama.check(200);
}

/// Every code point through the normal forms and the split patterns, in a company that shows
/// composition and reordering. (Large blocks of one kind, and the empty planes, are passed over.)
#[test]
fn every_character_equals_the_reference() {
    let pairs = [Pair::new("qwen2", &data("qwen2")), Pair::new("nfkc", &crate::variants::nfkc())];
    let mut text = String::new();
    let blocks = [
        '\0'..='\u{34ff}',
        '\u{4d00}'..='\u{4eff}',
        '\u{9f00}'..='\u{acff}',
        '\u{d700}'..='\u{1ffff}',
        '\u{2f800}'..='\u{2fa1f}',
        '\u{e0000}'..='\u{e01ff}',
    ];
    for character in blocks.into_iter().flatten() {
        text.extend(['e', '\u{301}', character, '\u{323}', character, ' ', character, 'a', '1']);
        if text.len() > 1 << 16 || character == '\u{e01ff}' {
            for pair in &pairs {
                let expected = pair.reference.encode_fast(text.as_str(), false).unwrap();
                let ids = pair.ours.encode(&text, false).unwrap();
                if ids != expected.get_ids() {
                    text.split_inclusive('1').for_each(|part| pair.check_text(part));
                    panic!("{}: texts up to {character:?} differ only together", pair.name);
                }
            }
            text.clear();
        }
    }
}

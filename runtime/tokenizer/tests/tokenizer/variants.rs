//! Every component and option once: the small tokenizers with other parts put in.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use weir_tokenizer::{TokenizerError, pack};

use crate::data;
use crate::reference::Pair;

fn parsed(name: &str) -> Value {
    serde_json::from_slice(&data(name)).expect("test data is JSON")
}

fn with(name: &str, changes: &[(&str, Value)]) -> Vec<u8> {
    let mut file = parsed(name);
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        let parent = file.pointer_mut(parent).expect("an existing parent");
        parent[key] = value.clone();
    }
    serde_json::to_vec(&file).expect("JSON")
}

fn check(name: &str, changes: &[(&str, Value)]) {
    Pair::new(format!("{name} with {changes:?}"), &with(name, changes)).check(60);
}

/// The Qwen2 tokenizer.json from the published vocabulary and merges.
pub(crate) fn qwen2(folder: &Path) -> Vec<u8> {
    let mut file = parsed("qwen2");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("readable");
    file["model"]["vocab"] = serde_json::from_str(&read("vocab.json")).expect("a vocabulary");
    let merges = read("merges.txt");
    let merges = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    file["model"]["merges"] = merges.map(Value::from).collect();
    for (index, token) in
        file["added_tokens"].as_array_mut().expect("a list").iter_mut().enumerate()
    {
        token["id"] = json!(151_643 + index);
    }
    serde_json::to_vec(&file).expect("JSON")
}

/// The Llama 3 tokenizer.json from the published ranks (base64 of a token's bytes, its rank): every
/// way to join two tokens into a third is a merge, in order of the third's rank.
pub(crate) fn llama3(folder: &Path) -> Vec<u8> {
    let ranks = std::fs::read_to_string(folder.join("tokenizer.model")).expect("readable");
    let tokens: Vec<Vec<u8>> =
        ranks.lines().map(|line| base64(line.split(' ').next().expect("a token"))).collect();
    let rank_of: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let spell = |bytes: &[u8]| -> String { bytes.iter().map(|&byte| byte_letter(byte)).collect() };
    let mut merges = Vec::new();
    for token in &tokens {
        let mut ways: Vec<(usize, usize, usize)> = (1..token.len())
            .filter_map(|at| Some((*rank_of.get(&token[..at])?, *rank_of.get(&token[at..])?, at)))
            .collect();
        ways.sort_unstable();
        merges.extend(
            ways.into_iter().map(|(.., at)| json!([spell(&token[..at]), spell(&token[at..])])),
        );
    }
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (spell(token), json!(id))).collect();
    let mut file = parsed("llama");
    file["model"]["vocab"] = Value::Object(vocab);
    file["model"]["merges"] = Value::Array(merges);
    // The template names the id that the first added token gets.
    let first = tokens.len();
    let name = file["added_tokens"][0]["content"].as_str().expect("a token").to_owned();
    for (index, token) in
        file["added_tokens"].as_array_mut().expect("a list").iter_mut().enumerate()
    {
        token["id"] = json!(first + index);
    }
    file["post_processor"]["processors"][1]["special_tokens"][&name]["ids"] = json!([first]);
    serde_json::to_vec(&file).expect("JSON")
}

/// GPT-2's letter for a byte.
fn byte_letter(byte: u8) -> char {
    let itself = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = if itself(byte) {
        u32::from(byte)
    } else {
        0x100 + (0..byte).filter(|&b| !itself(b)).count() as u32
    };
    char::from_u32(code).expect("a letter")
}

fn base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0u32, 0);
    for digit in text.bytes().filter(|&digit| digit != b'=') {
        let value = digits.iter().position(|&d| d == digit).expect("base64");
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

/// The Qwen2-like tokenizer with compatibility forms.
pub(crate) fn nfkc() -> Vec<u8> {
    with("qwen2", &[("/normalizer", json!({"type": "NFKC"}))])
}

#[test]
fn normalizers() {
    for name in ["mistral", "qwen2"] {
        for normalizer in [
            json!({"type": "NFC"}),
            json!({"type": "NFD"}),
            json!({"type": "NFKC"}),
            json!({"type": "NFKD"}),
            json!({"type": "Lowercase"}),
            json!({"type": "Strip", "strip_left": true, "strip_right": false}),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            json!({"type": "Sequence", "normalizers": [
                {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}),
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"}),
            json!({"type": "Replace", "pattern": {"Regex": "(?<=a)\\s*"}, "content": ""}),
            json!({"type": "Replace", "pattern": {"String": "."}, "content": "…"}),
            json!({"type": "ByteLevel"}),
        ] {
            check(name, &[("/normalizer", normalizer)]);
        }
    }
}

#[test]
fn metaspace() {
    let bpe = parsed("mistral");
    let added = bpe["added_tokens"].as_array().expect("a list").clone();
    for scheme in ["always", "first", "never"] {
        for split in [true, false] {
            let metaspace = json!({"type": "Metaspace", "replacement": "▁",
                "prepend_scheme": scheme, "split": split});
            check(
                "mistral",
                &[
                    ("/normalizer", Value::Null),
                    ("/pre_tokenizer", metaspace.clone()),
                    ("/decoder", metaspace.clone()),
                ],
            );
            // Normalised added tokens, and a start of the text that is taken away.
            let mut added = added.clone();
            added.iter_mut().for_each(|token| token["normalized"] = json!(true));
            for normalizer in [
                json!({"type": "Strip", "strip_left": true, "strip_right": true}),
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
                json!({"type": "Replace", "pattern": {"Regex": "\\A[ ab]+"}, "content": "b"}),
                json!({"type": "Prepend", "prepend": "x"}),
            ] {
                check(
                    "mistral",
                    &[
                        ("/added_tokens", Value::from(added.clone())),
                        ("/normalizer", normalizer),
                        (
                            "/pre_tokenizer",
                            json!({"type": "Sequence", "pretokenizers": [
                            {"type": "Digits", "individual_digits": true}, metaspace.clone()]}),
                        ),
                        ("/decoder", metaspace.clone()),
                    ],
                );
            }
        }
    }
}

#[test]
fn pre_tokenizers() {
    let behaviours = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    for behaviour in behaviours {
        for invert in [false, true] {
            for pattern in [
                json!({"Regex": "\\s+"}),
                json!({"Regex": "[a-m]|[0-9]{2}"}),
                json!({"String": "."}),
                json!({"String": "a"}),
            ] {
                let split = json!({"type": "Split", "pattern": pattern,
                    "behavior": behaviour, "invert": invert});
                check("mistral", &[("/pre_tokenizer", split)]);
            }
        }
        let punctuation = json!({"type": "Punctuation", "behavior": behaviour});
        check("mistral", &[("/pre_tokenizer", punctuation)]);
    }
    for pre_tokenizer in [
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Digits", "individual_digits": false}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "Whitespace"}),
    ] {
        check("mistral", &[("/normalizer", Value::Null), ("/pre_tokenizer", pre_tokenizer)]);
    }
    for add_prefix_space in [false, true] {
        for use_regex in [false, true] {
            let byte_level = json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space,
                "trim_offsets": true, "use_regex": use_regex});
            check("qwen2", &[("/pre_tokenizer", byte_level.clone())]);
            let pair = json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, byte_level]});
            check("llama", &[("/pre_tokenizer", pair)]);
        }
    }
}

#[test]
fn well_known_patterns() {
    let cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
    let bloom = r" ?[^(\s|[.,!?…。，、।۔،])]+";
    let kimi = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|\s+(?!\S)|\s+";
    for pattern in [cl100k, bloom, kimi, r"(?:\r?\n)+(?!\r?\n)", r"\b\w+\b", r"(?>a+)b|.", "."] {
        let split = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
        check("llama", &[("/pre_tokenizer", split)]);
    }
}

#[test]
fn added_tokens() {
    let token = |content: &str, flags: u32, special: bool| {
        json!({"id": 0, "content": content, "single_word": flags & 1 != 0,
            "lstrip": flags & 2 != 0, "rstrip": flags & 4 != 0, "normalized": flags & 8 != 0,
            "special": special})
    };
    for flags in 0..16 {
        let mut added: Vec<Value> = ["<mask>", "<mask>er", "the", " ", "  ", "x y", "É", "日本"]
            .iter()
            .enumerate()
            .map(|(index, content)| token(content, flags, index % 2 == 0))
            .collect();
        for name in ["llama", "mistral", "qwen2"] {
            check(
                name,
                &[("/added_tokens", Value::from(added.clone())), ("/post_processor", Value::Null)],
            );
        }
        // Another set of flags for half of them, and a normalizer that changes them.
        for (index, token) in added.iter_mut().enumerate() {
            token["normalized"] = json!(index % 3 == 0);
            token["rstrip"] = json!(index % 3 == 1);
        }
        check(
            "mistral",
            &[
                ("/added_tokens", Value::from(added)),
                ("/post_processor", Value::Null),
                ("/normalizer", json!({"type": "Lowercase"})),
            ],
        );
    }
}

#[test]
fn post_processors() {
    let cls = json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1],
        "trim_offsets": true, "add_prefix_space": true});
    check("mistral", &[("/post_processor", cls)]);
    let cls = json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]});
    check("mistral", &[("/post_processor", cls)]);
    check("mistral", &[("/post_processor", Value::Null)]);
    let tokenizer = crate::open(&data("mistral"));
    assert_eq!(tokenizer.leading_ids(), [1]);
}

#[test]
fn a_template_without_its_first_token_keeps_the_rest() {
    let whole = |json: &[u8], text: &str, bos| {
        let tokenizer = crate::open(json);
        let plain = tokenizer.encode(text, false).unwrap();
        (tokenizer.encode_without_bos(text, bos).unwrap(), plain)
    };
    let around = json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]});
    let around = with("mistral", &[("/post_processor", around)]);
    let end = json!({"type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}});
    let end = with("mistral", &[("/post_processor", end)]);
    for text in ["Hello", "", "<s>Hello", "<s>"] {
        let (ids, plain) = whole(&around, text, Some(1));
        assert_eq!(ids, [&plain[..], &[2]].concat(), "{text:?}");
        // Another token in front is not the one that is taken away.
        for bos in [Some(2), None] {
            let (ids, plain) = whole(&around, text, bos);
            assert_eq!(ids, [&[1], &plain[..], &[2]].concat(), "{text:?}");
        }
        let (ids, plain) = whole(&end, text, Some(1));
        assert_eq!(ids, [&plain[..], &[2]].concat(), "{text:?}");
        let (ids, plain) = whole(&with("mistral", &[]), text, Some(1));
        assert_eq!(ids, plain, "{text:?}");
    }
}

#[test]
fn decoders() {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let fuse = json!({"type": "Fuse"});
    let fallback = json!({"type": "ByteFallback"});
    let strip = json!({"type": "Strip", "content": " ", "start": 2, "stop": 0});
    let sequence = |stages: &[&Value]| json!({"type": "Sequence", "decoders": stages});
    let both = json!({"type": "Replace", "pattern": {"String": "  "}, "content": "+"});
    for decoder in [
        Value::Null,
        fuse.clone(),
        fallback.clone(),
        sequence(&[&fallback, &fuse, &strip]),
        sequence(&[&fuse, &fallback, &replace]),
        sequence(&[&replace, &fuse, &both]),
        sequence(&[&replace, &strip, &fallback]),
        sequence(&[
            &fallback,
            &fuse,
            &json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}),
        ]),
        json!({"type": "Replace", "pattern": {"Regex": "▁|e"}, "content": "_"}),
        json!({"type": "BPEDecoder", "suffix": "e"}),
        json!({"type": "WordPiece", "prefix": "▁", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
    ] {
        // The reference's BPEDecoder cannot decode nothing at all.
        if decoder["type"] == "BPEDecoder" {
            let json = with("mistral", &[("/decoder", decoder)]);
            let pair = Pair::new("BPEDecoder", &json);
            pair.check_ids(&[300, 301, 302, 310, 20, 40]);
            assert_eq!(pair.ours.decode(&[], false), "");
        } else {
            check("mistral", &[("/decoder", decoder)]);
        }
    }
}

/// Characters that are spelt in byte tokens are handed out when they are complete, and nothing is taken
/// back: where a run turns out to be malformed, only the rest of it is replaced.
#[test]
fn streamed_bytes() {
    let tokenizer = crate::open(&data("mistral"));
    let byte = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).expect("a byte token");
    let word = tokenizer.token_id("a").expect("a token");
    let run = |bytes: &[u8]| -> Vec<u32> { bytes.iter().map(|&value| byte(value)).collect() };
    let pieces = |ids: &[u32]| -> Vec<String> {
        let mut stream = tokenizer.decode_stream(false);
        let mut pieces = Vec::new();
        for &id in ids {
            let mut piece = String::new();
            stream.push(id, &mut piece);
            pieces.push(piece);
        }
        let mut end = String::new();
        stream.finish(&mut end);
        pieces.push(end);
        pieces
    };
    assert_eq!(pieces(&run(b"\n\n\n")), ["\n", "\n", "\n", ""]);
    assert_eq!(pieces(&run("a€é".as_bytes())), ["a", "", "", "€", "", "é", ""]);
    assert_eq!(pieces(&run(b"  \n")), ["", " ", "\n", ""]);
    for (bytes, whole, streamed) in [
        // Incomplete at its end: what has been given out stays.
        (&b"\n\xe2\x82"[..], "���", &["\n", "", "", "��"][..]),
        // What cannot become a character, and all that follows in the run.
        (b"\n\xff\n", "���", &["\n", "�", "�", ""]),
        (b"\xe2\n\n", "���", &["", "��", "�", ""]),
    ] {
        assert_eq!(tokenizer.decode(&run(bytes), false), whole, "{bytes:?}");
        assert_eq!(pieces(&run(bytes)), streamed, "{bytes:?}");
    }
    // Another token ends a run.
    let ids = [run(b"\xe2"), vec![word], run(b"\n")].concat();
    assert_eq!(pieces(&ids), ["", "�a", "\n", ""]);
    let ids = [run(b"\xff"), vec![word], run(b"\n")].concat();
    assert_eq!(pieces(&ids), ["�", "a", "\n", ""]);
    // To a decoder that works token by token a run is one token.
    let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let pair = Pair::new("a strip per token", &with("mistral", &[("/decoder", decoder)]));
    pair.check_ids(&run(b"  \n  \n"));
}

/// A text whose ids are decoded in two parts, the second of which goes on with the first.
#[test]
fn a_stream_goes_on_with_a_text() {
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
    let decoders = [
        parsed("mistral")["decoder"].clone(),
        metaspace,
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
        Value::Null,
    ];
    for decoder in decoders {
        let tokenizer = crate::open(&with("mistral", &[("/decoder", decoder.clone())]));
        let ids = tokenizer.encode("The capital of France  is Paris,\nand so on", false).unwrap();
        let mut spaces = 0;
        for cut in 1..ids.len() {
            let (before, after) = ids.split_at(cut);
            let mut text = tokenizer.decode(before, false);
            let begins = text.len();
            let mut stream = tokenizer.decode_stream(false);
            stream.go_on();
            after.iter().for_each(|&id| stream.push(id, &mut text));
            stream.finish(&mut text);
            assert_eq!(text, tokenizer.decode(&ids, false), "{decoder} at {cut}");
            spaces += usize::from(text[begins..].starts_with(' '));
        }
        assert!(spaces > 2, "{decoder}: no part begins with a space");
    }
}

#[test]
fn stripping_both_ends_of_a_fused_text() {
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 2}]});
    let pair = Pair::new("strip", &with("mistral", &[("/decoder", decoder)]));
    for text in ["a", "a ", "a  ", "a    b   ", " a b "] {
        pair.check_text(text);
    }
}

#[test]
fn byte_pair_options() {
    for unknown in [json!("<unk>"), Value::Null] {
        for fuse in [true, false] {
            for fallback in [true, false] {
                for ignore_merges in [true, false] {
                    let changes = [
                        ("/model/unk_token", unknown.clone()),
                        ("/model/fuse_unk", json!(fuse)),
                        ("/model/byte_fallback", json!(fallback)),
                        ("/model/ignore_merges", json!(ignore_merges)),
                    ];
                    check("mistral", &changes);
                    let mut words = changes.to_vec();
                    words.push(("/pre_tokenizer", json!({"type": "Whitespace"})));
                    check("mistral", &words);
                }
            }
        }
    }
    let vocab = json!({"a": 0, "b": 1, "##a": 2, "##b": 3, "ab": 4, "##a</w>": 5, "##b</w>": 6,
        "a</w>": 7, "[UNK]": 8, "ab</w>": 9, "##ab": 10, "aba": 14});
    let model = json!({"type": "BPE", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>", "vocab": vocab,
        "merges": ["a ##b", "a ##b</w>", "##a ##b", "ab ##a"]});
    let changes = [
        ("/model", model),
        ("/added_tokens", json!([])),
        ("/post_processor", Value::Null),
        ("/normalizer", Value::Null),
        ("/pre_tokenizer", json!({"type": "WhitespaceSplit"})),
        ("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true})),
    ];
    let pair = Pair::new("affixes", &with("mistral", &changes));
    for text in ["ab", "aba", "abab", "abaab ba c", "b", "cc acb"] {
        pair.check_text(text);
    }
    pair.check_vocabulary();
}

#[test]
fn other_models() {
    let pieces = json!([
        ["<unk>", 0.0],
        ["▁", -2.0],
        ["a", -3.5],
        ["b", -3.25],
        ["ab", -5.0],
        ["▁a", -4.0],
        ["▁the", -6.5],
        ["t", -4.0],
        ["h", -4.1],
        ["e", -3.0],
        ["he", -5.5],
        ["é", -7.0],
        ["日本", -8.0],
        ["<0x41>", -9.0],
        ["l", -4.0],
        ["ll", -7.9],
        ["o", -4.0]
    ]);
    for fallback in [false, true] {
        let metaspace =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
        let model =
            json!({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": fallback});
        let changes = [
            ("/model", model),
            ("/added_tokens", json!([])),
            ("/post_processor", Value::Null),
            ("/normalizer", Value::Null),
            ("/pre_tokenizer", metaspace.clone()),
            ("/decoder", metaspace),
        ];
        check("mistral", &changes);
    }
    let model = json!({"type": "WordLevel", "unk_token": "<unk>",
        "vocab": {"<unk>": 0, "the": 1, "a": 2, "!": 3, "日本": 7}});
    let changes = [
        ("/model", model),
        ("/added_tokens", json!([])),
        ("/post_processor", Value::Null),
        ("/normalizer", Value::Null),
        ("/pre_tokenizer", json!({"type": "Whitespace"})),
        ("/decoder", Value::Null),
    ];
    check("mistral", &changes);
}

#[test]
fn what_is_not_supported_says_where() {
    let refused = |changes: &[(&str, Value)]| match pack(&with("mistral", changes)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{changes:?} was accepted"),
    };
    assert_eq!(
        refused(&[("/normalizer", json!({"type": "Sequence", "normalizers": [{"type": "Nmt"}]}))]),
        "tokenizer.json, normalizer.normalizers[0]: the normalizer Nmt is not supported"
    );
    assert_eq!(
        refused(&[("/model/type", json!("WordPiece"))]),
        "tokenizer.json, model: the model WordPiece is not supported"
    );
    assert_eq!(
        refused(&[("/model/dropout", json!(0.1))]),
        "tokenizer.json, model.dropout: dropout is not supported"
    );
    assert_eq!(
        refused(&[("/model/merges", json!(["t h", "a b c"]))]),
        "tokenizer.json, model.merges[1]: not two tokens with one space between them"
    );
    let split = json!({"type": "Split", "pattern": {"Regex": "(a)\\1"}, "behavior": "Isolated",
        "invert": false});
    assert_eq!(
        refused(&[("/pre_tokenizer", split)]),
        "tokenizer.json, pre_tokenizer.pattern.Regex: the escape `\\1` in a pattern is not supported"
    );
    assert!(matches!(pack(b"{"), Err(TokenizerError::Json { .. })));
    assert_eq!(
        pack(b"{}").unwrap_err().to_string(),
        "tokenizer.json, top level: `model` is missing"
    );
}

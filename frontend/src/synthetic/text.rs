//! What lies beside a synthetic model: tokenizer and settings.
//!
//! The tokenizer is a byte-level BPE whose alphabet is GPT-2's: every text has ids, most tokens of
//! the vocabulary stand for their own names. Ids are what speed is measured with.

use serde_json::{Value, json};

use super::Shape;

/// The character that stands for a byte in byte-level vocabularies: itself if it is printable, else
/// the next one from U+0100 on.
fn byte_characters() -> Vec<char> {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut spare = 256_u32;
    let mut character = |byte: u8| {
        if printable(byte) {
            return char::from(byte);
        }
        spare += 1;
        char::from_u32(spare - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    (0..=u8::MAX).map(&mut character).collect()
}

/// The texts of the two special tokens, which are the vocabulary's last.
const SPECIAL: [&str; 2] = ["<|begin_of_text|>", "<|end_of_text|>"];

impl Shape {
    fn begin(&self) -> usize {
        self.vocabulary - 2
    }

    fn end(&self) -> usize {
        self.vocabulary - 1
    }

    /// `tokenizer.json`.
    pub(super) fn tokenizer(&self) -> Value {
        let mut vocabulary = serde_json::Map::new();
        let mut id = 0_usize;
        let mut add = |token: String| {
            vocabulary.insert(token, id.into());
            id += 1;
        };
        byte_characters().into_iter().for_each(|character| add(character.to_string()));
        add("\u{120}t".to_owned());
        (257..self.begin()).for_each(|id| add(format!("tok{id}")));
        SPECIAL.into_iter().for_each(|token| add(token.to_owned()));
        let added = |id: usize, text: &str| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        };
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [added(self.begin(), SPECIAL[0]), added(self.end(), SPECIAL[1])],
            "normalizer": null,
            "pre_tokenizer": {
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": true,
            },
            "post_processor": null,
            "decoder": {
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true,
            },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary,
                "merges": [["\u{120}", "t"]],
            },
        })
    }

    /// `tokenizer_config.json`.
    pub(super) fn tokenizer_config(&self) -> Value {
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "model_max_length": self.context,
            "clean_up_tokenization_spaces": false,
        })
    }

    /// `generation_config.json`.
    pub(super) fn generation_config(&self) -> Value {
        json!({
            "bos_token_id": self.begin(), "eos_token_id": self.end(), "pad_token_id": self.end(),
            "do_sample": false,
        })
    }

    /// `config.json`, as Transformers writes it.
    pub(super) fn config(&self) -> Value {
        let scaling = self.rope_factor.map(|factor| {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": super::LOW_FREQUENCY,
                "high_freq_factor": super::HIGH_FREQUENCY,
                "original_max_position_embeddings": super::ORIGINAL_CONTEXT,
            })
        });
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": super::EPSILON,
            "rope_theta": self.rope_base,
            "rope_scaling": scaling,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "bos_token_id": self.begin(),
            "eos_token_id": self.end(),
            "torch_dtype": "bfloat16",
            "attention_bias": false,
            "mlp_bias": false,
        })
    }
}

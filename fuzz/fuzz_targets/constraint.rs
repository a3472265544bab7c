//! The compiler of schemas, regular expressions, choices, grammars and calls of tools. The first byte says
//! which one the rest is; whatever it is, it is read or refused, in bounded time and memory.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_runtime::notation::CallNotation;
use weir_runtime::notation::forced::{CallableTool, ForcedCalls};
use weir_runtime::{Constraint, ConstraintError, Grammars};
use weir_tokenizer::{Tokenizer, pack};

const TOKENIZER: &[u8] = include_bytes!("../../runtime/tokenizer/tests/data/qwen2/tokenizer.json");

static GRAMMARS: LazyLock<(Grammars, u32)> = LazyLock::new(|| {
    let table = pack(TOKENIZER).expect("the fixture is sound");
    let tokenizer = Tokenizer::open(table).expect("what was packed opens");
    let vocabulary = tokenizer.vocabulary();
    let grammars = Grammars::new(&tokenizer, vocabulary, &[vocabulary - 1]);
    (grammars.expect("its tokens write all bytes"), vocabulary)
});

/// Nothing to keep to is no schema of arguments, which is refused.
fn calls(notation: CallNotation, source: &[u8]) -> Constraint {
    let tool = |name: &str, parameters| CallableTool { name: name.to_owned(), parameters };
    let parameters = serde_json::from_slice(source).unwrap_or_default();
    let tools = vec![tool("now", serde_json::json!({"type": "object"})), tool("f", parameters)];
    Constraint::Calls(ForcedCalls { notation, tools, is_one: false })
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, source)) = input.split_first() else { return };
    let text = || String::from_utf8_lossy(source).into_owned();
    let constraint = match kind {
        b's' => match serde_json::from_slice(source) {
            Ok(schema) => Constraint::JsonSchema(schema),
            Err(_) => return,
        },
        b'r' => Constraint::Regex(text()),
        b'c' => Constraint::Choice(text().split('\n').map(str::to_owned).collect()),
        b'g' => Constraint::Lark(text()),
        // A tool with this schema, beside one without arguments.
        b'l' => calls(CallNotation::Llama, source),
        b'h' => calls(CallNotation::Hermes, source),
        b'm' => calls(CallNotation::Mistral, source),
        b'd' => calls(CallNotation::DeepSeek, source),
        _ => return,
    };
    let (grammars, vocabulary) = &*GRAMMARS;
    match grammars.read(&constraint) {
        Ok(grammar) => assert_eq!(grammar.vocabulary(), *vocabulary, "vocabulary"),
        // How long it takes is for the machine to say; another one's turn ends with its own.
        Err(ConstraintError::TooSlow | ConstraintError::Busy) => {}
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal without a reason"),
    }
});

//! What the command line accepts.

use clap::{CommandFactory, Parser};

use super::*;

fn parse(arguments: &str) -> Result<Command, clap::error::ErrorKind> {
    Program::try_parse_from(std::iter::once("model").chain(arguments.split_whitespace()))
        .map(|program| program.command)
        .map_err(|error| error.kind())
}

#[test]
fn the_definition_is_consistent() {
    Program::command().debug_assert();
}

#[test]
fn prompts_come_from_several_places() {
    let Ok(Command::Generate(generate)) =
        parse("generate --prompt a --prompt b --prompt-file f --ids 1,2,3 --ids 4 - --json")
    else {
        panic!("not accepted");
    };
    assert_eq!(generate.prompt, ["a", "b"]);
    assert_eq!(generate.prompt_file.len(), 1);
    assert_eq!(generate.stdin.as_deref(), Some("-"));
    assert_eq!(generate.ids[0].0, [1, 2, 3]);
    assert_eq!(generate.ids[1].0, [4]);
    assert!(generate.json);
}

#[test]
fn wrong_values_are_usage_errors() {
    use clap::error::ErrorKind::{ArgumentConflict, InvalidValue, ValueValidation};
    let wrong = [
        ("generate --ids 1,x", ValueValidation),
        ("generate --ids -1", clap::error::ErrorKind::UnknownArgument),
        ("generate --max-tokens 0 --prompt a", ValueValidation),
        ("generate --isa sse2 --prompt a", ValueValidation),
        ("generate a", InvalidValue),
        ("logits -o f", clap::error::ErrorKind::MissingRequiredArgument),
        ("logits --ids 1 --text a -o f", ArgumentConflict),
        ("logits --ids 1 --decode 2 --force 3 -o f", ArgumentConflict),
    ];
    for (arguments, kind) in wrong {
        assert_eq!(parse(arguments).err(), Some(kind), "{arguments}");
    }
    assert!(parse("logits --ids 1 --force 3 -o f").is_ok());
    assert!(parse("chat --temperature 0.7 --stop a --stop b --isa avx2 --threads 2").is_ok());
}

#[test]
fn exit_codes_tell_whose_fault_it_is() {
    assert_eq!(exit_code(&RuntimeError::Options("0 slots".into())), 2);
    assert_eq!(exit_code(&RuntimeError::Absent("tokenizer")), 2);
    assert_eq!(exit_code(&RuntimeError::Machine("old".into())), 1);
}

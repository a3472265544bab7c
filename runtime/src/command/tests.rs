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
        ("generate --ids -1", ValueValidation),
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
    let serve = "serve --host ::1 --port 0 --queue 3 --connections 9 --queue-timeout 5 --log json";
    let Ok(Command::Serve(serve)) = parse(serve) else { panic!("not accepted") };
    assert!(serve.host.is_loopback() && serve.connections == 9 && serve.queue == Some(3));
    assert_eq!(parse("serve --port 70000").err(), Some(ValueValidation));
    assert_eq!(parse("serve --host here").err(), Some(ValueValidation));
}

#[test]
fn numbers_outside_their_range_name_option_and_range() {
    let wrong = [
        ("--temperature -1", "--temperature <X>", "0 or more"),
        ("--temperature inf", "--temperature <X>", "a finite number"),
        ("--top-p 0", "--top-p <P>", "above 0 and at most 1"),
        ("--min-p -0.5", "--min-p <P>", "between 0 and 1"),
        ("--repetition-penalty 0", "--repetition-penalty <X>", "above 0"),
        ("--presence-penalty x", "--presence-penalty <X>", "a finite number"),
        ("--top-k -3", "--top-k <K>", "from 0 to 4294967295"),
        ("--seed -1", "--seed <N>", "from 0 to 18446744073709551615"),
        ("--max-tokens 0", "--max-tokens <N>", "from 1 to 4294967295"),
        ("--threads 0", "--threads <N>", "from 1 to 1024"),
        ("--slots 0", "--slots <N>", "from 1 to 4096"),
    ];
    for (arguments, option, range) in wrong {
        for command in ["generate", "chat"] {
            let line = format!("model {command} {arguments}");
            let error = Program::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(range), "{line}: {error}");
        }
    }
    let accepted =
        "generate --presence-penalty -1.5 --frequency-penalty -0.5 --temperature 0 --ids 1";
    assert!(parse(accepted).is_ok());
}

#[test]
fn texts_may_begin_with_a_hyphen() {
    let line = ["model", "generate", "--prompt", "- one", "--stop", "--"];
    let Ok(Program { command: Command::Generate(generate) }) = Program::try_parse_from(line) else {
        panic!("not accepted");
    };
    assert_eq!(
        (generate.prompt, generate.sampling.stop),
        (vec!["- one".into()], vec!["--".into()])
    );
}

#[test]
fn prompts_are_checked_before_there_is_a_model() {
    let refusal = |arguments: &str| match parse(arguments) {
        Ok(Command::Generate(generate)) => generate.check().unwrap_err().to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refusal("generate").contains("nothing to continue"));
    assert!(refusal("generate --prompt-file - -").contains("one prompt only"));
    assert!(refusal("generate --prompt-file no-such-file").starts_with("no-such-file: "));
    assert!(refusal("generate --prompt-file src").starts_with("src: is a directory"));
}

#[test]
fn exit_codes_tell_whose_fault_it_is() {
    assert_eq!(exit_code(&RuntimeError::Options("0 slots".into())), 2);
    assert_eq!(exit_code(&RuntimeError::Absent("tokenizer")), 2);
    assert_eq!(exit_code(&RuntimeError::Machine("old".into())), 1);
}

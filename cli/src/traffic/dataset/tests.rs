//! Every format of files, and what is said of a wrong one.

use super::*;

fn read(name: &str, content: &str, endpoint: Endpoint) -> Result<Prompts, String> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("a file");
    let prompts = Prompts::read(&path, endpoint, 3, Draws::new(5, 1));
    prompts.map_err(|failure| {
        assert_eq!(failure.code, 2);
        failure.message.replace(&*path.to_string_lossy(), name)
    })
}

fn error(name: &str, content: &str) -> String {
    read(name, content, Endpoint::Completions).err().expect("an error")
}

fn text(question: Question) -> String {
    match question.prompt {
        Prompt::Text(text) => text,
        Prompt::Messages(messages) => messages.to_string(),
    }
}

#[test]
fn lines_are_taken_in_order_over_and_over() {
    let lines = concat!(
        "{\"prompt\": \"one\", \"max_tokens\": 5, \"id\": 1}\n\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"two\"}]}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"three\"}]}\n",
    );
    let mut prompts = read("a.jsonl", lines, Endpoint::Chat).expect("prompts");
    assert_eq!(prompts.count(), Some(3));
    let first = prompts.take(Wanted::Next);
    assert_eq!(first.max_tokens, Some(5));
    let messages = r#"[{"role":"user","content":"two"}]"#;
    let rest: Vec<String> = (0..3).map(|_| text(prompts.take(Wanted::Next))).collect();
    assert_eq!(
        (text(first).as_str(), &rest[..]),
        ("one", &[messages, "three", "one"].map(String::from)[..])
    );
    assert_eq!(prompts.taken(), 4);
}

#[test]
fn conversations_are_asked_for_their_first_turn() {
    let array = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "an answer to nothing"}]},
        {"id": "c", "conversations": []},
        {"id": "d", "conversations": [{"from": "user", "value": "Bye"}]}
    ]"#;
    let mut prompts = read("a.json", array, Endpoint::Completions).expect("prompts");
    assert_eq!(prompts.count(), Some(2));
    assert_eq!([0, 1].map(|_| text(prompts.take(Wanted::Next))), ["Hi", "Bye"]);
}

#[test]
fn passages_are_words_of_the_text_at_places_that_the_seed_gives() {
    let content = "  the quick\nbrown fox  jumps over the lazy dog\n";
    let cut = || {
        let mut prompts = read("a.txt", content, Endpoint::Chat).expect("a text");
        assert_eq!(prompts.count(), None);
        (0..40).map(|_| text(prompts.take(Wanted::Next))).collect::<Vec<_>>()
    };
    let passages = cut();
    for passage in &passages {
        assert!(content.contains(passage.as_str()) && passage.trim() == passage, "{passage:?}");
        assert_eq!(passage.split_whitespace().count(), 3);
    }
    assert!(passages.iter().any(|passage| passage.starts_with("the quick")));
    assert!(passages.iter().any(|passage| passage.ends_with("dog")));
    assert_eq!(passages, cut());
    let mut prompts = read("a.txt", content, Endpoint::Chat).expect("a text");
    assert_eq!(text(prompts.take(Wanted::Tokens(8))).split_whitespace().count(), 6);
    assert!(prompts.check_tokens(8).is_ok() && prompts.check_tokens(80).is_err());
}

#[test]
fn errors_name_file_and_line() {
    for (name, content, message) in [
        (
            "a.jsonl",
            "{\"prompt\": \"a\"}\n\n{\"prompt\": 3}\n",
            "line 3: invalid type: integer `3`",
        ),
        ("a.jsonl", "{\"prompt\": \"a\"}\n{\n", "line 2: EOF while parsing an object at column 1"),
        ("a.jsonl", "{\"text\": \"a\"}", "line 1: there must be one of prompt, messages and"),
        ("a.jsonl", "{\"prompt\": \"a\", \"messages\": []}", "line 1: there must be one of prompt"),
        ("a.jsonl", "{\"messages\": []}", "line 1: messages must be an array with something in it"),
        ("a.jsonl", "{\"messages\": [{}]}", "line 1: messages need --endpoint chat"),
        (
            "a.jsonl",
            "{\"prompt\": \"a\", \"max_tokens\": 0}",
            "line 1: max_tokens must be at least 1",
        ),
        ("a.jsonl", "\n", "there is no prompt"),
        ("a.json", "[{\"prompt\": \"a\"},\n {\"x\": 1}]", "entry 2: there must be one of"),
        ("a.json", "[{\"prompt\": \"a\"},\n nothing]", "at line 2 column"),
        ("a.txt", " \n", "there is no word in it"),
        ("a.txt", "one two", "--prompt-words: the text has 2 words, and 3 are needed"),
    ] {
        let error = error(name, content);
        assert!(error.starts_with(&format!("--dataset {name}: ")), "{error}");
        assert!(error.contains(message), "{error}");
    }
    let missing = Prompts::read(Path::new("no/such"), Endpoint::Chat, 1, Draws::new(0, 0));
    assert!(missing.err().is_some_and(|failure| failure.message.contains("no/such: No such file")));
}

//! Templates as Hugging Face renders them.

use std::time::Duration;

use super::*;

fn render(source: &str) -> Result<String, RuntimeError> {
    let special = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
    let messages =
        [ChatMessage::new("system", " Be brief. "), ChatMessage::new("user", "Hi <b> 'é'")];
    ChatTemplate::compile(source, &special)?.render(&messages, true)
}

#[test]
fn templates_see_messages_special_tokens_and_python_methods() {
    let source = "{{ bos_token }}{% for message in messages %}\n\
        {% if message['role'].startswith('sys') %}\n\
        [{{ message.content.strip() }}]\n\
        {% else %}{{ message['role'] | upper }}: {{ message['content'] }}{% endif %}\n\
        {% endfor %}\n\
        {% if add_generation_prompt %}>{% endif %}";
    assert_eq!(render(source).unwrap(), "<s>[Be brief.]\nUSER: Hi <b> 'é'>");
}

#[test]
fn an_exception_of_the_template_is_the_error() {
    let error = render("{{ raise_exception('roles must alternate') }}").err().unwrap();
    assert!(error.to_string().contains("roles must alternate"), "{error}");
    assert!(render("{% if %}").is_err());
}

#[test]
fn a_template_that_does_not_end_is_refused() {
    let twice = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    let error = render(twice).err().unwrap();
    assert!(error.to_string().contains("fuel"), "{error}");
}

#[test]
fn generation_tags_mark_nothing() {
    assert!(render("a{%}b").is_err(), "the sign that ends a tag is not the one that begins it");
    assert_eq!(render("a{%- generation -%} b {%- endgeneration -%} c").unwrap(), "abc");
    assert_eq!(render("{% for x in [1,2] %}{{ x }}{% break %}{% endfor %}").unwrap(), "1");
}

/// Renderings that Jinja itself has made of the same templates, with `tojson` as Transformers has it.
#[derive(serde::Deserialize)]
struct Expected {
    messages: Vec<ChatMessage>,
    tools: Vec<Box<serde_json::value::RawValue>>,
    renderings: Vec<Rendering>,
}

#[derive(serde::Deserialize)]
struct Rendering {
    template: String,
    tools: bool,
    variables: BTreeMap<String, String>,
    text: String,
}

#[test]
fn tools_calls_and_variables_are_what_jinja_makes_of_them() {
    let expected = include_str!("../../tests/templates/expected.json");
    let Expected { messages, tools, renderings } = serde_json::from_str(expected).unwrap();
    let tools: Vec<String> = tools.iter().map(|tool| tool.get().to_owned()).collect();
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_owned(), token.to_owned())).into();
    for Rendering { template, tools: has_tools, variables, text } in renderings {
        let source = match template.as_str() {
            "llama" => include_str!("../../tests/templates/llama.jinja"),
            "qwen" => include_str!("../../tests/templates/qwen.jinja"),
            "mistral" => include_str!("../../tests/templates/mistral.jinja"),
            "deepseek" => include_str!("../../tests/templates/deepseek.jinja"),
            other => panic!("{other}"),
        };
        let compiled = ChatTemplate::compile(source, &special).unwrap();
        // DeepSeek's, like its model, is told of tools in the system's message.
        assert_eq!(compiled.uses_tools(), template != "deepseek", "{template}");
        assert!(compiled.uses_calls(), "{template}");
        let conversation = Conversation {
            messages: &messages,
            tools: if has_tools { &tools } else { &[] },
            variables: &variables.into_iter().collect::<Vec<_>>(),
            add_generation_prompt: true,
        };
        assert_eq!(compiled.render_conversation(&conversation).unwrap(), text, "{template}");
    }
}

/// What Jinja makes of small templates, with functions and the filter `tojson` as Transformers has them,
/// and of dates what Python makes of them on Linux.
#[derive(serde::Deserialize)]
struct Python {
    data: Box<serde_json::value::RawValue>,
    tests: Vec<Small>,
    tojson: Vec<Small>,
    methods: Vec<Small>,
    dates: Vec<Date>,
}

#[derive(serde::Deserialize)]
struct Small {
    template: String,
    /// `None` where Python raises an exception.
    text: Option<String>,
}

#[derive(serde::Deserialize)]
struct Date {
    seconds: u64,
    microseconds: u32,
    format: String,
    text: String,
}

impl Python {
    fn read() -> Python {
        serde_json::from_str(include_str!("../../tests/templates/python.json")).unwrap()
    }

    fn check(&self, templates: &[Small]) {
        for Small { template, text } in templates {
            let variables = [("data".to_owned(), self.data.get().to_owned())];
            let plain = Conversation { variables: &variables, ..Conversation::default() };
            let compiled = ChatTemplate::compile(template, &BTreeMap::new()).unwrap();
            match (compiled.render_conversation(&plain), text) {
                (Ok(written), Some(text)) => assert_eq!(&written, text, "{template}"),
                (Err(_), None) => {}
                (Ok(written), None) => panic!("{template} is an error in Python: {written}"),
                (Err(error), Some(_)) => panic!("{template}: {error}"),
            }
        }
    }
}

#[test]
fn tests_of_values_are_jinjas() {
    let python = Python::read();
    python.check(&python.tests);
    // As Qwen's newer templates ask.
    let source = "{% if tools is iterable and tools | length > 0 %}tools{% else %}none{% endif %}";
    assert_eq!(render(source).unwrap(), "none");
}

#[test]
fn json_is_what_python_writes() {
    let python = Python::read();
    python.check(&python.tojson);
    let out = render("{{ messages[1:] | tojson }}").unwrap();
    assert_eq!(out, r#"[{"role": "user", "content": "Hi <b> 'é'"}]"#);
    let (infinite, nan) = (f64::INFINITY, f64::NAN);
    let floats = Value::from(vec![infinite, -infinite, nan]);
    let written = json::to_json(&floats, minijinja::value::Rest(Vec::new())).unwrap();
    assert_eq!(written.as_str(), Some("[Infinity, -Infinity, NaN]"));
}

#[test]
fn json_that_cannot_be_written_is_an_error() {
    let endless = "{% set ns = namespace() %}{% set ns.inner = ns %}{{ ns | tojson }}";
    let error = render(endless).err().unwrap();
    assert!(error.to_string().contains("levels"), "{error}");
    let error = render("\n{{ messages | tojson(separator=',') }}").err().unwrap();
    assert!(error.to_string().contains("tojson: unknown keyword argument 'separator'"), "{error}");
    assert!(error.to_string().contains(":2"), "the line is not told: {error}");
    let error = render("{{ messages | tojson(indent=1000000000) }}").err().unwrap();
    assert!(error.to_string().contains("indent must be at most"), "{error}");
}

#[test]
fn methods_of_strings_are_pythons() {
    let python = Python::read();
    python.check(&python.methods);
    let error = render("{{ 'a'.ljust(1000000000) }}").err().unwrap();
    assert!(error.to_string().contains("ljust: the width is at most"), "{error}");
}

#[test]
fn dates_follow_the_calendar() {
    for Date { seconds, microseconds, format, text } in Python::read().dates {
        let now = Duration::new(seconds, microseconds * 1_000);
        assert_eq!(python::strftime(&format, now).unwrap(), text, "{format} of {seconds}");
    }
    for (format, field) in
        [("%-q", "%-q"), ("%d %-", "%-"), ("%-F", "%-F"), ("%10d", "%1"), ("%Od", "%O")]
    {
        let error = python::strftime(format, Duration::ZERO).err().unwrap().to_string();
        assert!(error.ends_with(&format!("strftime_now: unknown field \"{field}\"")), "{error}");
    }
    assert!(
        render("{{ strftime_now('%d %b %Y') }}").unwrap().ends_with(|c: char| c.is_ascii_digit())
    );
    assert_eq!(render("{{ strftime_now('%Q %é') }}").unwrap(), "%Q %é");
    let error = render("{{ strftime_now('%-Q') }}").err().unwrap();
    assert!(error.to_string().contains(r#"strftime_now: unknown field "%-Q""#), "{error}");
}

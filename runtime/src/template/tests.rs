//! Templates as Hugging Face renders them.

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
fn json_is_what_python_writes() {
    let out = render("{{ messages[1:] | tojson }}").unwrap();
    assert_eq!(out, r#"[{"role": "user", "content": "Hi <b> 'é'"}]"#);
    let out = render("{{ [1, {'a': none}] | tojson(indent=1) }}").unwrap();
    assert_eq!(out, "[\n 1,\n {\n  \"a\": null\n }\n]");
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

#[test]
fn dates_follow_the_calendar() {
    assert_eq!(python::strftime("%d %b %Y %H:%M:%S %A", 0), "01 Jan 1970 00:00:00 Thursday");
    assert_eq!(python::strftime("%Y-%m-%d %a %%%q", 1_709_208_000), "2024-02-29 Thu %%q");
    assert_eq!(python::strftime("%B %y", 4_102_444_799), "December 99");
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

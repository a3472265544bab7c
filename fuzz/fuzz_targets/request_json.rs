//! JSON of requests, through the functions that the server reads it with: what is accepted keeps to
//! the limits, and templates that know tools and thoughts render what was accepted or say why not.

#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_runtime::Model;
use weir_runtime::template::ChatTemplate;

static MODEL: LazyLock<Model> = LazyLock::new(weir_fuzz::artefact::model);

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
    {{ m.role }}: {{ m.reasoning_content }}{{ m.content }}{% for c in m.tool_calls %}\
    {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}\n\
    {% endfor %}";

static CHAT: LazyLock<ChatTemplate> = LazyLock::new(|| {
    ChatTemplate::compile(TEMPLATE, &BTreeMap::new()).expect("the template is sound")
});

fuzz_target!(|body: &[u8]| weir_runtime::serve::fuzzing::read(&MODEL, &CHAT, body));

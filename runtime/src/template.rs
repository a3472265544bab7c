//! Chat templates: Jinja as Hugging Face's libraries render it.
//!
//! `trim_blocks` and `lstrip_blocks` are set, Python's string, list and dict methods exist,
//! `tojson` writes what Python's `json.dumps(ensure_ascii=False)` writes, and `raise_exception` and
//! `strftime_now` (in UTC: a static program has no time zones) are functions. The block tag
//! `generation`, which marks training targets, is read as a block that is always true.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::RuntimeError;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: BTreeMap<String, String>,
}

const NAME: &str = "chat template";

/// Instructions that a template may take: a hundred thousand messages at a hundred each. One that never
/// ends is refused instead.
const FUEL: u64 = 10_000_000;

fn part(error: Error) -> RuntimeError {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    RuntimeError::Part { part: NAME, reason }
}

impl ChatTemplate {
    /// Compiles a template. `special` are the special tokens by role, which templates see as
    /// variables (`bos_token`, …).
    pub fn compile(
        source: &str,
        special: &BTreeMap<String, String>,
    ) -> Result<ChatTemplate, RuntimeError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(syntax.map_err(part)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            strftime(&format, now)
        });
        environment.add_template_owned(NAME, replace_generation_tags(source)).map_err(part)?;
        Ok(ChatTemplate { environment, special: special.clone() })
    }

    /// The prompt for a conversation. `add_generation_prompt` ends it with the beginning of the
    /// model's turn.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, RuntimeError> {
        let mut variables: BTreeMap<&str, Value> =
            self.special.iter().map(|(name, token)| (name.as_str(), token.into())).collect();
        let message = |message: &ChatMessage| {
            Value::from_pairs([
                ("role", Value::from(message.role.as_str())),
                ("content", Value::from(message.content.as_str())),
            ])
        };
        variables.insert("messages", messages.iter().map(message).collect::<Vec<_>>().into());
        variables.insert("add_generation_prompt", add_generation_prompt.into());
        let template = self.environment.get_template(NAME).map_err(part)?;
        template.render(variables).map_err(part)
    }
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Replaces the tags `generation` and `endgeneration` by a condition that holds.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (tag, end) = (&rest[start + 2..start + length], start + length);
        out.push_str(&rest[..start + 2]);
        match tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replace("generation", " if true ")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", " endif ")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Separators as Python's `json` writes them on one line.
struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Other arguments of Python's function (`ensure_ascii`, …) keep their defaults.
    let mut bytes = Vec::new();
    let written = match indent {
        None => {
            let mut out = serde_json::Serializer::with_formatter(&mut bytes, PythonFormatter);
            value.serialize(&mut out)
        }
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let text = String::from_utf8(bytes)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// The calendar fields that chat templates print, in UTC.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = seconds / 86_400;
    let (year, month, day) = civil_date(days);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => out.push_str(&format!("{year:04}")),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('%') => out.push('%'),
            // Like the C function, an unknown field is copied.
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day since 1970-01-01 (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
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
        let twice =
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let error = render(twice).err().unwrap();
        assert!(error.to_string().contains("fuel"), "{error}");
    }

    #[test]
    fn generation_tags_mark_nothing() {
        assert_eq!(render("a{%- generation -%} b {%- endgeneration -%} c").unwrap(), "abc");
        assert_eq!(render("{% for x in [1,2] %}{{ x }}{% break %}{% endfor %}").unwrap(), "1");
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(strftime("%d %b %Y %H:%M:%S %A", 0), "01 Jan 1970 00:00:00 Thursday");
        assert_eq!(strftime("%Y-%m-%d %a %%%q", 1_709_208_000), "2024-02-29 Thu %%q");
        assert_eq!(strftime("%B %y", 4_102_444_799), "December 99");
    }
}

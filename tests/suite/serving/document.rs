//! The OpenAPI document that a server serves, and whether its responses are what it says.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use jsonschema::Validator;
use serde_json::{Value, json};
use weir_tests::server::{Response, Server};

/// The document, with its schemas ready to check with.
pub struct Document {
    whole: Value,
    /// By path, method and either `request`, or status and type of a response.
    checks: HashMap<(String, String, String), Validator>,
    error: Validator,
    /// As [`Document::error`], or as Anthropic's clients have it.
    any_error: Validator,
}

/// Something that can be asked.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The path, parameters in braces.
    pub path: String,
    /// The method, in large letters.
    pub method: String,
    /// Bodies that must be answered with 200.
    pub examples: Vec<Value>,
    /// Whether it is answered without a key.
    pub is_open: bool,
    /// Whether it is ever answered, and not always refused.
    pub is_answered: bool,
}

impl Document {
    /// What a server says about itself.
    pub fn of(server: &Server) -> Result<Document> {
        let whole = server.get("/openapi.json")?;
        ensure!(whole.status == 200, "{whole:?}");
        let whole = whole.json()?;
        let error = compile(&whole, &json!({"$ref": "#/components/schemas/Error"}))?;
        let forms = ["Error", "AnthropicError"]
            .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
        let any_error = compile(&whole, &json!({"anyOf": forms}))?;
        let mut document = Document { whole, checks: HashMap::new(), error, any_error };
        document.compile_all()?;
        Ok(document)
    }

    fn compile_all(&mut self) -> Result<()> {
        for Operation { path, method, .. } in self.operations()? {
            let item = self.item(&path, &method);
            let body = &item["requestBody"]["content"]["application/json"]["schema"];
            let mut wanted = vec![("request".to_owned(), body.clone())];
            for (status, response) in item["responses"].as_object().context("responses")? {
                let response = self.resolve(response)?;
                let content = response["content"].as_object().context("content")?;
                for (kind, media) in content {
                    wanted.push((format!("{status} {kind}"), media["schema"].clone()));
                }
            }
            for (what, schema) in wanted.into_iter().filter(|(_, schema)| !schema.is_null()) {
                let validator = compile(&self.whole, &schema)
                    .with_context(|| format!("{method} {path}: {what}"))?;
                self.checks.insert((path.clone(), method.clone(), what), validator);
            }
        }
        Ok(())
    }

    /// All operations.
    pub fn operations(&self) -> Result<Vec<Operation>> {
        let mut operations = Vec::new();
        for (path, methods) in self.whole["paths"].as_object().context("paths")? {
            for (method, item) in methods.as_object().context("methods")? {
                let examples = &item["requestBody"]["content"]["application/json"]["examples"];
                let examples = examples.as_object().into_iter().flatten();
                operations.push(Operation {
                    path: path.clone(),
                    method: method.to_uppercase(),
                    examples: examples.map(|(_, example)| example["value"].clone()).collect(),
                    is_open: item["security"].as_array().is_some_and(Vec::is_empty),
                    is_answered: !item["responses"]["200"].is_null(),
                });
            }
        }
        Ok(operations)
    }

    fn item(&self, path: &str, method: &str) -> &Value {
        &self.whole["paths"][path][method.to_lowercase()]
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> Result<&'a Value> {
        match value["$ref"].as_str() {
            None => Ok(value),
            Some(target) => {
                let place = target.strip_prefix('#').context("a reference within the document")?;
                self.whole.pointer(place).with_context(|| target.to_owned())
            }
        }
    }

    /// Names of the fields that a request may have, as far as the document knows.
    pub fn fields(&self, operation: &Operation) -> Result<Vec<String>> {
        let item = self.item(&operation.path, &operation.method);
        let schema = &item["requestBody"]["content"]["application/json"]["schema"];
        let mut fields = Vec::new();
        let mut left = vec![schema];
        while let Some(schema) = left.pop() {
            let schema = self.resolve(schema)?;
            left.extend(schema["allOf"].as_array().into_iter().flatten());
            let properties = schema["properties"].as_object().into_iter().flatten();
            fields.extend(properties.map(|(name, _)| name.clone()));
        }
        fields.sort();
        fields.dedup();
        Ok(fields)
    }

    /// Whether a body is one that the document allows.
    pub fn allows(&self, operation: &Operation, body: &Value) -> Result<bool> {
        let key = (operation.path.clone(), operation.method.clone(), "request".to_owned());
        Ok(self.checks.get(&key).context("a request's schema")?.is_valid(body))
    }

    /// Whether a response is one that the document says there can be.
    pub fn check(&self, operation: &Operation, response: &Response) -> Result<()> {
        let Operation { path, method, .. } = operation;
        let place = format!("{method} {path}: {}", response.status);
        let said = &self.item(path, method)["responses"][response.status.to_string()];
        ensure!(!said.is_null(), "{place} is not in the document: {}", response.body);
        for (name, _) in self.resolve(said)?["headers"].as_object().into_iter().flatten() {
            ensure!(response.header(name).is_some(), "{place}: no {name}: {response:?}");
        }
        let kind = response.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        let key = (path.clone(), method.clone(), format!("{} {kind}", response.status));
        let check = self.checks.get(&key);
        let check = check.with_context(|| format!("{place}: {kind} is not in the document"))?;
        match kind {
            "application/json" => holds(check, &response.json()?),
            "text/event-stream" => {
                check_events(check, &self.resolve(said)?["x-last-event"], response)
            }
            _ => holds(check, &Value::from(response.body.as_str())),
        }
        .with_context(|| place)
    }

    /// Whether a response is an error in the form that all errors have.
    pub fn check_error(&self, response: &Response) -> Result<()> {
        holds(&self.error, &response.json()?).with_context(|| format!("{response:?}"))
    }

    /// Whether a response is an error in the form of one interface or another.
    pub fn check_any_error(&self, response: &Response) -> Result<()> {
        holds(&self.any_error, &response.json()?).with_context(|| format!("{response:?}"))
    }
}

/// Whether all events hold, and the last one is of a type that ends a stream or, where none is named,
/// OpenAI's end mark.
fn check_events(check: &Validator, ends: &Value, response: &Response) -> Result<()> {
    let events = response.events();
    let (last, rest) = events.split_last().context("no events")?;
    ensure!(!rest.is_empty(), "nothing but an end: {events:?}");
    rest.iter().try_for_each(|event| holds(check, &serde_json::from_str(event)?))?;
    let Some(ends) = ends.as_array() else {
        ensure!(*last == "[DONE]", "the last event is {last}");
        return Ok(());
    };
    let last: Value = serde_json::from_str(last)?;
    ensure!(ends.contains(&last["type"]), "the last event is {last}");
    holds(check, &last)
}

/// A schema with the components that it may refer to.
fn compile(whole: &Value, schema: &Value) -> Result<Validator> {
    let dialect = "https://json-schema.org/draft/2020-12/schema";
    let schema = json!({"$schema": dialect, "components": whole["components"], "allOf": [schema]});
    jsonschema::validator_for(&schema).map_err(|error| anyhow::anyhow!("{error}"))
}

fn holds(check: &Validator, value: &Value) -> Result<()> {
    let wrong: Vec<String> = check
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    if !wrong.is_empty() {
        bail!("{}\n  in {value}", wrong.join("\n"));
    }
    Ok(())
}

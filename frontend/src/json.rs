//! JSON files beside a model, read by type: a field that is there with another type than it ought
//! to have is an error that names file and field, and so is a file that is no JSON.

use std::path::PathBuf;

use serde_json::Value;

use crate::error::{Place, Problem};
use crate::source::ModelFiles;

/// A JSON file beside the model, or a part of one.
#[derive(Debug, Clone)]
pub struct Json {
    file: PathBuf,
    /// Where this part lies in the file, as in `model.decoder`; empty for the whole.
    path: String,
    value: Value,
}

impl Json {
    /// Reads a file; `None` where there is none.
    pub fn beside(files: &ModelFiles, name: &str) -> Result<Option<Json>, Problem> {
        let Some(bytes) = files.beside(name)? else { return Ok(None) };
        Json::parse(files.directory().join(name), &bytes).map(Some)
    }

    /// Parses the contents of a file, which must be an object.
    pub fn parse(file: PathBuf, bytes: &[u8]) -> Result<Json, Problem> {
        let malformed = |message: String| Problem::malformed(Place::File(file.clone()), message);
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| malformed(format!("is not JSON: {error}")))?;
        if !value.is_object() {
            return Err(malformed("is not a JSON object".to_owned()));
        }
        Ok(Json { file, path: String::new(), value })
    }

    fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn wrong(&self, name: &str, wanted: &str) -> Problem {
        let place = Place::Field { file: self.file.clone(), field: self.field(name) };
        Problem::malformed(place, format!("is not {wanted}"))
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    /// An object inside.
    pub fn object(&self, name: &str) -> Result<Option<Json>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        if !value.is_object() {
            return Err(self.wrong(name, "an object"));
        }
        let (file, path) = (self.file.clone(), self.field(name));
        Ok(Some(Json { file, path, value: value.clone() }))
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(|text| Some(text.to_owned())).ok_or_else(|| self.wrong(name, "a string"))
    }

    /// A number that counts or names something.
    pub fn u32(&self, name: &str) -> Result<Option<u32>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(name, "a number from 0 to 4294967295"))
    }

    /// A finite number.
    pub fn f32(&self, name: &str) -> Result<Option<f32>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(name, "a number"))
    }

    /// Yes or no.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "true or false"))
    }

    /// The rests of names that begin like this, of fields that are true.
    pub fn enabled(&self, prefix: &str) -> Result<Vec<String>, Problem> {
        let names = self.value.as_object().into_iter().flatten().map(|(name, _)| name);
        let mut found = Vec::new();
        for name in names {
            let Some(rest) = name.strip_prefix(prefix) else { continue };
            if self.bool(name)? == Some(true) {
                found.push(rest.to_owned());
            }
        }
        Ok(found)
    }

    /// A token id or a list of them.
    pub fn ids(&self, name: &str) -> Result<Option<Vec<u32>>, Problem> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(values) => values.iter().map(id).collect(),
            single => id(single).map(|id| vec![id]),
        };
        ids.map(Some).ok_or_else(|| self.wrong(name, "a token id or a list of them"))
    }

    /// One token id; -1 is how some writers say that there is none.
    pub fn id(&self, name: &str) -> Result<Option<u32>, Problem> {
        match self.get(name) {
            Some(value) if value.as_i64() == Some(-1) => Ok(None),
            // A list where one is wanted: the first counts.
            Some(Value::Array(_)) => Ok(self.ids(name)?.and_then(|ids| ids.first().copied())),
            _ => self.u32(name),
        }
    }

    /// A token as text: a string, or an object with its content.
    pub fn token(&self, name: &str) -> Result<Option<String>, Problem> {
        match self.get(name) {
            Some(Value::Object(_)) => match self.object(name)? {
                Some(token) => token.string("content"),
                None => Ok(None),
            },
            _ => self.string(name),
        }
    }

    /// A list of objects with two strings each, or `None` if the field is no list.
    pub fn named_strings(
        &self,
        name: &str,
        key: &str,
        content: &str,
    ) -> Result<Option<Vec<(String, String)>>, Problem> {
        let Some(Value::Array(entries)) = self.get(name) else { return Ok(None) };
        let pair = |entry: &Value| {
            let text = |field: &str| entry.get(field)?.as_str().map(str::to_owned);
            Some((text(key)?, text(content)?))
        };
        let pairs = entries.iter().map(pair).collect::<Option<Vec<_>>>();
        let wanted = format!("a list of objects with {key} and {content}");
        pairs.map(Some).ok_or_else(|| self.wrong(name, &wanted))
    }
}

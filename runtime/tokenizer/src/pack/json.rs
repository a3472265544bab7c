//! JSON values together with their place, so that every complaint can name it.

use serde_json::{Map, Value};

use crate::TokenizerError;

/// A value and its path from the root of the file.
#[derive(Clone)]
pub(crate) struct Node<'a> {
    pub(crate) value: &'a Value,
    pub(crate) path: String,
}

impl<'a> Node<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub(crate) fn malformed<T>(&self, reason: impl Into<String>) -> Result<T, TokenizerError> {
        let path = if self.path.is_empty() { "top level".to_owned() } else { self.path.clone() };
        Err(TokenizerError::Malformed { path, reason: reason.into() })
    }

    pub(crate) fn unsupported<T>(&self, what: impl Into<String>) -> Result<T, TokenizerError> {
        Err(TokenizerError::Unsupported { path: self.path.clone(), what: what.into() })
    }

    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, TokenizerError> {
        self.value.as_object().map_or_else(|| self.malformed("not an object"), Ok)
    }

    /// A member that is present and not null.
    pub(crate) fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        let path =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Some(Self { value, path })
    }

    pub(crate) fn need(&self, key: &str) -> Result<Self, TokenizerError> {
        self.get(key).map_or_else(|| self.malformed(format!("`{key}` is missing")), Ok)
    }

    pub(crate) fn items(&self) -> Result<Vec<Self>, TokenizerError> {
        let Some(items) = self.value.as_array() else { return self.malformed("not a list") };
        let path = &self.path;
        let node = |(index, value)| Self { value, path: format!("{path}[{index}]") };
        Ok(items.iter().enumerate().map(node).collect())
    }

    pub(crate) fn text(&self) -> Result<&'a str, TokenizerError> {
        self.value.as_str().map_or_else(|| self.malformed("not a string"), Ok)
    }

    pub(crate) fn character(&self) -> Result<char, TokenizerError> {
        let mut chars = self.text()?.chars();
        match (chars.next(), chars.next()) {
            (Some(character), None) => Ok(character),
            _ => self.malformed("not one character"),
        }
    }

    pub(crate) fn word(&self) -> Result<u32, TokenizerError> {
        let word = self.value.as_u64().and_then(|number| u32::try_from(number).ok());
        word.map_or_else(|| self.malformed("not a number below 2^32"), Ok)
    }

    pub(crate) fn number(&self) -> Result<f64, TokenizerError> {
        self.value.as_f64().map_or_else(|| self.malformed("not a number"), Ok)
    }

    fn flag(&self) -> Result<bool, TokenizerError> {
        self.value.as_bool().map_or_else(|| self.malformed("neither true nor false"), Ok)
    }

    /// A flag that must be there.
    pub(crate) fn need_flag(&self, key: &str) -> Result<bool, TokenizerError> {
        self.need(key)?.flag()
    }

    /// A flag with a default.
    pub(crate) fn flag_or(&self, key: &str, default: bool) -> Result<bool, TokenizerError> {
        self.get(key).map_or(Ok(default), |node| node.flag())
    }

    /// The component's `type`.
    pub(crate) fn kind(&self) -> Result<&'a str, TokenizerError> {
        self.object()?;
        self.need("type")?.text()
    }
}

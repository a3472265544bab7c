//! API keys: who may ask, and who is who.
//!
//! A file has one key per line, or a name and a key; `#` begins a comment. Only hashes are kept and
//! compared, in constant time, and every key is looked at, so the time tells nothing.

use std::path::Path;

use crate::RuntimeError;

/// Who asks, by the place of their key; 0 is everybody where there are no keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant(pub u32);

/// The keys that are valid.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    hashes: Vec<blake3::Hash>,
}

impl Keys {
    /// Reads a file of keys.
    pub fn read(path: &Path) -> Result<Keys, RuntimeError> {
        let place = |source| RuntimeError::File { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(place)?;
        Keys::parse(&text)
            .map_err(|reason| place(std::io::Error::new(std::io::ErrorKind::InvalidData, reason)))
    }

    /// Reads the lines of a file of keys.
    pub fn parse(text: &str) -> Result<Keys, String> {
        let mut keys = Keys::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let key = match (words.next(), words.next(), words.next()) {
                (None, ..) => continue,
                (Some(key), None, _) | (Some(_), Some(key), None) => key,
                (Some(_), Some(_), Some(_)) => {
                    return Err(format!("line {number}: more than a name and a key"));
                }
            };
            if !keys.add(key) {
                return Err(format!("line {number}: this key stands in an earlier line, too"));
            }
        }
        if keys.hashes.is_empty() {
            return Err("there is no key in it".into());
        }
        Ok(keys)
    }

    /// Adds a key, unless it is there.
    pub fn add(&mut self, key: &str) -> bool {
        let hash = blake3::hash(key.as_bytes());
        let is_new = !self.hashes.contains(&hash);
        if is_new {
            self.hashes.push(hash);
        }
        is_new
    }

    /// Whether anybody may ask.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Who has this key.
    pub fn find(&self, key: &str) -> Option<Tenant> {
        let hash = blake3::hash(key.as_bytes());
        let mut found = None;
        for (place, known) in (1..).zip(&self.hashes) {
            // Hashes are compared in constant time.
            if *known == hash {
                found = Some(Tenant(place));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_keys_names_and_comments() {
        let keys = Keys::parse("# team\nalice  secret-1 # hers\n\nsecret-2\n").unwrap();
        assert_eq!(keys.find("secret-1"), Some(Tenant(1)));
        assert_eq!(keys.find("secret-2"), Some(Tenant(2)));
        assert_eq!(keys.find("alice"), None);
        assert_eq!(keys.find(""), None);
    }

    #[test]
    fn mistakes_are_named_by_their_line() {
        let wrong = |text: &str| Keys::parse(text).unwrap_err();
        assert!(wrong("a b c").starts_with("line 1"));
        assert!(wrong("k\nname k").starts_with("line 2"));
        assert!(wrong("# nothing\n").contains("no key"));
    }
}

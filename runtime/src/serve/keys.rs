//! API keys: who may ask, and who is who.
//!
//! A file has one key per line, or a name and a key, and behind it the best priority that the key's
//! requests may have, as in `priority=-1` (0 if absent; lower is better); `#` begins a comment. Only hashes are kept and
//! compared, in constant time, and every key is looked at, so the time tells nothing.

use std::path::Path;

use crate::RuntimeError;

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// A number by the key; 0 is everybody where there are no keys.
    pub owner: u32,
    /// The best priority that their requests may have.
    pub priority: i32,
}

#[derive(Clone, Debug)]
struct Key {
    hash: blake3::Hash,
    tenant: Tenant,
}

/// The keys that are valid.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    keys: Vec<Key>,
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
            let mut words: Vec<&str> = line.split_whitespace().collect();
            let given = words.last().and_then(|word| word.strip_prefix("priority="));
            let mut priority = 0;
            if let Some(given) = given {
                priority = given.parse().map_err(|_| {
                    format!("line {number}: {given:?} is not a priority, which is a whole number")
                })?;
                words.pop();
            }
            let key = match words[..] {
                [] if given.is_none() => continue,
                [key] | [_, key] => key,
                _ => return Err(format!("line {number}: it must be a key, or a name and a key")),
            };
            if !keys.add(key, priority) {
                return Err(format!("line {number}: this key stands in an earlier line, too"));
            }
        }
        if keys.keys.is_empty() {
            return Err("there is no key in it".into());
        }
        Ok(keys)
    }

    /// Adds a key, unless it is there.
    pub fn add(&mut self, key: &str, priority: i32) -> bool {
        let hash = blake3::hash(key.as_bytes());
        let is_new = self.keys.iter().all(|known| known.hash != hash);
        if is_new {
            // A key that is read again keeps its number wherever it stands.
            let [a, b, c, d, ..] = *hash.as_bytes();
            let owner = u32::from_le_bytes([a, b, c, d]).max(1);
            self.keys.push(Key { hash, tenant: Tenant { owner, priority } });
        }
        is_new
    }

    /// Whether anybody may ask.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who has this key.
    pub fn find(&self, key: &str) -> Option<Tenant> {
        let hash = blake3::hash(key.as_bytes());
        let mut found = None;
        for known in &self.keys {
            // Hashes are compared in constant time.
            if known.hash == hash {
                found = Some(known.tenant);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_keys_names_priorities_and_comments() {
        let text = "# team\nalice  secret-1 priority=-2 # hers\n\nsecret-2\nsecret-3 priority=5\n";
        let keys = Keys::parse(text).unwrap();
        let priority = |key: &str| keys.find(key).map(|tenant| tenant.priority);
        assert_eq!(priority("secret-1"), Some(-2));
        assert_eq!(priority("secret-2"), Some(0));
        assert_eq!(priority("secret-3"), Some(5));
        assert_eq!([priority("alice"), priority(""), priority("priority=5")], [None; 3]);
        let owner = |key: &str| keys.find(key).map(|tenant| tenant.owner);
        assert!(owner("secret-1") != owner("secret-2") && owner("secret-1") != Some(0));
        // Whoever else has a key, and in whatever order.
        let again = Keys::parse("secret-2\nsecret-1").unwrap();
        assert_eq!(again.find("secret-1").map(|tenant| tenant.owner), owner("secret-1"));
    }

    #[test]
    fn mistakes_are_named_by_their_line() {
        let wrong = |text: &str| Keys::parse(text).unwrap_err();
        assert!(wrong("a b c").starts_with("line 1"));
        assert!(wrong("k\nname k").starts_with("line 2"));
        assert!(wrong("k priority=high").starts_with("line 1"));
        assert!(wrong("k\npriority=1").starts_with("line 2"));
        assert!(wrong("# nothing\n").contains("no key"));
    }
}

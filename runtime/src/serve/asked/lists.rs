//! Fields that are one thing or a list of them, read as they come.
//!
//! Serde's way for such fields keeps everything first, at forty times the length of the smallest lists;
//! here nothing is kept but what is meant, and what is too long is refused at its first entry too many.

use std::fmt::Formatter;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::serve::limits::{BIASES, CHOICES, PROMPTS, STOPS};

/// Stop texts: one, or a list.
#[derive(Debug)]
pub struct Stops(pub Vec<String>);

/// Texts to choose from.
pub type Choices = AtMost<String, CHOICES>;

/// Biases by the token's number.
pub type Biases = Entries<f32, BIASES>;

/// Prompts: a text, texts, token ids, or lists of token ids; so many of them at most.
#[derive(Debug)]
pub enum Prompts<const MOST: usize = PROMPTS> {
    /// Texts.
    Texts(Vec<String>),
    /// Token ids of each prompt.
    Ids(Vec<Vec<u32>>),
}

/// A list of so many entries at most.
#[derive(Debug, Default)]
pub struct AtMost<T, const MOST: usize> {
    /// What is in it.
    pub entries: Vec<T>,
}

/// An object of so many entries at most, in their order.
#[derive(Debug, Default)]
pub struct Entries<T, const MOST: usize> {
    /// Names and values.
    pub entries: Vec<(String, T)>,
}

/// An object and nothing else. See [`object`].
struct Object<T>(T);

/// A field that is an object, if it is there: for `serde(default, deserialize_with)`. What serde derives
/// reads a list of the fields' values as well, and where every field may be absent, any list of nulls.
pub fn object<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(|field| field.map(|Object(fields)| fields))
}

/// Adds the rest of a list, which has `most` entries at most.
fn rest_of<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
    mut begun: Vec<T>,
    most: usize,
) -> Result<Vec<T>, A::Error> {
    while begun.len() < most {
        match list.next_element()? {
            Some(element) => begun.push(element),
            None => return Ok(begun),
        }
    }
    match list.next_element::<IgnoredAny>()? {
        None => Ok(begun),
        Some(_) => Err(A::Error::custom(format_args!("there may be {most} entries at most"))),
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> AtMost<T, MOST> {
    /// The list that a reader of several forms has come to.
    pub(super) fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        rest_of(list, Vec::new(), MOST).map(|entries| AtMost { entries })
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for AtMost<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
            type Value = AtMost<T, MOST>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                write!(f, "a list of {MOST} entries at most")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                rest_of(list, Vec::new(), MOST).map(|entries| AtMost { entries })
            }
        }
        deserializer.deserialize_seq(Reader(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Entries<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
            type Value = Entries<T, MOST>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                write!(f, "an object with {MOST} entries at most")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MOST {
                        let message = format_args!("there may be {MOST} entries at most");
                        return Err(A::Error::custom(message));
                    }
                    entries.push(entry);
                }
                Ok(Entries { entries })
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                write!(f, "an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Stops {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stops, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Stops;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                write!(f, "a text or a list of {STOPS} texts at most")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Stops, E> {
                Ok(Stops(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Stops, A::Error> {
                rest_of(list, Vec::new(), STOPS).map(Stops)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// What a list of prompts may begin with.
enum First {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<First, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = First;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, the number of a token, or a list of such numbers")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<First, E> {
                Ok(First::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<First, E> {
                let id = u32::try_from(id);
                id.map(First::Id).map_err(|_| E::custom("this is not the number of a token"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<First, A::Error> {
                rest_of(list, Vec::new(), usize::MAX).map(First::Ids)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<const MOST: usize> Prompts<MOST> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Prompts::Texts(texts) => texts.len(),
            Prompts::Ids(lists) => lists.len(),
        }
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Prompts<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts<MOST>, D::Error> {
        struct Reader<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for Reader<MOST> {
            type Value = Prompts<MOST>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, token ids, or a list of either")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Prompts::Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                match list.next_element()? {
                    None => Ok(Prompts::Texts(Vec::new())),
                    Some(First::Text(text)) => rest_of(list, vec![text], MOST).map(Prompts::Texts),
                    Some(First::Ids(ids)) => rest_of(list, vec![ids], MOST).map(Prompts::Ids),
                    Some(First::Id(id)) => {
                        rest_of(list, vec![id], usize::MAX).map(|ids| Prompts::Ids(vec![ids]))
                    }
                }
            }
        }
        deserializer.deserialize_any(Reader::<MOST>)
    }
}

//! Typed attributes of core ops and their text.
//!
//! `attributes!` declares an op's struct; every field prints as `name=value` and parses back to
//! an equal value.

use crate::dim::Dim;
use crate::types::DType;

/// A type that an attribute may have.
pub trait AttributeValue: Sized {
    /// The value as text without spaces at its ends; floats print so that they parse to the same
    /// bits.
    fn print(&self) -> String;
    /// The value of a text that `print` wrote.
    fn parse(text: &str) -> Option<Self>;
}

/// An op's attributes as a list.
pub trait Attributes: Sized {
    /// Names in declaration order.
    const NAMES: &'static [&'static str];
    /// Names and texts in declaration order.
    fn print(&self) -> Vec<(&'static str, String)>;
    /// Reads every attribute through the given look-up; the error names the attribute that is
    /// missing or malformed.
    fn parse(find: &mut dyn FnMut(&str) -> Option<String>) -> Result<Self, &'static str>;
}

macro_rules! by_display {
    ($($type:ty),*) => {$(
        impl AttributeValue for $type {
            fn print(&self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}

by_display!(u8, u32, usize, i64, f32, bool);

impl AttributeValue for DType {
    fn print(&self) -> String {
        self.name().to_owned()
    }
    fn parse(text: &str) -> Option<Self> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == text)
    }
}

impl AttributeValue for Dim {
    fn print(&self) -> String {
        self.to_string()
    }
    fn parse(text: &str) -> Option<Self> {
        Dim::parse(text)
    }
}

macro_rules! by_entity {
    ($($type:ident, $prefix:literal);*) => {$(
        impl AttributeValue for crate::entity::$type {
            fn print(&self) -> String {
                self.to_string()
            }
            fn parse(text: &str) -> Option<Self> {
                let number = text.strip_prefix($prefix)?.parse::<u32>().ok()?;
                Some(crate::entity::Entity::new(number as usize))
            }
        }
    )*};
}

by_entity!(Const, "c"; Kind, "kind"; CacheId, "k");

impl<T: AttributeValue> AttributeValue for Option<T> {
    fn print(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), AttributeValue::print)
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { T::parse(text).map(Some) }
    }
}

impl<T: AttributeValue> AttributeValue for Vec<T> {
    fn print(&self) -> String {
        let items: Vec<String> = self.iter().map(AttributeValue::print).collect();
        format!("[{}]", items.join(", "))
    }
    fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?.trim();
        if inner.is_empty() {
            return Some(Vec::new());
        }
        inner.split(',').map(|item| T::parse(item.trim())).collect()
    }
}

/// Declares the struct of a core op with its attributes.
macro_rules! attributes {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::attribute::Attributes for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field),)*];
            fn print(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($field), $crate::attribute::AttributeValue::print(&self.$field)),)*]
            }
            #[allow(unused_variables, reason = "an op may have no attributes")]
            fn parse(
                find: &mut dyn FnMut(&str) -> Option<String>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: find(stringify!($field))
                        .and_then(|text| $crate::attribute::AttributeValue::parse(&text))
                        .ok_or(stringify!($field))?,)*
                })
            }
        }
    };
}
pub(crate) use attributes;

/// Declares an enum that is an attribute value, with the names of its variants in the text form.
macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Name in the text form.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl $crate::attribute::AttributeValue for $name {
            fn print(&self) -> String {
                self.name().to_owned()
            }
            fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.name() == text)
            }
        }
    };
}
pub(crate) use named_enum;

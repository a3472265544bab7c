//! Typed indices into the tables of a graph, printed as in the text form.
//!
//! u32 indices instead of references keep a graph plain data: it can be cloned, compared and edited
//! while it is walked (after Cranelift's entities).

use std::fmt;
use std::marker::PhantomData;

/// An index into a [`Table`].
pub trait Entity: Copy + Eq {
    /// The entity with the given number.
    fn new(number: usize) -> Self;
    /// Its number.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Entity for $name {
            fn new(number: usize) -> Self {
                Self(u32::try_from(number).expect("a graph has fewer than 2^32 entities of a kind"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity!(
    /// A value: result of a node or parameter of a body. Numbered per body.
    Value, "v");
entity!(
    /// A node of a body.
    Node, "n");
entity!(
    /// A constant of the graph.
    Const, "c");
entity!(
    /// A layer kind of the graph.
    Kind, "kind");
entity!(
    /// A cache of the graph: the attention state of one layer.
    CacheId, "k");

/// A table with typed indices; entries are added, never removed.
#[derive(Clone, PartialEq)]
pub struct Table<K, V> {
    entries: Vec<V>,
    key: PhantomData<K>,
}

impl<K, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.entries).finish()
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new(), key: PhantomData }
    }
}

impl<K: Entity, V> Table<K, V> {
    /// Adds an entry and returns its index.
    pub fn push(&mut self, entry: V) -> K {
        self.entries.push(entry);
        K::new(self.entries.len() - 1)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry, if the index is in the table.
    pub fn get(&self, key: K) -> Option<&V> {
        self.entries.get(key.index())
    }

    /// Indices and entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.entries.iter().enumerate().map(|(number, entry)| (K::new(number), entry))
    }

    /// Indices and entries in order, to change.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> {
        self.entries.iter_mut().enumerate().map(|(number, entry)| (K::new(number), entry))
    }

    /// Indices in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.entries.len()).map(K::new)
    }

    /// Entries in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.entries.iter()
    }
}

impl<K: Entity, V> std::ops::Index<K> for Table<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.entries[key.index()]
    }
}

impl<K: Entity, V> std::ops::IndexMut<K> for Table<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.entries[key.index()]
    }
}

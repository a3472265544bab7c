//! Quantised constants of a graph, so that a tensor that several nodes read is one constant.
//!
//! A constant is known by its codes, which are never copied: where they lie tells almost all apart without
//! a look at their scales. Those of the same codes are told apart by a hash of all else. So a constant
//! costs what it holds, however many there are: a file may have a node for each of a hundred thousand.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use weir_ir::{Const, ConstData, Constant, QuantData, Table};

/// The quantised constants of a graph.
#[derive(Debug, Default)]
pub struct Once {
    /// The first constant of codes at an address, of a length.
    first: HashMap<(usize, usize), Const>,
    /// Others with codes of which there is a first, by [`fingerprint`].
    others: HashMap<u64, Vec<Const>>,
}

impl Once {
    /// The constant of the table that is this one, which is added if there is none. Of constants that are
    /// not quantised there may be any number.
    pub fn add(&mut self, table: &mut Table<Const, Constant>, constant: Constant) -> Const {
        let ConstData::Quantised(data) = &constant.data else { return table.push(constant) };
        let codes = (data.codes.as_ptr() as usize, data.codes.len());
        let Some(&first) = self.first.get(&codes) else {
            let added = table.push(constant);
            self.first.insert(codes, added);
            return added;
        };
        if table[first].is_same_storage(&constant) {
            return first;
        }
        let alike = self.others.entry(fingerprint(&constant, data)).or_default();
        if let Some(&known) = alike.iter().find(|known| table[**known].is_same_storage(&constant)) {
            return known;
        }
        let added = table.push(constant);
        alike.push(added);
        added
    }
}

/// Equal for constants of one storage.
fn fingerprint(constant: &Constant, data: &QuantData) -> u64 {
    let mut hasher = DefaultHasher::new();
    constant.ty.hash(&mut hasher);
    (data.codes.as_ptr() as usize, data.code_strides, data.signed).hash(&mut hasher);
    (&data.scales, data.scale_strides, &data.zeros).hash(&mut hasher);
    hasher.finish()
}

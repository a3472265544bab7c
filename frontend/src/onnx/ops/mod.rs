//! Importers of operators, by family. Each family file has an `OPS` slice; a row names the domain,
//! the operator, the versions of the domain's opset at which our reading is right, and the
//! importer.

pub mod activation;
pub mod attention;
pub mod codebook;
pub mod constant;
pub mod control;
pub mod elementwise;
pub mod integers;
pub mod movement;
pub mod norm;
pub mod product;
pub mod quantised;
pub mod reduce;
pub mod rotary;
pub mod shape;

use std::ops::RangeInclusive;

use weir_ir::Value;

use crate::error::{NodePlace, Problem};
use crate::onnx::context::Cx;

/// Makes the core ops of a node and returns its outputs, in order; outputs that are not made are
/// errors where somebody reads them.
pub type Import = for<'i, 'm, 'c> fn(&'c mut Cx<'i, 'm>) -> Result<Vec<Value>, Problem>;

/// A row of a family's table.
#[derive(Debug, Clone)]
pub struct OpRow {
    /// Domain, `ai.onnx` for the standard one.
    pub domain: &'static str,
    /// Operator.
    pub name: &'static str,
    /// Opset versions of the domain.
    pub versions: RangeInclusive<i64>,
    /// The importer.
    pub import: Import,
}

/// The standard domain.
pub const ONNX: &str = "ai.onnx";
/// ONNX Runtime's own domain.
pub const MICROSOFT: &str = "com.microsoft";
/// Newest opset of the standard domain that these tables were written against.
pub const NEWEST: i64 = 27;

/// A row of the standard domain from a version on.
const fn standard(name: &'static str, since: i64, import: Import) -> OpRow {
    OpRow { domain: ONNX, name, versions: since..=NEWEST, import }
}

/// A row of ONNX Runtime's domain, which has one version.
const fn microsoft(name: &'static str, import: Import) -> OpRow {
    OpRow { domain: MICROSOFT, name, versions: 1..=1, import }
}

/// All families.
pub const FAMILIES: &[&[OpRow]] = &[
    activation::OPS,
    attention::OPS,
    codebook::OPS,
    constant::OPS,
    control::OPS,
    elementwise::OPS,
    integers::OPS,
    movement::OPS,
    norm::OPS,
    product::OPS,
    quantised::OPS,
    reduce::OPS,
    rotary::OPS,
    shape::OPS,
];

/// What the tables say about a node.
pub enum Lookup {
    /// Its importer.
    Found(Import),
    /// Why there is none.
    Missing(String),
}

/// Looks a node's operator up.
pub fn lookup(place: &NodePlace) -> Lookup {
    let mut rows = FAMILIES
        .iter()
        .flat_map(|family| family.iter())
        .filter(|row| row.name == place.op && row.domain == place.domain)
        .peekable();
    if rows.peek().is_none() {
        return Lookup::Missing("this operator is not supported".to_owned());
    }
    let opset = place.opset.unwrap_or(0);
    let mut ranges = Vec::new();
    for row in rows {
        if row.versions.contains(&opset) {
            return Lookup::Found(row.import);
        }
        ranges.push(format!("{} to {}", row.versions.start(), row.versions.end()));
    }
    Lookup::Missing(format!("this operator is supported at opset {}", ranges.join(", ")))
}

//! Every row up to the context: C = R = context. Rows in flight overwrite none (`draft=` is for rings of
//! layers with a window beside it).

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

pub(super) const POLICY: Policy = Policy { name: "full", options: &["draft"], rows };

fn rows(_: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    Ok(CacheRows::ring(KvPolicy::Full, context))
}

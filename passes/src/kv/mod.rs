//! Attention state: made explicit, given a policy and a size.

pub mod centre_keys;
pub mod insert_kv_cache;
pub mod policy;
pub mod sparsify_kv;

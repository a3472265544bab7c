//! Ops, selection and caches against values computed by hand.

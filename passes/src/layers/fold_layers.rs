//! Holds repeated layers once.
//!
//! Before:  v5 = <layer 0 of> v1 ; v9 = <layer 1 of> v5, with constants of their own
//! After:   v5 = layer v1, positions, past {kind=kind0, weights=[c1, ..]}
//!          v9 = layer v5, positions, past {kind=kind0, weights=[c7, ..]}
//!
//! Needs: stage `Canonical`, rows; every attention reads the past rows of one layer.
//! Gives: `main` is embed segment, layers, head segment; a kind per different layer.

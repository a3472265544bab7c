//! Systems under test behind one trait.

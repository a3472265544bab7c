//! The driver behind `weir`: from a model to a graph, code and files.

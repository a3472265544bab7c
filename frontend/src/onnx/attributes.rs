//! Attributes of a node, read once and by type.
//!
//! Invariant: whatever an importer did not ask for is still in [`Attributes::unread`] when it
//! returns, so an attribute that we do not understand is an error and never ignored (the habit of
//! RTen's `op_registry/onnx_registry.rs`).

use std::cell::Cell;

use super::model::{Graph, Node};
use super::tensor::Tensor;
use crate::error::{Place, Problem, printable};

/// A named attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// The name in the file.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the names of the format")]
pub enum Value {
    Float(f32),
    Int(i64),
    String(String),
    Tensor(Tensor),
    Graph(Graph),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Float(_) => "a float",
            Value::Int(_) => "an int",
            Value::String(_) => "a string",
            Value::Tensor(_) => "a tensor",
            Value::Graph(_) => "a graph",
            Value::Floats(_) => "floats",
            Value::Ints(_) => "ints",
            Value::Strings(_) => "strings",
        }
    }
}

/// The attributes of one node, with a mark on each that has been read.
#[derive(Debug)]
pub struct Attributes<'a> {
    node: &'a Node,
    read: Vec<Cell<bool>>,
}

impl<'a> Attributes<'a> {
    /// The attributes of `node`, all unread.
    pub fn new(node: &'a Node) -> Self {
        Attributes { node, read: vec![Cell::new(false); node.attributes.len()] }
    }

    fn find(&self, name: &str) -> Option<&'a Value> {
        let at = self.node.attributes.iter().position(|attribute| attribute.name == name)?;
        self.read[at].set(true);
        Some(&self.node.attributes[at].value)
    }

    fn wrong_type(&self, name: &str, wanted: &str, found: &Value) -> Problem {
        let message = format!("attribute {name} is {}, not {wanted}", found.kind());
        Problem::malformed(Place::Node(self.node.place.clone()), message)
    }

    /// An integer.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong_type(name, "an int", other)),
        }
    }

    /// An integer with the operator's default.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, Problem> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer that means yes or no.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, Problem> {
        match self.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => {
                let message = format!("attribute {name} is {other}, neither 0 nor 1");
                Err(Problem::malformed(Place::Node(self.node.place.clone()), message))
            }
        }
    }

    /// A float. None of the operators means anything by one that is not a finite number.
    pub fn float(&self, name: &str) -> Result<Option<f32>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Float(value)) if !value.is_finite() => {
                let message = format!("attribute {name} is {value}, not a finite number");
                Err(Problem::malformed(Place::Node(self.node.place.clone()), message))
            }
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong_type(name, "a float", other)),
        }
    }

    /// A float with the operator's default.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, Problem> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    /// A float that is not negative (an epsilon, a soft-cap), with the operator's default.
    pub fn positive_or(&self, name: &str, default: f32) -> Result<f32, Problem> {
        let value = self.float_or(name, default)?;
        if value < 0.0 {
            let message = format!("attribute {name} is {value}, below zero");
            return Err(Problem::malformed(Place::Node(self.node.place.clone()), message));
        }
        Ok(value)
    }

    /// A list of integers.
    pub fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Ints(values)) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(name, "ints", other)),
        }
    }

    /// A list of floats.
    pub fn floats(&self, name: &str) -> Result<Option<&'a [f32]>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Floats(values)) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(name, "floats", other)),
        }
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(name, "a string", other)),
        }
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<Option<&'a Tensor>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Tensor(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(name, "a tensor", other)),
        }
    }

    /// A graph.
    pub fn graph(&self, name: &str) -> Result<Option<&'a Graph>, Problem> {
        match self.find(name) {
            None => Ok(None),
            Some(Value::Graph(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(name, "a graph", other)),
        }
    }

    /// Marks attributes that change nothing in inference.
    pub fn ignore(&self, names: &[&str]) {
        for name in names {
            self.find(name);
        }
    }

    /// The problem that names every attribute nobody read; `None` when all were.
    pub fn unread(&self) -> Option<Problem> {
        let names: Vec<_> = self
            .node
            .attributes
            .iter()
            .zip(&self.read)
            .filter(|(_, read)| !read.get())
            .map(|(attribute, _)| printable(&attribute.name))
            .collect();
        let noun = if names.len() == 1 { "attribute" } else { "attributes" };
        (!names.is_empty()).then(|| {
            let message = format!("{noun} {}", names.join(", "));
            Problem::unsupported(Place::Node(self.node.place.clone()), message)
        })
    }
}

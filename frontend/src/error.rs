//! What can go wrong while a model is read, and where.
//!
//! Every finding is a [`Problem`]: whose fault it is ([`Fault`]), the place ([`Place`], which
//! always prints something a person can look for in the file) and one sentence. A reader collects
//! all problems that it can see and reports them together as an [`ImportError`], so that a model
//! is mended, or given up, after one run.

use std::fmt;
use std::path::{Path, PathBuf};

/// Whose fault a [`Problem`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The user named something that cannot be compiled; nothing is wrong with a file.
    User,
    /// The operating system refused.
    Io,
    /// A file breaks the rules of its own format.
    Malformed,
    /// The file is fine and we do not understand a part of it.
    Unsupported,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::User => "usage",
            Fault::Io => "i/o",
            Fault::Malformed => "malformed",
            Fault::Unsupported => "unsupported",
        })
    }
}

/// Where a problem is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file or directory as a whole.
    File(PathBuf),
    /// A field of a JSON file beside the model.
    Field {
        /// The file's name.
        file: PathBuf,
        /// The path of the field, as in `model.decoder.head_size`.
        field: String,
    },
    /// The graph as a whole; the name is the file's own (it may be empty).
    Graph(String),
    /// A named initialiser or a tensor inside an attribute.
    Tensor(String),
    /// A function that the model brings along.
    Function(String),
    /// A graph input.
    Input(String),
    /// A graph output.
    Output(String),
    /// A node.
    Node(NodePlace),
}

/// A node, in the words of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlace {
    /// The node's name, or `#index` where the file gives none.
    pub name: String,
    /// The operator.
    pub op: String,
    /// The operator's domain, `ai.onnx` for the empty one.
    pub domain: String,
    /// The opset version that the model imports for this domain; `None` where it imports none.
    pub opset: Option<i64>,
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node \"{}\" ({}::{}, ",
            printable(&self.name),
            self.domain,
            printable(&self.op)
        )?;
        match self.opset {
            Some(opset) => write!(f, "opset {opset})"),
            None => write!(f, "no opset)"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Field { file, field } => write!(f, "{}: {field}", file.display()),
            Place::Graph(name) => write!(f, "graph \"{}\"", printable(name)),
            Place::Tensor(name) => write!(f, "tensor \"{}\"", printable(name)),
            Place::Function(name) => write!(f, "function \"{}\"", printable(name)),
            Place::Input(name) => write!(f, "input \"{}\"", printable(name)),
            Place::Output(name) => write!(f, "output \"{}\"", printable(name)),
            Place::Node(node) => node.fmt(f),
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whose fault it is.
    pub fault: Fault,
    /// Where it is.
    pub place: Place,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
}

impl Problem {
    /// A problem of the user's making.
    pub fn user(place: Place, message: impl Into<String>) -> Self {
        Problem { fault: Fault::User, place, message: message.into() }
    }

    /// A refusal by the operating system.
    pub fn io(path: &Path, error: impl fmt::Display) -> Self {
        let place = Place::File(path.to_path_buf());
        Problem { fault: Fault::Io, place, message: error.to_string() }
    }

    /// A break of the format's rules.
    pub fn malformed(place: Place, message: impl Into<String>) -> Self {
        Problem { fault: Fault::Malformed, place, message: message.into() }
    }

    /// Something we do not understand.
    pub fn unsupported(place: Place, message: impl Into<String>) -> Self {
        Problem { fault: Fault::Unsupported, place, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.fault, self.place, self.message)
    }
}

/// All problems of one import; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// What the user named.
    pub model: PathBuf,
    /// The findings, in the order of the file.
    pub problems: Vec<Problem>,
}

impl ImportError {
    /// True when the command line, not a file, is to be mended.
    pub fn is_usage(&self) -> bool {
        self.problems.iter().all(|problem| problem.fault == Fault::User)
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "cannot import {}: {count} {noun}", self.model.display())?;
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ImportError {}

/// A name from the file without control characters and of bounded length, fit for a terminal.
pub(crate) fn printable(name: &str) -> String {
    const LONGEST: usize = 200;
    let mut shown: String = name
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if name.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

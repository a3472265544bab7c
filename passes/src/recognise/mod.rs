//! Patterns of exporters raised to named ops. Every file recognises one thing; which implementation
//! it gets is decided later.

pub mod linear;
pub mod rms_norm;
pub mod rotary;

use weir_ir::entity::Entity;
use weir_ir::interpret::Interpreter;
use weir_ir::ops::binary::{Binary, BinaryOp};
use weir_ir::ops::unary::{Unary, UnaryOp};
use weir_ir::{Body, Graph, Node, Op, Value};

/// A graph as patterns look at it.
pub(crate) struct Pattern<'g> {
    pub graph: &'g Graph,
    interpreter: Interpreter<'g>,
}

impl<'g> Pattern<'g> {
    pub fn new(graph: &'g Graph) -> Pattern<'g> {
        Pattern { graph, interpreter: Interpreter::new(graph) }
    }

    pub fn body(&self) -> &'g Body {
        &self.graph.main
    }

    /// The op and operands that make a value.
    pub fn made(&self, value: Value) -> Option<(&'g Op, &'g [Value])> {
        let body = &self.graph.main;
        body.maker(value).map(|node| (&node.op, node.operands.as_slice()))
    }

    /// The number in a constant of one element.
    pub fn scalar(&self, value: Value) -> Option<f32> {
        let (Op::ReadConstant(read), _) = self.made(value)? else { return None };
        if self.graph.constants.get(read.constant)?.ty.element_count() != Some(1) {
            return None;
        }
        let tensor = self.interpreter.constant(read.constant).ok()?;
        tensor.f32s().ok()?.first().copied()
    }

    /// Whether a value is a constant.
    pub fn is_constant(&self, value: Value) -> bool {
        matches!(self.made(value), Some((Op::ReadConstant(_), _)))
    }

    pub fn unary(&self, value: Value, wanted: UnaryOp) -> Option<Value> {
        match self.made(value)? {
            (Op::Unary(Unary { op }), [x]) if *op == wanted => Some(*x),
            _ => None,
        }
    }

    pub fn binary(&self, value: Value, wanted: BinaryOp) -> Option<[Value; 2]> {
        match self.made(value)? {
            (Op::Binary(Binary { op }), [a, b]) if *op == wanted => Some([*a, *b]),
            _ => None,
        }
    }

    /// Both orders of the operands of a commutative op.
    pub fn either(&self, value: Value, wanted: BinaryOp) -> impl Iterator<Item = (Value, Value)> {
        let operands = self.binary(value, wanted);
        operands.into_iter().flat_map(|[a, b]| [(a, b), (b, a)])
    }

    /// Number of the last dimension.
    pub fn last_axis(&self, value: Value) -> usize {
        self.graph.main.ty(value).rank().saturating_sub(1)
    }

    /// Size of the last dimension.
    pub fn width(&self, value: Value) -> Option<usize> {
        self.graph.main.shape(value).last().and_then(|dim| dim.as_size())
    }
}

/// The node with the given number, for messages.
pub(crate) fn place(body: &Body, node: Node) -> String {
    match &body.nodes[node].origin {
        Some(origin) => origin.clone(),
        None => format!("n{}", node.index()),
    }
}

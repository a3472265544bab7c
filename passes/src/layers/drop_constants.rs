//! Drops constants that nothing reads.
//!
//! Before:  const c0, c1, c2 ; v1 = const() {constant=c2}
//! After:   const c0 ; v1 = const() {constant=c0}
//!
//! Needs: any stage.
//! Gives: every constant is read by a `const` node or is a weight of a layer; the order stays.
//!
//! Files hold shapes, masks' numbers and untransposed weights that the passes before have made
//! superfluous: a fifth of the constants of a decomposed export is read at the end.

use std::collections::HashMap;

use weir_ir::graph::LayerKind;
use weir_ir::{Const, Graph, Op, Table};

/// Rewrites the graph; returns how many constants went.
pub fn run(graph: &mut Graph) -> usize {
    let mut read: Vec<Const> = Vec::new();
    visit(graph, &mut |constant| read.push(*constant));
    read.sort_unstable();
    read.dedup();
    let dropped = graph.constants.len() - read.len();
    let mut kept = Table::default();
    let mut renamed: HashMap<Const, Const> = HashMap::new();
    for constant in read {
        renamed.insert(constant, kept.push(graph.constants[constant].clone()));
    }
    visit(graph, &mut |constant| *constant = renamed[constant]);
    graph.constants = kept;
    dropped
}

/// Every mention of a constant by a live node.
fn visit(graph: &mut Graph, mention: &mut dyn FnMut(&mut Const)) {
    let kinds = graph.kinds.iter_mut().map(|(_, LayerKind { body, .. })| body);
    for body in kinds.chain([&mut graph.main]) {
        for node in &body.order {
            match &mut body.nodes[*node].op {
                Op::ReadConstant(read) => mention(&mut read.constant),
                Op::Layer(layer) => layer.weights.iter_mut().for_each(&mut *mention),
                _ => {}
            }
        }
    }
}

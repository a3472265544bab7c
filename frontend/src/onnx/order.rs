//! The order of nodes: which names a node reads, and a sort that keeps the file's order where it
//! can.
//!
//! ONNX demands sorted graphs; an unsorted one without a cycle has one meaning all the same, so it
//! is sorted and accepted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::proto::{GraphProto, NodeProto};

/// The names that a node reads: its inputs and what its inner graphs take from around them.
pub fn names_read(node: &NodeProto) -> BTreeSet<&str> {
    let mut names: BTreeSet<&str> =
        node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            names.extend(free_names(graph));
        }
    }
    names
}

/// Names that a graph reads and does not define itself.
fn free_names(graph: &GraphProto) -> BTreeSet<&str> {
    let mut defined: BTreeSet<&str> = BTreeSet::new();
    defined.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
    defined.extend(graph.input.iter().map(|input| input.name.as_str()));
    defined.extend(graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str)));
    let mut free: BTreeSet<&str> = graph.node.iter().flat_map(names_read).collect();
    free.extend(graph.output.iter().map(|output| output.name.as_str()));
    free.retain(|name| !defined.contains(name));
    free
}

/// The order nearest to the given one in which each node follows those that it needs; otherwise
/// one cycle.
pub fn topological(needs: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut waiting: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut readers = vec![Vec::new(); needs.len()];
    for (node, before) in needs.iter().enumerate() {
        for &producer in before {
            readers[producer].push(node);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..needs.len()).filter(|&node| waiting[node] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &reader in &readers[node] {
            waiting[reader] -= 1;
            if waiting[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == needs.len() {
        return Ok(order);
    }
    // Every node left waits for one that is left too; walking back must meet itself.
    let stuck = |node: usize| waiting[node] > 0;
    let mut at = (0..needs.len()).find(|&node| stuck(node)).unwrap_or(0);
    let mut path = Vec::new();
    let mut places = BTreeMap::new();
    loop {
        if let Some(start) = places.insert(at, path.len()) {
            let mut cycle = path.split_off(start);
            cycle.reverse();
            return Err(cycle);
        }
        path.push(at);
        match needs[at].iter().copied().find(|&before| stuck(before)) {
            Some(before) => at = before,
            None => return Err(path),
        }
    }
}

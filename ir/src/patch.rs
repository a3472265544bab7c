//! Edits of a body. Passes change a graph only through [`Patch`] (in place) or [`Rebuild`] (a new
//! body from an old one), so that every change is counted and types always follow from the rules.
//!
//! A patch keeps an index of uses, so that replacing a value costs as much as it has uses; nodes
//! that it adds take their places in the order when it ends.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::entity::{Entity, Node, Value};
use crate::graph::{Body, InputRole, NodeData, OutputRole};
use crate::infer::Tables;
use crate::ops::rules::Inferred;
use crate::ops::{Op, Operand, TypeError};
use crate::types::TensorType;

/// Edits of a body in place.
#[derive(Debug)]
pub struct Patch<'a> {
    body: &'a mut Body,
    /// Nodes that read each value; may list a node twice, or one that reads it no more.
    users: Vec<Vec<Node>>,
    /// New nodes to stand in front of an old one.
    before: HashMap<Node, Vec<Node>>,
    /// New nodes at the end.
    after_all: Vec<Node>,
    edits: usize,
}

impl<'a> Patch<'a> {
    /// Begins to edit a body.
    pub fn new(body: &'a mut Body) -> Patch<'a> {
        let mut users = vec![Vec::new(); body.values.len()];
        for node in &body.order {
            for operand in &body.nodes[*node].operands {
                users[operand.index()].push(*node);
            }
        }
        Patch { body, users, before: HashMap::new(), after_all: Vec::new(), edits: 0 }
    }

    /// The body; nodes added by the patch are in its tables but not yet in its order.
    pub fn body(&self) -> &Body {
        self.body
    }

    /// Changes made so far.
    pub fn edits(&self) -> usize {
        self.edits
    }

    /// Nodes that read the value, each once.
    pub fn users(&self, value: Value) -> Vec<Node> {
        let mut users = self.users[value.index()].clone();
        users.sort_unstable();
        users.dedup();
        users.retain(|node| self.body.nodes[*node].operands.contains(&value));
        users
    }

    /// Adds a node in front of `place`, or at the end; its result types follow from the op's rule.
    pub fn push(
        &mut self,
        place: Option<Node>,
        op: impl Into<Op>,
        operands: Vec<Value>,
        origin: Option<String>,
    ) -> Result<Vec<Value>, TypeError> {
        let op = op.into();
        let inputs: Vec<Operand<'_>> =
            operands.iter().map(|value| self.body.operand(*value)).collect();
        let results = op.infer(&inputs)?;
        Ok(self.push_typed(place, op, operands, results, origin))
    }

    /// Like [`Patch::push`], for ops with one result.
    pub fn push1(
        &mut self,
        place: Option<Node>,
        op: impl Into<Op>,
        operands: Vec<Value>,
        origin: Option<String>,
    ) -> Result<Value, TypeError> {
        let op = op.into();
        let name = op.name();
        let results = self.push(place, op, operands, origin)?;
        results.first().copied().ok_or(TypeError { op: name, message: "has no result".into() })
    }

    /// Adds a node whose types were inferred with the graph's tables.
    pub fn push_typed(
        &mut self,
        place: Option<Node>,
        op: impl Into<Op>,
        operands: Vec<Value>,
        results: Inferred,
        origin: Option<String>,
    ) -> Vec<Value> {
        let results = self.body.push_typed(op.into(), operands, results, origin);
        let node = self.body.order.pop().expect("push_typed has appended a node");
        self.users.resize(self.body.values.len(), Vec::new());
        for operand in &self.body.nodes[node].operands {
            self.users[operand.index()].push(node);
        }
        match place {
            Some(place) => self.before.entry(place).or_default().push(node),
            None => self.after_all.push(node),
        }
        self.edits += 1;
        results
    }

    /// Makes every use of a value a use of another one, in nodes and results of the body.
    ///
    /// The other value must be defined in front of all uses: the verifier checks it.
    pub fn replace(&mut self, value: Value, with: Value) -> Result<(), TypeError> {
        let (from, to) = (&self.body.values[value].ty, &self.body.values[with].ty);
        if from != to {
            let message = format!("{value} of {from} cannot become {with} of {to}");
            return Err(TypeError { op: "replace", message });
        }
        if value == with {
            return Ok(());
        }
        for node in std::mem::take(&mut self.users[value.index()]) {
            for operand in &mut self.body.nodes[node].operands {
                if *operand == value {
                    *operand = with;
                    self.users[with.index()].push(node);
                }
            }
        }
        for result in &mut self.body.results {
            if result.value == value {
                result.value = with;
            }
        }
        if self.body.values[with].name.is_none() {
            self.body.values[with].name = self.body.values[value].name.clone();
        }
        self.edits += 1;
        Ok(())
    }

    /// Makes a node read other operands; its result types must stay what they are.
    pub fn set_operands(&mut self, node: Node, operands: Vec<Value>) -> Result<(), TypeError> {
        let op = self.body.nodes[node].op.clone();
        let inputs: Vec<Operand<'_>> =
            operands.iter().map(|value| self.body.operand(*value)).collect();
        let inferred = op.infer(&inputs)?;
        let data = &self.body.nodes[node];
        let same = inferred.len() == data.results.len()
            && data
                .results
                .iter()
                .zip(&inferred)
                .all(|(value, (ty, _))| self.body.values[*value].ty == *ty);
        if !same {
            return Err(TypeError { op: op.name(), message: "result types would change".into() });
        }
        for operand in &operands {
            self.users[operand.index()].push(node);
        }
        self.body.nodes[node].operands = operands;
        self.edits += 1;
        Ok(())
    }

    /// Ends the patch: puts new nodes in their places and returns the number of changes.
    pub fn finish(mut self) -> usize {
        let order = std::mem::take(&mut self.body.order);
        let mut merged = Vec::with_capacity(order.len() + self.edits);
        // New nodes may stand in front of new nodes.
        fn place(node: Node, before: &mut HashMap<Node, Vec<Node>>, merged: &mut Vec<Node>) {
            for earlier in before.remove(&node).unwrap_or_default() {
                place(earlier, before, merged);
            }
            merged.push(node);
        }
        for node in order.into_iter().chain(std::mem::take(&mut self.after_all)) {
            place(node, &mut self.before, &mut merged);
        }
        self.body.order = merged;
        self.edits
    }
}

impl Body {
    /// Takes nodes out of the order whose results nothing reads; returns how many. Nodes without
    /// results (`cache_append`) stay.
    pub fn remove_dead(&mut self) -> usize {
        let mut live = vec![false; self.values.len()];
        for result in &self.results {
            live[result.value.index()] = true;
        }
        let count = self.order.len();
        let mut kept: Vec<Node> = Vec::with_capacity(count);
        for node in self.order.iter().rev() {
            let data = &self.nodes[*node];
            if data.results.is_empty() || data.results.iter().any(|value| live[value.index()]) {
                for operand in &data.operands {
                    live[operand.index()] = true;
                }
                kept.push(*node);
            }
        }
        kept.reverse();
        self.order = kept;
        count - self.order.len()
    }
}

/// A new body made from an old one, node by node.
#[derive(Debug)]
pub struct Rebuild<'a> {
    source: &'a Body,
    tables: Tables<'a>,
    /// The new body so far.
    pub body: Body,
    map: Vec<Option<Value>>,
}

impl<'a> Rebuild<'a> {
    /// Begins an empty body.
    pub fn new(source: &'a Body, tables: Tables<'a>) -> Rebuild<'a> {
        Rebuild { source, tables, body: Body::default(), map: vec![None; source.values.len()] }
    }

    /// The body that is copied.
    pub fn source(&self) -> &'a Body {
        self.source
    }

    /// What stands for an old value, if anything yet does.
    pub fn get(&self, old: Value) -> Option<Value> {
        self.map.get(old.index()).copied().flatten()
    }

    /// Lets a new value stand for an old one.
    pub fn set(&mut self, old: Value, new: Value) {
        self.map[old.index()] = Some(new);
        if self.body.values[new].name.is_none() {
            self.body.values[new].name = self.source.values[old].name.clone();
        }
    }

    /// Adds an input that stands for an old value.
    pub fn param(&mut self, old: Value, role: InputRole, ty: TensorType) -> Value {
        let data = &self.source.values[old];
        let known = if data.ty == ty { data.known.clone() } else { None };
        let value = self.body.param(role, ty, known, data.name.clone());
        self.map[old.index()] = Some(value);
        value
    }

    /// Adds a node over new values.
    pub fn push(
        &mut self,
        op: impl Into<Op>,
        operands: Vec<Value>,
        origin: Option<String>,
    ) -> Result<Vec<Value>, TypeError> {
        let op = op.into();
        let inputs: Vec<Operand<'_>> =
            operands.iter().map(|value| self.body.operand(*value)).collect();
        let results = self.tables.infer(&op, &inputs)?;
        Ok(self.body.push_typed(op, operands, results, origin))
    }

    /// Copies a node with the values that now stand for its operands; types are inferred anew.
    pub fn copy(&mut self, node: Node) -> Result<Vec<Value>, TypeError> {
        let data: &NodeData = &self.source.nodes[node];
        self.copy_as(node, data.op.clone())
    }

    /// Copies a node as another op with the same operands and as many results.
    pub fn copy_as(&mut self, node: Node, op: impl Into<Op>) -> Result<Vec<Value>, TypeError> {
        let data: &'a NodeData = &self.source.nodes[node];
        let op = op.into();
        let operands: Option<Vec<Value>> =
            data.operands.iter().map(|value| self.get(*value)).collect();
        let Some(operands) = operands else {
            let message = format!("an operand of {node} has no place in the new body");
            return Err(TypeError { op: op.name(), message });
        };
        let results = self.push(op, operands, data.origin.clone())?;
        for (old, new) in data.results.iter().zip(&results) {
            self.set(*old, *new);
        }
        Ok(results)
    }

    /// Adds a result.
    pub fn result(&mut self, value: Value, role: OutputRole) {
        self.body.results.push(crate::graph::BodyResult { value, role });
    }
}

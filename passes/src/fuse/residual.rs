//! Adds a residual at the end of the product in front of it.
//!
//! Before:  v3 = linear v1, c0 ; v4 = add v2, v3
//! After:   v4 = linear v1, c0, v2 {residual=true}
//!
//! Needs: stage `Canonical`, not yet folded into layers.
//! Gives: a product whose only reader is a sum with a value of the same shape holds that sum.
//!
//! `linear` adds its residual last, so every result keeps its bits.

use weir_ir::ops::Linear;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::{Graph, Node, Op, Patch, Value};

use crate::error::PassError;

/// Rewrites the graph; returns how many sums were taken in.
pub fn run(graph: &mut Graph) -> Result<usize, PassError> {
    let order: Vec<Node> = graph.main.order.clone();
    let results: Vec<Value> = graph.main.results.iter().map(|result| result.value).collect();
    let mut patch = Patch::new(&mut graph.main);
    let mut fused = 0;
    for node in order {
        let data = &patch.body().nodes[node];
        let (Op::Binary(binary), [a, b], [sum]) =
            (&data.op, data.operands.as_slice(), data.results.as_slice())
        else {
            continue;
        };
        if binary.op != BinaryOp::Add || a == b {
            continue;
        }
        let (sum, origin) = (*sum, data.origin.clone());
        // With two products the later operand is taken: exporters write `residual + block`.
        let found = [(*b, *a), (*a, *b)].into_iter().find_map(|(product, residual)| {
            let body = patch.body();
            let maker = body.maker(product)?;
            let Op::Linear(linear) = &maker.op else { return None };
            let only = patch.users(product) == [node] && !results.contains(&product);
            let same = body.ty(product) == body.ty(sum) && body.ty(residual) == body.ty(sum);
            (!linear.residual && only && same)
                .then(|| (linear.bias, maker.operands.clone(), residual))
        });
        let Some((bias, mut operands, residual)) = found else { continue };
        operands.push(residual);
        let value = patch.push1(Some(node), Linear { bias, residual: true }, operands, origin)?;
        patch.replace(sum, value)?;
        fused += 1;
    }
    patch.finish();
    graph.main.remove_dead();
    Ok(fused)
}

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

use crate::declined::Declined;
use crate::error::PassError;
use crate::recognise::place;
use crate::registry::Change;

/// Rewrites the graph; counts sums that were taken in.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    let order: Vec<Node> = graph.main.order.clone();
    let results: Vec<Value> = graph.main.results.iter().map(|result| result.value).collect();
    let mut patch = Patch::new(&mut graph.main);
    let mut fused = 0;
    let mut declined = Declined::default();
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
        let Some((bias, mut operands, residual)) = found else {
            if let Some(reason) = reason(&patch, &results, [*a, *b], sum) {
                declined.add(place(patch.body(), node), reason);
            }
            continue;
        };
        operands.push(residual);
        let value = patch.push1(Some(node), Linear { bias, residual: true }, operands, origin)?;
        patch.replace(sum, value)?;
        fused += 1;
    }
    patch.finish();
    graph.main.remove_dead();
    Ok(declined.change(fused, "no sum reads a product"))
}

/// Why a sum was left alone; nothing where it reads no product.
fn reason(
    patch: &Patch<'_>,
    results: &[Value],
    operands: [Value; 2],
    sum: Value,
) -> Option<&'static str> {
    let body = patch.body();
    let is_product = |value: &Value| matches!(body.maker(*value).map(|maker| &maker.op), Some(Op::Linear(linear)) if !linear.residual);
    let product = operands.into_iter().find(is_product)?;
    if patch.users(product).len() > 1 || results.contains(&product) {
        return Some("the product has other readers");
    }
    let same = operands.iter().all(|operand| body.ty(*operand) == body.ty(sum));
    (!same).then_some("its operands differ in shape")
}

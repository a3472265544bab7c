//! Products, and what is rounded on its way into them.
//!
//! A value that only integer products read is never written: its norm or gate is part of the
//! rounding, at the place of the node that makes it. Where gate and up are the halves of a product
//! that nothing else reads, that product is part of it, too.

use weir_abi::IsaLevel;
use weir_ir::graph::NodeData;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::{Op, Value};

use super::{Lowering, View};
use crate::error::CodegenError;
use crate::kernels::gated::GatedSpec;
use crate::kernels::map::MapOp;
use crate::kernels::matmul::{Activation, MatmulSpec};
use crate::kernels::rounding::{RoundingSpec, Source};
use crate::plan::{Kernel, Root};
use crate::weights::{self, WeightForm};

impl Lowering<'_> {
    pub(super) fn linear(
        &mut self,
        node: &NodeData,
        bias: bool,
        residual: bool,
    ) -> Result<(), CodegenError> {
        let ty = self.cx.body.ty(node.operands[1]);
        let (layout, compute) = weights::product(ty, self.cx.compute)
            .ok_or_else(|| self.unsupported(format!("a product with {ty}")))?;
        let source = self.weight(node.operands[1])?;
        let weight = self.slot(source, WeightForm::Packed(layout));
        let fused = self.fused.get(&node.operands[0]).copied();
        let input = match fused {
            Some(_) => None,
            None => {
                let x = self.view(node.operands[0])?;
                if x.width() != layout.reduction {
                    return Err(self.unsupported("a product over a part of a row"));
                }
                Some(self.flat(x)?)
            }
        };
        let input_stride = fused.or(input.as_ref().map(|view| view.row_stride)).unwrap_or(0);
        let bias = bias.then(|| self.view(node.operands[2])).transpose()?;
        let residual = match node.operands.last().filter(|_| residual) {
            Some(value) => {
                let view = self.view(*value)?;
                Some(self.flat(view)?)
            }
            None => None,
        };
        let stride = residual.as_ref().map(|view| view.row_stride);
        let output = self.output(node.results[0], stride)?;
        // A residual that is spaced otherwise than the result's memory is copied into step.
        let residual = match residual {
            Some(view) if view.row_stride != output.row_stride => {
                let copy = self.buffer(view.dims.clone(), Some(output.row_stride));
                self.kernels.push(Kernel::Map {
                    op: MapOp::Copy,
                    inputs: vec![view],
                    output: copy.clone(),
                });
                Some(copy)
            }
            other => other,
        };
        let spec = MatmulSpec {
            layout,
            compute,
            bias: bias.is_some(),
            residual: residual.is_some(),
            input_stride,
            output_stride: output.row_stride,
            apart: None,
            in_bf16: false,
        };
        let spec = self.longest(spec);
        spec.supported().map_err(|reason| self.unsupported(reason))?;
        let input = match (spec.activation(), input) {
            (None, Some(input)) => input,
            (Some(activation), Some(input)) => {
                let rounding = RoundingSpec::new(activation, Source::Row);
                self.rounded(node.operands[0], rounding, &input, None)
            }
            (activation, None) => {
                let known = activation.and_then(|activation| {
                    Some((*self.quantised.get(&(node.operands[0], activation))?, activation))
                });
                let (buffer, activation) =
                    known.ok_or_else(|| self.wrong("a rounded value that was not made"))?;
                View::rounded(Root::Buffer(buffer), activation)
            }
        };
        self.kernels.push(Kernel::Matmul { spec, input, weight, bias, residual, output });
        Ok(())
    }

    /// A product as the level has it whose rounded rows are the longest: pairs of bf16 are half as long as
    /// floats.
    fn longest(&self, spec: MatmulSpec) -> MatmulSpec {
        if self.cx.has_tiles && !spec.is_all_bf16() { spec.at(IsaLevel::Amx) } else { spec }
    }

    /// The rounded rows of a value, made once for all products that take them.
    fn rounded(
        &mut self,
        value: Value,
        spec: RoundingSpec,
        input: &View,
        second: Option<&View>,
    ) -> View {
        let activation = spec.activation;
        if let Some(buffer) = self.quantised.get(&(value, activation)) {
            return View::rounded(Root::Buffer(*buffer), activation);
        }
        self.buffers.push(activation.row_bytes());
        let buffer = self.buffers.len() - 1;
        self.quantised.insert((value, activation), buffer);
        self.kernels.push(Kernel::Rounding {
            spec,
            input: input.clone(),
            second: second.cloned(),
            output: Root::Buffer(buffer),
        });
        View::rounded(Root::Buffer(buffer), activation)
    }

    /// A gated product of two runs, rounded where only products read it that want it so.
    pub(super) fn gate_for_products(
        &mut self,
        node: &NodeData,
        activation: UnaryOp,
    ) -> Result<bool, CodegenError> {
        let [gate, up] = node.operands.as_slice() else { return Ok(false) };
        let (gate, up) = (self.view(*gate)?, self.view(*up)?);
        let is_run = |view: &View| view.is_dense() && view.row_stride > 0;
        if !is_run(&gate) || !is_run(&up) || gate.dims != up.dims {
            return Ok(false);
        }
        let source = Source::Gated { activation, up_stride: up.row_stride };
        Ok(self.round_for_products(node.results[0], source, &gate, &up))
    }

    /// Rounds a value where it is computed, if all its readers are products that want it so.
    pub(super) fn round_for_products(
        &mut self,
        value: Value,
        source: Source,
        input: &View,
        second: &View,
    ) -> bool {
        let body = self.cx.body;
        let mut activations: Vec<Activation> = Vec::new();
        for node in &self.cx.nodes {
            let node = &body.nodes[*node];
            if !node.operands.contains(&value) {
                continue;
            }
            let (Op::Linear(_), [_, weight, rest @ ..]) = (&node.op, node.operands.as_slice())
            else {
                return false;
            };
            let product = weights::product(body.ty(*weight), self.cx.compute)
                .filter(|(layout, _)| layout.reduction == input.width());
            let Some((layout, compute)) = product else { return false };
            if *weight == value || rest.contains(&value) {
                return false;
            }
            let spec =
                MatmulSpec { input_stride: input.row_stride, ..MatmulSpec::new(layout, compute) };
            match self.longest(spec).activation() {
                Some(activation) => activations.push(activation),
                None => return false,
            }
        }
        if activations.is_empty() || self.cx.output == value {
            return false;
        }
        self.fused.insert(value, input.row_stride);
        activations.dedup();
        if let ([rounded], Source::Gated { activation, .. }) = (activations.as_slice(), source)
            && self.gate_in_product(value, activation, *rounded, [input, second])
        {
            return true;
        }
        for activation in activations {
            self.rounded(value, RoundingSpec::new(activation, source), input, Some(second));
        }
        true
    }

    /// Makes the product of gate and up give the rounded value, if they are all that it gives and
    /// nothing else reads them.
    fn gate_in_product(
        &mut self,
        value: Value,
        activation: UnaryOp,
        rounded: Activation,
        [gate, up]: [&View; 2],
    ) -> bool {
        let root = gate.root;
        let Root::Buffer(buffer) = root else { return false };
        let is_halves = up.root == root && gate.offset == 0 && up.offset == gate.width();
        let is_other = |kernel: &Kernel| kernel.reads().contains(&root);
        if !is_halves || self.kernels.iter().any(is_other) || self.is_read_elsewhere(root) {
            return false;
        }
        let is_product = |kernel: &Kernel| kernel.writes() == root;
        let Some(place) = self.kernels.iter().position(is_product) else { return false };
        let Kernel::Matmul { spec, input, weight, bias, .. } = &self.kernels[place] else {
            return false;
        };
        let Some(spec) = GatedSpec::new(*spec, activation, rounded) else { return false };
        let (input, weight, bias) = (input.clone(), *weight, bias.clone());
        self.kernels.remove(place);
        // What threads share does not grow with the rows of a call.
        let row_bytes = spec.shared_bytes(self.cx.max_rows).div_ceil(self.cx.max_rows);
        self.buffers[buffer] = row_bytes.next_multiple_of(4);
        self.buffers.push(rounded.row_bytes());
        let records = self.buffers.len() - 1;
        self.quantised.insert((value, rounded), records);
        let output = Root::Buffer(records);
        self.kernels.push(Kernel::Gated { spec, input, weight, bias, output, shared: root });
        true
    }

    /// Whether another node than the one that is lowered reads this memory, but for views of it that
    /// are known already.
    fn is_read_elsewhere(&self, root: Root) -> bool {
        let lies_there =
            |value: &Value| self.views.get(value).is_some_and(|view| view.root == root);
        lies_there(&self.cx.output)
            || self.cx.nodes.iter().filter(|node| self.node != Some(**node)).any(|node| {
                let node = &self.cx.body.nodes[*node];
                let is_view = node.results.iter().any(lies_there);
                !is_view && node.operands.iter().any(lies_there)
            })
    }
}

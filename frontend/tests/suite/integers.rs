//! Products of integers, as ONNX Runtime's dynamic quantisation spells them: products of the activations
//! themselves with a weight of codes.

use weir_frontend::onnx::proto::*;
use weir_ir::Op;

use crate::operators::{evaluated, import_nodes};
use crate::tiny::*;

const UINT8: i32 = 2;
const INT8: i32 = 3;
/// Rows of activations, what they have, and outputs.
const SIZES: [usize; 3] = [2, 4, 3];

fn bytes(name: &str, data_type: i32, dims: &[i64], raw: &[u8]) -> TensorProto {
    let raw_data = Some(raw.to_vec().into());
    TensorProto {
        name: name.into(),
        data_type,
        dims: dims.to_vec(),
        raw_data,
        ..TensorProto::default()
    }
}

/// How a weight is stored.
struct Weight {
    data_type: i32,
    codes: [u8; 12],
    /// One for all outputs, or one for each; or none, which is 0.
    zeros: Vec<u8>,
    /// As many scales: one or three.
    scales: usize,
}

impl Weight {
    fn number(&self, code: u8) -> f64 {
        if self.data_type == INT8 { f64::from(code as i8) } else { f64::from(code) }
    }

    fn tensors(&self) -> Vec<TensorProto> {
        let vector = |count: usize| if count == 1 { Vec::new() } else { vec![count as i64] };
        let mut tensors = vec![
            floats("x", &[2, 4]),
            bytes("codes", self.data_type, &[4, 3], &self.codes),
            floats("scales", &vector(self.scales)),
            floats("bias", &[3]),
        ];
        if !self.zeros.is_empty() {
            let dims = vector(self.zeros.len());
            tensors.push(bytes("zeros", self.data_type, &dims, &self.zeros));
        }
        tensors
    }

    /// x · ((codes − zeros) · scales), as their types say.
    fn product(&self) -> Vec<f64> {
        let [rows, reduction, outputs] = SIZES;
        let number = |index: usize| f64::from((index % 7) as f32 * 0.125 - 0.375);
        let of = |values: &[u8], output: usize| match values.len() {
            0 => 0.0,
            1 => self.number(values[0]),
            _ => self.number(values[output]),
        };
        let mut product = Vec::new();
        for row in 0..rows {
            for output in 0..outputs {
                let scale = number(if self.scales == 1 { 0 } else { output });
                let sum: f64 = (0..reduction)
                    .map(|k| {
                        let code = self.number(self.codes[k * outputs + output]);
                        number(row * reduction + k) * (code - of(&self.zeros, output))
                    })
                    .sum();
                product.push(sum * scale);
            }
        }
        product
    }

    fn zero_input(&self) -> &'static str {
        if self.zeros.is_empty() { "" } else { "zeros" }
    }
}

fn weights() -> Vec<Weight> {
    let codes = [0, 1, 255, 128, 127, 3, 200, 90, 17, 64, 129, 250];
    let zeros = [vec![], vec![131], vec![7, 128, 255]];
    let mut weights = Vec::new();
    for data_type in [UINT8, INT8] {
        for zeros in &zeros {
            for scales in [1, 3] {
                weights.push(Weight { data_type, codes, zeros: zeros.clone(), scales });
            }
        }
    }
    weights
}

fn rounded() -> NodeProto {
    node("DynamicQuantizeLinear", "", &["x"], &["x_codes", "x_scale", "x_zero"])
}

/// The sum of whole numbers, and the same as floats.
fn summed(zeros: &str) -> [NodeProto; 2] {
    let mut cast = node("Cast", "", &["sum"], &["float_sum"]);
    cast.attribute = vec![int("to", i64::from(FLOAT))];
    [node("MatMulInteger", "", &["x_codes", "codes", "x_zero", zeros], &["sum"]), cast]
}

/// The nodes that `quantize_dynamic` writes, with the scale of the product in this order of factors.
fn spelled_out(weight: &Weight, orders: [bool; 2]) -> Vec<NodeProto> {
    let pair = |first, second, exchanged| {
        if exchanged { [second, first] } else { [first, second] }
    };
    let [sum, cast] = summed(weight.zero_input());
    vec![
        rounded(),
        node("Mul", "", &pair("x_scale", "scales", orders[0]), &["both"]),
        sum,
        cast,
        node("Mul", "", &pair("float_sum", "both", orders[1]), &["y"]),
    ]
}

/// The same with one scale behind the other.
fn scaled_twice(weight: &Weight, scales: [&str; 2]) -> Vec<NodeProto> {
    let [sum, cast] = summed(weight.zero_input());
    vec![
        rounded(),
        sum,
        cast,
        node("Mul", "", &["float_sum", scales[0]], &["once"]),
        node("Mul", "", &[scales[1], "once"], &["y"]),
    ]
}

fn check(weight: &Weight, nodes: Vec<NodeProto>, bias: bool) {
    let graph = import_nodes(22, nodes, vec![], weight.tensors()).unwrap();
    let ops: Vec<&Op> = graph.main.live().map(|(_, node)| &node.op).collect();
    let expected = |op: &&Op| matches!(op, Op::ReadConstant(_) | Op::Linear(_));
    assert!(ops.iter().all(expected), "{ops:?}: more than products");
    let got = evaluated(&graph);
    let bias = |index: usize| if bias { (index % 3) as f64 * 0.125 - 0.375 } else { 0.0 };
    for (index, (got, wanted)) in got.f32s().unwrap().iter().zip(weight.product()).enumerate() {
        let wanted = wanted + bias(index);
        // Sums of four products, each below 0.375 · 383 · 0.375 = 54, in float32.
        let bound = 4.0 * 4.0 * 54.0 * f64::from(f32::EPSILON);
        assert!((f64::from(*got) - wanted).abs() <= bound, "{index}: {got}, not {wanted}");
    }
}

#[test]
fn dynamic_quantisation_is_one_product_with_a_weight_of_codes() {
    for weight in weights() {
        for orders in [[false, false], [true, false], [false, true], [true, true]] {
            check(&weight, spelled_out(&weight, orders), false);
        }
        for scales in [["x_scale", "scales"], ["scales", "x_scale"]] {
            check(&weight, scaled_twice(&weight, scales), false);
        }
    }
}

#[test]
fn its_fused_forms_are_the_same() {
    for weight in weights() {
        let zeros = weight.zero_input();
        for bias in ["", "bias"] {
            let inputs = ["x_codes", "codes", "x_scale", "scales", "x_zero", zeros, bias];
            let product = node("MatMulIntegerToFloat", "com.microsoft", &inputs, &["y"]);
            check(&weight, vec![rounded(), product], !bias.is_empty());
            let inputs = ["x", "codes", "scales", zeros, bias];
            let product = node("DynamicQuantizeMatMul", "com.microsoft", &inputs, &["y"]);
            check(&weight, vec![product], !bias.is_empty());
        }
    }
}

#[test]
fn a_look_up_in_bytes_is_one_in_a_table_of_codes() {
    for (data_type, zeros) in [(UINT8, &[131][..]), (INT8, &[250]), (UINT8, &[])] {
        let codes = [0, 1, 255, 128, 127, 3, 200, 90, 17, 64, 129, 250];
        let zero = zeros.first().map(|&zero| bytes("zeros", data_type, &[], &[zero]));
        let tensors = [
            ints("ids", &[2], &[3, 1]),
            bytes("codes", data_type, &[4, 3], &codes),
            floats("scales", &[]),
        ];
        let inputs = ["rows", "scales", if zeros.is_empty() { "" } else { "zeros" }];
        // Optimisers give each reader a look-up of its own.
        let nodes = vec![
            node("Gather", "", &["codes", "ids"], &["rows"]),
            node("DequantizeLinear", "", &inputs, &["once"]),
            node("DequantizeLinear", "", &inputs, &["again"]),
            node("Add", "", &["once", "again"], &["y"]),
        ];
        let tensors = tensors.into_iter().chain(zero).collect();
        let graph = import_nodes(22, nodes, vec![], tensors).unwrap();
        let embeds = graph.main.live().filter(|(_, node)| matches!(node.op, Op::Embed(_)));
        assert_eq!(embeds.count(), 2);
        let tables = graph.constants.values().filter(|constant| constant.ty.dtype().is_none());
        assert_eq!(tables.count(), 1, "one table for both");
        let number = |code: u8| match data_type {
            INT8 => f32::from(code as i8),
            _ => f32::from(code),
        };
        let zero = zeros.first().map_or(0.0, |&zero| number(zero));
        let wanted: Vec<f32> =
            [9, 10, 11, 3, 4, 5].map(|at| (number(codes[at]) - zero) * -0.75).into();
        assert_eq!(*evaluated(&graph).f32s().unwrap(), wanted[..]);
    }
}

fn refused(nodes: Vec<NodeProto>, what: &str) {
    let weight = Weight { data_type: INT8, codes: [1; 12], zeros: vec![], scales: 1 };
    let mut tensors = weight.tensors();
    tensors.push(bytes("others", UINT8, &[2, 4], &[3; 8]));
    let refused = import_nodes(22, nodes, vec![], tensors).unwrap_err().to_string();
    assert!(refused.contains(what), "{refused}");
}

#[test]
fn codes_of_activations_are_read_by_products_alone() {
    let product = |inputs: &[&str]| node("MatMulInteger", "", inputs, &["y"]);
    refused(vec![rounded()], "reads the codes of rounded activations");
    refused(
        vec![rounded(), node("Add", "", &["x_scale", "scales"], &["y"])],
        "reads the scale of rounded activations",
    );
    refused(
        vec![rounded(), product(&["others", "codes"])],
        "a left side (input 0) that is not DynamicQuantizeLinear's",
    );
    refused(
        vec![rounded(), product(&["x_codes", "codes"])],
        "the left side's zero point (input 2) is not that of its codes",
    );
    refused(
        vec![rounded(), product(&["x_codes", "others", "x_zero"])],
        "inputs of x and weight: 4 and 2 differ",
    );
}

#[test]
fn scales_of_activations_are_left_out_at_their_own_product_alone() {
    // The product of x's codes, and the scale of h's, which are others.
    let beside = |last: Vec<NodeProto>| {
        let [sum, cast] = summed("");
        let others = ["h_codes", "h_scale", "h_zero"];
        let mut nodes = vec![
            rounded(),
            node("Exp", "", &["x"], &["h"]),
            node("DynamicQuantizeLinear", "", &["h"], &others),
            sum,
            cast,
        ];
        nodes.extend(last);
        nodes
    };
    let times = |factors: [&str; 2], result: &str| node("Mul", "", &factors, &[result]);
    let at = |what: &str| format!("unsupported: node \"/y\" (ai.onnx::Mul, opset 22): {what}");
    let foreign = |scale: usize, product: usize| {
        at(&format!(
            "the scale (input {scale}) is not that of the activations of the product \
             (input {product})"
        ))
    };
    // Another's scale, alone and together with the weight's.
    refused(beside(vec![times(["float_sum", "h_scale"], "y")]), &foreign(1, 0));
    for factors in [["h_scale", "scales"], ["scales", "h_scale"]] {
        let both = times(factors, "both");
        let nodes = beside(vec![both.clone(), times(["float_sum", "both"], "y")]);
        refused(nodes, &foreign(1, 0));
        refused(beside(vec![both, times(["both", "float_sum"], "y")]), &foreign(0, 1));
    }
    // No product of codes, or one that has been scaled.
    let neither = at(
        "the scale of rounded activations (input 1) times what is neither constant nor a product of \
         their codes (input 0)",
    );
    refused(beside(vec![times(["h", "x_scale"], "y")]), &neither);
    let once = times(["float_sum", "x_scale"], "once");
    refused(beside(vec![once, times(["once", "x_scale"], "y")]), &neither);
    // A constant that is no weight's scale: its product with the scale is read by nothing else.
    refused(
        beside(vec![times(["x", "x_scale"], "both"), node("Neg", "", &["both"], &["y"])]),
        "node \"/y\" (ai.onnx::Neg, opset 22): reads the scale of rounded activations",
    );
    // A product that is never scaled.
    refused(
        beside(vec![node("Add", "", &["float_sum", "bias"], &["y"])]),
        "node \"/y\" (ai.onnx::Add, opset 22): reads the unscaled product of rounded activations",
    );
    refused(
        beside(vec![times(["float_sum", "scales"], "y")]),
        "output \"y\": reads the unscaled product of rounded activations",
    );
    let mut whole = node("Cast", "", &["sum"], &["y"]);
    whole.attribute = vec![int("to", i64::from(INT64))];
    refused(
        beside(vec![whole]),
        "node \"/y\" (ai.onnx::Cast, opset 22): reads the unscaled product of rounded activations",
    );
}

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

#[test]
fn a_matrix_with_one_scale_is_a_weight_of_codes() {
    const UINT4: i32 = 21;
    const INT4: i32 = 22;
    let codes = [0, 1, 255, 128, 127, 3, 200, 90, 17, 64, 129, 250];
    let numbers = |data_type: i32, raw: &[u8]| -> Vec<f32> {
        let halves = raw.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        match data_type {
            INT8 => raw.iter().map(|byte| f32::from(*byte as i8)).collect(),
            UINT8 => raw.iter().map(|byte| f32::from(*byte)).collect(),
            INT4 => halves.map(|code| f32::from((code << 4) as i8 >> 4)).collect(),
            _ => halves.map(f32::from).collect(),
        }
    };
    // The matrix [4, 3], or what is stored as [3, 4] and transposed in front of its scale or behind it.
    for (data_type, zero, turned) in [UINT8, INT8, UINT4, INT4]
        .into_iter()
        .flat_map(|data_type| [None, Some(0xfa)].map(|zero| (data_type, zero)))
        .flat_map(|(data_type, zero)| {
            ["", "codes", "floats"].map(|turned| (data_type, zero, turned))
        })
    {
        let bits = if matches!(data_type, UINT4 | INT4) { 4 } else { 8 };
        let stored = if turned.is_empty() { [4, 3] } else { [3, 4] };
        let raw = &codes[..12 * bits / 8];
        let mut tensors = vec![
            floats("x", &[2, 4]),
            bytes("codes", data_type, &stored, raw),
            floats("scales", if zero.is_some() { &[] } else { &[1] }),
        ];
        tensors.extend(zero.map(|zero| bytes("zeros", data_type, &[], &[zero])));
        let zero_input = if zero.is_some() { "zeros" } else { "" };
        let source = if turned == "codes" { "turned" } else { "codes" };
        let weight = if turned == "floats" { "turned" } else { "weight" };
        let mut nodes =
            vec![node("DequantizeLinear", "", &[source, "scales", zero_input], &["weight"])];
        let turn = |from: &str| node("Transpose", "", &[from], &["turned"]);
        match turned {
            "codes" => nodes.insert(0, turn("codes")),
            "floats" => nodes.push(turn("weight")),
            _ => {}
        }
        nodes.push(node("MatMul", "", &["x", weight], &["y"]));
        let graph = import_nodes(22, nodes, vec![], tensors).unwrap();
        let weights = graph.constants.values().filter(|constant| constant.ty.dtype().is_none());
        // Four bits that are transposed are bytes of a value before they meet their scale.
        let counts = if bits == 4 && turned == "codes" { 0..=1 } else { 1..=1 };
        assert!(counts.contains(&weights.count()), "{data_type}, {turned}");
        let zero = zero.map_or(0.0, |zero| numbers(data_type, &[zero])[0]);
        let numbers = numbers(data_type, raw);
        let x = |index: usize| (index % 7) as f32 * 0.125 - 0.375;
        let got = evaluated(&graph);
        for (index, got) in got.f32s().unwrap().iter().enumerate() {
            let (row, column) = (index / 3, index % 3);
            let place = |k: usize| if turned.is_empty() { k * 3 + column } else { column * 4 + k };
            let wanted: f32 =
                (0..4).map(|k| x(row * 4 + k) * (numbers[place(k)] - zero) * -0.375).sum();
            // Sums of four products, each below 0.375 · 255 · 0.375 = 36, in float32.
            let bound = 4.0 * 4.0 * 36.0 * f32::EPSILON;
            assert!((got - wanted).abs() <= bound, "{data_type}, {turned}: {got}, not {wanted}");
        }
    }
}

#[test]
fn one_scale_of_no_float_or_for_no_codes_is_read_as_spelled() {
    let dequantised = |data_type: i32, dims: &[i64], raw: &[u8]| {
        let tensors = vec![bytes("codes", data_type, dims, raw), floats("scales", &[])];
        let node = node("DequantizeLinear", "", &["codes", "scales"], &["y"]);
        import_nodes(22, vec![node], vec![], tensors).unwrap()
    };
    let weights = |graph: &weir_ir::Graph| {
        graph.constants.values().filter(|constant| constant.ty.dtype().is_none()).count()
    };
    // Three dimensions, a vector, and whole numbers of another width.
    for (data_type, dims, raw) in
        [(INT8, &[2, 1, 3][..], &[5; 6][..]), (INT8, &[6], &[5; 6]), (6, &[1, 2], &[5; 8])]
    {
        let graph = dequantised(data_type, dims, raw);
        assert_eq!(weights(&graph), 0);
        let number = if data_type == INT8 { 5.0 } else { 84_215_045.0 };
        let wanted = number * -0.375;
        assert!(evaluated(&graph).f32s().unwrap().iter().all(|got| *got == wanted));
    }
    assert_eq!(weights(&dequantised(INT8, &[2, 3], &[5; 6])), 1);
    assert_eq!(weights(&dequantised(INT8, &[0, 3], &[])), 0);
    let tensors = vec![bytes("codes", INT8, &[2, 3], &[5; 6]), ints("scales", &[], &[1])];
    let node = node("DequantizeLinear", "", &["codes", "scales"], &["y"]);
    let refused = import_nodes(22, vec![node], vec![], tensors).unwrap_err().to_string();
    assert!(refused.contains("scales of int64"), "{refused}");
}

#[test]
fn a_table_and_its_transposition_are_read_with_one_scale_as_they_are_tied() {
    // What `quantize_dynamic` makes of an embedding that is the head's weight, too.
    let codes: Vec<u8> = (0..12).map(|code| code * 20).collect();
    let tensors = vec![
        ints("ids", &[2], &[3, 1]),
        bytes("codes", UINT8, &[4, 3], &codes),
        floats("scales", &[]),
        bytes("zeros", UINT8, &[], &[7]),
    ];
    let nodes = vec![
        node("Gather", "", &["codes", "ids"], &["rows"]),
        node("DequantizeLinear", "", &["rows", "scales", "zeros"], &["x"]),
        node("Transpose", "", &["codes"], &["turned"]),
        node("DequantizeLinear", "", &["turned", "scales", "zeros"], &["head"]),
        node("MatMul", "", &["x", "head"], &["y"]),
    ];
    let graph = import_nodes(22, nodes, vec![], tensors).unwrap();
    let weights: Vec<_> =
        graph.constants.values().filter(|constant| constant.ty.dtype().is_none()).collect();
    // One is the other seen from its side.
    let [table, head] = weights[..] else { panic!("{} weights", weights.len()) };
    assert!(table.transposed().unwrap().is_same_storage(head));
    let number = |index: usize| (f32::from(codes[index]) - 7.0) * -0.375;
    let got = evaluated(&graph);
    let rows = [3, 1].into_iter().flat_map(|row| (0..4).map(move |column| (row, column)));
    for ((row, column), got) in rows.zip(got.f32s().unwrap().iter()) {
        let wanted: f32 = (0..3).map(|k| number(row * 3 + k) * number(column * 3 + k)).sum();
        // Sums of three products, each below 85², in float32.
        let bound = 3.0 * 3.0 * 85.0 * 85.0 * f32::EPSILON;
        assert!((got - wanted).abs() <= bound, "{row}, {column}: {got}, not {wanted}");
    }
}

#[test]
fn codes_with_other_scales_are_other_weights() {
    // One after another with a hundred scales, twice each, and then all of them again.
    let scales: Vec<TensorProto> = (0..100)
        .map(|index| TensorProto {
            name: format!("scale{index}"),
            data_type: FLOAT,
            float_data: vec![index as f32],
            ..TensorProto::default()
        })
        .collect();
    let names = scales.iter().chain(&scales).map(|scale| scale.name.clone());
    let mut nodes = Vec::new();
    let mut sum = "zero".to_owned();
    for (index, name) in names.enumerate() {
        let (weight, next) = (format!("weight{index}"), format!("sum{index}"));
        nodes.push(node("DequantizeLinear", "", &["codes", &name], &[&weight]));
        nodes.push(node("Add", "", &[&sum, &weight], &[&next]));
        sum = next;
    }
    let mut tensors = scales;
    tensors.push(bytes("codes", INT8, &[1, 2], &[1, 255]));
    tensors.push(floats("zero", &[1, 1]));
    let graph = import_nodes(22, nodes, vec![], tensors).unwrap();
    let weights = graph.constants.values().filter(|constant| constant.ty.dtype().is_none());
    assert_eq!(weights.count(), 100);
    // Twice the sum of 0 to 99 of each code, and the -0.375 in front.
    assert_eq!(*evaluated(&graph).f32s().unwrap(), [9900.0 - 0.375, -9900.0 - 0.375]);
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

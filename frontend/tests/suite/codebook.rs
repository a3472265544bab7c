//! Weights of codes that name numbers in a table.

use weir_frontend::ImportError;
use weir_frontend::onnx::proto::*;
use weir_ir::{DType, Graph};

use crate::operators::{evaluated, import_nodes};
use crate::tiny::*;

const UINT8: i32 = 2;
const FLOAT16: i32 = 10;
/// Rows of activations, outputs, what they are summed over, and a block of it. The last block is partial.
const ROWS: i64 = 2;
const N: i64 = 5;
const K: i64 = 22;
const BLOCK: i64 = 16;
/// The weight's numbers, two to a byte.
const PACKED: i64 = N * K / 2;
const BLOCKS: i64 = N * K / BLOCK + 1;

/// All sixteen codes stand in both halves of bytes.
fn codes(count: i64) -> TensorProto {
    let raw: Vec<u8> = (0..count).map(|index| (index * 37 + 11) as u8).collect();
    TensorProto {
        name: "codes".into(),
        data_type: UINT8,
        dims: vec![count],
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    }
}

fn product(
    quant_type: i64,
    tensors: Vec<TensorProto>,
    change: impl Fn(&mut NodeProto),
) -> Result<Graph, ImportError> {
    let mut node = node("MatMulBnb4", "com.microsoft", &["x", "codes", "scales"], &["y"]);
    let quant_type = int("quant_type", quant_type);
    node.attribute = vec![int("K", K), int("N", N), int("block_size", BLOCK), quant_type];
    change(&mut node);
    import_nodes(21, vec![node], vec![], tensors)
}

fn tensors() -> Vec<TensorProto> {
    vec![floats("x", &[ROWS, K]), codes(PACKED), floats("scales", &[BLOCKS])]
}

#[test]
fn codes_of_four_bits_name_the_numbers_that_onnx_runtime_reads() {
    // ONNX Runtime 1.32's products of these very tensors, on a CPU.
    let golden = include_str!("bnb4.golden").lines().zip(["fp4", "nf4"]).zip(0..);
    for ((line, name), quant_type) in golden {
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(name));
        let wanted: Vec<f32> = words.map(|word| word.parse().unwrap()).collect();
        let got = evaluated(&product(quant_type, tensors(), |_| {}).unwrap());
        assert_eq!(got.f32s().unwrap().len(), wanted.len());
        for (got, wanted) in got.f32s().unwrap().iter().zip(wanted) {
            // Sums of 22 products, each below 0.375 · 0.375, in float32.
            let bound = 22.0 * 22.0 * 0.375 * 0.375 * f32::EPSILON;
            assert!((got - wanted).abs() <= bound, "{name}: {got}, not {wanted}");
        }
    }
}

#[test]
fn the_weight_has_the_type_of_its_scales() {
    let halves = |name: &str, dims: &[i64]| {
        let raw = [0x00, 0x38].repeat(dims.iter().product::<i64>() as usize);
        TensorProto {
            name: name.into(),
            data_type: FLOAT16,
            dims: dims.to_vec(),
            raw_data: Some(raw.into()),
            ..TensorProto::default()
        }
    };
    let tensors = vec![halves("x", &[ROWS, K]), codes(PACKED), halves("scales", &[BLOCKS])];
    let graph = product(1, tensors, |_| {}).unwrap();
    let weight = graph.constants.values().find(|constant| constant.name == "codes").unwrap();
    assert_eq!(weight.ty.dtype(), Some(DType::F16));
    // The first byte is 11: code 0 is -1, code 11 is 0.33792, which half precision rounds.
    let numbers = weight.elements_f32().unwrap();
    assert_eq!(numbers[..2], [-0.5, half::f16::from_f32(0.337_915_24).to_f32() * 0.5]);
}

#[test]
fn tables_and_sizes_are_checked() {
    let place = "node \"/y\" (com.microsoft::MatMulBnb4, opset 1)";
    let refused = |quant_type, tensors: Vec<TensorProto>, change: &dyn Fn(&mut NodeProto)| {
        product(quant_type, tensors, change).unwrap_err().problems[0].to_string()
    };
    let with = |codes_count: i64, blocks: i64| {
        vec![floats("x", &[ROWS, K]), codes(codes_count), floats("scales", &[blocks])]
    };
    let set = |name: &'static str, number: i64| {
        move |node: &mut NodeProto| {
            node.attribute.retain(|attribute| attribute.name != name);
            node.attribute.push(int(name, number));
        }
    };
    assert_eq!(refused(2, tensors(), &|_| {}), format!("unsupported: {place}: quant_type 2"));
    assert_eq!(
        refused(1, tensors(), &set("transB", 0)),
        format!("unsupported: {place}: attribute transB")
    );
    assert_eq!(
        refused(1, with(54, BLOCKS), &|_| {}),
        format!("malformed: {place}: codes [54] hold 54 elements, not 55")
    );
    assert_eq!(
        refused(1, with(PACKED, 8), &|_| {}),
        format!("malformed: {place}: scales [8] hold 8 elements, not 7")
    );
    for (name, number) in [("K", 0), ("N", -1), ("block_size", i64::MAX)] {
        assert_eq!(
            refused(1, tensors(), &set(name, number)),
            format!("malformed: {place}: attribute {name} is {number}")
        );
    }
    // As many as there may be of both: too many to count in bytes on some machines, and too large here.
    let most = i64::from(u32::MAX);
    let vast = refused(1, tensors(), &|node| {
        set("K", most)(node);
        set("N", most)(node);
    });
    assert!(
        vast.starts_with(&format!("malformed: {place}: codes [55] hold 55 elements")),
        "{vast}"
    );
}

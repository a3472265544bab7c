//! The comparison lets nothing wrong through.

use weir_ir::DType;
use weir_ir::interpret::Tensor;

use super::compare;

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_f32(DType::F32, vec![values.len()], values.to_vec())
}

#[test]
fn near_values_pass_and_far_ones_do_not() {
    assert!(compare(&floats(&[1.0, f32::NAN]), &floats(&[1.0009, f32::NAN])).is_ok());
    assert!(compare(&floats(&[1.0]), &floats(&[1.002])).is_err());
    assert!(compare(&floats(&[f32::NAN]), &floats(&[1.0])).is_err());
    assert!(compare(&floats(&[f32::INFINITY]), &floats(&[f32::INFINITY])).is_ok());
    assert!(compare(&floats(&[f32::INFINITY]), &floats(&[1.0])).is_err());
}

#[test]
fn types_and_integers_are_exact() {
    assert!(compare(&floats(&[1.0]), &floats(&[1.0, 1.0])).is_err());
    let integers = |dtype, value| Tensor::from_i64(dtype, vec![1], vec![value]);
    assert!(compare(&integers(DType::I64, 1), &integers(DType::I64, 1)).is_ok());
    assert!(compare(&integers(DType::I64, 1), &integers(DType::I64, 2)).is_err());
    assert!(compare(&integers(DType::I64, 1), &integers(DType::I32, 1)).is_err());
}

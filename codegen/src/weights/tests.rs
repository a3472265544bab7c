//! Packed weights against the interpreter's view of the same constants.

use weir_ir::QuantData;

use super::*;

fn quantised(bits: u8, block: u32, signed: bool, zero: ZeroPoints) -> Constant {
    let (rows, width) = (5, 96);
    let blocks = width / block as usize;
    let per_byte = 8 / usize::from(bits);
    let codes: Vec<u8> = (0..rows * width / per_byte).map(|i| (i * 37 + i / 7) as u8).collect();
    let scales: Vec<u8> =
        (0..rows * blocks).flat_map(|i| (0.01 * (i as f32 - 3.0)).to_le_bytes()).collect();
    let zeros: Vec<u8> = match zero {
        ZeroPoints::Float => {
            (0..rows * blocks).flat_map(|i| (i as f32 * 0.3).to_le_bytes()).collect()
        }
        _ => (0..rows * blocks).map(|i| (i * 29) as u8).collect(),
    };
    let format = QuantFormat { bits, block, scale: DType::F32, short: false, zero };
    Constant {
        name: "w".into(),
        ty: TensorType { element: Element::Quant(format), shape: vec![rows.into(), width.into()] },
        data: ConstData::Quantised(QuantData {
            codes: codes.into(),
            code_strides: [width, 1],
            signed,
            scales: scales.into(),
            scale_strides: [blocks, 1],
            zeros: (!matches!(zero, ZeroPoints::Fixed(_))).then(|| zeros.into()),
            zero_strides: [blocks, 1],
        }),
    }
}

fn check(constant: Constant) {
    let expected = constant.tensor().unwrap().f32s().unwrap();
    let (layout, _) = product(&constant.ty, None).unwrap();
    let mut graph = Graph::new();
    let id = graph.constants.push(constant);
    let mut region = WeightRegion::new(&graph);
    let form = WeightForm::Packed(layout);
    assert_eq!(region.place(id, form), region.place(id, form));
    let image = region.finish();
    assert_eq!(image.pieces.len(), 1);
    let mut packed = vec![0; image.pieces[0].bytes as usize];
    (image.pieces[0].fill)(&mut packed).unwrap();
    for channel in 0..layout.channels {
        for k in 0..layout.reduction {
            let (x, y) =
                (layout.value(&packed, channel, k), expected[channel * layout.reduction + k]);
            assert!((x - y).abs() <= 1e-6 * y.abs(), "{:?} {channel} {k}: {x} {y}", layout.format);
        }
    }
}

#[test]
fn packed_elements_are_those_of_the_file() {
    for bits in [4, 8] {
        for block in [16, 32, 48, 12] {
            for signed in [false, true] {
                for zero in [ZeroPoints::Fixed(8), ZeroPoints::Codes, ZeroPoints::Float] {
                    check(quantised(bits, block, signed, zero));
                }
            }
        }
    }
    let parts = vec![quantised(4, 32, false, ZeroPoints::Codes); 2];
    let mut ty = parts[0].ty.clone();
    ty.shape[0] = 10usize.into();
    check(Constant { name: "stack".into(), ty, data: ConstData::Stacked(parts) });
    let values: Vec<f32> = (0..60).map(|i| i as f32).collect();
    check(Constant::from_f32("dense", &[5, 12], &values));
}

/// What asks for int8 activations, by block or by row, asks it of weights with codes alone.
#[test]
fn float_weights_keep_their_arithmetic() {
    let codes = quantised(4, 32, false, ZeroPoints::Fixed(8)).ty;
    let floats = Constant::from_f32("w", &[5, 12], &[0.5; 60]).ty;
    let arithmetic = |ty, choice| product(ty, choice).unwrap().1;
    assert_eq!(arithmetic(&codes, None), Compute::Int8);
    for choice in [Compute::Int8, Compute::Int8Row] {
        assert_eq!(arithmetic(&codes, Some(choice)), choice);
        assert_eq!(arithmetic(&floats, Some(choice)), Compute::F32);
    }
}

/// Rounded weights, packed as they are written, hold exactly what the interpreter computes with.
#[test]
fn weights_rounded_while_packed_are_those_of_the_interpreter() {
    let rows = 37;
    for width in [96, 100] {
        let values: Vec<f32> =
            (0..rows * width).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 900.0).collect();
        let source = Constant::from_f32("w", &[rows, width], &values);
        let stack = {
            let mut ty = source.ty.clone();
            ty.shape[0] = (2 * rows).into();
            Constant { name: "s".into(), ty, data: ConstData::Stacked(vec![source.clone(); 2]) }
        };
        let mut elements = vec![Element::Plain(DType::BF16), Element::Plain(DType::F16)];
        for (bits, middle) in [(4, 8), (8, 128)] {
            for block in [32, 64, 112] {
                for zero in [ZeroPoints::Fixed(middle), ZeroPoints::Codes] {
                    let scale = if block == 64 { DType::F32 } else { DType::F16 };
                    elements.push(Element::Quant(QuantFormat {
                        bits,
                        block,
                        scale,
                        short: false,
                        zero,
                    }));
                }
            }
        }
        for element in elements {
            for source in [&source, &stack] {
                let rounded = source.rounded(element).unwrap();
                let expected = rounded.elements_f32().unwrap();
                let layout = stored(&rounded.ty).unwrap();
                let mut graph = Graph::new();
                let id = graph.constants.push(rounded);
                let mut region = WeightRegion::new(&graph);
                region.place(id, WeightForm::Packed(layout));
                let image = region.finish();
                let mut packed = vec![0; image.pieces[0].bytes as usize];
                (image.pieces[0].fill)(&mut packed).unwrap();
                for (index, expected) in expected.iter().enumerate() {
                    let found = layout.value(&packed, index / width, index % width);
                    assert_eq!(found, *expected, "{element} {index}");
                }
            }
        }
    }
}

/// A number that nobody can compute with is named by its place in the file's weight.
#[test]
fn what_cannot_be_rounded_is_named() {
    let fault = |value: f32, element| {
        let mut values = vec![0.5; 3 * 64];
        values[64 + 40] = value;
        let source = Constant::from_f32("w", &[3, 64], &values);
        let mut graph = Graph::new();
        let rounded = source.rounded(element).unwrap();
        let layout = stored(&rounded.ty).unwrap();
        let id = graph.constants.push(rounded);
        let mut region = WeightRegion::new(&graph);
        region.place(id, WeightForm::Packed(layout));
        let image = region.finish();
        let mut packed = vec![0; image.pieces[0].bytes as usize];
        (image.pieces[0].fill)(&mut packed).unwrap_err().to_string()
    };
    let zero = ZeroPoints::Fixed(8);
    let int4 = QuantFormat { bits: 4, block: 32, scale: DType::F16, short: false, zero };
    let element = Element::Quant(int4);
    assert_eq!(fault(f32::NAN, element), "element 40 of row 1 is NaN, not a finite number");
    // The number is finite, its scale is beyond the range of f16.
    assert_eq!(fault(1e6, element), "scale 1 of row 1 is -inf, not a finite number");
    let half = Element::Plain(DType::F16);
    assert_eq!(fault(1e6, half), "element 40 of row 1 is inf, not a finite number");
}

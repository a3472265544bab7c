//! The mathematics against dense references in double precision, and what is promised of a layer.

use std::collections::{BTreeMap, HashMap};

use weir_ir::ops::CausalAttention;
use weir_ir::quantise::{short_scale, unit_of_scales};
use weir_ir::text::parse;
use weir_ir::{
    Const, ConstData, Constant, DType, Element, Graph, Node, QuantFormat, QuantRow, Value,
    ZeroPoints,
};

use super::attention::{Operands, Shape, attend, attend_back, exponentials};
use super::blocks::{Grid, Scale};
use super::curvature::{Curvature, DAMPING, LANES, Lanes};
use super::feedback::{Lost, calibrate};
use super::gradient::{Differentiable, Slope, Values, Weights};
use super::refine::{loss_on, refine};
use super::walk::{Chosen, choose_codes, rounded_products};
use super::{Watch, products};

/// Numbers that look random, the same in every run, of mean 0.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        let first = unit(self.0);
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        first + unit(self.0)
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next() as f32).collect()
    }

    /// Rows whose columns depend on each other: few causes, and a little of their own.
    fn correlated(&mut self, rows: usize, width: usize) -> Vec<f32> {
        let causes = width / 4 + 1;
        let mix = self.floats(causes * width);
        let mut x = Vec::with_capacity(rows * width);
        for _ in 0..rows {
            let cause = self.floats(causes);
            for k in 0..width {
                let shared: f32 = (0..causes).map(|c| cause[c] * mix[c * width + k]).sum();
                x.push(shared + 0.2 * self.next() as f32 + 0.3);
            }
        }
        x
    }
}

/// `Σ x yᵀ` as it is written.
fn dense_moments(x: &[f32], y: &[f32], [across, along]: [usize; 2]) -> Vec<f64> {
    let mut sums = vec![0.0; across * along];
    for (x, y) in x.chunks_exact(across).zip(y.chunks_exact(along)) {
        for i in 0..across {
            for j in 0..along {
                sums[i * along + j] += f64::from(x[i]) * f64::from(y[j]);
            }
        }
    }
    sums
}

fn format(bits: u8, block: u32, zero: ZeroPoints) -> QuantFormat {
    QuantFormat { bits, block, scale: DType::F16, short: false, zero }
}

fn weight_of(constant: &Constant) -> Vec<f64> {
    constant.elements_f32().unwrap().into_iter().map(f64::from).collect()
}

#[test]
fn products_are_those_of_double_precision() {
    let mut numbers = Numbers(1);
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 7, 5), (9, 64, 64), (5, 130, 129), (70, 66, 3)] {
        let x = [numbers.floats(rows * inputs), numbers.floats(2 * inputs)];
        let y = [numbers.floats(rows * outputs), numbers.floats(2 * outputs)];
        let weight = numbers.floats(outputs * inputs);
        let found = products::product(&[&x[0], &x[1]], &weight, [outputs, inputs]);
        for (x, found) in x.iter().zip(&found) {
            for (x, found) in x.chunks_exact(inputs).zip(found.chunks_exact(outputs)) {
                for (w, found) in weight.chunks_exact(inputs).zip(found) {
                    let exact: f64 =
                        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    assert!((exact - f64::from(*found)).abs() < 1e-5, "{exact} {found}");
                }
            }
        }
        let pairs = [(&x[0][..], &y[0][..]), (&x[1][..], &y[1][..])];
        let found = products::moments(&pairs, [inputs, outputs]);
        let exact = dense_moments(&x.concat(), &y.concat(), [inputs, outputs]);
        for (found, exact) in found.iter().zip(&exact) {
            assert!((found - exact).abs() < 1e-5, "{found} {exact}");
        }
    }
}

/// H as [`Curvature`] has it.
fn damped(moments: &[f64], size: usize) -> Vec<f64> {
    let mean = (0..size).map(|k| moments[k * size + k]).sum::<f64>() / size as f64;
    let mut damped = moments.to_vec();
    (0..size).for_each(|k| damped[k * size + k] += DAMPING * mean);
    damped
}

#[test]
fn factors_give_errors_and_solutions() {
    let (mut numbers, size) = (Numbers(2), 37);
    let x = numbers.correlated(90, size);
    let moments = dense_moments(&x, &x, [size, size]);
    let exact = damped(&moments, size);
    let curvature = Curvature::new(moments, size).unwrap();
    let errors: Vec<Lanes> = (0..size).map(|_| std::array::from_fn(|_| numbers.next())).collect();
    let cost = curvature.follow(|k, _| errors[k]);
    for lane in 0..LANES {
        let mut dense = 0.0;
        for i in 0..size {
            for j in 0..size {
                dense += errors[i][lane] * exact[i * size + j] * errors[j][lane];
            }
        }
        assert!((cost[lane] / dense - 1.0).abs() < 1e-9, "{} {dense}", cost[lane]);
    }
    let mut solution = errors.clone();
    curvature.solve(&mut solution);
    for (i, wanted) in errors.iter().enumerate() {
        for lane in 0..LANES {
            let found: f64 = (0..size).map(|j| exact[i * size + j] * solution[j][lane]).sum();
            assert!((found - wanted[lane]).abs() < 1e-8, "{found} {}", wanted[lane]);
        }
    }
}

/// With earlier errors made, the asked move is the one that costs least: any other costs more.
#[test]
fn feedback_asks_for_the_best_answer() {
    let (mut numbers, size) = (Numbers(3), 6);
    let x = numbers.correlated(40, size);
    let curvature = Curvature::new(dense_moments(&x, &x, [size, size]), size).unwrap();
    let answered = |by: f64| {
        curvature.follow(|k, asked| {
            let mut error = [0.0; LANES];
            for lane in 0..LANES {
                error[lane] = if k < 2 { 0.5 - k as f64 } else { by - asked[0][lane] };
            }
            error
        })
    };
    let best = answered(0.0);
    for by in [-0.1, 0.1] {
        assert!(answered(by).iter().zip(&best).all(|(other, best)| other > best));
    }
}

#[test]
fn what_is_not_finite_has_no_factors() {
    assert!(Curvature::new(vec![1.0, f64::NAN, f64::NAN, 1.0], 2).is_none());
    assert!(Curvature::new(vec![f64::INFINITY, 0.0, 0.0, 1.0], 2).is_none());
    // A text that never moves the inputs asks for rounding to nearest.
    assert!(Curvature::new(vec![0.0; 4], 2).is_some());
}

#[test]
fn a_chosen_scale_is_better_than_the_plain_one() {
    let mut numbers = Numbers(4);
    for (bits, zero) in [
        (4, ZeroPoints::Fixed(8)),
        (4, ZeroPoints::Codes),
        (8, ZeroPoints::Fixed(128)),
        (8, ZeroPoints::Codes),
    ] {
        let grid = Grid::new(&format(bits, 32, zero));
        for _ in 0..20 {
            let x: Vec<f64> = (0..32).map(|_| numbers.next()).collect();
            let weights: Vec<f64> = (0..32).map(|_| numbers.next().abs() + 0.01).collect();
            let error = |scale: &Scale| -> f64 {
                let pairs = x.iter().zip(&weights);
                pairs.map(|(x, w)| w * (x - grid.nearest(*x, scale) * scale.scale).powi(2)).sum()
            };
            let chosen = grid.choose(&x, &weights, 1.0);
            let extreme = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let top = f64::from((1u32 << bits) - 1);
            let plain = if zero == ZeroPoints::Codes {
                let least = x.iter().copied().fold(0.0, f64::min);
                let scale = (x.iter().copied().fold(0.0, f64::max) - least) / top;
                Scale { scale: grid.stored(scale, 1.0), zero: (-least / scale).round() }
            } else {
                let middle = f64::from(1u32 << (bits - 1));
                Scale { scale: grid.stored(extreme / (middle - 1.0), 1.0), zero: middle }
            };
            assert!(error(&chosen) <= 1.001 * error(&plain), "{chosen:?} {plain:?}");
            assert_eq!(chosen.scale, grid.stored(chosen.scale, 1.0));
        }
        assert_eq!(grid.choose(&[0.0; 32], &[1.0; 32], 1.0).scale, 0.0);
    }
}

/// A layer of random weights over correlated inputs: what its product is off by, rounded to nearest
/// and calibrated.
fn layer_errors(format: QuantFormat, [outputs, inputs]: [usize; 2], seed: u64) -> [f64; 2] {
    let mut numbers = Numbers(seed);
    let x = numbers.correlated(4 * inputs, inputs);
    let values = numbers.floats(outputs * inputs);
    let source = Constant::from_f32("w", &[outputs, inputs], &values);
    let curvature = Curvature::new(dense_moments(&x, &x, [inputs, inputs]), inputs).unwrap();
    let nothing = vec![0.0; inputs * inputs];
    let lost = Lost { inputs: &nothing, stream: None };
    let found = calibrate(&source, &format, &curvature, &lost, false).unwrap();
    found.constant.check().unwrap();
    let plain = source.rounded(Element::Quant(format)).unwrap();
    assert_eq!(found.constant.ty, plain.ty);
    assert!(found.error <= found.plain_error);
    let mut row = QuantRow::default();
    for n in (0..outputs).filter(|_| format.short) {
        // Packing stores a row's scales by one unit.
        assert!(found.constant.quant_row(n, &mut row));
        let unit = unit_of_scales(&row.scales);
        assert!(row.scales.iter().all(|scale| short_scale(*scale, unit) == *scale), "{row:?}");
    }
    [&plain, &found.constant].map(|rounded| {
        let rounded = weight_of(rounded);
        let mut error = 0.0;
        for x in x.chunks_exact(inputs) {
            for n in 0..outputs {
                let off: f64 = (0..inputs)
                    .map(|k| {
                        f64::from(x[k])
                            * (rounded[n * inputs + k] - f64::from(values[n * inputs + k]))
                    })
                    .sum();
                error += off * off;
            }
        }
        error
    })
}

#[test]
fn a_calibrated_layer_is_nearer_than_one_rounded_to_nearest() {
    for (bits, block, zero, shape, part) in [
        (4, 32, ZeroPoints::Fixed(8), [16, 96], 0.5),
        (4, 32, ZeroPoints::Codes, [16, 96], 0.5),
        // Blocks and rows that nothing divides.
        (4, 32, ZeroPoints::Fixed(8), [5, 43], 0.5),
        (4, 64, ZeroPoints::Codes, [3, 70], 0.5),
        (8, 32, ZeroPoints::Fixed(128), [9, 64], 0.7),
        (8, 128, ZeroPoints::Codes, [9, 130], 0.7),
    ] {
        let format = format(bits, block, zero);
        let short = QuantFormat { short: true, ..format };
        let can_be_short = bits == 4 && zero == ZeroPoints::Fixed(8);
        let formats = [Some(format), can_be_short.then_some(short)].into_iter().flatten();
        for (format, seed) in formats.flat_map(|format| (10..13).map(move |seed| (format, seed))) {
            let [plain, calibrated] = layer_errors(format, shape, seed);
            println!("int{bits}, blocks of {block}, {shape:?}: {:.3}", calibrated / plain);
            assert!(calibrated < part * plain, "{calibrated} {plain}");
        }
    }
}

/// Inputs that rounded layers have bent: the weight makes up for it where it can.
#[test]
fn what_is_lost_before_a_product_is_made_up_for() {
    let (mut numbers, [outputs, inputs]) = (Numbers(20), [8, 64]);
    let exact = numbers.correlated(300, inputs);
    let bent: Vec<f32> = exact.iter().map(|x| 0.9 * x + 0.02 * numbers.next() as f32).collect();
    let missing: Vec<f32> = exact.iter().zip(&bent).map(|(x, y)| x - y).collect();
    let values = numbers.floats(outputs * inputs);
    let source = Constant::from_f32("w", &[outputs, inputs], &values);
    let own = dense_moments(&bent, &bent, [inputs, inputs]);
    let curvature = Curvature::new(own, inputs).unwrap();
    let lost = dense_moments(&bent, &missing, [inputs, inputs]);
    let stream = vec![0.0; inputs * outputs];
    let error = |inputs_lost: &[f64]| {
        let lost = Lost { inputs: inputs_lost, stream: Some(&stream) };
        let format = format(4, 32, ZeroPoints::Fixed(8));
        let found =
            weight_of(&calibrate(&source, &format, &curvature, &lost, false).unwrap().constant);
        let mut error = 0.0;
        for (x, bent) in exact.chunks_exact(inputs).zip(bent.chunks_exact(inputs)) {
            for n in 0..outputs {
                let row = n * inputs..(n + 1) * inputs;
                let wanted: f64 =
                    x.iter().zip(&values[row.clone()]).map(|(x, w)| f64::from(x * w)).sum();
                let given: f64 = bent.iter().zip(&found[row]).map(|(x, w)| f64::from(*x) * w).sum();
                error += (wanted - given) * (wanted - given);
            }
        }
        error
    };
    let (without, with) = (error(&vec![0.0; inputs * inputs]), error(&lost));
    assert!(with < 0.5 * without, "{with} {without}");
}

/// Rows that results are added to and that have lost something that depends on the inputs: the weight
/// gives it back.
#[test]
fn what_the_stream_has_lost_is_given_back() {
    let (mut numbers, [outputs, inputs]) = (Numbers(21), [11, 64]);
    let x = numbers.correlated(300, inputs);
    let (values, more) = (numbers.floats(outputs * inputs), numbers.floats(outputs * inputs));
    let missing = products::product(&[&x], &more, [outputs, inputs]).remove(0);
    let curvature = Curvature::new(dense_moments(&x, &x, [inputs, inputs]), inputs).unwrap();
    let stream = dense_moments(&x, &missing, [inputs, outputs]);
    let nothing = vec![0.0; inputs * inputs];
    let lost = Lost { inputs: &nothing, stream: Some(&stream) };
    let source = Constant::from_f32("w", &[outputs, inputs], &values);
    let format = format(8, 32, ZeroPoints::Fixed(128));
    let found = weight_of(&calibrate(&source, &format, &curvature, &lost, false).unwrap().constant);
    let (mut error, mut whole) = (0.0, 0.0);
    for (x, missing) in x.chunks_exact(inputs).zip(missing.chunks_exact(outputs)) {
        for n in 0..outputs {
            let by: f64 = (0..inputs)
                .map(|k| {
                    f64::from(x[k]) * (found[n * inputs + k] - f64::from(values[n * inputs + k]))
                })
                .sum();
            error += (by - f64::from(missing[n])).powi(2);
            whole += f64::from(missing[n]).powi(2);
        }
    }
    assert!(error < 0.01 * whole, "{error} of {whole} is still missing");
}

#[test]
fn a_weight_that_is_not_finite_has_no_codes() {
    let mut values = vec![0.5; 64];
    values[40] = f32::NAN;
    let source = Constant::from_f32("w", &[1, 64], &values);
    let mut unit = vec![0.0; 64 * 64];
    (0..64).for_each(|k| unit[k * 65] = 1.0);
    let curvature = Curvature::new(unit.clone(), 64).unwrap();
    let lost = Lost { inputs: &unit, stream: None };
    let format = format(4, 32, ZeroPoints::Fixed(8));
    assert!(calibrate(&source, &format, &curvature, &lost, false).is_none());
}

/// Rounded to nearest it has an infinite scale, which packing refuses.
#[test]
fn a_weight_beyond_its_scales_has_no_codes() {
    let mut unit = vec![0.0; 64 * 64];
    (0..64).for_each(|k| unit[k * 65] = 1.0);
    let nothing = vec![0.0; 64 * 64];
    for (bits, zero, within, beyond) in [
        (4, ZeroPoints::Fixed(8), 5.2e5, 5.3e5),
        (4, ZeroPoints::Codes, 9.8e5, 9.9e5),
        (8, ZeroPoints::Fixed(128), 8.3e6, 8.4e6),
    ] {
        for short in [false, true].into_iter().filter(|short| !short || bits == 4 && beyond < 9e5) {
            let format = QuantFormat { short, ..format(bits, 32, zero) };
            let found = |extreme: f32| {
                let mut values = vec![0.5; 64];
                values[40] = extreme;
                let source = Constant::from_f32("w", &[1, 64], &values);
                let curvature = Curvature::new(unit.clone(), 64).unwrap();
                let lost = Lost { inputs: &nothing, stream: None };
                let found = calibrate(&source, &format, &curvature, &lost, false)?;
                Some(weight_of(&found.constant)[40])
            };
            assert_eq!(found(beyond), None, "{format:?}");
            assert_eq!(found(-beyond), None, "{format:?}");
            // Short scales are as coarse as that, and fewer fit below the largest half.
            let within = if short { 0.8 * within } else { within };
            let held = found(within).unwrap();
            assert!((held / f64::from(within) - 1.0).abs() < 0.07, "{format:?}: {held}");
        }
    }
}

#[test]
fn a_weight_without_codes_is_named() {
    let mut numbers = Numbers(34);
    let mut graph = rounded_model(&mut numbers);
    let large = graph.constants.iter_mut().find(|(_, constant)| constant.name == "down").unwrap().1;
    let Element::Quant(format) = large.ty.element else { panic!("codes") };
    let mut values = numbers.floats(40 * 48);
    values[77] = 6e5;
    *large =
        Constant::from_f32("down", &[40, 48], &values).rounded(Element::Quant(format)).unwrap();
    let products = rounded_products(&graph.main, &graph);
    let text = [(0..64).collect::<Vec<u32>>()];
    let Err(error) = choose_codes(&graph, &products, &text, false, &Watch::default()) else {
        panic!("codes for 600,000")
    };
    let expected = "--calibrate: tensor \"down\": a number is not finite, or too large for the scale of its block";
    assert_eq!(error.to_string(), expected);
}

/// A decoder whose logits go back through every kind of node that small models have.
fn decoder() -> Graph {
    let text = include_str!("../../../../tests/files/passes/calibrate-weights/decoder.ir");
    parse(text.split("; ---- after").next().unwrap()).unwrap()
}

/// `Σ c · logits` over all windows.
fn weighted_logits(values: &Values, logits: Value, factors: &Slope) -> f64 {
    let rows = values[&logits].iter().zip(factors);
    rows.map(|(row, factors)| {
        row.f32s().unwrap().iter().zip(factors).map(|(x, c)| f64::from(x * c)).sum::<f64>()
    })
    .sum()
}

#[test]
fn gradients_are_differences_of_the_forward_pass() {
    check_gradients(&decoder(), 1);
    check_gradients(&rounded_model(&mut Numbers(34)), 61);
}

/// Every so manyth number of each weight.
fn check_gradients(graph: &Graph, every: usize) {
    let model = Differentiable::new(graph).unwrap();
    let windows = vec![vec![1, 3, 0, 2, 1, 0, 2], vec![2, 3, 1]];
    let mut numbers = Numbers(31);
    let width = model.tokens().unwrap();
    let factors: Slope =
        windows.iter().map(|window| numbers.floats(width * window.len())).collect();
    // All weights as floats, so that a little more of one is something else.
    let floats = |constant: Const| {
        let weight = &graph.constants[constant];
        let [outputs, inputs] = weight.matrix().unwrap();
        let ConstData::Rounded(source) = &weight.data else { panic!("{weight:?}") };
        Constant::from_f32("w", &[outputs, inputs], &source.elements_f32().unwrap())
    };
    let products = rounded_products(&graph.main, graph);
    let mut chosen: BTreeMap<Const, Constant> =
        products.iter().map(|(_, constant)| (*constant, floats(*constant))).collect();
    let forwards = |chosen: &BTreeMap<Const, Constant>| {
        let weights = Weights { graph, chosen: Some(chosen) };
        model.forwards(&weights, &windows, Values::new()).unwrap()
    };
    let mut gradients: HashMap<Node, Vec<f64>> = HashMap::new();
    let values = forwards(&chosen);
    let weights = Weights { graph, chosen: Some(&chosen) };
    model
        .backwards(&weights, &values, factors.clone(), |node, x, slope| {
            let x: Vec<_> = x.iter().map(|x| x.f32s().unwrap()).collect();
            let (inputs, outputs) = (x[0].len() / 7, slope[0].len() / 7);
            let pairs: Vec<(&[f32], &[f32])> =
                slope.iter().zip(&x).map(|(slope, x)| (&slope[..], &x[..])).collect();
            gradients.insert(node, products::moments(&pairs, [outputs, inputs]));
            Ok(())
        })
        .unwrap();
    assert_eq!(gradients.len(), products.len());
    const BY: f32 = 1.0 / 128.0;
    for (node, constant) in products {
        let weight = chosen[&constant].clone();
        let [outputs, inputs] = weight.matrix().unwrap();
        let values = weight.elements_f32().unwrap();
        for (index, gradient) in gradients[&node].iter().enumerate().step_by(every) {
            let mut at = |by: f32| {
                let mut values = values.clone();
                values[index] += by;
                chosen.insert(constant, Constant::from_f32("w", &[outputs, inputs], &values));
                weighted_logits(&forwards(&chosen), model.logits(), &factors)
            };
            // The third derivative's part goes by a difference of twice the width.
            let near = (at(BY) - at(-BY)) / f64::from(2.0 * BY);
            let far = (at(2.0 * BY) - at(-2.0 * BY)) / f64::from(4.0 * BY);
            let difference = (4.0 * near - far) / 3.0;
            assert!(
                (gradient - difference).abs() < 2e-3 * difference.abs().max(1.0),
                "{} {index}: {gradient} {difference}",
                graph.constants[constant].name
            );
        }
        chosen.insert(constant, weight);
    }
}

/// The rows that the last product reads are enough for the logits.
#[test]
fn logits_follow_from_the_last_rows() {
    let graph = decoder();
    let model = Differentiable::new(&graph).unwrap();
    let windows = vec![vec![1, 3, 0, 2], vec![2, 3]];
    let weights = Weights { graph: &graph, chosen: None };
    let all = model.forwards(&weights, &windows, Values::new()).unwrap();
    let last = model.last_rows().unwrap();
    let given = Values::from([(last, all[&last].clone())]);
    let few = model.forwards(&weights, &windows, given).unwrap();
    assert!(few.len() < all.len() / 4, "{} of {}", few.len(), all.len());
    for (few, all) in few[&model.logits()].iter().zip(&all[&model.logits()]) {
        assert_eq!(few.f32s().unwrap(), all.f32s().unwrap());
    }
}

/// Windows of attention, heads that share keys, and sinks, by which the decoder does without.
#[test]
fn attention_goes_back_by_its_windows_groups_and_sinks() {
    let mut numbers = Numbers(32);
    let shape = Shape { rows: 9, heads: 4, kv_heads: 2, key_width: 3, value_width: 5 };
    let op = CausalAttention { scale: 0.7, softcap: 0.0, window: 4, sinks: true };
    let sinks = numbers.floats(4);
    let given = [9 * 4 * 3, 9 * 2 * 3, 9 * 2 * 5].map(|count| numbers.floats(count));
    let factors = numbers.floats(9 * 4 * 5);
    let attended = |given: &[Vec<f32>; 3]| {
        let [query, key, value] = given;
        let operands = Operands { query, key, value, sinks: Some(&sinks) };
        let result = attend(&op, shape, &operands);
        let sum: f64 = result.iter().zip(&factors).map(|(x, c)| f64::from(x * c)).sum();
        (result, sum)
    };
    let (result, _) = attended(&given);
    let [query, key, value] = &given;
    let operands = Operands { query, key, value, sinks: Some(&sinks) };
    let back = attend_back(&op, shape, &operands, [&result, &factors]);
    const BY: f32 = 1.0 / 64.0;
    for (which, gradient) in [back.query, back.key, back.value].iter().enumerate() {
        for (index, gradient) in gradient.iter().enumerate() {
            let at = |by: f32| {
                let mut given = given.clone();
                given[which][index] += by;
                attended(&given).1
            };
            let difference = (at(BY) - at(-BY)) / f64::from(2.0 * BY);
            let found = f64::from(*gradient);
            assert!((found - difference).abs() < 1e-3, "{which} {index}: {found} {difference}");
        }
    }
}

#[test]
fn exponentials_are_within_their_bound() {
    let below: Vec<f32> = (0..90_000).map(|n| n as f32 * -1e-3).collect();
    let mut found: Vec<f32> = below.iter().map(|y| 3.0 + y).collect();
    let given = found.clone();
    exponentials(&mut found, 3.0);
    for (x, found) in given.iter().zip(found) {
        let y = f64::from(x - 3.0);
        let error = (f64::from(found) - y.exp()).abs();
        let bound = (3.0 - y) * 1e-7 * y.exp();
        assert!(error <= bound.max(f64::from(f32::MIN_POSITIVE)), "{y}: {found}, {error:e}");
    }
}

/// What has a past, a capped score or a spread sum is left alone.
#[test]
fn what_has_no_gradient_is_known_before() {
    let text = include_str!("../../../../tests/files/passes/calibrate-weights/decoder.ir");
    let text = text.split("; ---- after").next().unwrap();
    for (given, other) in [
        ("softcap=0", "softcap=30"),
        ("activation=silu", "activation=floor"),
        ("{op=add}", "{op=max}"),
        ("v41 logits", "v41 other"),
    ] {
        assert!(text.contains(given), "{given}");
        let graph = parse(&text.replace(given, other)).unwrap();
        assert!(Differentiable::new(&graph).is_none(), "{other}");
    }
}

/// A model without attention, of 160 tokens, all of whose weights are rounded to four bits.
fn rounded_model(numbers: &mut Numbers) -> Graph {
    let [tokens, width, inner] = [160, 40, 48];
    let mut constants = String::new();
    let mut add = |name: &str, [outputs, inputs]: [usize; 2], by: f32| {
        let values: Vec<f32> = numbers
            .floats(outputs * inputs)
            .iter()
            .map(|x| by * x / (inputs as f32).sqrt())
            .collect();
        let number = constants.lines().count();
        constants += &format!(
            "const c{number} {name:?}: int4<block=32, scale=f16, zero=8>[{outputs}, {inputs}] = \
             rounded f32[{outputs}, {inputs}] = {values:?}\n"
        );
    };
    add("embedding", [tokens, width], 10.0);
    add("gate and up", [2 * inner, width], 4.0);
    add("down", [width, inner], 8.0);
    add("head", [tokens, width], 12.0);
    let ones = vec![1.0f32; width];
    constants += &format!("const c4 \"norm\": f32[{width}] = {ones:?}\n");
    let ty = |[outputs, inputs]: [usize; 2]| {
        format!("int4<block=32, scale=f16, zero=8>[{outputs}, {inputs}]")
    };
    let [embedding, both, down] = [[tokens, width], [2 * inner, width], [width, inner]].map(ty);
    let two = 2 * inner;
    let text = format!(
        "graph @Canonical
{constants}main {{
  param v0: i64[sequence] \"tokens\" tokens
  param v1: i64[sequence] \"positions\" positions
  v2: {embedding} = const() {{constant=c0}}
  v3: f32[sequence, {width}] = embed(v0, v2) {{to=f32}}
  v4: f32[{width}] = const() {{constant=c4}}
  v5: f32[sequence, {width}] = rms_norm(v3, v4) {{epsilon=0.00001}}
  v6: {both} = const() {{constant=c1}}
  v7: f32[sequence, {two}] = linear(v5, v6) {{bias=false, residual=false}}
  v8: f32[sequence, {inner}] = slice(v7) {{axis=1, start=0, step=1, length={inner}}}
  v9: f32[sequence, {inner}] = slice(v7) {{axis=1, start={inner}, step=1, length={inner}}}
  v10: f32[sequence, {inner}] = unary(v8) {{op=gelu}}
  v11: f32[sequence, {inner}] = binary(v10, v9) {{op=mul}}
  v12: {down} = const() {{constant=c2}}
  v13: f32[sequence, {width}] = linear(v11, v12) {{bias=false, residual=false}}
  v14: f32[sequence, {width}] = binary(v3, v13) {{op=sub}}
  v15: f32[sequence, {width}] = rms_norm(v14, v4) {{epsilon=0.00001}}
  v16: {embedding} = const() {{constant=c3}}
  v17: f32[sequence, {tokens}] = linear(v15, v16) {{bias=false, residual=false}}
  return v17 logits
}}
"
    );
    parse(&text).unwrap()
}

/// The model loses less behind it, of a text that it has not seen, too; twice the same.
#[test]
fn refined_codes_lose_less_of_the_answers() {
    let mut numbers = Numbers(33);
    let graph = rounded_model(&mut numbers);
    let products = rounded_products(&graph.main, &graph);
    assert_eq!(products.len(), 3);
    let mut windows = || -> Vec<Vec<u32>> {
        let mut token = || (80.0 * (numbers.next() + 1.0)) as u32 % 160;
        (0..256).map(|_| (0..64).map(|_| token()).collect()).collect()
    };
    let (text, unseen) = (windows(), windows());
    let model = Differentiable::new(&graph).unwrap();
    let watch = Watch::default();
    let run = || {
        let Chosen { mut weights, movable, .. } =
            choose_codes(&graph, &products, &text, true, &watch).unwrap();
        let before = weights.clone();
        let refined = refine(&graph, &text, movable, &mut weights, &watch).unwrap().unwrap();
        (before, weights, refined)
    };
    let (before, after, refined) = run();
    assert!(refined.after < 0.9 * refined.before, "{refined:?}");
    let loss = |weights: &BTreeMap<Const, Constant>| loss_on(&model, &unseen, weights).unwrap();
    let (before, now) = (loss(&before), loss(&after));
    assert!(now < 0.9 * before, "{now} {before}");
    let values = |weights: &BTreeMap<Const, Constant>| -> Vec<Vec<f32>> {
        weights.values().map(|weight| weight.elements_f32().unwrap()).collect()
    };
    assert_eq!(values(&after), values(&run().1));
}

//! The mathematics against dense references in double precision, and what is promised of a layer.

use weir_ir::quantise::{short_scale, unit_of_scales};
use weir_ir::{Constant, DType, Element, QuantFormat, QuantRow, ZeroPoints};

use super::blocks::{Grid, Scale};
use super::curvature::{Curvature, DAMPING, LANES, Lanes};
use super::feedback::{Lost, calibrate};
use super::products;

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
    let found = calibrate(&source, &format, &curvature, &lost).unwrap();
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
        let found = weight_of(&calibrate(&source, &format, &curvature, &lost).unwrap().constant);
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
    let found = weight_of(&calibrate(&source, &format, &curvature, &lost).unwrap().constant);
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
fn a_weight_that_is_not_finite_is_left_alone() {
    let mut values = vec![0.5; 64];
    values[40] = f32::NAN;
    let source = Constant::from_f32("w", &[1, 64], &values);
    let mut unit = vec![0.0; 64 * 64];
    (0..64).for_each(|k| unit[k * 65] = 1.0);
    let curvature = Curvature::new(unit.clone(), 64).unwrap();
    let lost = Lost { inputs: &unit, stream: None };
    let format = format(4, 32, ZeroPoints::Fixed(8));
    assert!(calibrate(&source, &format, &curvature, &lost).is_none());
}

//! The turn of heads, against its definition bit by bit and against the matrix in double precision.

use weir_ir::interpret::turn::{factor, part, turn};

use super::*;
use crate::kernels::turn::{TurnSpec, emit_turn};

/// y = H · diag(±1) / √n · x for each part of n numbers: entry (row, column) of H is negative where an
/// odd number of bits is in both.
///
/// The factor 1/√n, its product and log₂ n sums are rounded once each on every path from a number of x
/// to one of y, so y is off by (log₂ n + 2)·u·Σ|x|/√n. The bits are those of the definition.
pub(super) fn check_turn(random: &mut Random, [rows, heads, width]: [usize; 3], beside: usize) {
    let x = (heads * (width + beside) + beside, width + beside);
    let y = (heads * width, width);
    let spec = TurnSpec { heads, head_width: width, x, y };
    let kernel = Kernel::new(|assembly| emit_turn(assembly, &spec));
    let given = random.units(rows * x.0);
    let got = kernel.run(&[Input::floats(&given)], rows * y.0, rows);
    let part = part(width);
    let depth = f64::from(part.ilog2() + 2);
    for (index, got) in got.chunks(width).enumerate() {
        let (row, head) = (index / heads, index % heads);
        let from = &given[row * x.0 + head * x.1..][..width];
        let mut defined = from.to_vec();
        turn(&mut defined);
        assert_eq!(bytes(got), bytes(&defined), "{:?} at {index}", [rows, heads, width]);
        for (place, got) in got.iter().enumerate() {
            let (first, line) = (place - place % part, place % part);
            let terms = (0..part).map(|column| {
                let entry = if (line & column).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
                let sign = f64::from(factor(first + column, part).signum());
                entry * sign * f64::from(from[first + column])
            });
            let root = (part as f64).sqrt();
            let sum: f64 = from[first..][..part].iter().map(|x| f64::from(x.abs())).sum();
            let exact = terms.sum::<f64>() / root;
            within(&([rows, heads, width], index, place), *got, exact, depth * U * sum / root);
        }
    }
}

#[test]
fn turns_are_those_of_the_definition() {
    let mut random = Random::new(17);
    let widths = [1, 2, 3, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256, 512, 576];
    for width in widths {
        for (rows, heads, beside) in [(1, 1, 0), (3, 2, 0), (5, 3, 7)] {
            check_turn(&mut random, [rows, heads, width], beside);
        }
    }
}

/// What is no number spoils its part of its head.
#[test]
fn what_is_no_number_stays_in_its_part() {
    let spec = TurnSpec { heads: 2, head_width: 48, x: (96, 48), y: (96, 48) };
    let kernel = Kernel::new(|assembly| emit_turn(assembly, &spec));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = Random::new(18).units(96);
        let clean = kernel.run(&[Input::floats(&x)], 96, 1);
        x[48 + 20] = bad;
        let got = kernel.run(&[Input::floats(&x)], 96, 1);
        for (place, (got, clean)) in got.iter().zip(&clean).enumerate() {
            match place {
                64..80 => assert!(!got.is_finite()),
                _ => assert_eq!(got.to_bits(), clean.to_bits()),
            }
        }
    }
}

//! The matrix of the turn, written out once more.

use super::{factor, part, splitmix64, turn};

/// What the definition says, in double precision: entry (row, column) of a Hadamard matrix in
/// Sylvester's order is the parity of the bits that both numbers have.
fn turned(head: &[f32]) -> Vec<f64> {
    let part = part(head.len());
    let sign = |index: usize| f64::from(factor(index, part).signum());
    let entry = |row: usize, column: usize| match (row & column).count_ones() % 2 {
        0 => 1.0,
        _ => -1.0,
    };
    let number = |index: usize| {
        let (first, row) = (index - index % part, index % part);
        let terms = (0..part).map(|column| {
            entry(row, column) * sign(first + column) * f64::from(head[first + column])
        });
        terms.sum::<f64>() / (part as f64).sqrt()
    };
    (0..head.len()).map(number).collect()
}

/// Numbers between -1 and 1, the same in every run.
fn head(width: usize) -> Vec<f32> {
    let number = |index| (splitmix64(1000 + index) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..width as u64).map(number).collect()
}

#[test]
fn parts_are_powers_of_two_that_divide_the_width() {
    let widths = [0, 1, 3, 8, 24, 64, 80, 96, 128, 192, 576];
    assert_eq!(widths.map(part), [1, 1, 1, 8, 8, 64, 16, 32, 128, 64, 64]);
}

/// Signs are part of a format: Vigna's generator for the seed 0 begins with these.
#[test]
fn signs_are_those_of_the_generator() {
    assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(splitmix64(1), 0x6e78_9e6a_a1b9_65f4);
    let negative: Vec<usize> = (0..12).filter(|index| factor(*index, 64) < 0.0).collect();
    assert_eq!(negative, [0, 1, 2, 3, 5, 7, 8, 10, 11]);
    assert_eq!(factor(65, 64), 0.125);
    assert_eq!(factor(66, 64), -0.125);
}

#[test]
fn heads_are_turned_within_the_bound() {
    for width in [1, 2, 3, 4, 8, 24, 32, 64, 80, 96, 128, 192, 256, 512, 576] {
        let head = head(width);
        let mut got = head.clone();
        turn(&mut got);
        let part = part(width);
        let unit = f64::from(f32::EPSILON) / 2.0 * f64::from(part.ilog2() + 2);
        for (index, (got, expected)) in got.iter().zip(turned(&head)).enumerate() {
            let of_part = &head[index - index % part..][..part];
            let sum: f64 = of_part.iter().map(|number| f64::from(number.abs())).sum();
            // Second-order terms are below a millionth of the first.
            let bound = unit * (1.0 + 1e-6) * sum / (part as f64).sqrt();
            assert!((f64::from(*got) - expected).abs() <= bound, "{width}, {index}");
        }
    }
}

/// What is large in one number is spread over all; products of turned heads are those of the heads.
#[test]
fn one_large_number_is_spread_and_products_stay() {
    let mut large = vec![0.0; 64];
    large[11] = 8.0;
    turn(&mut large);
    assert!(large.iter().all(|number| number.abs() == 1.0));
    let (mut a, mut b) = (head(96), head(97)[1..].to_vec());
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let before = product(&a, &b);
    turn(&mut a);
    turn(&mut b);
    // Each factor is off by 7 units of 2⁻²⁴ of √32 at most, and 96 numbers are below 1 before.
    let bound = 2.0 * 7.0 * 2.0f64.powi(-24) * 32.0f64.sqrt() * 96.0;
    assert!((product(&a, &b) - before).abs() <= bound);
}

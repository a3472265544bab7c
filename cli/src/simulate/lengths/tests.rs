//! Lengths have the range and the mean of their distribution, and wrong ones are refused.

use super::*;

fn draws(lengths: Lengths, count: usize) -> Vec<u32> {
    let mut draws = Draws::new(3, 0);
    (0..count).map(|_| lengths.draw(&mut draws)).collect()
}

#[test]
fn lengths_are_as_they_are_written() {
    for (text, lengths) in
        [("7", Lengths::Same(7)), ("2-4", Lengths::Between(2, 4)), ("mean:9", Lengths::Mean(9))]
    {
        assert_eq!(text.parse(), Ok(lengths));
    }
    for wrong in ["", "0", "-3", "4-2", "0-3", "mean:0", "mean:", "2-3-4", "1.5", "99999999"] {
        assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
    }
}

/// The mean of n draws within five standard errors; a right generator misses with 6 seeds of 10 million.
#[test]
fn means_are_those_of_the_distributions() {
    let count = 20_000;
    for (lengths, mean, variance) in [
        (Lengths::Same(5), 5.0, 0.0),
        (Lengths::Between(1, 9), 5.0, 80.0 / 12.0),
        // (1 - p) / p² with p = 1 / mean.
        (Lengths::Mean(20), 20.0, 380.0),
        (Lengths::Mean(1), 1.0, 0.0),
    ] {
        let drawn = draws(lengths, count);
        let found = drawn.iter().map(|length| f64::from(*length)).sum::<f64>() / count as f64;
        let error: f64 = 5.0 * f64::sqrt(variance / count as f64);
        assert!((found - mean).abs() <= error, "{lengths:?}: {found}");
    }
    let between = draws(Lengths::Between(2, 4), 100);
    assert_eq!((between.iter().min(), between.iter().max()), (Some(&2), Some(&4)));
    assert_eq!(draws(Lengths::Mean(50), 200).iter().min(), Some(&1));
}

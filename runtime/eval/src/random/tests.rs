//! Evenness, and that a seed stays what it is.

use super::*;

#[test]
fn draws_are_even_over_streams() {
    // 22 values over 4,400 streams: 200 each, standard deviation 13.8; 5 of them are 69.
    let mut count = [0i32; 22];
    for stream in 0..4400 {
        let mut random = Random::new(1, stream << 32);
        count[random.below(22)] += 1;
    }
    assert!(count.iter().all(|n| (n - 200).abs() < 69), "{count:?}");
}

#[test]
fn a_stream_never_changes() {
    let mut random = Random::new(1, 2);
    let drawn: Vec<usize> = (0..6).map(|_| random.below(1000)).collect();
    assert_eq!(drawn, [950, 253, 63, 745, 404, 981]);
}

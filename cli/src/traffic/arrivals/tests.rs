//! Arrivals have the moments of their distribution and depend on the seed alone.

use super::*;

fn times(rate: f64, burstiness: f64, bounds: Bounds, seed: u64) -> Vec<f64> {
    Random::new(rate, burstiness, bounds, Draws::new(seed, 0)).map(|arrival| arrival.at).collect()
}

fn requests(count: usize) -> Bounds {
    Bounds { requests: Some(count), seconds: None }
}

/// Mean and variance of n gaps within five standard errors: that of the mean is σ / √n, that of the
/// variance σ² √((κ - 1) / n), where a gamma distribution of shape k has κ = 3 + 6 / k. A right
/// generator misses either with 6 seeds of 10 million.
#[test]
fn gaps_have_the_mean_and_the_variance_of_their_distribution() {
    let count = 20_000;
    for (rate, burstiness) in [(0.5, 1.0), (40.0, 1.0), (4.0, 0.25), (4.0, 3.5), (4.0, 200.0)] {
        let times = times(rate, burstiness, requests(count), 7);
        let starts = std::iter::once(0.0).chain(times.iter().copied());
        let gaps: Vec<f64> = starts.zip(&times).map(|(before, after)| after - before).collect();
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let expected = 1.0 / (burstiness * rate * rate);
        let off = (mean - 1.0 / rate).abs();
        assert!(off < 5.0 * (expected / n).sqrt(), "{rate}, {burstiness}: mean {mean}");
        let error = expected * ((2.0 + 6.0 / burstiness) / n).sqrt();
        let off = (variance - expected).abs();
        assert!(off < 5.0 * error, "{rate}, {burstiness}: variance {variance} for {expected}");
    }
}

/// Poisson arrivals in T seconds are rate · T give or take its root; five of these are allowed.
#[test]
fn a_duration_holds_as_many_arrivals_as_its_rate_says() {
    let bounds = Bounds { requests: None, seconds: Some(500.0) };
    let times = times(8.0, 1.0, bounds, 3);
    let off = (times.len() as f64 - 4000.0).abs();
    assert!(off < 5.0 * 4000_f64.sqrt(), "{} arrivals", times.len());
    assert!(times.last().is_some_and(|last| *last < 500.0));
}

#[test]
fn a_seed_defines_the_arrivals() {
    assert_eq!(times(2.0, 0.5, requests(50), 1), times(2.0, 0.5, requests(50), 1));
    assert_ne!(times(2.0, 0.5, requests(50), 1), times(2.0, 0.5, requests(50), 2));
    // A shorter run is the beginning of a longer one.
    assert_eq!(times(2.0, 1.0, requests(5), 1), times(2.0, 1.0, requests(50), 1)[..5]);
}

#[test]
fn the_first_bound_that_is_met_ends_the_arrivals() {
    let both = |requests, seconds| {
        let bounds = Bounds { requests: Some(requests), seconds: Some(seconds) };
        times(10.0, 1.0, bounds, 1).len()
    };
    assert_eq!(both(5, 1000.0), 5);
    assert!(both(5000, 1.0) < 50);
}

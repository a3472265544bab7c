//! Numbers of a normal distribution, addressed by where they stand.
//!
//! Number `index` of tensor `tensor` under a seed is a pure function of the three, so any part of a
//! tensor can be made on any thread in any order. Only additions, multiplications, divisions and
//! square roots are used, which IEEE 754 rounds in one way: the same bytes on every machine.
//!
//! The counter is mixed by SplitMix64's finaliser (Steele, Lea, Flood, *Fast splittable pseudorandom
//! number generators*, 2014); the quantile is P. J. Acklam's rational approximation (relative error
//! 1.15e-9, far under half a unit of bf16).

/// Mixes a counter so that neighbours have nothing in common.
fn mix(counter: u64) -> u64 {
    let mut x = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The numbers of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Normal {
    key: u64,
    deviation: f64,
}

impl Normal {
    /// Numbers of tensor `tensor` with mean 0 and this standard deviation.
    pub fn new(seed: u64, tensor: u64, deviation: f64) -> Normal {
        Normal { key: mix(mix(seed) ^ tensor), deviation }
    }

    /// Number `index`.
    pub fn at(&self, index: u64) -> f32 {
        // Each counter gives two numbers of 32 bits.
        let pair = mix(self.key.wrapping_add(index / 2));
        let half = if index.is_multiple_of(2) { pair as u32 } else { (pair >> 32) as u32 };
        let probability = (f64::from(half) + 0.5) / 4_294_967_296.0;
        (quantile(probability) * self.deviation) as f32
    }
}

/// Below this probability, and above one minus it, the tail's formula holds.
const TAIL: f64 = 0.024_25;

/// Where the distribution function of the standard normal reaches `probability`, between 0 and 1.
fn quantile(probability: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let polynomial = |of: &[f64], x: f64| of.iter().fold(0.0, |sum, factor| sum * x + factor);
    let tail = |probability: f64| {
        let q = (-2.0 * logarithm(probability)).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if probability < TAIL {
        tail(probability)
    } else if probability > 1.0 - TAIL {
        -tail(1.0 - probability)
    } else {
        let q = probability - 0.5;
        let square = q * q;
        q * polynomial(&A, square) / polynomial(&B, square)
    }
}

/// The natural logarithm of a positive normal number, to 1e-11: the system's may differ in its last
/// bit from machine to machine.
fn logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // ln f = 2 artanh((f - 1) / (f + 1)), of which |argument| <= 1/3.
    let s = (fraction - 1.0) / (fraction + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for power in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * power + 1);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (probability, expected) in [
            (0.5, 0.0),
            (0.841_344_746_068_543, 1.0),
            (0.975, 1.959_963_985),
            (1e-6, -4.753_424_309),
        ] {
            assert!((quantile(probability) - expected).abs() < 1e-7, "{probability}");
        }
        for x in [1e-10, 0.001, 0.024, 0.7, 1.0, 1.999] {
            assert!((logarithm(x) - f64::ln(x)).abs() < 1e-11, "{x}");
        }
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        let normal = Normal::new(7, 3, 0.02);
        let numbers: Vec<f64> = (0..200_000).map(|i| f64::from(normal.at(i))).collect();
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / count;
        let fourth = numbers.iter().map(|x| x.powi(4)).sum::<f64>() / count;
        // Four standard errors of each.
        assert!(mean.abs() < 4.0 * 0.02 / count.sqrt());
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 4.0 * (0.5 / count).sqrt());
        assert!((fourth / variance.powi(2) - 3.0).abs() < 4.0 * (96.0 / count).sqrt());
        assert_ne!(Normal::new(7, 4, 0.02).at(0), normal.at(0));
        assert_ne!(Normal::new(8, 3, 0.02).at(0), normal.at(0));
    }
}

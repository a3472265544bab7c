//! Weights of the candidates of a draw, and the draw.
//!
//! A request without filters draws from the whole vocabulary, row for row and before the next step can
//! begin, so weights are computed in single precision and without branches, in vectors. Nothing here is
//! fused or left to a library of the system: the same logits give the same bits on every machine.

/// Weights that are summed before they go into the sum of all: those of one are walked by a draw.
const CHUNK: usize = 256;

/// Lanes of a sum.
const LANES: usize = 8;

/// Below this the weight is 0: what `exp` gives there is next to what single precision cannot hold.
const LEAST: f32 = -87.0;

/// What a difference of logits weighs at a temperature, 1 for the best logit itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    /// The best logit.
    pub best: f32,
    /// Divisor of the differences, above 0.
    pub temperature: f32,
}

impl Weight {
    /// exp((logit − best) / temperature). The temperature acts on differences, so that a tiny one does
    /// not overflow. 0 for what is no number.
    #[inline]
    pub(super) fn of(self, logit: f32) -> f32 {
        let weight = exp((logit - self.best) / self.temperature);
        // Infinities have no difference.
        if logit == self.best { 1.0 } else { weight }
    }
}

/// eˣ for x of 0 and below, to within 3 · 2⁻²³ of it; 0 below [`LEAST`] and for what is no number.
#[inline]
fn exp(x: f32) -> f32 {
    /// Added and subtracted again it leaves a whole number, whose lowest bits are the sum's.
    const WHOLE: f32 = (3 << 22) as f32;
    /// The upper bits of ln 2, few enough that whole numbers up to 127 times them are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    /// ln 2 less those.
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // x = n · ln 2 + r, |r| ≤ ln 2 / 2, and 2ⁿ is put together from its bits.
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let whole = shifted - WHOLE;
    let rest = (x - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    // Taylor's series: the first term that is left out is 5e-9 at most.
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let value = series.into_iter().fold(0.0, |sum: f32, factor| sum * rest + factor) * power;
    if x >= LEAST { value } else { 0.0 }
}

/// The weights of a row of candidates.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    weights: Vec<f32>,
    /// Their sums by chunks. In double precision a sum over any vocabulary is exact far beyond a
    /// weight's own precision.
    sums: Vec<f64>,
}

impl Weights {
    /// Room for a vocabulary.
    pub(super) fn new(vocabulary: usize) -> Weights {
        let sums = Vec::with_capacity(vocabulary.div_ceil(CHUNK));
        Weights { weights: Vec::with_capacity(vocabulary), sums }
    }

    /// Those of these logits, in their order.
    pub(super) fn weigh(&mut self, weight: Weight, logits: impl Iterator<Item = f32>) {
        self.weights.clear();
        self.weights.extend(logits.map(|logit| weight.of(logit)));
        self.sums.clear();
        self.sums.extend(self.weights.chunks(CHUNK).map(sum));
    }

    /// The sum of all.
    pub(super) fn total(&self) -> f64 {
        self.sums.iter().sum()
    }

    /// The candidate at `draw`, 0 to 1, of the sum of all; nothing where none weighs anything.
    pub(super) fn draw(&self, draw: f64) -> Option<usize> {
        let weighs = |weight: &f32| *weight > 0.0;
        let mut rest = draw * self.total();
        for (index, (chunk, sum)) in self.weights.chunks(CHUNK).zip(&self.sums).enumerate() {
            if rest >= *sum {
                rest -= sum;
                continue;
            }
            let passed = |weight: &f32| {
                rest -= f64::from(*weight);
                rest < 0.0
            };
            // Summed one by one they may leave a remainder: then it is the last that weighs something.
            let within = chunk.iter().position(passed);
            let within = within.or_else(|| chunk.iter().rposition(weighs));
            return within.map(|within| index * CHUNK + within);
        }
        self.weights.iter().rposition(weighs)
    }
}

fn sum(chunk: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    let mut quick = chunk.chunks_exact(LANES);
    for weights in &mut quick {
        for (lane, weight) in lanes.iter_mut().zip(weights) {
            *lane += f64::from(*weight);
        }
    }
    let rest: f64 = quick.remainder().iter().copied().map(f64::from).sum();
    lanes.into_iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_as_exact_as_they_say() {
        // Steps of 2⁻¹² and numbers between them.
        for step in 0..=(87 << 12) {
            let x = -(step as f32) / 4096.0 * (1.0 + f32::EPSILON * (step % 7) as f32);
            let exact = f64::from(x).exp();
            let unit = exact * f64::from(f32::EPSILON);
            if x >= LEAST {
                assert!((f64::from(exp(x)) - exact).abs() <= 3.0 * unit, "{x}: {}", exp(x));
            }
        }
        assert_eq!(
            (exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY), exp(f32::NAN)),
            (1.0, 0.0, 0.0, 0.0)
        );
    }

    #[test]
    fn a_draw_finds_the_candidate_at_its_place() {
        let mut weights = Weights::default();
        let weight = Weight { best: 1.0, temperature: 1.0 };
        // Those that weigh nothing are never drawn, in whatever chunk they lie.
        let logits = |id: usize| if id % 2 == 1 { f32::NEG_INFINITY } else { 1.0 };
        weights.weigh(weight, (0..1001).map(logits));
        assert_eq!(weights.total(), 501.0);
        for drawn in 0..501 {
            assert_eq!(weights.draw((f64::from(drawn) + 0.5) / 501.0), Some(2 * drawn as usize));
        }
        assert_eq!(weights.draw(1.0), Some(1000));
        weights.weigh(weight, [f32::NAN; 3].into_iter());
        assert_eq!(weights.draw(0.5), None);
        weights.weigh(weight, std::iter::empty());
        assert_eq!(weights.draw(0.5), None);
    }

    #[test]
    fn infinite_logits_have_their_weights() {
        let all = Weight { best: f32::INFINITY, temperature: 0.5 };
        assert_eq!((all.of(f32::INFINITY), all.of(7.0)), (1.0, 0.0));
        let none = Weight { best: f32::NEG_INFINITY, temperature: 0.5 };
        assert_eq!(none.of(f32::NEG_INFINITY), 1.0);
        let cold = Weight { best: 2.0, temperature: f32::MIN_POSITIVE };
        assert_eq!((cold.of(2.0), cold.of(1.0)), (1.0, 0.0));
    }
}

//! Random draws that a seed defines, a stream for each use, so that passages do not depend on how many
//! arrivals were drawn before them.

use weir_eval::random::Random;

/// A stream of draws.
pub struct Draws(Random);

impl Draws {
    /// Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Draws {
        Draws(Random::new(seed, stream))
    }

    /// A number between 0 and 1 that is neither: its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        self.0.uniform()
    }

    /// A number below a bound, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    /// A number from the standard normal distribution (Box and Muller, 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A number from the gamma distribution with a shape above 0 and scale 1 (Marsaglia and Tsang, *A
    /// simple method for generating gamma variables*, ACM TOMS 26(3), 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // Their remark for small shapes.
            return self.gamma(shape + 1.0) * self.uniform().powf(1.0 / shape);
        }
        let offset = shape - 1.0 / 3.0;
        let slope = 1.0 / (9.0 * offset).sqrt();
        loop {
            let normal = self.normal();
            let cube = (1.0 + slope * normal).powi(3);
            if cube <= 0.0 {
                continue;
            }
            let bound = 0.5 * normal * normal + offset * (1.0 - cube + cube.ln());
            if self.uniform().ln() < bound {
                return offset * cube;
            }
        }
    }
}

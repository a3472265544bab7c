//! Random draws that a seed defines.
//!
//! ChaCha with 8 rounds (Bernstein, *ChaCha, a variant of Salsa20*, 2008), a stream for each use, so
//! that passages do not depend on how many arrivals were drawn before them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of draws.
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Draws {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Draws(generator)
    }

    /// A number between 0 and 1 that is neither: its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        let bits = self.0.next_u64() >> (u64::BITS - f64::MANTISSA_DIGITS + 1);
        (bits as f64 + 0.5) / (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64
    }

    /// A number below a bound, which is at least 1; by rejection and so without bias.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        let whole = u64::MAX - u64::MAX % bound;
        loop {
            let number = self.0.next_u64();
            if number < whole {
                return (number % bound) as usize;
            }
        }
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

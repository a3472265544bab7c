//! Random choices that are the same on every machine.
//!
//! ChaCha with 8 rounds (Bernstein, *ChaCha, a variant of Salsa20*, 2008): a seed and a stream number
//! define all that follows. Draws from a range are by rejection and so without bias; they are
//! written here because the general-purpose library does not promise to draw alike in every version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random choices.
pub struct Random(ChaCha8Rng);

impl Random {
    /// Streams of a seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(stream);
        Random(generator)
    }

    /// A number between 0 and 1 that is neither: its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        let bits = self.0.next_u64() >> (u64::BITS - f64::MANTISSA_DIGITS + 1);
        (bits as f64 + 0.5) / (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64
    }

    /// A number below a bound, which is at least 1.
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

    /// A number from a range with both ends.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// One of several, of which there is at least one.
    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    /// Some of them in random order: the first steps of Fisher and Yates's shuffle.
    pub fn sample(&mut self, of: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        for place in 0..count.min(of) {
            let other = self.within(place, of - 1);
            all.swap(place, other);
        }
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests;

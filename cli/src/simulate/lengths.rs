//! How long prompts and answers are, where no file says it.

use std::str::FromStr;

use crate::traffic::Draws;
use crate::traffic::offer::MOST_TOKENS;

/// A distribution of numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All alike.
    Same(u32),
    /// Any number from the first to the second, both included, equally often.
    Between(u32, u32),
    /// Geometric with this mean: whether a text goes on does not depend on how long it is.
    Mean(u32),
}

impl Lengths {
    /// A length, at least 1.
    pub fn draw(self, draws: &mut Draws) -> u32 {
        match self {
            Lengths::Same(tokens) => tokens,
            Lengths::Between(least, most) => {
                least + draws.below((most - least) as usize + 1) as u32
            }
            Lengths::Mean(1) => 1,
            Lengths::Mean(mean) => {
                let goes_on = (1.0 - 1.0 / f64::from(mean)).ln();
                let further = draws.uniform().ln() / goes_on;
                // A conversion of a float that is too large gives the largest integer.
                (further as u32).saturating_add(1).min(MOST_TOKENS)
            }
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let number = |text: &str| {
            text.parse::<u32>().ok().filter(|tokens| (1..=MOST_TOKENS).contains(tokens))
        };
        let lengths = if let Some(mean) = text.strip_prefix("mean:") {
            number(mean).map(Lengths::Mean)
        } else if let Some((least, most)) = text.split_once('-') {
            let ends = number(least).zip(number(most)).filter(|(least, most)| least <= most);
            ends.map(|(least, most)| Lengths::Between(least, most))
        } else {
            number(text).map(Lengths::Same)
        };
        lengths.ok_or_else(|| {
            format!(
                "it must be N, N-M with N at most M, or mean:N, in whole numbers from 1 to \
                 {MOST_TOKENS}"
            )
        })
    }
}

#[cfg(test)]
mod tests;

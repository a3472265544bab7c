//! Numbers on the command line: what is outside an option's range is refused with that range, before
//! anything is read or computed.

use std::fmt::Display;

use super::bench::Numbers;
use crate::SamplingOptions;
use crate::error::RequestError;

/// Reads a whole number of at least `least` and at most `most`.
pub fn whole<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync
where
    N: Copy + Display + PartialOrd + TryFrom<u64> + Send + Sync + 'static,
{
    move |text| {
        text.parse::<u64>()
            .ok()
            .and_then(|number| N::try_from(number).ok())
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// Reads whole numbers from 1 on with commas between them.
pub(super) fn numbers(text: &str) -> Result<Numbers, String> {
    let one = whole(1, u32::MAX);
    text.split(',').map(|number| one(number.trim())).collect::<Result<_, _>>().map(Numbers)
}

/// Reads a number that goes where `set` puts it, under the library's own rule for it.
pub(super) fn sampling(
    set: fn(&mut SamplingOptions) -> &mut f32,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<f32>().ok().filter(|number| number.is_finite());
        let number = number.ok_or("it must be a finite number")?;
        let mut options = SamplingOptions::default();
        *set(&mut options) = number;
        match options.check() {
            Ok(()) => Ok(number),
            Err(RequestError::Sampling { rule, .. }) => Err(format!("it must be {rule}")),
            Err(other) => Err(other.to_string()),
        }
    }
}

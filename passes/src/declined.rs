//! Places that a pass looked at and left alone, with the reason of each: what `--explain` shows.
//!
//! A model has the same pattern in every layer, so equal reasons are counted and only the first
//! place is named.

use crate::registry::Change;

/// Places that a pass left alone.
#[derive(Clone, Debug, Default)]
pub struct Declined {
    reasons: Vec<Reason>,
}

#[derive(Clone, Debug)]
struct Reason {
    text: String,
    first: String,
    count: usize,
}

impl Declined {
    /// Notes a place that was left alone.
    pub fn add(&mut self, place: impl Into<String>, reason: impl Into<String>) {
        let text = reason.into();
        match self.reasons.iter_mut().find(|known| known.text == text) {
            Some(known) => known.count += 1,
            None => self.reasons.push(Reason { text, first: place.into(), count: 1 }),
        }
    }

    /// What a pass reports that changed `count` places; `idle` is what it says where it neither
    /// changed a place nor left one alone.
    pub fn change(self, count: usize, idle: &str) -> Change {
        let mut notes: Vec<String> = self
            .reasons
            .into_iter()
            .map(|Reason { text, first, count }| match count {
                1 => format!("left alone: {first}: {text}"),
                count => format!("left alone: {count} places, the first {first}: {text}"),
            })
            .collect();
        if count == 0 && notes.is_empty() {
            notes.push(idle.to_owned());
        }
        Change { count, notes }
    }
}

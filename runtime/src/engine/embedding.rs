//! Models that give embeddings: the row of a prompt's last token, behind the last norm, divided by its
//! length.

use super::{Engine, Event, FinishReason, RequestId};
use crate::forward::{StepFault, StepModel};

impl<M: StepModel> Engine<M> {
    /// Reports what row `row` of the head says of a sequence, which is over then.
    pub(super) fn embed(
        &mut self,
        id: u64,
        row: usize,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) {
        if !self.sequences.contains_key(&id) {
            return;
        }
        let width = self.model.shape().head_width as usize;
        let values = &mut self.logits[row * width..(row + 1) * width];
        if !normalise(values) {
            return self.fail(id, StepFault::NotFinite, report);
        }
        report(RequestId(id), Event::Embedding { values });
        let held = self.scheduler.remove(id);
        self.finish(id, held, FinishReason::Stop, report);
    }
}

/// Divides values by their length (the root of the sum of their squares); `false` if it is none that can
/// be divided by. Values that are f32 have one in f64, whatever they are.
pub fn normalise(values: &mut [f32]) -> bool {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    let length = squares.sum::<f64>().sqrt();
    if !(length > 0.0 && length.is_finite()) {
        return false;
    }
    values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_single_precision_are_divided_by() {
        let mut large = [3e38, -3.2e38, 0.0];
        assert!(normalise(&mut large));
        assert!((large[0] - 0.6839).abs() < 1e-4 && (large[1] + 0.7295).abs() < 1e-4, "{large:?}");
        let mut small = [3e-44, 4e-44];
        assert!(normalise(&mut small));
        assert!((small[0] - 0.6).abs() < 0.02 && (small[1] - 0.8).abs() < 0.02, "{small:?}");
    }

    #[test]
    fn what_has_no_length_is_refused() {
        assert!(!normalise(&mut [0.0, -0.0]));
        assert!(!normalise(&mut [1.0, f32::NAN]));
        assert!(!normalise(&mut [1.0, f32::INFINITY]));
    }
}

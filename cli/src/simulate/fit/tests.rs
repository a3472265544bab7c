//! Fits find the times that made the steps, never a negative one, and tell what they are worth.

use proptest::prelude::*;

use super::*;

fn step(setup: u32, load: StepLoad, seconds: f64) -> TimedStep {
    TimedStep { setup, load, seconds: vec![seconds] }
}

/// Steps that decode, with prompts and with tiles, that differ in everything.
fn loads() -> Vec<StepLoad> {
    let mut loads = Vec::new();
    for one in 1..13_u32 {
        let (rows, other) = (f64::from(one), f64::from(one * 7 % 13));
        let decode = StepLoad {
            decode_rows: rows,
            decode_attended: rows * 10.0 * other,
            ..StepLoad::default()
        };
        let prompt = StepLoad {
            prompt_rows: 5.0 + other,
            prompt_attended: (5.0 + other) * 3.0 * rows,
            ..decode
        };
        let tile = StepLoad {
            tiles: 1.0,
            tile_rows: 16.0 + rows % 5.0,
            tile_attended: 40.0 * other + rows * rows,
            chosen_from: 100.0 * (rows % 3.0),
            ..decode
        };
        loads.extend([decode, prompt, tile]);
    }
    loads
}

#[test]
fn times_that_made_the_steps_are_found() {
    let costs = StepCosts {
        step: 2e-3,
        decode_row: 3e-4,
        decode_attended: 2e-6,
        prompt: 4e-4,
        prompt_row: 5e-5,
        prompt_attended: 0.0,
        tile: 1e-3,
        tile_row: 7e-6,
        tile_attended: 3e-7,
        chosen_from: 1e-6,
    };
    let steps: Vec<TimedStep> =
        (0..).zip(loads()).map(|(setup, load)| step(setup, load, costs.seconds(&load))).collect();
    let found = StepCosts::fit(&steps);
    for (one, other) in found.times().iter().zip(costs.times()) {
        assert!((one - other).abs() <= 1e-6 * other + 1e-12, "{found:?}");
    }
    let errors = held_out_errors(&steps);
    assert_eq!(
        errors.iter().map(|error| error.kind).collect::<Vec<_>>(),
        [Kind::Decode, Kind::Prompt, Kind::Tile]
    );
    assert!(errors.iter().all(|error| error.steps == 12 && error.p95 < 1e-6), "{errors:?}");
}

#[test]
fn held_out_steps_that_the_others_do_not_explain_are_errors() {
    // Decode rows cost alike but in one setup, which takes twice as long as the others say.
    let decode = |setup: u32, rows: u32, seconds| {
        let load = StepLoad { decode_rows: f64::from(rows), ..StepLoad::default() };
        step(setup, load, seconds)
    };
    let mut steps: Vec<TimedStep> =
        (1..=8).map(|rows| decode(rows, rows, 1e-3 * f64::from(rows))).collect();
    steps.push(decode(9, 4, 8e-3));
    let errors = held_out_errors(&steps);
    assert_eq!(errors.len(), 1);
    // Half of its time is missing; the others are nearly right where it is held out with them.
    assert!((errors[0].p95 - 0.5).abs() < 0.15, "{errors:?}");
    assert_eq!(held_out_errors(&steps[..1]), []);
}

#[test]
fn the_middle_repetition_counts() {
    let load = StepLoad { decode_rows: 1.0, ..StepLoad::default() };
    let steps = [TimedStep { setup: 0, load, seconds: vec![9.0, 1.0, 2.0] }];
    assert!((StepCosts::fit(&steps).seconds(&load) - 2.0).abs() < 1e-9);
}

proptest! {
    /// Karush, Kuhn and Tucker: no time is negative, and none that is 0 would make the fit better, nor
    /// does any other by a change.
    #[test]
    fn no_change_that_is_allowed_makes_a_fit_better(
        noise in prop::collection::vec(0.2..5.0_f64, 36),
    ) {
        let costs = StepCosts { step: 1e-3, decode_row: 1e-4, prompt_row: 1e-4, tile: 1e-3, ..StepCosts::default() };
        let steps: Vec<TimedStep> = (0..)
            .zip(loads().into_iter().zip(noise))
            .map(|(setup, (load, noise))| step(setup, load, noise * costs.seconds(&load)))
            .collect();
        let found = StepCosts::fit(&steps).times();
        let loss = |times: Row| -> f64 {
            let costs = StepCosts::of_times(times);
            let off = |step: &TimedStep| costs.seconds(&step.load) / step.seconds[0] - 1.0;
            steps.iter().map(|step| off(step).powi(2)).sum()
        };
        let least = loss(found);
        for place in 0..TIMES {
            prop_assert!(found[place] >= 0.0);
            for change in [1e-5_f64, -1e-5] {
                let mut other = found;
                // Of the time itself, or of one that would be noticed.
                other[place] = (other[place] + change * other[place].max(1e-4)).max(0.0);
                prop_assert!(loss(other) >= least - 1e-9 * least, "{place}: {found:?}");
            }
        }
    }
}

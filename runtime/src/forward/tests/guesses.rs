//! Rows in flight: answers with guesses are the reference's, which takes one token after the other, and
//! rows that were taken back are read no more than those that were never written.

use super::*;
use crate::drafts::tests::HalfRight;

/// Tokens that are guessed.
const MOST: u32 = 2;

/// The layouts with room for them.
fn roomy(elastic: bool) -> Vec<CacheLayout> {
    let mut layouts = layouts(elastic);
    for layout in &mut layouts {
        layout.in_flight = if layout.policy == CachePolicy::Full as u32 { 0 } else { MOST + 1 };
        // A ring for a window has room for a step beside it.
        layout.rows += if layout.window > 0 { 0 } else { layout.in_flight };
    }
    layouts
}

#[test]
fn guessed_answers_agree_with_the_reference() {
    for elastic in [true, false] {
        let layouts = roomy(elastic);
        let model = model(&layouts);
        let known: Vec<Vec<u32>> = (1..=28)
            .map(|length| {
                let prompt = prompt_of(length);
                let answer = expected_answer(&layouts, &prompt, 12);
                [prompt, answer].concat()
            })
            .collect();
        let mut accepted = 0;
        for (slots, threads, seed) in [(1, 1, 1), (3, 1, 2), (3, 2, 3), (7, 1, 4), (2, 1, 5)] {
            let options = running(slots, threads);
            let mut forward = model.forward(&options).unwrap();
            forward.poison_cache(0xa5);
            let mut engine = Engine::new(forward, None, vec![]);
            let drafter = HalfRight { known: known.clone(), vocabulary: VOCABULARY, seed };
            engine.guess(MOST, drafter).unwrap();
            let requests = (1..=28).map(|length| Request {
                prompt: prompt_of(length),
                max_tokens: Some(12),
                ..Request::default()
            });
            let answers = engine.generate(requests.collect()).unwrap();
            for (length, (answer, known)) in (1..).zip(answers.iter().zip(&known)) {
                let place = format!("elastic {elastic}, L = {length}, {slots} slots");
                assert_eq!(answer.ids, known[length..], "{place}");
                accepted += answer.usage.accepted_tokens;
            }
            let last = answers.last().unwrap().usage;
            assert_eq!((last.kv_rows_kept, last.kv_rows_dropped), (9, 30));
        }
        assert!(accepted > 100, "{accepted}");
    }
}

#[test]
fn more_rows_than_can_be_taken_back_are_an_error() {
    let model = model(&roomy(true));
    let mut forward = model.forward(&RuntimeOptions::default()).unwrap();
    let mut logits = vec![0.0; VOCABULARY as usize];
    let rows = |count: u32| -> Vec<StepRow> {
        let row = |position| StepRow { token: 1, position, slot: 0, prompt_rows: 2, rotary_set: 0 };
        (2..2 + count).map(row).collect()
    };
    let prompt = [0, 1].map(|position| StepRow { position, ..rows(1)[0] });
    forward.step(&prompt, &[1], &mut logits).unwrap();
    forward.step(&rows(MOST + 1), &[0], &mut logits).unwrap();
    let error = forward.step(&rows(MOST + 2), &[0], &mut logits).unwrap_err();
    assert_eq!(error, StepFault::InFlight { rows: MOST + 2, most: MOST + 1 });
}

//! Answers with tokens that are guessed ahead are those without.

use super::*;
use crate::drafts::tests::HalfRight;
use crate::drafts::{Drafter, PromptLookup};

/// A model whose cache has room for `most` guesses.
fn roomy(slots: u32, max_rows: u32, most: u32) -> FakeModel {
    let mut model = fake(slots, max_rows);
    let layout = &mut model.shape.layouts[0];
    layout.in_flight = most + 1;
    layout.rows += most + 1;
    model
}

fn one_by_one(request: &Request, most: u32) -> Completion {
    let mut engine = Engine::new(roomy(1, 64, most), None, vec![EOS]);
    engine.generate(vec![request.clone()]).unwrap().remove(0)
}

/// Counts of a request that do not depend on who guesses.
fn unguessed(usage: Usage) -> Usage {
    assert!(usage.accepted_tokens <= usage.drafted_tokens.min(usage.completion_tokens));
    Usage { drafted_tokens: 0, accepted_tokens: 0, ..usage }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn guesses_change_no_answer(
        slots in 1..5_u32,
        rows in 5..12_u32,
        most in 1..5_u32,
        seed in 0..u64::MAX,
        shapes in prop::collection::vec((0..5_u64, 1..40_u32, 1..30_u32, 0..6_u32), 1..9),
    ) {
        let mut requests = Vec::new();
        for (index, (seed, prompt_rows, max_tokens, pause)) in (0..).zip(shapes) {
            requests.push((request(9 * seed + index, prompt_rows, max_tokens), pause));
        }
        let expected: Vec<Completion> =
            requests.iter().map(|(request, _)| one_by_one(request, most)).collect();
        let known = requests.iter().zip(&expected);
        let known =
            known.map(|((request, _), answer)| [&request.prompt[..], &answer.ids[..]].concat());
        let drafter = HalfRight { known: known.collect(), vocabulary: VOCABULARY, seed };
        let mut engine = Engine::new(roomy(slots, rows, most), None, vec![EOS]);
        engine.guess(most, drafter).unwrap();
        let mut ids = Vec::new();
        let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (request, pause) in requests {
            ids.push(engine.submit(request).unwrap());
            for _ in 0..pause {
                engine.step(|id, event| collect(&mut answers, &mut ends, id, event));
            }
        }
        while engine.step(|id, event| collect(&mut answers, &mut ends, id, event)) {}
        for (id, completion) in ids.into_iter().zip(expected) {
            prop_assert_eq!(&answers[&id], &completion.ids);
            let (reason, usage) = ends[&id];
            prop_assert_eq!((reason, unguessed(usage)), (completion.reason, completion.usage));
        }
    }
}

/// Knows what comes.
struct Right(Vec<u32>);

impl Drafter for Right {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
        draft.extend(self.0[tokens.len()..].iter().take(most));
    }
}

#[test]
fn right_guesses_save_steps() {
    let request = Request { ignore_eos: true, ..request(0, 10, 31) };
    let answer = one_by_one(&request, 4);
    let mut engine = Engine::new(roomy(1, 16, 4), None, vec![]);
    engine.guess(4, Right([&request.prompt[..], &answer.ids[..]].concat())).unwrap();
    engine.submit(request).unwrap();
    let (mut steps, mut ids, mut counts) = (0, Vec::new(), None);
    loop {
        steps += 1;
        let goes_on = engine.step(|_, event| match event {
            Event::Token { token, .. } => ids.push(token),
            Event::Finished { usage, .. } => counts = Some(usage),
            Event::Failed(fault) => panic!("{fault}"),
            Event::Embedding { .. } => panic!("no tokens"),
        });
        if !goes_on {
            break;
        }
    }
    assert_eq!(ids, answer.ids);
    // The prompt gives the first token, then five come at once.
    assert_eq!(steps, 1 + 6);
    let usage = counts.unwrap();
    assert_eq!((usage.drafted_tokens, usage.accepted_tokens), (24, 24));
    assert_eq!((usage.kv_rows_kept, usage.kv_rows_dropped), (16, 24));
}

#[test]
fn more_guesses_than_can_be_taken_back_are_refused() {
    let mut engine = Engine::new(roomy(1, 16, 2), None, vec![]);
    assert_eq!(engine.model().shape().max_draft(), 2);
    engine.guess(2, PromptLookup).unwrap();
    let error = engine.guess(3, PromptLookup).unwrap_err().to_string();
    assert_eq!(
        error,
        "3 tokens cannot be guessed ahead: the model was compiled with room for 2; compile it with \
         draft=3 in --kv"
    );
    let mut engine = Engine::new(fake(1, 16), None, vec![]);
    assert!(engine.guess(1, PromptLookup).is_err());
    // A full cache overwrites nothing; a step has room for one token beside the guesses.
    let mut model = fake(1, 16);
    let layout = &mut model.shape.layouts[0];
    (layout.policy, layout.rows) = (CachePolicy::Full as u32, 40);
    assert_eq!(model.shape.max_draft(), 15);
}

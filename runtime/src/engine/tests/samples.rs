//! Samples of one prompt are requests by themselves, of which the prompt was computed once.

use super::*;
use crate::drafts::tests::HalfRight;

/// Rows of a prompt of [`selecting`] that are kept.
const KEPT: u32 = 86;

/// A model whose block has a whole tile, of two rows of sinks and seventy of selected ones.
fn selecting(slots: u32, blocks: u32, max_rows: u32, elastic: bool) -> FakeModel {
    let mut model = fake(slots, max_rows);
    let layout = &mut model.shape.layouts[0];
    layout.policy = CachePolicy::Snapstream as u32;
    layout.elastic = elastic.into();
    layout.selected = 70;
    layout.observed = 1;
    layout.rows = KEPT;
    model.shape.context = 240;
    model.shape.direct_rows = KEPT;
    model.shape.blocks = blocks;
    model
}

/// The answers of requests by themselves.
fn one_by_one(request: &Request, samples: u32, elastic: bool) -> Vec<Completion> {
    let alone = |sample: u32| {
        let mut request = request.clone();
        request.sampling.seed += u64::from(sample);
        let mut engine = Engine::new(selecting(1, 1, 64, elastic), None, vec![EOS]);
        engine.generate(vec![request]).unwrap().remove(0)
    };
    (0..samples).map(alone).collect()
}

/// Counts that do not depend on what was there before.
fn counts(usage: Usage) -> Usage {
    Usage { reused_tokens: 0, ..usage }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn samples_are_requests_by_themselves(
        elastic in any::<bool>(),
        slots in 1..6_u32,
        // Of so many slots without a block there is one left that has it.
        without in 0..5_u32,
        rows in 2..12_u32,
        shapes in prop::collection::vec(
            (0..5_u64, 1..130_u32, 1..60_u32, 1..8_u32, 0..9_u32, any::<bool>()), 1..7),
    ) {
        let blocks = slots.saturating_sub(without).max(1);
        let mut engine = Engine::new(selecting(slots, blocks, rows, elastic), None, vec![EOS]);
        let mut expected = BTreeMap::new();
        let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        let mut ends = BTreeMap::new();
        let mut cancelled = Vec::new();
        for (index, (seed, prompt_rows, max_tokens, samples, pause, cancels)) in (0..).zip(shapes) {
            let request = request(9 * seed + index, prompt_rows, max_tokens);
            let ids = engine.submit_samples(request.clone(), samples).unwrap();
            let alone = one_by_one(&request, samples, elastic);
            expected.extend(ids.iter().copied().zip(alone));
            for _ in 0..pause {
                engine.step(|id, event| collect(&mut answers, &mut ends, id, event));
            }
            if cancels {
                // Often the one that computes the prompt.
                let id = ids[index as usize / 3 % ids.len()];
                engine.cancel(id);
                cancelled.push(id);
            }
        }
        while engine.step(|id, event| collect(&mut answers, &mut ends, id, event)) {}
        prop_assert!(engine.is_idle());
        for (id, completion) in expected {
            let (reason, usage) = ends[&id];
            let ids = answers.remove(&id).unwrap_or_default();
            if cancelled.contains(&id) && reason == FinishReason::Cancelled {
                prop_assert!(completion.ids.starts_with(&ids));
                continue;
            }
            prop_assert_eq!(&ids, &completion.ids, "{:?}", id);
            prop_assert_eq!((reason, counts(usage)), (completion.reason, counts(completion.usage)));
        }
    }
}

/// Rows computed for so many samples with eight tokens each, and prompt tokens that were there, of
/// every sample.
fn computed(model: FakeModel, prompt_rows: u32, samples: u32) -> (usize, Vec<u32>) {
    let mut engine = Engine::new(model, None, vec![]);
    let request = request(2, prompt_rows, 8);
    let ids = engine.submit_samples(request, samples).unwrap();
    let answers = engine.complete(&ids).unwrap();
    let reused = answers.iter().map(|answer| answer.usage.reused_tokens).collect();
    (engine.model().rows, reused)
}

#[test]
fn a_prompt_is_computed_once_for_all_that_run_at_once() {
    for prompt_rows in [1, 20, KEPT, 120] {
        let (rows, reused) = computed(selecting(4, 4, 64, true), prompt_rows, 4);
        assert_eq!(rows as u32, prompt_rows + 4 * 7);
        assert_eq!(reused, [0, prompt_rows, prompt_rows, prompt_rows]);
    }
    // Where prompts have one block, the samples of one that fits go one by one.
    let (rows, reused) = computed(selecting(4, 1, 64, true), 120, 4);
    assert_eq!((rows, &reused[..]), (120 + 4 * 7, &[0, 120, 120, 120][..]));
    let (rows, reused) = computed(selecting(4, 1, 64, true), 20, 2);
    assert_eq!((rows, &reused[..]), (20 + 1 + 2 * 7, &[0, 19][..]));
    // A ring that is fixed leaves the block of a shorter prompt as it is.
    let (rows, reused) = computed(selecting(4, 1, 64, false), 20, 4);
    assert_eq!((rows, &reused[..]), (20 + 4 * 7, &[0, 20, 20, 20][..]));
}

#[test]
fn a_block_is_another_prompts_when_its_last_reader_has_ended() {
    let mut engine = Engine::new(selecting(3, 1, 64, true), None, vec![]);
    let ids = engine.submit_samples(request(2, 120, 30), 3).unwrap();
    let next = engine.submit(request(4, 100, 2)).unwrap();
    let mut order = Vec::new();
    let mut step = |engine: &mut Engine<FakeModel>| {
        engine.step(|id, event| {
            if let Event::Token { .. } = event
                && !order.contains(&id)
            {
                order.push(id);
            }
        })
    };
    while engine.sequences[&ids[2].number()].chosen() < 5 {
        step(&mut engine);
    }
    // The one that has computed the prompt ends, then another: the block is still read.
    engine.cancel(ids[0]);
    engine.cancel(ids[1]);
    for _ in 0..4 {
        step(&mut engine);
        assert_eq!(engine.scheduler.waiting(), 1, "two slots are free, and no block");
    }
    engine.cancel(ids[2]);
    step(&mut engine);
    assert_eq!(engine.scheduler.waiting(), 0);
    while step(&mut engine) {}
    assert_eq!(order.last(), Some(&next));
}

#[test]
fn samples_fail_with_their_prompt() {
    let mut model = selecting(3, 3, 16, true);
    model.fail_at = Some(48);
    let mut engine = Engine::new(model, None, vec![]);
    let bad = Request { prompt: vec![1, 48], ..Request::default() };
    let mut expected = engine.submit_samples(bad, 3).unwrap();
    let good = Request { prompt: vec![1], max_tokens: Some(1), ..Request::default() };
    expected.extend(engine.submit_samples(good, 2).unwrap());
    let (mut failed, mut finished) = (Vec::new(), Vec::new());
    while engine.step(|id, event| match event {
        Event::Failed(_) => failed.push(id),
        Event::Embedding { .. } => panic!("no tokens"),
        Event::Finished { .. } => finished.push(id),
        Event::Token { .. } => {}
    }) {}
    failed.sort();
    assert_eq!((failed, finished), (expected[..3].to_vec(), expected[3..].to_vec()));
}

#[test]
fn samples_that_cannot_be_had_are_refused() {
    let mut engine = Engine::new(selecting(2, 2, 16, true), None, vec![]);
    assert_eq!(engine.submit_samples(request(2, 3, 1), 0), Err(RequestError::NoSamples));
    let behind = Request { history: History::Incremental, ..request(2, 3, 1) };
    let refused = engine.submit_samples(behind.clone(), 2);
    assert_eq!(refused, Err(RequestError::SamplesIncremental { samples: 2 }));
    assert!(engine.submit_samples(behind, 1).is_ok());
}

#[test]
fn samples_are_guessed_for_like_others() {
    let model = |elastic| {
        let mut model = selecting(4, 2, 32, elastic);
        let layout = &mut model.shape.layouts[0];
        layout.in_flight = 4;
        layout.rows += 4;
        model
    };
    let mut accepted = 0;
    for elastic in [true, false] {
        for prompt_rows in [1, 20, KEPT, 120] {
            let request = request(3, prompt_rows, 40);
            let answers = |drafter: Option<HalfRight>| {
                let mut engine = Engine::new(model(elastic), None, vec![]);
                if let Some(drafter) = drafter {
                    engine.guess(3, drafter).unwrap();
                }
                let ids = engine.submit_samples(request.clone(), 3).unwrap();
                engine.complete(&ids).unwrap()
            };
            let plain = answers(None);
            let known = plain.iter().map(|answer| [&request.prompt[..], &answer.ids].concat());
            let known = known.collect();
            let guessed = answers(Some(HalfRight { known, vocabulary: VOCABULARY, seed: 1 }));
            for (plain, guessed) in plain.iter().zip(guessed) {
                assert_eq!(plain.ids, guessed.ids, "{prompt_rows} rows, elastic {elastic}");
                assert!(guessed.usage.drafted_tokens > 0);
                accepted += guessed.usage.accepted_tokens;
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

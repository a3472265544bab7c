//! Conversations in one slot: what a turn takes over from the one before.

use super::*;
use crate::{Completion, History};

const ANSWER: usize = 5;

fn answer(
    engine: &mut Engine<Forward>,
    prompt: &[u32],
    history: History,
    count: usize,
) -> Completion {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: Some(count as u32),
        history,
        ..Request::default()
    };
    engine.generate(vec![request]).unwrap().remove(0)
}

/// A prompt that begins a sequence.
fn whole(rows: usize) -> Vec<std::ops::Range<usize>> {
    std::iter::once(0..rows).collect()
}

/// Three turns each, over lengths that fit the cache, that leave it in the first turn, or later.
#[test]
fn every_turn_of_a_conversation_agrees_with_the_reference() {
    // Prompts that take over rows: exactly, in part by themselves, and incrementally.
    let mut reused = [0; 2];
    for elastic in [true, false] {
        let layouts = layouts(elastic);
        let model = model(&layouts);
        for (first, new) in (1..=14).flat_map(|first| [1, 2, 4, 6].map(|new| (first, new))) {
            for history in History::ALL {
                let options = RuntimeOptions { slots: Some(1), threads: Some(1), isa: None };
                let mut forward = model.forward(&options).unwrap();
                forward.poison_cache(0xa5);
                let mut engine = Engine::new(forward, None, vec![]);
                let mut tokens = prompt_of(first);
                let mut turns = whole(first);
                for turn in 0..3 {
                    let given = answer(&mut engine, &tokens, history, ANSWER);
                    let place = format!("elastic {elastic} {first}+{new} {history:?} turn {turn}");
                    assert!(history == History::Incremental || given.usage.history == history);
                    if given.usage.history == History::Exact {
                        turns = whole(tokens.len());
                    }
                    let expected = answer_after(&layouts, &tokens, &turns, ANSWER);
                    assert_eq!(given.ids, expected, "{place}");
                    let rows = tokens.len() + ANSWER - 1;
                    let usage = given.usage;
                    assert_eq!(
                        (usage.kv_rows_kept + usage.kv_rows_dropped) as usize,
                        rows,
                        "{place}"
                    );
                    assert!(usage.reused_tokens as usize <= rows && usage.kv_rows_kept <= 13);
                    if usage.reused_tokens > 0 {
                        reused[usage.history as usize] += 1;
                    }
                    tokens.extend(given.ids);
                    // The last token that was chosen has no row.
                    let rows = tokens.len() - 1;
                    tokens.extend(prompt_of(new));
                    turns.push(rows..tokens.len());
                }
            }
        }
    }
    assert!(reused.into_iter().all(|count| count > 40), "{reused:?}");
}

/// Prompts that share their beginning give what they give alone, whichever slot they find.
#[test]
fn prompts_with_a_common_beginning_agree_with_the_reference() {
    for (elastic, slots) in [(true, 1), (true, 2), (false, 1)] {
        let layouts = layouts(elastic);
        let model = model(&layouts);
        let options = RuntimeOptions { slots: Some(slots), threads: Some(1), isa: None };
        let mut forward = model.forward(&options).unwrap();
        forward.poison_cache(0xa5);
        let mut engine = Engine::new(forward, None, vec![]);
        let mut reused = 0;
        for index in 0..60 {
            let [common, own, count] =
                [5, 3, 3].map(|most| mix(index, most, elastic.into()) % most);
            let mut prompt = prompt_of(30);
            prompt.truncate(3 + common as usize);
            prompt.extend(prompt_of(1 + own as usize));
            let count = 1 + count as usize;
            let given = answer(&mut engine, &prompt, History::Exact, count);
            assert_eq!(given.ids, expected_answer(&layouts, &prompt, count), "prompt {index}");
            reused += given.usage.reused_tokens;
            if index % 10 == 9 {
                // Somebody else writes to the cache.
                engine.model_mut().poison_cache(0x5a);
            }
        }
        // A static cache whose prompts differ in length has them in other places.
        let least = if elastic { 100 } else { 10 };
        assert!(reused > least, "elastic {elastic}, {slots} slots: {reused}");
    }
}

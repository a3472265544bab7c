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
    for (elastic, second) in [(true, 0), (false, 0), (true, 2)] {
        let mut layouts = layouts(elastic);
        for layout in layouts.iter_mut().filter(|layout| layout.selected > 0) {
            (layout.second, layout.second_share) = (second, if second > 0 { 50 } else { 0 });
        }
        let model = model(&layouts);
        for (first, new) in (1..=14).flat_map(|first| [1, 2, 4, 6].map(|new| (first, new))) {
            for history in History::ALL {
                let options = running(1, 1);
                let mut forward = model.forward(&options).unwrap();
                forward.poison_cache(0xa5);
                let mut engine = Engine::new(forward, None, vec![]);
                let mut tokens = prompt_of(first);
                let mut turns = whole(first);
                for turn in 0..3 {
                    let given = answer(&mut engine, &tokens, history, ANSWER);
                    let place = format!(
                        "elastic {elastic}, {second} asked: {first}+{new} {history:?} turn {turn}"
                    );
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
        let options = running(slots, 1);
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

/// An answer that fills its slot goes on as if its last tokens were a prompt behind the rest.
#[test]
fn full_slots_select_their_rows_anew() {
    const ROOM: usize = 5;
    const COUNT: usize = 18;
    let [sinks, capacity, recent, observed] = [2, 3, 4, OBSERVED as usize];
    for elastic in [true, false] {
        let mut layouts = layouts(elastic);
        // A stream drops rows on its own account.
        layouts.remove(2);
        for layout in layouts.iter_mut().filter(|layout| layout.selected > 0) {
            layout.growth = ROOM as u32;
            layout.rows += layout.growth;
            layout.reselect = 1;
        }
        let model = model(&layouts);
        let mut expected = Vec::new();
        for length in 1..=20 {
            let rotary_set = u32::from(length + COUNT - 1 > ROTARY_SWITCH as usize);
            let (mut tokens, mut turns) = (prompt_of(length), whole(length));
            // Rows that the last turn began with and brought.
            let mut begun = length;
            for _ in 0..COUNT {
                let logits = reference(&layouts, &tokens, &turns, rotary_set);
                tokens.push(greedy(logits.last().unwrap()).unwrap());
                let rows = tokens.len() - 1;
                let selected = begun.saturating_sub(sinks + recent).min(capacity);
                let kept = begun.min(sinks + capacity + recent) + rows - turns.last().unwrap().end;
                let room = if elastic { capacity - selected + recent } else { recent } + ROOM;
                if kept.saturating_sub(sinks + selected) == room {
                    turns.push(rows + 1 - observed..rows + 1);
                    begun = kept + 1;
                }
            }
            assert!(turns.len() > 1 + usize::from(length > 9), "{length}: {turns:?}");
            expected.push(tokens.split_off(length));
        }
        for (slots, threads) in [(1, 1), (3, 2), (7, 1)] {
            let options = running(slots, threads);
            let mut forward = model.forward(&options).unwrap();
            forward.poison_cache(0xa5);
            let mut engine = Engine::new(forward, None, vec![]);
            let requests = (1..=20)
                .map(|length| Request {
                    prompt: prompt_of(length),
                    max_tokens: Some(COUNT as u32),
                    ..Request::default()
                })
                .collect();
            let answers = engine.generate(requests).unwrap();
            for (answer, (length, expected)) in answers.iter().zip((1..).zip(&expected)) {
                assert_eq!(answer.ids, *expected, "elastic {elastic} L={length} {slots} slots");
                let usage = answer.usage;
                assert_eq!(
                    (usage.kv_rows_kept + usage.kv_rows_dropped) as usize,
                    length + COUNT - 1
                );
            }
        }
    }
}

//! Prompts that are staged once and taken over by several layouts.

use weir_abi::{CacheLayout, CachePolicy};

use super::{CONTEXT, ROTARY_SWITCH, expected_answer, layout, layouts, model, running};
use super::{VOCABULARY, mix, prompt_of, reference};
use crate::RuntimeError;
use crate::comparison::{Asked, Candidate, Comparison, Passage, surprise};
use crate::forward::Forward;
use crate::sampling::greedy;

const ANSWER: usize = 6;

/// Layouts of the layers of several arms.
fn arms() -> Vec<Vec<CacheLayout>> {
    let window = layout(CachePolicy::Window, false, [0, 0, 0], 4);
    let all = |rows, elastic| {
        let layout = layout(CachePolicy::Snapstream, elastic, rows, 0);
        vec![layout, window, layout, layout, layout]
    };
    let wide = CacheLayout { observed: 1, ..layout(CachePolicy::Snapstream, true, [1, 6, 3], 0) };
    let asking = CacheLayout { second: 3, second_share: 50, ..wide };
    vec![
        layouts(true),
        vec![asking, window, asking, asking, asking],
        layouts(false),
        all([2, 3, 4], true),
        vec![wide, window, wide, wide, wide],
        all([0, 9, 2], false),
    ]
}

fn forward(layouts: &[CacheLayout], slots: u32) -> Forward {
    let options = running(slots, 1);
    let mut forward = model(layouts).forward(&options).unwrap();
    forward.poison_cache(0xa5);
    forward
}

fn candidate(name: &str, forward: Forward) -> Candidate {
    Candidate { name: name.to_owned(), format: "f32".to_owned(), forward }
}

fn comparison(slots: u32) -> Comparison {
    let named = |(index, layouts): (usize, &Vec<CacheLayout>)| {
        candidate(&format!("arm {index}"), forward(layouts, slots))
    };
    Comparison::new(arms().iter().enumerate().map(named).collect(), CONTEXT).unwrap()
}

/// Prompts that begin alike and go on in their own ways, as questions about one document.
fn questions() -> Vec<Asked> {
    let document = prompt_of(19);
    let asked = |(number, length): (usize, usize)| {
        let own = (0..length as u32).map(|i| mix(i, number as u32, 8) % VOCABULARY);
        let prompt = document[..19 - number % 3].iter().copied().chain(own).collect();
        Asked { prompt, max_tokens: ANSWER as u32, ..Asked::default() }
    };
    let short = (1..12).map(|length| {
        let prompt = prompt_of(length);
        Asked { prompt, max_tokens: 2, ..Asked::default() }
    });
    [4, 1, 0, 9, 2, 2, 13].into_iter().enumerate().map(asked).chain(short).collect()
}

#[test]
fn every_arm_answers_as_its_own_model_would() {
    let asked = questions();
    for slots in [1, 3] {
        let mut comparison = comparison(slots);
        let answers = comparison.answer(&asked, &mut |_, _, _| false).unwrap();
        for (asked, answers) in asked.iter().zip(&answers) {
            for (layouts, answer) in arms().iter().zip(answers) {
                let expected = expected_answer(layouts, &asked.prompt, asked.max_tokens as usize);
                assert_eq!(answer.ids, expected, "{} rows, {slots} slots", asked.prompt.len());
            }
        }
        let [first, wide] = [&answers[0][0].rows, &answers[0][4].rows];
        let rows = asked[0].prompt.len() as u32 + ANSWER as u32 - 1;
        assert_eq!((first.kept, first.dropped), (9, rows - 9));
        assert_eq!((wide.kept, wide.dropped), (10, rows - 10));
    }
}

#[test]
fn an_answer_ends_where_the_caller_says() {
    let asked = questions();
    let mut comparison = comparison(2);
    let mut told = vec![vec![Vec::new(); 6]; asked.len()];
    let mut ends = |prompt: usize, arm: usize, token: u32| {
        told[prompt][arm].push(token);
        told[prompt][arm].len() == 2
    };
    let answers = comparison.answer(&asked, &mut ends).unwrap();
    for (told, answers) in told.iter().zip(&answers) {
        for (told, answer) in told.iter().zip(answers) {
            assert_eq!((told, told.len()), (&answer.ids, 2));
        }
    }
}

#[test]
fn an_answer_goes_on_behind_what_is_given() {
    let tokens = prompt_of(31);
    let asked: Vec<Asked> = [(14, 31), (1, 12), (19, 20), (9, 9)]
        .map(|(prompt, end)| Asked {
            prompt: tokens[..prompt].to_vec(),
            begun: tokens[prompt..end].to_vec(),
            max_tokens: 3,
        })
        .to_vec();
    let answers = comparison(3).answer(&asked, &mut |_, _, _| false).unwrap();
    for (asked, answers) in asked.iter().zip(&answers) {
        let prompt = 0..asked.prompt.len();
        let given = asked.prompt.len() + asked.begun.len();
        let rotary_set = u32::from(given + 2 > ROTARY_SWITCH as usize);
        for (layouts, answer) in arms().iter().zip(answers) {
            let mut tokens = [&asked.prompt[..], &asked.begun].concat();
            for _ in 0..3 {
                let logits = reference(layouts, &tokens, std::slice::from_ref(&prompt), rotary_set);
                tokens.push(greedy(logits.last().unwrap()).unwrap());
            }
            assert_eq!(answer.ids, tokens[given..], "{given} rows");
            assert_eq!(answer.rows.kept + answer.rows.dropped, given as u32 + 2);
        }
    }
}

#[test]
fn surprises_are_those_of_the_reference() {
    let tokens: Vec<u32> = prompt_of(31);
    let passages = [(31, 14), (25, 1), (12, 11), (3, 3), (16, 9)];
    let passages = passages.map(|(rows, prompt)| Passage { tokens: &tokens[..rows], prompt });
    let surprises = comparison(3).surprise(&passages).unwrap();
    for (passage, surprises) in passages.iter().zip(&surprises) {
        let rotary_set = u32::from(passage.tokens.len() > ROTARY_SWITCH as usize);
        for (layouts, surprises) in arms().iter().zip(surprises) {
            let logits = reference(
                layouts,
                passage.tokens,
                std::slice::from_ref(&(0..passage.prompt)),
                rotary_set,
            );
            let rows = &logits[passage.prompt - 1..passage.tokens.len() - 1];
            let asked = &passage.tokens[passage.prompt..];
            let expected: Vec<f64> =
                rows.iter().zip(asked).map(|(row, id)| surprise(row, *id)).collect();
            assert_eq!(*surprises, expected, "{} rows", passage.tokens.len());
        }
    }
}

#[test]
fn a_model_without_its_layouts_keeps_every_row() {
    let full = layout(CachePolicy::Full, false, [0, 0, 0], 0);
    let window = CacheLayout { window: 4, ..layout(CachePolicy::Window, false, [0, 0, 0], 4) };
    let compiled = model(&layouts(true));
    let options = running(2, 1);
    let whole = || Forward::keeping_all(compiled.compiled().clone(), &options, 38).unwrap();
    let mut comparison = Comparison::new(vec![candidate("full", whole())], 38).unwrap();
    let asked = questions();
    let answers = comparison.answer(&asked, &mut |_, _, _| false).unwrap();
    for (asked, answers) in asked.iter().zip(&answers) {
        let expected = expected_answer(
            &[full, window, full, full, full],
            &asked.prompt,
            asked.max_tokens as usize,
        );
        assert_eq!(answers[0].ids, expected, "{} rows", asked.prompt.len());
        assert_eq!(answers[0].rows.dropped, 0);
    }
    assert!(comparison.arms()[0].slot_bytes() >= 5 * 38 * 4 * 2);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let arms = || vec![candidate("one", forward(&layouts(true), 1))];
    let error = Comparison::new(arms(), CONTEXT + 1).err().unwrap().to_string();
    assert_eq!(error, format!("one: its context ends after {CONTEXT} rows"));
    let mut comparison = Comparison::new(arms(), CONTEXT).unwrap();
    let mut answer = |prompt: Vec<u32>| {
        let asked = Asked { prompt, max_tokens: 2, ..Asked::default() };
        comparison.answer(&[asked], &mut |_, _, _| false).err()
    };
    assert!(matches!(answer(vec![]), Some(RuntimeError::Request(_))));
    assert!(matches!(answer(vec![VOCABULARY]), Some(RuntimeError::Request(_))));
    assert!(matches!(answer(vec![0; CONTEXT as usize]), Some(RuntimeError::Request(_))));
    assert!(answer(vec![0; CONTEXT as usize - 1]).is_none());
}

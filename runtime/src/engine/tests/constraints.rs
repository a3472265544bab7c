//! Answers that keep to a grammar, alone and in company, guessed ahead and sampled several times.

use std::sync::OnceLock;

use super::*;
use crate::constraint::{Constraint, ConstraintFault, Grammar, Grammars};
use crate::drafts::tests::HalfRight;

/// The end token of models/tales.
const END: u32 = 1;
const MOST: u32 = 3;

/// The fake model over a real vocabulary, with room for long answers and for guesses.
fn model(slots: u32, max_rows: u32) -> FakeModel {
    let mut model = fake(slots, max_rows);
    model.set_vocabulary(TALES_VOCABULARY);
    model.shape.context = 400;
    model.shape.rotary_switch = 390;
    let layout = &mut model.shape.layouts[0];
    layout.in_flight = MOST + 1;
    layout.rows += MOST + 1;
    model
}

fn engine(slots: u32, max_rows: u32) -> Engine<FakeModel> {
    Engine::new(model(slots, max_rows), Some(tales_tokenizer()), vec![END])
}

fn grammar(constraint: &Constraint) -> Grammar {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    let grammars = GRAMMARS
        .get_or_init(|| Grammars::new(&tales_tokenizer(), TALES_VOCABULARY, &[END]).unwrap());
    loop {
        match grammars.read(constraint) {
            Err(crate::ConstraintError::Busy) => {}
            outcome => return outcome.unwrap(),
        }
    }
}

fn regex(expression: &str) -> Option<Grammar> {
    Some(grammar(&Constraint::Regex(expression.into())))
}

/// A request for a pet with a number, cold or warm, with penalties.
fn pet(seed: u64) -> Request {
    Request {
        constraint: regex("(cat|dog|horse) [0-9]{2,4}( and so on)*"),
        ignore_eos: false,
        ..request(seed, 1 + (seed % 9) as u32, 40)
    }
}

fn is_pet(text: &str) -> bool {
    let Some((name, rest)) = text.split_once(' ') else { return false };
    let digits = rest.chars().take_while(char::is_ascii_digit).count();
    let rest = rest[digits..].replace(" and so on", "");
    ["cat", "dog", "horse"].contains(&name) && (2..=4).contains(&digits) && rest.is_empty()
}

#[test]
fn answers_keep_to_their_grammar() {
    let mut engine = engine(3, 16);
    let answers = engine.generate((0..60).map(pet).collect()).unwrap();
    let (mut whole, mut names) = (0, std::collections::BTreeSet::new());
    for answer in &answers {
        if answer.reason == FinishReason::Stop {
            assert!(is_pet(&answer.text), "{:?}", answer.text);
            whole += 1;
        }
        names.extend(answer.text.split(' ').next().map(str::to_owned));
    }
    assert!(whole > 40 && names.len() == 3, "{whole} of 60, {names:?}");
}

#[test]
fn an_answer_ends_where_nothing_can_follow() {
    let mut engine = engine(1, 16);
    let choice = grammar(&Constraint::Choice(vec!["yes".into(), "no".into()]));
    for ignore_eos in [false, true] {
        let request = Request { constraint: Some(choice.clone()), ignore_eos, ..request(3, 4, 20) };
        let answer = engine.generate(vec![request]).unwrap().remove(0);
        assert!(answer.text == "yes" || answer.text == "no", "{answer:?}");
        assert_eq!(answer.reason, FinishReason::Stop);
        // No step was taken for an end token.
        assert!(!answer.ids.contains(&END));
    }
    // An end token is allowed only where the grammar may end.
    let request = Request { constraint: regex("a{7}b*"), ..request(3, 4, 60) };
    let answer = engine.generate(vec![Request { ignore_eos: false, ..request }]).unwrap().remove(0);
    assert!(answer.text.starts_with("aaaaaaa"), "{answer:?}");
    assert!(answer.text[7..].chars().all(|letter| letter == 'b'));
}

#[test]
fn an_answer_that_is_cut_short_is_a_beginning() {
    let request = Request { constraint: regex("(ab){150}"), ..request(1, 4, 5) };
    let answer = engine(1, 16).generate(vec![request]).unwrap().remove(0);
    assert_eq!((answer.reason, answer.ids.len()), (FinishReason::Length, 5));
    assert!("ab".repeat(150).starts_with(&answer.text) && !answer.text.is_empty());
    let request = Request { stop: vec!["babab".into()], ..super::request(1, 4, 80) };
    let request = Request { constraint: regex("(ab){150}"), ..request };
    let answer = engine(1, 16).generate(vec![request]).unwrap().remove(0);
    assert_eq!((answer.reason, answer.text.as_str()), (FinishReason::Stop, "a"));
}

#[test]
fn company_and_guesses_change_no_constrained_answer() {
    let requests: Vec<Request> = (0..24)
        .map(|seed| match seed % 3 {
            0 => Request { ignore_eos: false, ..request(seed, 5, 20) },
            _ => pet(seed),
        })
        .collect();
    let one_by_one = |request: &Request| {
        let answer = engine(1, 16).generate(vec![request.clone()]).unwrap().remove(0);
        (answer.ids, answer.text, answer.reason)
    };
    let expected: Vec<_> = requests.iter().map(one_by_one).collect();
    let known = requests.iter().zip(&expected);
    let known: Vec<Vec<u32>> =
        known.map(|(request, (ids, ..))| [&request.prompt[..], ids].concat()).collect();
    for guesses in [false, true] {
        let mut engine = engine(4, 12);
        if guesses {
            // Half of what it guesses is right, and the rest often breaks the grammar.
            let known = known.clone();
            let drafter = HalfRight { known, vocabulary: TALES_VOCABULARY, seed: 5 };
            engine.guess(MOST, drafter).unwrap();
        }
        let answers = engine.generate(requests.clone()).unwrap();
        let accepted: u32 = answers.iter().map(|answer| answer.usage.accepted_tokens).sum();
        assert_eq!(accepted > 0, guesses);
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(&(answer.ids, answer.text, answer.reason), expected);
        }
    }
}

#[test]
fn samples_each_follow_the_grammar_by_themselves() {
    for slots in [1, 3] {
        let mut engine = engine(slots, 16);
        let ids = engine.submit_samples(pet(4), 5).unwrap();
        let samples = engine.complete(&ids).unwrap();
        for (index, sample) in (0..).zip(samples) {
            let mut alone = pet(4);
            alone.sampling.seed += index;
            let alone = self::engine(1, 16).generate(vec![alone]).unwrap().remove(0);
            assert_eq!((sample.ids, sample.text), (alone.ids, alone.text));
        }
    }
}

#[test]
fn probabilities_are_the_models_own() {
    let first = |constraint: Option<Grammar>| {
        let request = Request { logprobs: Some(4), constraint, ..request(5, 4, 1) };
        let mut engine = engine(1, 16);
        engine.submit(request).unwrap();
        let mut seen = None;
        while engine.step(|_, event| {
            if let Event::Token { logprobs, .. } = event {
                seen = logprobs.cloned();
            }
        }) {}
        seen.unwrap()
    };
    let (free, held) = (first(None), first(regex("[0-9]+")));
    assert_eq!(free.best, held.best);
    assert!(held.chosen < free.best[0].1);
}

#[test]
fn a_grammar_that_asks_too_much_ends_its_own_answer_only() {
    let ambiguous = "start: s\ns: s s s | s s | /[a-z]+/ | \" \"";
    let greedy = Request {
        constraint: Some(grammar(&Constraint::Lark(ambiguous.into()))),
        ignore_eos: true,
        ..request(0, 4, 390)
    };
    let mut engine = engine(2, 16);
    let heavy = engine.submit(greedy).unwrap();
    let light = engine.submit(pet(3)).unwrap();
    let (mut failed, mut finished) = (Vec::new(), Vec::new());
    while engine.step(|id, event| match event {
        Event::Failed(fault) => failed.push((id, fault)),
        Event::Embedding { .. } => panic!("no tokens"),
        Event::Finished { .. } => finished.push(id),
        Event::Token { .. } => {}
    }) {}
    assert_eq!(failed, [(heavy, StepFault::Constraint(ConstraintFault::TooComplex))]);
    assert_eq!(finished, [light]);
}

#[test]
fn a_grammar_of_another_vocabulary_is_refused() {
    let mut engine = Engine::new(fake(1, 16), None, vec![]);
    let request = Request { constraint: regex("a"), ..request(1, 4, 5) };
    let error = engine.submit(request).unwrap_err();
    assert_eq!(
        error,
        RequestError::ForeignGrammar { read_for: TALES_VOCABULARY, vocabulary: VOCABULARY }
    );
}

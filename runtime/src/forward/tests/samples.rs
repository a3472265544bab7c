//! Samples of one prompt, in a cache whose slots have blocks or none: answers are the reference's, and
//! rows that no sample has written are not read.

use super::*;
use crate::SamplingOptions;

/// Positions of a sequence.
const LENGTH: u32 = 160;

/// Layouts with whole tiles in a block, and others.
fn wide(elastic: bool) -> Vec<CacheLayout> {
    let full = layout(CachePolicy::Full, false, [0, 0, 0], 0);
    vec![
        layout(CachePolicy::Snapstream, elastic, [2, 70, 4], 0),
        layout(CachePolicy::Window, false, [0, 0, 0], 4),
        layout(CachePolicy::Stream, elastic, [65, 0, 6], 0),
        CacheLayout { rows: LENGTH, ..full },
        layout(CachePolicy::Snapstream, elastic, [2, 3, 4], 0),
    ]
}

fn engine(model: &Model, [slots, blocks]: [u32; 2], threads: usize) -> Engine<Forward> {
    let options = RuntimeOptions { blocks: Some(blocks), ..running(slots, threads) };
    let mut forward = model.forward(&options).unwrap();
    forward.poison_cache(0xa5);
    Engine::new(forward, None, vec![])
}

fn request(length: usize, temperature: f32) -> Request {
    let seed = length as u64;
    Request {
        prompt: prompt_of(length),
        max_tokens: Some(12),
        sampling: SamplingOptions { temperature, seed, ..SamplingOptions::default() },
        ..Request::default()
    }
}

#[test]
fn samples_in_any_company_agree_with_the_reference() {
    let lengths = [1, 3, 9, 10, 40, 70, 71, 72, 76, 77, 78, 120];
    for elastic in [true, false] {
        let layouts = wide(elastic);
        let model = model(&layouts);
        let greedy: Vec<_> =
            lengths.map(|length| expected_answer(&layouts, &prompt_of(length), 12)).into();
        // Logits of the fake head are some million apart.
        let drawn: Vec<Vec<Vec<u32>>> = lengths
            .map(|length| {
                let mut alone = engine(&model, [1, 1], 1);
                let draw = |sample| {
                    let mut request = request(length, 4e6);
                    request.sampling.seed += sample;
                    alone.generate(vec![request]).unwrap().remove(0).ids
                };
                (0..3).map(draw).collect()
            })
            .into();
        for (places, threads) in [([3, 3], 1), ([3, 1], 2), ([4, 1], 1), ([7, 2], 1), ([5, 4], 2)] {
            let mut engine = engine(&model, places, threads);
            let mut ids = Vec::new();
            for length in lengths {
                ids.push(engine.submit_samples(request(length, 0.0), 2).unwrap());
                ids.push(engine.submit_samples(request(length, 4e6), 3).unwrap());
            }
            let answers = engine.complete(&ids.concat()).unwrap();
            let expected = greedy
                .iter()
                .zip(&drawn)
                .flat_map(|(greedy, drawn)| [greedy, greedy].into_iter().chain(drawn));
            for (index, (answer, expected)) in answers.iter().zip(expected).enumerate() {
                let length = lengths[index / 5];
                let place = format!("elastic {elastic}, L = {length}, {places:?}, {}", index % 5);
                assert_eq!(answer.ids, *expected, "{place}");
            }
        }
        let differs = drawn.iter().filter(|answers| answers[0] != answers[1]).count();
        assert_eq!(differs, lengths.len(), "samples differ");
    }
}

#[test]
fn samples_go_on_behind_an_earlier_request() {
    for elastic in [true, false] {
        let layouts = &wide(elastic)[..4];
        let model = model(layouts);
        // The second prompt fits the caches, or goes on behind rows that do.
        for (first, new) in [(12, 10), (20, 50), (60, 30), (59, 50)] {
            let mut engine = engine(&model, [4, 2], 1);
            let begun = engine.generate(vec![request(first, 0.0)]).unwrap().remove(0);
            let mut prompt = [prompt_of(first), begun.ids].concat();
            prompt.extend(prompt_of(new));
            // As many as run at once.
            let most = engine.model().shape().most_samples(prompt.len() as u32).min(3);
            let request = Request { prompt: prompt.clone(), ..request(first, 4e6) };
            let ids = engine.submit_samples(request.clone(), most).unwrap();
            let answers = engine.complete(&ids).unwrap();
            for (sample, answer) in (0..).zip(&answers) {
                let mut alone = self::engine(&model, [1, 1], 1);
                let mut request = request.clone();
                request.sampling.seed += sample;
                let alone = alone.generate(vec![request]).unwrap().remove(0);
                let place = format!("elastic {elastic}, {first} and {new}, sample {sample}");
                assert_eq!(answer.ids, alone.ids, "{place}");
                let reused = answer.usage.reused_tokens as usize;
                match sample {
                    0 if elastic => assert_eq!(reused, first + 11, "{place}"),
                    0 => assert!(reused < prompt.len(), "{place}"),
                    _ => assert_eq!(reused, prompt.len(), "{place}"),
                }
            }
        }
    }
}

//! The engine over a model without weights: its logits depend on exactly those rows of the cache
//! that the placement says a row reads.

mod constraints;
mod guesses;
mod samples;

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_abi::{CacheLayout, CachePolicy, HeadResult};

use super::*;
use crate::cache::{KeptRows, Placement, Seat};
use crate::error::RequestError;
use crate::forward::{ModelShape, Past, StepFault};
use crate::sampling::SamplingOptions;

const VOCABULARY: u32 = 50;
/// Entries of the tokenizer in models/tales.
const TALES_VOCABULARY: u32 = 2048;
const EOS: u32 = 49;
/// Rows of a tile, of which a block that is shared has a whole number.
const BLOCK: u32 = 64;

struct FakeModel {
    shape: ModelShape,
    /// What lies in (slot, row) of the only layer: token and position.
    cache: BTreeMap<(u32, u32), (u32, u32)>,
    /// The slot whose block the sequence in a slot reads.
    blocks: Vec<u32>,
    long: Option<(Vec<u32>, u32, u32)>,
    tiles: usize,
    /// Rows that were computed.
    rows: usize,
    fail_at: Option<u32>,
}

fn fake(slots: u32, max_rows: u32) -> FakeModel {
    let layout = CacheLayout {
        policy: CachePolicy::Stream as u32,
        elastic: 1,
        sinks: 2,
        selected: 0,
        recent: 14,
        rows: 16,
        window: 0,
        observed: 0,
        pool: 1,
        growth: 0,
        in_flight: 0,
        reservoir: 0,
        reselect: 0,
        redundancy: 0,
        block_rows: 0,
        further: 0,
        first_head: 0,
        second: 0,
        second_share: 0,
    };
    let shape = ModelShape {
        vocabulary: VOCABULARY,
        head_result: HeadResult::Logits,
        head_width: VOCABULARY,
        context: 40,
        max_rows,
        slots,
        blocks: slots,
        hidden_width: 16,
        rotary_switch: 30,
        layouts: vec![layout],
        direct_rows: 16,
    };
    let blocks = (0..slots).collect();
    let cache = BTreeMap::new();
    FakeModel { shape, cache, blocks, long: None, tiles: 0, rows: 0, fail_at: None }
}

impl FakeModel {
    /// Has other tokens.
    fn set_vocabulary(&mut self, vocabulary: u32) {
        self.shape.vocabulary = vocabulary;
        self.shape.head_width = vocabulary;
    }

    /// A prompt begins in a slot, or its copy: what was there is not read any more. Returns 0, the first
    /// row that is written.
    fn begin(&mut self, slot: u32) -> u32 {
        assert!(slot < self.shape.blocks, "a prompt begins in a slot with a block");
        self.blocks[slot as usize] = slot;
        0
    }
}

fn logits_of(rows: impl Iterator<Item = (u32, u32)>, rotary_set: u32, logits: &mut [f32]) {
    let mut hash = u64::from(rotary_set);
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(_, position)| *position);
    for (token, position) in rows {
        hash = (hash ^ (u64::from(token) << 20 | u64::from(position)))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23);
    }
    for (id, logit) in (0_u64..).zip(logits) {
        *logit = ((hash ^ id.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_mul(hash | 1) >> 40)
            as f32
            / 4e6;
    }
}

impl StepModel for FakeModel {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn step(
        &mut self,
        rows: &[StepRow],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        assert!(rows.len() <= self.shape.max_rows as usize);
        if rows.iter().any(|row| Some(row.token) == self.fail_at) {
            return Err(StepFault::TokenOutOfRange { row: 0 });
        }
        self.rows += rows.len();
        for row in rows.iter().filter(|row| row.position == 0) {
            self.begin(row.slot);
        }
        let spans = |row: &StepRow| {
            let seat = Seat { block: self.blocks[row.slot as usize], ring: row.slot };
            Placement::new(&self.shape.layouts[0], row.prompt_rows).spans(seat, row.position)
        };
        let all_spans: Vec<_> = rows.iter().map(spans).collect();
        for (row, spans) in rows.iter().zip(&all_spans) {
            self.cache.insert((spans.write_slot, spans.write_row), (row.token, row.position));
        }
        let logits = logits.chunks_mut(self.shape.vocabulary as usize);
        for (head_row, logits) in head_rows.iter().zip(logits) {
            let spans = &all_spans[*head_row as usize];
            let ranges = &spans.ranges[..spans.range_count as usize];
            let read = ranges.iter().flat_map(|range| {
                (range.first..range.first + range.rows).map(|row| self.cache[&(range.slot, row)])
            });
            logits_of(read, rows[*head_row as usize].rotary_set, logits);
        }
        Ok(())
    }

    fn copy_prompt(&mut self, prompt_rows: u32, from: u32, to: u32) {
        assert_eq!(self.blocks[from as usize], from);
        let shares = self.shape.shares(prompt_rows);
        let layout = &self.shape.layouts[0];
        let block = (layout.sinks + layout.selected) / BLOCK * BLOCK;
        let first = if shares { block } else { self.begin(to) };
        let copied = self.cache.range((from, first)..(from + 1, 0));
        let copied: Vec<_> = copied.map(|((_, row), held)| ((to, *row), *held)).collect();
        self.cache.extend(copied);
        self.blocks[to as usize] = if shares { from } else { to };
    }

    fn kept(&self, _slot: u32, past: Past) -> KeptRows {
        self.shape.kept(past, &[])
    }

    fn reselects(&self, _slot: u32, _past: Past) -> Option<Past> {
        None
    }

    fn begin_prompt(&mut self, prompt: LongPrompt<'_>) {
        assert!(prompt.past.is_none(), "rows are left in no slot that a long prompt can use");
        assert!(prompt.tokens.len() > self.shape.direct_rows as usize);
        self.tiles = 0;
        self.rows += prompt.tokens.len();
        self.begin(prompt.slot);
        self.long = Some((prompt.tokens.to_vec(), prompt.slot, prompt.rotary_set));
    }

    fn advance_prompt(&mut self) -> Result<bool, StepFault> {
        let (tokens, slot, _) = self.long.as_ref().unwrap();
        // Every call is a tile of four rows; the last one writes what is kept.
        self.tiles += 1;
        if 4 * self.tiles < tokens.len() {
            return Ok(false);
        }
        let length = tokens.len() as u32;
        let layout = self.shape.layouts[0];
        let placement = Placement::new(&layout, length);
        for (position, token) in (0..length).zip(tokens) {
            // The first candidates are those that are selected.
            if position < layout.sinks + layout.selected {
                self.cache.insert((*slot, position), (*token, position));
            }
            if position + layout.recent >= length {
                self.cache.insert((*slot, placement.row(position)), (*token, position));
            }
        }
        Ok(true)
    }

    fn prompt_logits(&mut self, first: u32, logits: &mut [f32]) -> Result<(), StepFault> {
        let (tokens, _, rotary_set) = self.long.as_ref().unwrap();
        assert_eq!(first as usize + 1, tokens.len());
        let rows = (0_u32..).zip(tokens).map(|(position, token)| (*token, position));
        logits_of(rows, *rotary_set, logits);
        Ok(())
    }
}

fn request(seed: u64, prompt_rows: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt_rows).map(|i| ((i as u64 * 7 + seed * 13) % 48) as u32).collect(),
        max_tokens: Some(max_tokens),
        sampling: SamplingOptions {
            temperature: if seed.is_multiple_of(3) { 0.0 } else { 0.8 },
            repetition_penalty: 1.1,
            seed,
            ..SamplingOptions::default()
        },
        ignore_eos: seed.is_multiple_of(2),
        ..Request::default()
    }
}

fn alone(request: &Request) -> Completion {
    let mut engine = Engine::new(fake(1, 64), None, vec![EOS]);
    engine.generate(vec![request.clone()]).unwrap().remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_request_gets_the_same_tokens_alone_and_in_company(
        slots in 1..5_u32,
        rows in 1..12_u32,
        shapes in prop::collection::vec((0..5_u64, 1..40_u32, 1..20_u32, 0..6_u32), 1..9),
    ) {
        let mut engine = Engine::new(fake(slots, rows), None, vec![EOS]);
        let mut expected = BTreeMap::new();
        let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (index, (seed, prompt_rows, max_tokens, pause)) in (0..).zip(shapes) {
            // Prompts of one seed begin alike, and would take over rows that they do not find alone.
            let request = request(9 * seed + index, prompt_rows, max_tokens);
            expected.insert(engine.submit(request.clone()).unwrap(), alone(&request));
            for _ in 0..pause {
                engine.step(|id, event| collect(&mut answers, &mut ends, id, event));
            }
        }
        while engine.step(|id, event| collect(&mut answers, &mut ends, id, event)) {}
        for (id, completion) in expected {
            prop_assert_eq!(&answers[&id], &completion.ids);
            prop_assert_eq!(ends[&id], (completion.reason, completion.usage));
        }
    }
}

fn collect(
    answers: &mut BTreeMap<RequestId, Vec<u32>>,
    ends: &mut BTreeMap<RequestId, (FinishReason, Usage)>,
    id: RequestId,
    event: Event<'_>,
) {
    match event {
        Event::Token { token, .. } => answers.entry(id).or_default().push(token),
        Event::Finished { reason, usage, .. } => {
            ends.insert(id, (reason, usage));
        }
        Event::Failed(fault) => panic!("{fault}"),
        Event::Embedding { .. } => panic!("no tokens"),
    }
}

#[test]
fn answers_end_at_the_context_and_count_rows() {
    let request = Request { ignore_eos: true, max_tokens: None, ..request(0, 10, 0) };
    let completion = alone(&request);
    assert_eq!(completion.reason, FinishReason::Length);
    // 40 positions have rows; the last token needs none.
    assert_eq!(completion.ids.len(), 31);
    let expected = Usage {
        prompt_tokens: 10,
        completion_tokens: 31,
        kv_rows_kept: 16,
        kv_rows_dropped: 24,
        ..Usage::default()
    };
    assert_eq!(completion.usage, expected);
}

#[test]
fn end_tokens_end_an_answer_and_stay_in_its_ids() {
    let base = Request { ignore_eos: true, ..request(1, 5, 20) };
    let free = alone(&base);
    let stop = free.ids[3];
    let first = free.ids.iter().position(|id| *id == stop).unwrap();
    let stopped = alone(&Request { stop_tokens: vec![stop], ..base });
    assert_eq!(stopped.ids, free.ids[..=first]);
    assert_eq!(stopped.reason, FinishReason::Stop);
}

#[test]
fn a_fault_ends_the_requests_of_its_step_and_no_others() {
    let mut model = fake(1, 16);
    model.fail_at = Some(48);
    let mut engine = Engine::new(model, None, vec![]);
    let bad = engine.submit(Request { prompt: vec![1, 48], ..Request::default() }).unwrap();
    let good = engine
        .submit(Request { prompt: vec![1], max_tokens: Some(1), ..Request::default() })
        .unwrap();
    let mut seen = Vec::new();
    while engine.step(|id, event| match event {
        Event::Failed(_) => seen.push((id, "failed")),
        Event::Embedding { .. } => panic!("no tokens"),
        Event::Finished { .. } => seen.push((id, "finished")),
        Event::Token { .. } => {}
    }) {}
    assert_eq!(seen, [(bad, "failed"), (good, "finished")]);
}

#[test]
fn a_cancelled_request_is_reported_and_its_slot_is_used_again() {
    let mut engine = Engine::new(fake(1, 16), None, vec![]);
    let first = engine.submit(request(2, 30, 5)).unwrap();
    let second = engine.submit(request(4, 3, 2)).unwrap();
    engine.step(|_, _| {});
    engine.cancel(first);
    let mut reasons = Vec::new();
    while engine.step(|id, event| {
        if let Event::Finished { reason, .. } = event {
            reasons.push((id, reason));
        }
    }) {}
    assert_eq!(reasons, [(first, FinishReason::Cancelled), (second, FinishReason::Length)]);
    assert!(engine.is_idle());
}

#[test]
fn rows_that_a_request_has_left_serve_its_owner_alone() {
    let mut engine = Engine::new(fake(1, 8), None, vec![]);
    let mut reused = |owner| {
        let asked = Request { owner, ..request(1, 6, 2) };
        engine.generate(vec![asked]).unwrap()[0].usage.reused_tokens
    };
    assert_eq!(reused(1), 0);
    assert_eq!(reused(1), 5);
    assert_eq!(reused(2), 0);
    assert_eq!(reused(1), 0);
}

#[test]
fn a_bias_decides_and_probabilities_are_those_before_it() {
    let mut engine = Engine::new(fake(2, 8), None, vec![]);
    let plain = Request { sampling: SamplingOptions::default(), ..request(1, 3, 1) };
    let unbiased = engine.generate(vec![plain.clone()]).unwrap()[0].ids[0];
    let other = if unbiased == 0 { 1 } else { 0 };
    let logit_bias = vec![(other, 1e3)];
    let sampling = SamplingOptions { logit_bias, ..SamplingOptions::default() };
    let biased = Request { sampling, logprobs: Some(1), ..plain };
    engine.submit(biased).unwrap();
    let mut seen = Vec::new();
    while engine.step(|_, event| {
        if let Event::Token { token, logprobs, .. } = event {
            seen.push((token, logprobs.cloned()));
        }
    }) {}
    let (token, logprobs) = seen[0].clone();
    let logprobs = logprobs.unwrap();
    assert_eq!(token, other);
    assert_eq!(logprobs.best[0].0, unbiased);
    assert!(logprobs.chosen <= logprobs.best[0].1);
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let mut engine = Engine::new(fake(1, 16), None, vec![]);
    let mut refuse = |request| engine.submit(request).unwrap_err();
    assert_eq!(refuse(Request::default()), RequestError::Empty);
    let long = Request { prompt: vec![0; 41], ..Request::default() };
    assert_eq!(refuse(long), RequestError::TooLong { rows: 41, context: 40 });
    let unknown = Request { prompt: vec![0, 50], ..Request::default() };
    assert!(matches!(refuse(unknown), RequestError::UnknownToken { index: 1, token: 50, .. }));
    let stop = Request { prompt: vec![0], stop: vec!["x".into()], ..Request::default() };
    assert_eq!(refuse(stop), RequestError::StopWithoutTokenizer);
}

fn tales_tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tales/tokenizer.json");
    let packed = weir_tokenizer::pack(&std::fs::read(path).unwrap()).unwrap();
    Tokenizer::open(packed).unwrap()
}

/// An answer of the fake model in words of a real vocabulary, with its pieces of text.
fn text_answer(tokenizer: &Tokenizer, seed: u64, stop: &[&str]) -> (Vec<String>, Completion) {
    let mut model = fake(2, 8);
    model.set_vocabulary(TALES_VOCABULARY);
    let mut engine = Engine::new(model, Some(tokenizer.clone()), vec![1]);
    let request = Request {
        max_tokens: None,
        ignore_eos: true,
        stop: stop.iter().map(|stop| stop.to_string()).collect(),
        ..request(seed, 6, 0)
    };
    engine.submit(request).unwrap();
    let (mut ids, mut pieces, mut end) = (Vec::new(), Vec::new(), None);
    while engine.step(|_, event| match event {
        Event::Token { token, text, .. } => {
            ids.push(token);
            pieces.push(text.to_owned());
        }
        Event::Finished { text, reason, stop, usage } => {
            pieces.push(text.to_owned());
            end = Some((reason, stop, usage));
        }
        Event::Failed(fault) => panic!("{fault}"),
        Event::Embedding { .. } => panic!("no tokens"),
    }) {}
    let (reason, stop, usage) = end.unwrap();
    let text = pieces.concat();
    (pieces, Completion { ids, text, reason, stop, usage })
}

#[test]
fn pieces_of_text_add_up_to_the_decoded_answer() {
    let tokenizer = tales_tokenizer();
    for seed in 0..40 {
        let (_, answer) = text_answer(&tokenizer, seed, &[]);
        assert_eq!(answer.text, tokenizer.decode(&answer.ids, true));
        assert_eq!(answer.reason, FinishReason::Length);
    }
}

#[test]
fn an_answer_that_goes_on_is_the_rest_of_the_whole_text() {
    // It takes the first space from a text, as tokenizers of the Llama 2 kind do.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tokenizer/tests/data/mistral/tokenizer.json");
    let packed = weir_tokenizer::pack(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = Tokenizer::open(packed).unwrap();
    let prompt = tokenizer.encode("Once upon a time", true).unwrap();
    let begin = tokenizer.decode(&prompt, true);
    let mut spaces = 0;
    for seed in 0..60 {
        let answer = |goes_on| {
            let mut model = fake(2, 8);
            model.set_vocabulary(tokenizer.vocabulary());
            let mut engine = Engine::new(model, Some(tokenizer.clone()), vec![]);
            let prompt = prompt.clone();
            let request = Request { prompt, goes_on, ..request(3 * seed + 1, 1, 1) };
            engine.generate(vec![request]).unwrap().remove(0)
        };
        let (turn, rest) = (answer(false), answer(true));
        assert_eq!(turn.ids, rest.ids);
        assert_eq!(turn.text, tokenizer.decode(&turn.ids, true));
        let whole = tokenizer.decode(&[&prompt[..], &rest.ids].concat(), true);
        assert_eq!(format!("{begin}{}", rest.text), whole);
        spaces += usize::from(rest.text.starts_with(' '));
    }
    assert!(spaces > 0, "no answer begins with a space");
}

#[test]
fn text_ends_before_a_stop_string_wherever_it_lies() {
    let tokenizer = tales_tokenizer();
    for seed in 0..10 {
        let (_, free) = text_answer(&tokenizer, seed, &[]);
        let characters: Vec<usize> = free.text.char_indices().map(|(start, _)| start).collect();
        // Strings of five characters begin and end inside tokens and span several.
        for window in characters.windows(6).step_by(3) {
            let stop = &free.text[window[0]..window[5]];
            let first = free.text.find(stop).unwrap();
            let (pieces, answer) = text_answer(&tokenizer, seed, &["\u{1}never", stop]);
            assert_eq!(answer.text, free.text[..first], "{stop:?}");
            assert_eq!((answer.reason, answer.stop), (FinishReason::Stop, Some(1)));
            assert!(free.ids.starts_with(&answer.ids));
            assert!(
                pieces
                    .iter()
                    .all(|piece| !piece.contains('\u{fffd}') || free.text.contains('\u{fffd}'))
            );
        }
    }
}

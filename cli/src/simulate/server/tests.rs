//! Simulated servers against what queueing theory says of them, and what every simulation keeps.

use proptest::prelude::*;
use weir_runtime::command::bench::steps::CacheRows;

use super::*;
use crate::simulate::lengths::Lengths;
use crate::simulate::source::Sizes;
use crate::traffic::Draws;
use crate::traffic::arrivals::{Arrival, Bounds, Random, Wanted};

/// A server of steps that take 10 ms, whatever they do.
fn server(slots: u32, queue: u32) -> Server {
    let shape = StepShape {
        slots,
        step_rows: 8,
        context: 256,
        direct_rows: 256,
        hidden_width: 16,
        caches: vec![CacheRows { layers: 2, rows: 256, window: 0 }],
    };
    let costs = StepCosts { step: 0.01, ..StepCosts::default() };
    let queue = QueueLimit::new(slots, Some(queue));
    Server { shape, costs, slots, queue, queue_timeout: None, request_timeout: None }
}

fn sizes(prompts: Lengths, answers: Lengths) -> Sizes {
    Sizes { prompts, answers, dataset: None, draws: Draws::new(1, 0) }
}

/// Serves prompts of a row at these times.
fn serve(server: &Server, times: &[f64], answers: Lengths) -> (Sent, Utilisation) {
    let mut sizes = sizes(Lengths::Same(1), answers);
    let arrivals = times.iter().map(|at| Arrival { at: *at, ..Arrival::default() });
    server.serve(Source::open(arrivals, &mut sizes)).expect("it ends")
}

fn poisson(rate: f64, count: usize) -> Vec<f64> {
    let bounds = Bounds { requests: Some(count), seconds: None };
    Random::new(rate, 1.0, bounds, Draws::new(11, 1)).map(|arrival| arrival.at).collect()
}

fn answers(sent: &Sent) -> Vec<&Answer> {
    sent.outcomes.iter().filter_map(|outcome| outcome.answer.as_ref().ok()).collect()
}

fn status(sent: &Sent, kind: Kind) -> usize {
    let failures = sent.outcomes.iter().filter_map(|outcome| outcome.answer.as_ref().err());
    failures.filter(|failed| failed.kind == kind).count()
}

/// The wait of a request is that of the one before it and its service, less the time between both
/// arrivals (Lindley, 1952): four steps serve a prompt of a row and four tokens.
#[test]
fn one_slot_makes_everybody_wait_as_lindley_says() {
    let times = poisson(20.0, 3000);
    let (sent, utilisation) = serve(&server(1, 1 << 20), &times, Lengths::Same(4));
    let (mut wait, mut before) = (0.0_f64, 0.0);
    assert_eq!(answers(&sent).len(), times.len());
    for (answer, at) in answers(&sent).into_iter().zip(&times) {
        wait = (wait + 0.04 - (at - before)).max(0.0) * f64::from(u8::from(before > 0.0));
        before = *at;
        let first = answer.first.expect("a token");
        // Sums of 12,000 steps in another order.
        assert!((first - wait - 0.01).abs() < 1e-8, "at {at}: {first}, wait {wait}");
        assert!((answer.seconds - wait - 0.04).abs() < 1e-8);
        assert!(answer.gaps.len() == 3 && answer.gaps.iter().all(|gap| (gap - 0.01).abs() < 1e-8));
    }
    assert!((utilisation.busy - 0.04 * times.len() as f64).abs() < 1e-6);
    assert_eq!(utilisation.steps, 4 * times.len() as u64);
}

/// The mean wait of an M/D/1 queue is ρ · S / (2 · (1 - ρ)) (Pollaczek and Khinchine, 1930 and 1932). Waits
/// depend on each other, so the standard error is that of means of 500 in a row, which hardly do; a right
/// simulation is more than five of them off with 6 seeds of 10 million.
#[test]
fn poisson_arrivals_wait_as_pollaczek_and_khinchine_say() {
    for load in [0.3, 0.6] {
        let service = 0.02;
        let times = poisson(load / service, 30_000);
        let (sent, _) = serve(&server(1, 1 << 20), &times, Lengths::Same(2));
        let waits: Vec<f64> =
            answers(&sent).iter().map(|answer| answer.seconds - service).collect();
        let parts: Vec<f64> =
            waits.chunks(500).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
        let count = parts.len() as f64;
        let mean = parts.iter().sum::<f64>() / count;
        let variance = parts.iter().map(|part| (part - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let error = 5.0 * (variance / count).sqrt();
        let expected = load * service / (2.0 * (1.0 - load));
        assert!((mean - expected).abs() < error, "load {load}: {mean} for {expected} ± {error}");
        assert!(error < 0.15 * expected, "load {load}: ± {error} would prove nothing");
    }
}

#[test]
fn what_the_queue_has_no_place_for_is_refused() {
    let (sent, utilisation) = serve(&server(1, 2), &[0.0; 10], Lengths::Same(2));
    assert_eq!((status(&sent, Kind::Status(429)), utilisation.refused), (7, 7));
    assert_eq!(answers(&sent).len(), 3);
    // Two places are free again when the second of three has ended.
    let times = [0.0, 0.0, 0.0, 0.045, 0.045, 0.045];
    let (sent, _) = serve(&server(1, 2), &times, Lengths::Same(2));
    assert_eq!((answers(&sent).len(), status(&sent, Kind::Status(429))), (5, 1));
}

#[test]
fn requests_whose_time_is_over_free_their_places() {
    let mut timed = server(1, 8);
    timed.queue_timeout = Some(0.05);
    let (sent, _) = serve(&timed, &[0.0, 0.0, 0.2], Lengths::Same(10));
    assert_eq!((answers(&sent).len(), status(&sent, Kind::Status(503))), (2, 1));
    timed.request_timeout = Some(0.055);
    let (sent, _) = serve(&timed, &[0.0], Lengths::Same(10));
    assert_eq!(status(&sent, Kind::Stream), 1, "an answer that has begun breaks off");
    timed.queue_timeout = None;
    let (sent, _) = serve(&timed, &[0.0, 0.0], Lengths::Same(10));
    assert_eq!(status(&sent, Kind::Status(504)), 1, "one that has not begun has a status");
    assert!((sent.seconds - 0.06).abs() < 1e-9, "{}", sent.seconds);
}

#[test]
fn long_prompts_run_tile_by_tile_beside_the_others() {
    let mut long = server(2, 4);
    long.shape.direct_rows = 32;
    long.costs = StepCosts { step: 0.01, tile: 1.0, ..StepCosts::default() };
    let arrival = |tokens| Arrival {
        prompt: Wanted::Tokens(tokens),
        max_tokens: Some(20),
        ..Arrival::default()
    };
    let mut sizes = sizes(Lengths::Same(1), Lengths::Same(1));
    let arrivals = [arrival(40), arrival(1)].into_iter();
    let (sent, utilisation) = long.serve(Source::open(arrivals, &mut sizes)).expect("it ends");
    // Five tiles of eight rows in each of two layers; the other decodes a token beside each of them.
    assert_eq!(utilisation.tiles, 10);
    let answers = answers(&sent);
    let first = |rows| {
        let of_rows = |answer: &&&Answer| answer.prompt_tokens == Some(rows);
        answers.iter().find(of_rows).and_then(|answer| answer.first).unwrap_or(f64::NAN)
    };
    assert!((first(1) - 0.01).abs() < 1e-9);
    assert!((first(40) - 10.1).abs() < 1e-9, "{}", first(40));
}

#[test]
fn a_closed_loop_keeps_as_many_under_way() {
    let mut sizes = sizes(Lengths::Same(1), Lengths::Same(3));
    let bounds = Bounds { requests: Some(20), seconds: None };
    let served = server(4, 0).serve(Source::closed(4, bounds, &mut sizes));
    let (sent, utilisation) = served.expect("it ends");
    assert_eq!((answers(&sent).len(), sent.most_at_once), (20, 4));
    // Four at a time, three steps each.
    assert_eq!(utilisation.steps, 15);
    assert!((utilisation.slot_seconds - 4.0 * utilisation.busy).abs() < 1e-9);
}

/// Prompts that are too long are refused and asked for again at once: where none fits, a number of requests
/// ends the loop, and a time cannot.
#[test]
fn a_closed_loop_of_prompts_beyond_the_context_ends() {
    let serve = |prompts, bounds| {
        let mut sizes = sizes(prompts, Lengths::Same(3));
        server(4, 0).serve(Source::closed(2, bounds, &mut sizes))
    };
    let counted = Bounds { requests: Some(20_000), seconds: Some(1.0) };
    let (sent, _) = serve(Lengths::Same(257), counted).expect("it ends");
    assert_eq!((status(&sent, Kind::Status(400)), answers(&sent).len()), (20_000, 0));
    let timed = Bounds { requests: None, seconds: Some(1.0) };
    let error = serve(Lengths::Same(257), timed).expect_err("no time passes").to_string();
    assert!(
        error.starts_with("request 10001 has a prompt of 257 tokens, and the context is 256"),
        "{error}"
    );
    // Some fit, so time passes: a thousand steps of eight rows.
    let timed = Bounds { requests: None, seconds: Some(10.0) };
    let (sent, _) = serve(Lengths::Between(200, 300), timed).expect("it ends");
    assert!(answers(&sent).len() > 20 && status(&sent, Kind::Status(400)) > 20);
}

/// Where a request comes to its turn that arrives behind six of key `a`.
fn turn(key: &str, priority: i32) -> Option<usize> {
    let asked = |key: &str, tokens, priority| Arrival {
        prompt: Wanted::Tokens(tokens),
        key: Some(key.to_owned()),
        priority: Some(priority),
        ..Arrival::default()
    };
    let mut arrivals = vec![asked("a", 1, 0); 6];
    arrivals.push(asked(key, 2, priority));
    let mut sizes = sizes(Lengths::Same(1), Lengths::Same(3));
    let served = server(1, 8).serve(Source::open(arrivals.into_iter(), &mut sizes));
    let (sent, _) = served.expect("it ends");
    answers(&sent).iter().position(|answer| answer.prompt_tokens == Some(2))
}

#[test]
fn keys_take_turns_and_priorities_come_first() {
    assert_eq!(
        [turn("a", 0), turn("b", 0), turn("a", -1), turn("b", 1)].map(Option::unwrap),
        [6, 1, 0, 6]
    );
}

#[derive(Clone, Debug)]
struct Case {
    slots: u32,
    queue: u32,
    rows: u32,
    direct: u32,
    queue_timeout: Option<f64>,
    request_timeout: Option<f64>,
    arrivals: Vec<Arrival>,
}

fn case() -> impl Strategy<Value = Case> {
    let arrival = (0.0..0.5_f64, 1..300_u32, 1..40_u32, 0..3_u32, -1..2_i32).prop_map(
        |(at, rows, tokens, key, priority)| Arrival {
            at,
            prompt: Wanted::Tokens(rows),
            max_tokens: Some(tokens),
            key: (key > 0).then(|| key.to_string()),
            priority: Some(priority),
        },
    );
    let times = (prop::option::of(0.01..1.0_f64), prop::option::of(0.01..2.0_f64));
    let limits = (1..5_u32, 0..6_u32, 1..20_u32, 20..256_u32);
    (limits, times, prop::collection::vec(arrival, 1..40)).prop_map(
        |((slots, queue, rows, direct), (queue_timeout, request_timeout), mut arrivals)| {
            arrivals.sort_by(|one, other| one.at.total_cmp(&other.at));
            Case { slots, queue, rows, direct, queue_timeout, request_timeout, arrivals }
        },
    )
}

proptest! {
    /// Every request is answered or refused once; an answer has the tokens that were asked for, at times
    /// that follow each other; nobody does more at once than there are places.
    #[test]
    fn every_request_ends_once_and_tokens_are_kept(case in case()) {
        let mut one = server(case.slots, case.queue);
        one.shape.step_rows = case.rows;
        one.shape.direct_rows = case.direct;
        one.queue_timeout = case.queue_timeout;
        one.request_timeout = case.request_timeout;
        one.costs = StepCosts { step: 1e-3, decode_row: 1e-4, prompt_row: 2e-5, tile: 1e-4, ..StepCosts::default() };
        let mut sizes = sizes(Lengths::Same(1), Lengths::Same(1));
        let served = one.serve(Source::open(case.arrivals.iter().cloned(), &mut sizes));
        let (sent, utilisation) = served.expect("it ends");
        prop_assert_eq!(sent.outcomes.len(), case.arrivals.len());
        let mut wanted: Vec<(u32, u32)> = Vec::new();
        for arrival in &case.arrivals {
            if let Wanted::Tokens(rows) = arrival.prompt && rows <= one.shape.context {
                let room = one.shape.context - rows + 1;
                wanted.push((rows, arrival.max_tokens.unwrap_or(0).min(room)));
            }
        }
        let mut tokens = 0;
        let mut prompts = 0;
        for answer in answers(&sent) {
            let got = (answer.prompt_tokens.unwrap_or(0) as u32, answer.tokens() as u32);
            let place = wanted.iter().position(|wanted| *wanted == got);
            prop_assert!(place.is_some(), "nobody asked for {got:?}");
            wanted.swap_remove(place.unwrap_or(0));
            prop_assert_eq!(answer.chunks(), answer.tokens());
            let first = answer.first.unwrap_or(-1.0);
            prop_assert!(first > 0.0 && answer.gaps.iter().all(|gap| *gap > 0.0));
            let sum = first + answer.gaps.iter().sum::<f64>();
            prop_assert!((sum - answer.seconds).abs() < 1e-9);
            tokens += answer.tokens();
            prompts += if got.0 > case.direct { 0 } else { u64::from(got.0) };
        }
        // The first token comes with the prompt, the others take a row each; who went early did some, too.
        let all_ended = answers(&sent).len() + status(&sent, Kind::Status(429)) + status(&sent, Kind::Status(400));
        let decoded = tokens - answers(&sent).len() as u64;
        if all_ended == case.arrivals.len() {
            prop_assert_eq!((utilisation.decode_rows, utilisation.prompt_rows), (decoded, prompts));
        } else {
            prop_assert!(utilisation.decode_rows >= decoded && utilisation.prompt_rows >= prompts);
        }
        if case.queue_timeout.is_none() && case.request_timeout.is_none() {
            prop_assert_eq!(all_ended, case.arrivals.len(), "nothing fails but what is refused");
        }
        prop_assert_eq!(status(&sent, Kind::Status(429)) as u64, utilisation.refused);
        prop_assert!(utilisation.slot_seconds <= f64::from(case.slots) * utilisation.busy + 1e-9);
        prop_assert!(utilisation.busy <= sent.seconds + 1e-9);
        // The same again gives the same again.
        let served = one.serve(Source::open(case.arrivals.iter().cloned(), &mut sizes));
        let (again, _) = served.expect("it ends");
        prop_assert_eq!(again.seconds.to_bits(), sent.seconds.to_bits());
    }
}

//! Properties of every schedule, over random arrivals and departures.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Arrival {
    step: u32,
    prompt_rows: u32,
    new_tokens: u32,
    long_tiles: u32,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (0..30_u32, 1..70_u32, 1..12_u32, 1..9_u32).prop_map(
        |(step, prompt_rows, new_tokens, long_tiles)| Arrival {
            step,
            prompt_rows,
            new_tokens,
            long_tiles,
        },
    )
}

fn first_free(_: SequenceId, free: &[u32]) -> Admission {
    Admission { slot: free[0], done: 0 }
}

#[derive(Default)]
struct Progress {
    rows: u32,
    tokens: u32,
    tiles: u32,
    slot: Option<u32>,
}

proptest! {
    #[test]
    fn every_schedule_keeps_its_promises(
        slots in 1..5_u32,
        rows in 1..16_u32,
        direct_rows in 1..70_u32,
        guesses in 0..4_u32,
        mut arrivals in prop::collection::vec(arrival(), 1..14),
    ) {
        arrivals.sort_by_key(|arrival| arrival.step);
        let limits = SchedulerLimits { slots, blocks: slots, rows, direct_rows };
        let mut scheduler = Scheduler::new(limits);
        let mut progress: BTreeMap<SequenceId, Progress> = BTreeMap::new();
        let mut first_seen = Vec::new();
        // Who decodes, and since when without a row.
        let mut decoding: BTreeMap<SequenceId, u32> = BTreeMap::new();
        let mut plan = StepPlan::default();
        let mut submitted = 0;
        let mut step = 0;
        loop {
            while submitted < arrivals.len() && arrivals[submitted].step <= step {
                scheduler.submit(submitted as u64, arrivals[submitted].prompt_rows);
                submitted += 1;
            }
            scheduler.plan(&mut plan, first_free);
            let unguessed = plan.clone();
            scheduler.guess(&mut plan, |sequence| {
                let more = arrivals[sequence as usize].new_tokens - progress[&sequence].tokens - 1;
                guesses.min(more)
            });
            for (rows, before) in plan.rows.iter().zip(&unguessed.rows) {
                prop_assert!(rows.guesses == 0 || decoding.contains_key(&rows.sequence));
                let alone = PlannedRows { rows: rows.rows - rows.guesses, guesses: 0, ..*rows };
                prop_assert_eq!(alone, *before, "guesses displace nothing");
            }
            prop_assert!(plan.rows.iter().map(|rows| rows.rows).sum::<u32>() <= limits.rows);
            let one_by_one = unguessed.decoding as u32;
            let of_prompts = unguessed.rows.iter().map(|rows| rows.rows).sum::<u32>() - one_by_one;
            let remaining = limits.rows - one_by_one;
            let as_long = limits.rows.saturating_sub(3 * one_by_one);
            let kept = rows.div_ceil(8);
            prop_assert!(
                of_prompts <= as_long.max(remaining.div_ceil(2)).max(kept),
                "those who decode wait for no more than a step of prompts, or for half of it"
            );
            prop_assert!(!plan.is_empty() || scheduler.is_idle());
            let planned: BTreeSet<_> = plan.rows.iter().map(|rows| rows.sequence).collect();
            prop_assert_eq!(planned.len(), plan.rows.len(), "a sequence occurs once in a step");
            for (sequence, last) in &mut decoding {
                if planned.contains(sequence) {
                    *last = step;
                }
                let turns = match rows - kept {
                    0 => 2 * slots,
                    others if slots <= others => 0,
                    others => slots.div_ceil(others) + 1,
                };
                prop_assert!(step - *last <= turns, "everybody who decodes gets a row soon");
            }
            let mut held = BTreeSet::new();
            for (sequence, slot) in plan.rows.iter().map(|rows| (rows.sequence, rows.slot))
                .chain(plan.tile.iter().map(|tile| (tile.sequence, tile.slot)))
            {
                prop_assert!(slot < limits.slots);
                prop_assert!(held.insert(slot), "no slot serves two sequences");
                let entry = progress.entry(sequence).or_default();
                prop_assert!(entry.slot.is_none_or(|before| before == slot));
                if entry.slot.replace(slot).is_none() {
                    first_seen.push(sequence);
                }
            }
            let mut done = Vec::new();
            for rows in &plan.rows {
                let arrival = &arrivals[rows.sequence as usize];
                let entry = progress.entry(rows.sequence).or_default();
                prop_assert_eq!(rows.first, entry.rows, "rows follow each other");
                prop_assert!(rows.rows >= 1);
                // Some guesses were right.
                let right = rows.guesses.min(step % 4);
                entry.rows += rows.rows - rows.guesses + right;
                prop_assert_eq!(rows.samples, entry.rows >= arrival.prompt_rows);
                if rows.samples {
                    decoding.insert(rows.sequence, step);
                    entry.tokens += 1 + right;
                    scheduler.keep(rows.sequence, right);
                    if entry.tokens == arrival.new_tokens {
                        done.push(rows.sequence);
                    }
                }
            }
            if let Some(tile) = plan.tile {
                let arrival = &arrivals[tile.sequence as usize];
                let entry = progress.entry(tile.sequence).or_default();
                prop_assert!(arrival.prompt_rows > limits.direct_rows);
                prop_assert_eq!(tile.starts, entry.tiles == 0);
                entry.tiles += 1;
                if entry.tiles == arrival.long_tiles {
                    entry.rows = arrival.prompt_rows;
                    scheduler.finish_long_prompt(tile.sequence);
                    decoding.insert(tile.sequence, step);
                    entry.tokens = 1;
                    if arrival.new_tokens == 1 {
                        done.push(tile.sequence);
                    }
                }
            }
            for sequence in done {
                decoding.remove(&sequence);
                let held = scheduler.remove(sequence).map(|held| held.slot);
                prop_assert_eq!(held, progress[&sequence].slot);
            }
            step += 1;
            prop_assert!(step < 100_000, "every sequence ends");
            if submitted == arrivals.len() && scheduler.is_idle() {
                break;
            }
        }
        for (sequence, arrival) in arrivals.iter().enumerate() {
            prop_assert_eq!(progress[&(sequence as u64)].tokens, arrival.new_tokens);
        }
        // Long prompts hold their slot before their first tile, so only the direct ones show
        // admission order, and only where the budget reached them in it.
        let longs: Vec<_> = first_seen.iter().copied()
            .filter(|s| arrivals[*s as usize].prompt_rows > limits.direct_rows).collect();
        let directs: Vec<_> = first_seen.iter().copied()
            .filter(|s| arrivals[*s as usize].prompt_rows <= limits.direct_rows).collect();
        prop_assert!(longs.is_sorted() && directs.is_sorted(), "first come, first served");
    }
}

/// Rows of a prompt beside so many sequences that decode.
fn prompt_rows_beside(decoding: u32) -> u32 {
    let limits = SchedulerLimits { slots: 200, blocks: 200, rows: 128, direct_rows: 1000 };
    let mut scheduler = Scheduler::new(limits);
    let mut plan = StepPlan::default();
    (0..decoding).for_each(|sequence| scheduler.submit(sequence.into(), 1));
    while plan.decoding < decoding as usize {
        scheduler.plan(&mut plan, first_free);
    }
    scheduler.submit(decoding.into(), 1000);
    scheduler.plan(&mut plan, first_free);
    plan.rows[plan.decoding..].iter().map(|rows| rows.rows).sum()
}

#[test]
fn a_step_with_sequences_that_decode_takes_no_longer_than_one_of_prompts() {
    let beside = [0, 1, 16, 25, 26, 64, 112, 127, 128].map(prompt_rows_beside);
    assert_eq!(beside, [128, 125, 80, 53, 51, 32, 16, 16, 16]);
}

#[test]
fn prompts_go_on_where_more_sequences_decode_than_a_step_has_rows() {
    for rows in [1, 2, 4] {
        let limits = SchedulerLimits { slots: 9, blocks: 9, rows, direct_rows: 100 };
        let mut scheduler = Scheduler::new(limits);
        let mut plan = StepPlan::default();
        (0..8).for_each(|sequence| scheduler.submit(sequence, 1));
        while scheduler.running.iter().filter(|running| !running.phase.is_prompt()).count() < 8 {
            scheduler.plan(&mut plan, first_free);
        }
        scheduler.submit(8, 5);
        let mut decoded = 0;
        // A row of it in each step, or in each second one; those who decode have what is left.
        let steps_of_row = if rows == 1 { 2 } else { 1 };
        for row in 0..5 {
            let mut computed = Vec::new();
            for _ in 0..steps_of_row {
                scheduler.plan(&mut plan, first_free);
                let of_prompt = plan.rows.iter().filter(|planned| planned.sequence == 8);
                computed.extend(of_prompt.map(|planned| (planned.first, planned.rows)));
                decoded += plan.decoding as u32;
            }
            assert_eq!(computed, [(row, 1)]);
        }
        assert_eq!(decoded, 5 * (steps_of_row * rows - 1));
    }
}

/// Rows of each step that prompts of so many rows are computed in, behind each other in a step.
fn steps_of_prompts(prompts: &[u32]) -> Vec<Vec<u32>> {
    let limits = SchedulerLimits { slots: 9, blocks: 9, rows: 128, direct_rows: 1000 };
    let mut scheduler = Scheduler::new(limits);
    let mut plan = StepPlan::default();
    for (id, rows) in prompts.iter().enumerate() {
        scheduler.submit(id as u64, *rows);
    }
    let mut steps = Vec::new();
    while !scheduler.is_idle() {
        scheduler.plan(&mut plan, first_free);
        steps.push(plan.rows.iter().map(|rows| rows.rows).collect());
        for rows in plan.rows.iter().filter(|rows| rows.samples) {
            scheduler.remove(rows.sequence);
        }
    }
    steps
}

#[test]
fn the_last_prompt_leaves_no_step_of_a_few_rows() {
    assert_eq!(steps_of_prompts(&[128]), [[128]]);
    assert_eq!(steps_of_prompts(&[129]), [[80], [49]]);
    assert_eq!(steps_of_prompts(&[300]), [[112], [96], [92]]);
    assert_eq!(steps_of_prompts(&[1000])[7], [104]);
    // Whoever is waited for has all rows there are.
    assert_eq!(steps_of_prompts(&[129, 129]), [vec![128], vec![1, 80], vec![49]]);
}

#[test]
fn a_cancelled_sequence_gives_its_slot_back() {
    let mut scheduler =
        Scheduler::new(SchedulerLimits { slots: 1, blocks: 1, rows: 4, direct_rows: 100 });
    scheduler.submit(1, 10);
    scheduler.submit(2, 3);
    let mut plan = StepPlan::default();
    scheduler.plan(&mut plan, first_free);
    assert_eq!(plan.rows.len(), 1);
    assert_eq!(scheduler.waiting(), 1);
    assert_eq!(scheduler.remove(1), Some(Held { slot: 0, block: 0 }));
    scheduler.plan(&mut plan, first_free);
    assert_eq!(plan.rows[0].sequence, 2);
    assert!(plan.rows[0].samples);
    assert_eq!(scheduler.remove(7), None);
}

#[test]
fn a_sequence_that_decodes_may_become_a_long_prompt_and_decodes_on() {
    let mut scheduler =
        Scheduler::new(SchedulerLimits { slots: 2, blocks: 2, rows: 8, direct_rows: 8 });
    scheduler.submit(0, 3);
    scheduler.submit(1, 2);
    let mut plan = StepPlan::default();
    scheduler.plan(&mut plan, first_free);
    let slot = scheduler.held(0).unwrap().slot;
    scheduler.reselect(0, 12);
    for starts in [true, false] {
        scheduler.plan(&mut plan, first_free);
        assert_eq!(plan.tile, Some(PlannedTile { sequence: 0, slot, starts }));
        assert!(plan.rows.iter().all(|rows| rows.sequence == 1), "{plan:?}");
    }
    scheduler.finish_long_prompt(0);
    scheduler.plan(&mut plan, first_free);
    let next = PlannedRows { sequence: 0, slot, first: 12, rows: 1, samples: true, guesses: 0 };
    assert!(plan.tile.is_none() && plan.rows.contains(&next), "{plan:?}");
    assert_eq!(scheduler.held(7), None);
}

fn turn(owner: u32, priority: i32) -> Turn {
    Turn { owner, priority }
}

/// Runs steps; every sequence decodes `tokens` tokens and goes. Tells the order of admission.
fn admitted_in_order(scheduler: &mut Scheduler, tokens: u32) -> Vec<SequenceId> {
    let mut admitted = Vec::new();
    let mut decoded: BTreeMap<SequenceId, u32> = BTreeMap::new();
    let mut plan = StepPlan::default();
    while !scheduler.is_idle() {
        scheduler.plan(&mut plan, |sequence, free| {
            admitted.push(sequence);
            Admission { slot: free[0], done: 0 }
        });
        for rows in plan.rows.iter().filter(|rows| rows.samples) {
            let decoded = decoded.entry(rows.sequence).or_default();
            *decoded += 1;
            if *decoded == tokens {
                scheduler.remove(rows.sequence);
            }
        }
    }
    admitted
}

#[test]
fn nobody_waits_behind_all_requests_of_somebody_else() {
    let mut scheduler =
        Scheduler::new(SchedulerLimits { slots: 1, blocks: 1, rows: 8, direct_rows: 100 });
    for id in 0..6 {
        scheduler.submit_samples(id, 10, Vec::new(), true, turn(1, 0));
    }
    scheduler.submit_samples(6, 10, Vec::new(), true, turn(2, 0));
    scheduler.submit_samples(7, 10, Vec::new(), true, turn(2, 0));
    // The first comes first, as nobody has been served; then the two take turns.
    assert_eq!(admitted_in_order(&mut scheduler, 3), [0, 6, 1, 7, 2, 3, 4, 5]);
    // Whoever asks for the first time does not come before all others until it has been served as much.
    for (id, owner) in [(8, 1), (9, 1), (10, 3), (11, 3)] {
        scheduler.submit_samples(id, 10, Vec::new(), true, turn(owner, 0));
    }
    assert_eq!(admitted_in_order(&mut scheduler, 3), [8, 10, 9, 11]);
}

#[test]
fn lower_priorities_come_first_and_are_computed_first() {
    let mut scheduler =
        Scheduler::new(SchedulerLimits { slots: 3, blocks: 3, rows: 4, direct_rows: 100 });
    for (id, priority) in [(0, 5), (1, 0), (2, 5), (3, -1)] {
        scheduler.submit_samples(id, 4, Vec::new(), true, turn(id as u32, priority));
    }
    let mut plan = StepPlan::default();
    let mut firsts = Vec::new();
    for _ in 0..3 {
        scheduler.plan(&mut plan, first_free);
        firsts.extend(plan.rows.iter().filter(|rows| rows.first == 0).map(|rows| rows.sequence));
        plan.rows.iter().filter(|rows| rows.samples).for_each(|rows| {
            scheduler.remove(rows.sequence);
        });
    }
    assert_eq!(firsts, [3, 1, 0]);
}

proptest! {
    #[test]
    fn owners_who_always_wait_are_served_alike(
        slots in 1..4_u32,
        rows in 1..12_u32,
        sizes in prop::collection::vec((1..20_u32, 1..20_u32), 2..4),
    ) {
        let mut scheduler =
            Scheduler::new(SchedulerLimits { slots, blocks: slots, rows, direct_rows: 100 });
        // Owner i asks with prompts of sizes[i].0 rows for sizes[i].1 tokens, and always has requests left.
        let owners = sizes.len() as u64;
        let requests = 60;
        for id in 0..owners * requests {
            let owner = (id % owners) as usize;
            scheduler.submit_samples(id, sizes[owner].0, Vec::new(), true, turn(owner as u32, 0));
        }
        let mut plan = StepPlan::default();
        let mut served = vec![0_u64; sizes.len()];
        let mut left = vec![requests; sizes.len()];
        let mut tokens: BTreeMap<SequenceId, u32> = BTreeMap::new();
        while left.iter().all(|left| *left > 0) {
            let mut admitted = Vec::new();
            scheduler.plan(&mut plan, |sequence, free| {
                admitted.push((sequence % owners) as usize);
                Admission { slot: free[0], done: 0 }
            });
            for owner in admitted {
                served[owner] += u64::from(sizes[owner].0);
                left[owner] -= 1;
            }
            for planned in &plan.rows {
                let owner = (planned.sequence % owners) as usize;
                let before = tokens.entry(planned.sequence).or_default();
                if *before > 0 {
                    served[owner] += 1;
                }
                if planned.samples {
                    *before += 1;
                    if *before > sizes[owner].1 {
                        scheduler.remove(planned.sequence);
                    }
                }
            }
        }
        // Who has been served least is admitted next, so nobody is ahead of another by more than what
        // all slots can still be given: a prompt and its tokens each.
        let largest = sizes.iter().map(|(prompt, tokens)| prompt + tokens).max().unwrap_or(0);
        let spread = served.iter().max().unwrap_or(&0) - served.iter().min().unwrap_or(&0);
        let most = u64::from(largest) * u64::from(slots + 1);
        prop_assert!(spread <= most, "{served:?}: more than {most} apart");
    }
}

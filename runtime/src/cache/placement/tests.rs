//! Placement against a sequential simulation of the cache, exhaustively over small layouts.

use std::collections::BTreeSet;

use weir_abi::{CacheLayout, CachePolicy, CacheRange, FURTHER};

use super::{Placement, Seat};

/// A layout with sinks, selected rows and a ring, of one format.
pub(in crate::cache) fn layout(
    elastic: bool,
    sinks: u32,
    selected: u32,
    recent: u32,
) -> CacheLayout {
    CacheLayout {
        policy: CachePolicy::Snapstream as u32,
        elastic: elastic.into(),
        sinks,
        selected,
        recent,
        rows: sinks + selected + recent,
        window: 0,
        observed: 1,
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
    }
}

fn read_rows(placement: &Placement, p: u32) -> Vec<u32> {
    let spans = placement.spans(Seat::own(3), p);
    assert_eq!(spans.write_slot, 3);
    spans.ranges[..spans.range_count as usize]
        .iter()
        .flat_map(|range| {
            assert_eq!(range.slot, 3);
            range.first..range.first + range.rows
        })
        .collect()
}

/// Plane rows with the position that each holds.
struct Simulation {
    rows: Vec<Option<u32>>,
}

impl Simulation {
    fn positions_read(&self, placement: &Placement, p: u32) -> BTreeSet<u32> {
        let rows = read_rows(placement, p);
        assert!(rows.is_sorted(), "ranges are in row order");
        let positions: Vec<_> =
            rows.iter().map(|row| self.rows[*row as usize].expect("row was written")).collect();
        let set: BTreeSet<u32> = positions.iter().copied().collect();
        assert_eq!(set.len(), positions.len(), "no position twice");
        set
    }
}

/// Writes a prompt; returns what is kept of it.
fn written(layout: &CacheLayout, placement: &Placement) -> (Simulation, BTreeSet<u32>) {
    let CacheLayout { sinks, selected: capacity, recent, rows, .. } = *layout;
    let prompt = placement.prompt;
    let mut simulation = Simulation { rows: vec![None; rows as usize] };
    let kept_at_end: BTreeSet<u32>;
    if prompt <= layout.prompt_rows() {
        // Written row by row; every row reads all before it.
        for p in 0..prompt {
            let row = placement.row(p) as usize;
            assert_eq!(simulation.rows[row], None, "nothing of a fitting prompt is overwritten");
            simulation.rows[row] = Some(p);
            assert_eq!(simulation.positions_read(placement, p), (0..=p).collect());
        }
        // The same with the whole prompt written before anything is read.
        for p in 0..prompt {
            assert_eq!(simulation.positions_read(placement, p), (0..=p).collect());
        }
        kept_at_end = (0..prompt).collect();
    } else {
        // Compaction: sinks, some selected positions (here the first), the last R.
        for p in 0..sinks {
            simulation.rows[p as usize] = Some(p);
        }
        for i in 0..capacity {
            simulation.rows[(sinks + i) as usize] = Some(sinks + i);
        }
        for p in prompt - recent..prompt {
            simulation.rows[placement.row(p) as usize] = Some(p);
        }
        kept_at_end = (0..sinks + capacity).chain(prompt - recent..prompt).collect();
        assert_eq!(placement.selected, capacity);
    }
    (simulation, kept_at_end)
}

fn check(layout: &CacheLayout, prompt: u32) {
    let CacheLayout { sinks, rows, .. } = *layout;
    let placement = Placement::new(layout, prompt);
    let (mut simulation, kept_at_end) = written(layout, &placement);
    let fixed: BTreeSet<u32> =
        kept_at_end.iter().copied().filter(|p| *p < sinks + placement.selected).collect();
    let mut ring: Vec<u32> = kept_at_end.into_iter().filter(|p| !fixed.contains(p)).collect();
    let mut sink_fill = fixed;
    let mut left = 0;
    for p in prompt..prompt + 3 * placement.ring_rows {
        let spans = placement.spans(Seat::own(0), p);
        for range in &spans.ranges[..spans.range_count as usize] {
            let (first, end, block) = (range.first, range.first + range.rows, layout.block_rows);
            assert!(end <= block || first >= block, "{layout:?} p={p}: {range:?}");
        }
        let mut leaves = None;
        if p < sinks {
            sink_fill.insert(p);
        } else {
            ring.push(p);
            if ring.len() > (placement.ring_rows - layout.in_flight) as usize {
                leaves = Some(ring.remove(0));
                left += 1;
            }
        }
        if layout.reservoir > 0 {
            assert_eq!(spans.leaving_rank, leaves.map_or(0, |_| left), "{layout:?} p={p}");
            assert_eq!(spans.reservoir_rows, layout.reservoir);
        }
        if let (Some(position), 1..) = (leaves, spans.leaving_rank) {
            assert_eq!(spans.leaving_position, position);
            assert_eq!(simulation.rows[spans.write_row as usize], leaves, "is overwritten now");
            // Any choice will do here: the first rows are kept, then every third row is.
            let place = if left <= layout.reservoir { left - 1 } else { left % 3 * position };
            if place < layout.reservoir {
                simulation.rows[(spans.reservoir_first + place) as usize] = leaves;
            }
        }
        simulation.rows[spans.write_row as usize] = Some(p);
        let sample = rows - layout.reservoir..rows - layout.reservoir + left.min(layout.reservoir);
        let sample = simulation.rows[sample.start as usize..sample.end as usize].iter().flatten();
        let expected: BTreeSet<u32> =
            sink_fill.iter().chain(&ring).chain(sample).copied().collect();
        let place = || format!("{layout:?} L={prompt} p={p}");
        assert_eq!(simulation.positions_read(&placement, p), expected, "{}", place());
        for i in 0..placement.ring_rows {
            let row = placement.ring_base + i;
            let held = placement.held(i, p + 1);
            let simulated = simulation.rows[row as usize].filter(|held| ring.contains(held));
            assert_eq!(held, simulated, "{} row {row}", place());
        }
        let kept = placement.kept(p + 1);
        assert_eq!(kept.kept as usize, expected.len());
        assert_eq!(kept.kept + kept.dropped, p + 1);
        assert_eq!(placement.has_sample(p + 1), layout.reservoir > 0 && left > 0);
        if layout.reservoir > 0 {
            continue;
        }
        let live = placement.live(p + 1);
        assert_eq!(live.count(), kept.kept);
        let in_order = (0..live.fixed).chain(live.ring.into_iter().flatten());
        let held: Vec<u32> = in_order.filter_map(|row| simulation.rows[row as usize]).collect();
        assert!(held.into_iter().eq(expected.iter().copied()), "{}", place());
    }
}

/// Every step writes up to D rows before any of them reads; some of the last are taken back, and what
/// they held must not be read any more.
fn check_guesses(layout: &CacheLayout, prompt: u32) {
    let CacheLayout { sinks, in_flight, .. } = *layout;
    let placement = Placement::new(layout, prompt);
    let (mut simulation, kept_at_end) = written(layout, &placement);
    let first = sinks + placement.selected;
    let (fixed, mut ring): (Vec<u32>, Vec<u32>) = kept_at_end.into_iter().partition(|p| *p < first);
    let turn = placement.ring_rows;
    ring.extend(prompt.max(sinks)..prompt + 4 * turn);
    let expected = |q: u32| -> BTreeSet<u32> {
        let ring: Vec<u32> = ring.iter().copied().filter(|p| *p <= q).collect();
        let read = ring.len().saturating_sub((turn - in_flight) as usize);
        let fixed = fixed.iter().copied().chain(prompt..sinks);
        fixed.filter(|p| *p <= q).chain(ring[read..].iter().copied()).collect()
    };
    let mut lots = (1_u32..).map(|i| (i ^ prompt).wrapping_mul(0x9e37_79b9) >> 16);
    let mut lot = move |most: u32| 1 + lots.next().unwrap() % most;
    let mut n = prompt;
    while n < prompt + 3 * turn {
        let rows = lot(in_flight);
        let place = || format!("{layout:?} L={prompt} n={n} {rows} rows");
        (n..n + rows).for_each(|p| simulation.rows[placement.row(p) as usize] = Some(p));
        for q in n..n + rows {
            assert_eq!(simulation.positions_read(&placement, q), expected(q), "{} {q}", place());
        }
        let stay = lot(rows);
        (n + stay..n + rows).for_each(|p| simulation.rows[placement.row(p) as usize] = None);
        n += stay;
        let expected = expected(n - 1);
        let live = placement.live(n);
        let live = (0..live.fixed).chain(live.ring.into_iter().flatten());
        let live: Vec<Option<u32>> = live.map(|row| simulation.rows[row as usize]).collect();
        assert!(live.into_iter().eq(expected.iter().copied().map(Some)), "live after {n}");
        let held: BTreeSet<u32> = (0..turn).filter_map(|i| placement.held(i, n)).collect();
        let in_ring = expected.iter().copied().filter(|p| *p >= first).collect();
        assert_eq!(held, in_ring, "held after {n}");
        let kept = placement.kept(n);
        assert_eq!((kept.kept, kept.kept + kept.dropped), (expected.len() as u32, n));
    }
}

#[test]
fn rows_agree_with_a_sequential_simulation() {
    for elastic in [true, false] {
        for sinks in 0..=4 {
            for recent in 1..=8 {
                for selected in [0, 1, 3] {
                    let without = layout(elastic, sinks, selected, recent);
                    let block_rows = sinks + selected;
                    for growth in [0, 1, 5] {
                        let rows = without.rows + growth;
                        for prompt in 1..60 {
                            let without = CacheLayout { rows, growth, ..without };
                            check(&without, prompt);
                            check(&CacheLayout { block_rows, ..without }, prompt);
                        }
                    }
                    for (in_flight, growth) in [(1, 0), (2, 0), (3, 0), (2, 5)] {
                        let rows = without.rows + in_flight + growth;
                        let layout = CacheLayout { rows, in_flight, growth, ..without };
                        for prompt in 1..60 {
                            check(&layout, prompt);
                            check_guesses(&layout, prompt);
                        }
                    }
                    for reservoir in [1, 4] {
                        let rows = without.rows + reservoir;
                        for prompt in 1..60 {
                            let without = CacheLayout { rows, reservoir, ..without };
                            check(&without, prompt);
                            check(&CacheLayout { block_rows, ..without }, prompt);
                        }
                    }
                }
            }
        }
    }
}

/// Rows that another prompt takes over lie where it looks for them; elastic caches and windows give
/// as much as they still hold.
#[test]
fn rows_of_one_prompt_serve_another_that_begins_alike() {
    let full = CacheLayout { policy: CachePolicy::Full as u32, ..layout(true, 4, 10, 8) };
    let window = CacheLayout { policy: CachePolicy::Window as u32, rows: 9, window: 5, ..full };
    let guessing = |layout: CacheLayout, more: u32| CacheLayout {
        rows: layout.rows + more,
        in_flight: 3,
        ..layout
    };
    let layouts = [
        layout(true, 4, 10, 8),
        layout(false, 4, 10, 8),
        full,
        window,
        guessing(layout(true, 4, 10, 8), 3),
        guessing(layout(false, 4, 10, 8), 3),
        guessing(window, 0),
    ];
    let mut served = [0; 7];
    for (served, layout) in served.iter_mut().zip(&layouts) {
        for (prompt, n, other) in
            (1..30).flat_map(|l| (l..30).flat_map(move |n| (1..23).map(move |o| (l, n, o))))
        {
            let [old, new] = [prompt, other].map(|rows| Placement::new(layout, rows));
            let is_window = layout.window > 0;
            if prompt > layout.prompt_rows() && !is_window {
                continue;
            }
            // By position: the row that was written last for each.
            let mut rows = vec![None; layout.rows as usize];
            (0..n).for_each(|p| rows[old.row(p) as usize] = Some(p));
            // Guesses behind them have been taken back.
            (n..n + layout.in_flight).for_each(|p| rows[old.row(p) as usize] = None);
            for end in 0..other.min(n + 1) {
                let first = if is_window { (end + 1).saturating_sub(layout.window) } else { 0 };
                let expected = (first..end).all(|p| rows[new.row(p) as usize] == Some(p));
                let place = format!("{layout:?} L={prompt} n={n} L'={other} end={end}");
                assert_eq!(old.serves(n, &new, end), expected, "{place}");
                *served += u32::from(expected && end > 0);
            }
        }
    }
    assert!(served.into_iter().all(|count| count > 100), "{served:?}");
}

#[test]
fn an_elastic_cache_that_drops_nothing_reads_what_a_full_one_reads() {
    let elastic = layout(true, 4, 10, 8);
    let full = CacheLayout { policy: CachePolicy::Full as u32, ..elastic };
    for prompt in 1..=22 {
        for p in 0..22 {
            assert_eq!(
                Placement::new(&elastic, prompt).spans(Seat::own(0), p),
                Placement::new(&full, prompt).spans(Seat::own(0), p),
            );
        }
    }
}

#[test]
fn a_window_ring_holds_the_window_and_one_step() {
    for window in 1..7 {
        for (step, in_flight) in (1..5).flat_map(|step| (0..=step).map(move |d| (step, d))) {
            let layout = CacheLayout {
                policy: CachePolicy::Window as u32,
                rows: window + step,
                window,
                in_flight,
                ..layout(false, 0, 0, 0)
            };
            let placement = Placement::new(&layout, 40);
            let mut simulation = Simulation { rows: vec![None; layout.rows as usize] };
            for start in (0..40).step_by(step as usize) {
                // A whole step is written before any of its rows reads.
                for p in start..start + step {
                    simulation.rows[placement.row(p) as usize] = Some(p);
                }
                for p in start..start + step {
                    let expected = (p + 1).saturating_sub(window)..=p;
                    assert_eq!(simulation.positions_read(&placement, p), expected.collect());
                    assert!(placement.spans(Seat::own(0), p).range_count <= 2);
                }
            }
        }
    }
}

#[test]
fn a_closed_block_is_read_by_all_and_written_by_none() {
    let mut closed = 0;
    let shared = Seat { block: 5, ring: 9 };
    for (elastic, selected, block_rows) in [
        (true, 70, 0),
        (true, 61, 0),
        (false, 70, 0),
        (false, 0, 0),
        (true, 20, 23),
        (false, 20, 23),
    ] {
        let layout = CacheLayout { block_rows, ..layout(elastic, 3, selected, 8) };
        let end = if block_rows > 0 { block_rows } else { (3 + selected) / 64 * 64 };
        for prompt in 1..100 {
            let placement = Placement::new(&layout, prompt);
            let written =
                (0..prompt).filter(|p| *p < 3 || p + 8 >= prompt || prompt <= layout.rows);
            let last = written.map(|p| placement.row(p)).max().unwrap();
            assert!(last < placement.written(prompt), "{prompt} rows of {layout:?}");
            if !placement.is_closed() {
                let rows = (prompt..prompt + 30).map(|p| placement.row(p));
                // An elastic ring may happen to lie behind whole tiles of a block that it could use.
                assert!(rows.min() <= Some(layout.sinks + layout.selected), "{prompt}: {layout:?}");
                continue;
            }
            closed += 1;
            for p in prompt..prompt + 30 {
                let [one, other] = [shared, Seat::own(7)].map(|seat| placement.spans(seat, p));
                assert_eq!((one.write_slot, one.write_row), (shared.ring, other.write_row));
                assert!(one.write_row >= end, "{prompt} rows of {layout:?}");
                let ranges = |spans: weir_abi::RowSpans| {
                    spans.ranges.into_iter().take(spans.range_count as usize)
                };
                for (range, own) in ranges(one).zip(ranges(other)) {
                    assert_eq!((range.first, range.rows, own.slot), (own.first, own.rows, 7));
                    let is_block = range.first < end;
                    assert_eq!(range.slot, if is_block { shared.block } else { shared.ring });
                    assert!(!is_block || range.first + range.rows <= end, "{prompt}: {layout:?}");
                }
            }
        }
    }
    assert!(closed > 300, "{closed}");
}

#[test]
fn what_some_heads_keep_beside_is_a_range_of_its_own() {
    for elastic in [true, false] {
        // Heads keep 5 to 9 of the candidates; 3 sinks and 4 recent rows.
        let alike = layout(elastic, 3, 5, 4);
        let layout = CacheLayout { further: 4, ..alike };
        for (prompt, further) in [(2, 0), (7, 0), (12, 0), (13, 1), (15, 3), (16, 4), (40, 4)] {
            let placement = Placement::new(&layout, prompt);
            assert_eq!(placement.further, further, "{prompt} rows");
            assert_eq!(placement.has_further(), further > 0);
            for p in 0..prompt + 20 {
                let seat = Seat { block: 7, ring: 9 };
                let [spans, without] = [&placement, &Placement::new(&alike, prompt)]
                    .map(|placement| placement.spans(seat, p));
                let count = without.range_count as usize;
                assert_eq!(spans.ranges[..count], without.ranges[..count]);
                // While a prompt is written nothing has been selected from it.
                let behind = &spans.ranges[count..spans.range_count as usize];
                let range = CacheRange { slot: 7, first: FURTHER, rows: further };
                let is_read = p >= prompt && further > 0;
                let expected: Vec<CacheRange> = is_read.then_some(range).into_iter().collect();
                assert_eq!(behind, expected, "{prompt}, {p}");
            }
            let kept = Placement::new(&alike, prompt).kept(prompt + 9);
            assert_eq!(placement.kept(prompt + 9), kept, "of the head that keeps fewest");
        }
    }
}

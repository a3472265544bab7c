//! The cache as a list of rows with the position that each holds, and what a query reads of it.

use std::collections::BTreeSet;

use weir_abi::{CacheLayout, CachePolicy};
use weir_runtime::cache::{Placement, Seat};

/// Writes a sequence of a layout and a prompt that these numbers choose, row by row, and compares what
/// each query is told to read with the positions that it should see: sinks, selected rows, and the
/// youngest rows of the ring.
pub fn check([shape, sinks, selected, recent, growth, in_flight, prompt]: [u8; 7]) {
    let (sinks, selected) = (u32::from(sinks % 40), u32::from(selected % 70));
    let (recent, growth) = (1 + u32::from(recent % 70), u32::from(growth % 40));
    let in_flight = u32::from(in_flight % 8);
    let prompt = 1 + u32::from(prompt);
    let block_rows = if shape & 2 != 0 && in_flight == 0 { sinks + selected } else { 0 };
    let layout = CacheLayout {
        policy: CachePolicy::Snapstream as u32,
        elastic: u32::from(shape & 1),
        sinks,
        selected,
        recent,
        rows: sinks + selected + recent + growth + in_flight,
        window: 0,
        observed: 1,
        pool: 1,
        growth,
        in_flight,
        reservoir: 0,
        reselect: 0,
        redundancy: 0,
        block_rows,
        further: 0,
        first_head: 0,
        second: 0,
        second_share: 0,
    };
    let placement = Placement::new(&layout, prompt);
    let mut rows: Vec<Option<u32>> = vec![None; layout.rows as usize];
    let is_compacted = prompt > layout.prompt_rows();
    let kept: BTreeSet<u32> = if is_compacted {
        // Which rows are selected does not matter here: let them be the first ones.
        (0..sinks + selected).for_each(|p| rows[p as usize] = Some(p));
        let recent = prompt - recent..prompt;
        recent.clone().for_each(|p| rows[placement.row(p) as usize] = Some(p));
        (0..sinks + selected).chain(recent).collect()
    } else {
        (0..prompt).for_each(|p| rows[placement.row(p) as usize] = Some(p));
        (0..prompt).for_each(|p| assert_eq!(read(&placement, &rows, p), (0..=p).collect()));
        (0..prompt).collect()
    };
    let first = sinks + placement.selected;
    let (mut fixed, mut ring): (BTreeSet<u32>, BTreeSet<u32>) =
        kept.into_iter().partition(|p| *p < first);
    for p in prompt..prompt + 3 * placement.ring_rows {
        rows[placement.row(p) as usize] = Some(p);
        if p < sinks {
            fixed.insert(p);
        } else {
            ring.insert(p);
        }
        if ring.len() > (placement.ring_rows - in_flight) as usize {
            ring.pop_first();
        }
        let expected: BTreeSet<u32> = fixed.iter().chain(&ring).copied().collect();
        assert_eq!(read(&placement, &rows, p), expected, "{layout:?} L={prompt} p={p}");
        let kept = placement.kept(p + 1);
        assert_eq!((kept.kept as usize, kept.kept + kept.dropped), (expected.len(), p + 1));
    }
}

/// The positions that the query at `p` reads; no row twice, none that was never written.
fn read(placement: &Placement, rows: &[Option<u32>], p: u32) -> BTreeSet<u32> {
    let spans = placement.spans(Seat::own(3), p);
    assert_eq!(spans.write_row, placement.row(p));
    let mut positions = BTreeSet::new();
    for range in &spans.ranges[..spans.range_count as usize] {
        assert!(range.rows > 0 && range.slot == 3, "{range:?}");
        for row in range.first..range.first + range.rows {
            let position = rows[row as usize].expect("the row was written");
            assert!(positions.insert(position), "position {position} is read twice");
        }
    }
    positions
}

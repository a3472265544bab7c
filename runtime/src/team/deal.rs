//! Work of which threads take parts as they come to it.
//!
//! Each has a share by the rule that fixed work is divided by. Of what is left of it, its owner takes
//! a part from the begin, again and again; who has nothing left takes parts of another's from the
//! end. So a thread that is slower in this millisecond, because somebody else has its processor, or
//! the other half of its core, is waited for as long as its last part takes. Where all are equally
//! fast everybody computes their own share.
//!
//! What is taken of a share is a number that says behind which barrier: whoever finds another one
//! finds the share untouched. So nobody has to clear anything between two works.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_abi::{MOST_ITEMS, TakeOf, WORKS};

/// A part is a fourth of what is left of its share, but not less than a sixteenth of the share. Halves
/// leave much to a thread that slows down just then, and for every part the step's rows are read again.
const OF_LEFT: u32 = 4;
/// See [`OF_LEFT`].
const OF_SHARE: u32 = 16;

/// What is taken of a work, or of a thread's share of it. It has its cache lines to itself.
#[repr(align(128))]
struct Tally(AtomicU64);

impl Tally {
    /// Changes what is counted behind a barrier, which begins with 0, unless `change` gives nothing.
    /// Returns what was counted before.
    fn update(&self, generation: u32, change: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let counted = |word: u64| if (word >> 32) as u32 == generation { word as u32 } else { 0 };
        let changed = |word: u64| {
            change(counted(word)).map(|count| u64::from(generation) << 32 | u64::from(count))
        };
        // Who takes what is all that is at stake: memory is in order by the barriers around the work.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        before.ok().map(counted)
    }
}

/// The works between two barriers, as far as they are taken.
pub(super) struct Deal {
    threads: u32,
    /// By work, then by thread.
    tallies: Box<[Tally]>,
}

impl Deal {
    /// Works of a team of so many threads.
    pub(super) fn new(threads: u32) -> Deal {
        let count = threads as usize * WORKS as usize;
        Deal { threads, tallies: (0..count).map(|_| Tally(AtomicU64::new(0))).collect() }
    }

    /// Forgets everything, so that generations may begin anew.
    pub(super) fn clear(&self) {
        for tally in &self.tallies {
            tally.0.store(0, Ordering::Relaxed);
        }
    }

    /// The next part of a work for a thread, from its first item to behind its last; nothing if all
    /// is taken. See [`weir_abi::Take`].
    pub(super) fn take(
        &self,
        generation: u32,
        [thread, work, items, together]: [u32; 4],
        of: TakeOf,
    ) -> Option<[u32; 2]> {
        debug_assert!(items < MOST_ITEMS, "shares are counted in 16 bits");
        let owners = if of == TakeOf::Own { 1 } else { self.threads };
        (0..owners).find_map(|step| {
            let owner = (thread + step) % self.threads;
            let [begin, end] = [owner, owner + 1].map(|thread| self.begin_of(thread, items));
            let least = (end - begin).div_ceil(OF_SHARE).max(together);
            let is_own = step == 0;
            let part = |taken: u32| {
                let left = [begin + (taken >> 16), end - (taken & 0xffff)];
                let count = left[1] - left[0];
                let part = count.div_ceil(OF_LEFT).max(least).next_multiple_of(together);
                (left, part.min(count))
            };
            let tally = self.tallies.get((work * self.threads + owner) as usize)?;
            let taken = tally.update(generation, |taken| match part(taken) {
                (_, 0) => None,
                (_, part) => Some(taken + if is_own { part << 16 } else { part }),
            })?;
            let ([from, to], part) = part(taken);
            Some(if is_own { [from, from + part] } else { [to - part, to] })
        })
    }

    /// Where the share of a thread begins.
    fn begin_of(&self, thread: u32, items: u32) -> u32 {
        (u64::from(items) * u64::from(thread) / u64::from(self.threads)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each thread takes when they ask in the order of `turns`.
    fn taken(deal: &Deal, generation: u32, work: [u32; 3], turns: &[u32]) -> Vec<[u32; 2]> {
        let [number, items, together] = work;
        let take =
            |thread: &u32| deal.take(generation, [*thread, number, items, together], TakeOf::Any);
        turns.iter().filter_map(take).collect()
    }

    /// Fails unless parts cover all items once and all but one of a share are whole multiples.
    fn check_parts(mut parts: Vec<[u32; 2]>, items: u32, threads: u32, together: u32) {
        parts.sort_unstable();
        let (mut behind, mut others) = (0, 0);
        for [first, end] in parts {
            assert_eq!(first, behind, "{items} items of {threads} threads");
            assert!(first < end);
            others += u32::from(!(end - first).is_multiple_of(together));
            behind = end;
        }
        assert_eq!(behind, items);
        assert!(others <= threads);
    }

    #[test]
    fn every_item_is_taken_once_in_any_order_of_turns() {
        let mut generation = 0;
        for threads in [1, 2, 3, 8, 64] {
            let deal = Deal::new(threads);
            for items in [1, 2, 3, 7, 48, 128, 1000, MOST_ITEMS - 1] {
                for together in [1, 2, 4] {
                    let orders: [&dyn Fn(u32) -> u32; 4] = [
                        &|turn| turn % threads,
                        &|_| threads - 1,
                        &|turn| turn / 3 % threads,
                        &|turn| (turn.wrapping_mul(2_654_435_761) >> 16) % threads,
                    ];
                    for order in orders {
                        let turns: Vec<u32> = (0..200 * threads).map(order).collect();
                        generation += 1;
                        let work = [generation % WORKS, items, together];
                        check_parts(
                            taken(&deal, generation, work, &turns),
                            items,
                            threads,
                            together,
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn equally_fast_threads_keep_to_their_shares() {
        let deal = Deal::new(2);
        let parts = taken(&deal, 1, [0, 128, 4], &[0, 1].repeat(20));
        for (turn, [first, end]) in parts.iter().enumerate() {
            let share = if turn % 2 == 0 { 0..64 } else { 64..128 };
            assert!(share.contains(first) && share.contains(&(end - 1)), "{parts:?}");
        }
        let owned: Vec<[u32; 2]> = parts.iter().step_by(2).copied().collect();
        assert_eq!(owned[..4], [[0, 16], [16, 28], [28, 40], [40, 48]]);
    }

    #[test]
    fn who_has_nothing_left_takes_from_the_end_of_a_share() {
        let deal = Deal::new(2);
        assert_eq!(taken(&deal, 1, [3, 64, 4], &[1]), [[32, 40]]);
        let parts = taken(&deal, 1, [3, 64, 4], &[0; 20]);
        assert_eq!(parts[..4], [[0, 8], [8, 16], [16, 20], [20, 24]]);
        assert_eq!(parts[6..], [[56, 64], [52, 56], [48, 52], [44, 48], [40, 44]]);
        assert_eq!(deal.take(1, [1, 3, 64, 4], TakeOf::Any), None);
    }

    #[test]
    fn who_takes_of_their_own_leaves_the_shares_of_others() {
        let deal = Deal::new(2);
        let take = |of| std::iter::from_fn(|| deal.take(1, [0, 2, 64, 4], of)).collect::<Vec<_>>();
        let own = take(TakeOf::Own);
        assert_eq!((own.first(), own.last()), (Some(&[0, 8]), Some(&[28, 32])));
        let others = take(TakeOf::Any);
        assert_eq!((others.first(), others.last()), (Some(&[56, 64]), Some(&[32, 36])));
    }

    #[test]
    fn behind_a_barrier_or_cleared_all_shares_are_whole() {
        let deal = Deal::new(3);
        for generation in [5, 6, u32::MAX, 7] {
            for work in 0..WORKS {
                assert_eq!(deal.take(generation, [0, work, 12, 1], TakeOf::Own), Some([0, 1]));
                assert_eq!(deal.take(generation, [0, work, 12, 1], TakeOf::Own), Some([1, 2]));
            }
        }
        deal.clear();
        assert_eq!(deal.take(0, [0, 0, 12, 1], TakeOf::Own), Some([0, 1]));
    }

    #[test]
    fn threads_at_once_take_everything_once() {
        let deal = Deal::new(4);
        for generation in 1..200 {
            let take_all = |thread: u32| {
                let own = || deal.take(generation, [thread, 1, 1001, 2], TakeOf::Own);
                let any = || deal.take(generation, [thread, 1, 1001, 2], TakeOf::Any);
                let parts = std::iter::from_fn(own).take(2).chain(std::iter::from_fn(any));
                parts.collect::<Vec<_>>()
            };
            let parts: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|thread| scope.spawn(move || take_all(thread))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            check_parts(parts.concat(), 1001, 4, 2);
        }
    }
}

//! How many requests may wait.

/// Requests that may wait however fast others end, for each slot.
const OF_SLOT: u32 = 2;

/// Requests that wait at most.
const MOST: u32 = 512;

/// Seconds of which the requests are counted that have ended.
const SECONDS: usize = 10;

/// How many requests may wait for a slot: a fixed number, or two for each slot, and where more than these
/// have been answered in the last ten seconds, as many. So whoever waits at the end of a longer queue waits
/// for about ten seconds.
///
/// Arrivals at random need more places than two a slot where requests are short: at ρ of its capacity a
/// server that is as fast with many as with few refuses a part (1 − ρ) ρ^N of them, with N the slots and
/// places together (an M/G/1 queue that shares its time); and while neighbours take a part of the machine
/// it cannot keep up at all. How many come in such a time follows from how fast they are answered.
#[derive(Clone, Debug)]
pub struct QueueLimit {
    least: u32,
    most: u32,
    /// Requests that ended in the latest seconds, each at its number modulo the length.
    ended: [(u64, u32); SECONDS],
}

impl QueueLimit {
    /// That of a server with so many slots: `fixed`, if it is, or by how many end.
    pub fn new(slots: u32, fixed: Option<u32>) -> QueueLimit {
        let least = fixed.unwrap_or_else(|| slots.saturating_mul(OF_SLOT));
        let most = fixed.unwrap_or(least.max(MOST));
        QueueLimit { least, most, ended: [(0, 0); SECONDS] }
    }

    /// Requests that may wait at any time.
    pub fn least(&self) -> u32 {
        self.least
    }

    /// Requests that may ever wait.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// A request has been answered in this second, counted from any begin.
    pub fn ended(&mut self, second: u64) {
        let (of, count) = &mut self.ended[(second % SECONDS as u64) as usize];
        if *of != second {
            (*of, *count) = (second, 0);
        }
        *count = count.saturating_add(1);
    }

    /// Requests that may wait in this second.
    pub fn at(&self, second: u64) -> u32 {
        let is_recent = |of: u64| of <= second && second - of < SECONDS as u64;
        let recent = self.ended.iter().filter(|(of, _)| is_recent(*of));
        let count = recent.fold(0, |sum: u32, (_, count)| sum.saturating_add(*count));
        count.clamp(self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_may_wait_as_have_ended_in_ten_seconds() {
        let mut limit = QueueLimit::new(4, None);
        assert_eq!((limit.least(), limit.most(), limit.at(0)), (8, 512, 8));
        for second in 0..30 {
            (0..second).for_each(|_| limit.ended(second));
            let sum: u64 = (second.saturating_sub(9)..=second).sum();
            assert_eq!(u64::from(limit.at(second)), sum.max(8), "{second}");
        }
        // Nothing ends any more: what is left of 29, then two a slot.
        assert_eq!([38, 39, 1 << 40].map(|second| limit.at(second)), [29, 8, 8]);
        (0..1000).for_each(|_| limit.ended(40));
        assert_eq!([40, 49, 50].map(|second| limit.at(second)), [512, 512, 8]);
        // A clock that went back knows nothing.
        assert_eq!(limit.at(20), 8);
    }

    #[test]
    fn a_fixed_limit_stays_and_many_slots_have_their_two() {
        let mut fixed = QueueLimit::new(4, Some(3));
        (0..1000).for_each(|_| fixed.ended(7));
        assert_eq!((fixed.least(), fixed.most(), fixed.at(7)), (3, 3, 3));
        let many = QueueLimit::new(1000, None);
        assert_eq!((many.least(), many.most(), many.at(7)), (2000, 2000, 2000));
    }
}

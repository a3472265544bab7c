//! Places of requests: those that are answered, and those that wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;
use crate::scheduler::QueueLimit;

/// Places for answers.
pub struct RequestPlaces {
    slots: usize,
    all: usize,
    free: Arc<Semaphore>,
    limit: Mutex<QueueLimit>,
    begin: Instant,
}

/// Places that answers hold; given back one by one, or when it is dropped.
pub struct HeldPlaces {
    places: Arc<RequestPlaces>,
    held: OwnedSemaphorePermit,
}

impl RequestPlaces {
    /// As many as there are slots, and as the queue has.
    pub fn new(slots: u32, limit: QueueLimit) -> Arc<RequestPlaces> {
        let all = slots.saturating_add(limit.most()) as usize;
        Arc::new(RequestPlaces {
            slots: slots as usize,
            all,
            free: Arc::new(Semaphore::new(all)),
            limit: Mutex::new(limit),
            begin: Instant::now(),
        })
    }

    /// All that there ever are.
    pub fn all(&self) -> usize {
        self.all
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.all - self.free.available_permits()
    }

    /// Takes places for so many answers, or refuses them. Memory for grammars is there for as many
    /// requests as may wait at any time: constrained ones have no part in a longer queue.
    pub fn take(
        self: &Arc<RequestPlaces>,
        answers: usize,
        is_constrained: bool,
    ) -> Result<HeldPlaces, Failure> {
        let limit = self.limit();
        let least = limit.least() as usize;
        if answers > self.slots + least {
            let message = format!(
                "{answers} answers at once, and there are slots and places in the queue for {}",
                self.slots + least
            );
            return Err(Failure::field("n", message));
        }
        let waiting = if is_constrained { least } else { limit.at(self.second()) as usize };
        let full = || Failure::queue_is_full(waiting);
        if self.taken() + answers > self.slots + waiting {
            return Err(full());
        }
        let held = Arc::clone(&self.free).try_acquire_many_owned(answers as u32);
        Ok(self.hold(held.map_err(|_| full())?))
    }

    /// Waits for places, of which there are so many.
    pub async fn wait(self: &Arc<RequestPlaces>, answers: usize) -> Result<HeldPlaces, Failure> {
        let held = Arc::clone(&self.free).acquire_many_owned(answers as u32).await;
        Ok(self.hold(held.map_err(|_| Failure::draining())?))
    }

    fn hold(self: &Arc<RequestPlaces>, held: OwnedSemaphorePermit) -> HeldPlaces {
        HeldPlaces { places: Arc::clone(self), held }
    }

    fn second(&self) -> u64 {
        self.begin.elapsed().as_secs()
    }

    fn limit(&self) -> MutexGuard<'_, QueueLimit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldPlaces {
    /// Gives one back whose answer has ended, as it should or otherwise.
    pub fn give_back(&mut self, is_whole: bool) {
        if is_whole {
            let second = self.places.second();
            self.places.limit().ended(second);
        }
        drop(self.held.split(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_fast_may_have_more_wait() {
        let places = RequestPlaces::new(2, QueueLimit::new(2, None));
        assert_eq!((places.all(), places.taken()), (514, 0));
        let mut held: Vec<_> = (0..3).map(|_| places.take(2, false).unwrap()).collect();
        let refused = places.take(1, false).err().unwrap();
        assert_eq!((refused.status.as_u16(), places.taken()), (429, 6));
        // Answers that were cut off say nothing about how fast others end.
        held[0].give_back(false);
        held[0].give_back(true);
        held.push(places.take(2, true).unwrap());
        assert!(places.take(1, false).is_err());
        for _ in 0..7 {
            let mut short = held.pop().unwrap();
            short.give_back(true);
            drop(short);
            held.push(places.take(2, false).unwrap());
        }
        // Eight have ended.
        held.extend((0..2).map(|_| places.take(2, false).unwrap()));
        assert_eq!(places.taken(), 10);
        assert!(places.take(1, false).is_err());
        held.pop();
        // There is room, but not for one more grammar.
        assert!(places.take(1, true).is_err());
        drop(held);
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn more_than_can_ever_wait_is_refused_for_good() {
        let places = RequestPlaces::new(2, QueueLimit::new(2, Some(1)));
        let refused = places.take(4, false).err().unwrap();
        assert_eq!(refused.status.as_u16(), 400);
        assert_eq!((places.take(3, true).is_ok(), places.all()), (true, 3));
    }
}

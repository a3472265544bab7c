//! Places of connections: so many at once, so many of one address, and who makes room when all are taken.
//!
//! A connection on which nothing is being answered makes room for another, the longest silent first. So
//! heads and bodies that come a byte at a time hold a place only until somebody else wants it, and
//! thousands of slow clients of many addresses cannot keep others out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::board::Board;
use super::limits::Limits;

/// Places for connections.
pub struct Places {
    most: usize,
    most_of_address: usize,
    board: Arc<Board>,
    taken: AtomicUsize,
    of_address: Mutex<HashMap<IpAddr, usize>>,
    silent: Mutex<Silent>,
}

/// Connections on which nothing is being answered, by when that began.
#[derive(Default)]
struct Silent {
    turns: u64,
    dismissed: BTreeMap<u64, Arc<Notify>>,
}

/// A connection's place; given back when it is dropped.
pub struct Place {
    places: Arc<Places>,
    address: IpAddr,
    /// When it fell silent, in turns.
    turn: AtomicU64,
    dismissed: Arc<Notify>,
}

/// As long as it lives, a connection is being answered and keeps its place.
#[derive(Default)]
pub struct Answering(Option<Arc<Place>>);

impl Places {
    /// As many as limits allow; nobody is there.
    pub fn new(limits: &Limits, board: Arc<Board>) -> Arc<Places> {
        Arc::new(Places {
            most: limits.connections,
            most_of_address: limits.connections_of_address,
            board,
            taken: AtomicUsize::new(0),
            of_address: Mutex::default(),
            silent: Mutex::default(),
        })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A place for a connection of this address, silent as yet. Where all are taken, others are dismissed
    /// until one is given back; nothing if there is none to be had.
    pub async fn take(self: &Arc<Places>, address: IpAddr) -> Option<Arc<Place>> {
        if self.of_address().get(&address).is_some_and(|count| *count >= self.most_of_address) {
            return None;
        }
        // One thread accepts, so nobody else takes what is given back.
        while self.taken() >= self.most {
            let (_, dismissed) = self.silent().dismissed.pop_first()?;
            dismissed.notify_one();
            self.board.dismissed();
            // The connection ends, and its place is given back.
            tokio::task::yield_now().await;
        }
        *self.of_address().entry(address).or_default() += 1;
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.board.connection(1);
        let place = Place {
            places: Arc::clone(self),
            address,
            turn: AtomicU64::new(0),
            dismissed: Arc::default(),
        };
        place.fall_silent();
        Some(Arc::new(place))
    }

    fn of_address(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.of_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent(&self) -> MutexGuard<'_, Silent> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until somebody else needs it.
    pub async fn dismissal(&self) {
        self.dismissed.notified().await;
    }

    /// The connection is being answered from now on.
    pub fn answer(self: &Arc<Place>) -> Answering {
        self.leave_the_silent();
        Answering(Some(Arc::clone(self)))
    }

    fn fall_silent(&self) {
        let mut silent = self.places.silent();
        silent.turns += 1;
        let turn = silent.turns;
        silent.dismissed.insert(turn, Arc::clone(&self.dismissed));
        self.turn.store(turn, Ordering::Relaxed);
    }

    fn leave_the_silent(&self) {
        self.places.silent().dismissed.remove(&self.turn.load(Ordering::Relaxed));
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(place) = &self.0 {
            place.fall_silent();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave_the_silent();
        let mut of_address = self.places.of_address();
        if let Some(count) = of_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                of_address.remove(&self.address);
            }
        }
        drop(of_address);
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
        self.places.board.connection(-1);
    }
}

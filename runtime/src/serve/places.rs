//! Places of connections: so many at once, so many of one address, and who makes room when all are taken.
//!
//! A connection on which nothing is being answered makes room for another, the longest silent first. So
//! heads and bodies that come a byte at a time hold a place only until somebody else wants it, and
//! thousands of slow clients of many addresses cannot keep others out.
//!
//! What bounds an address are its silent connections. Those that are being answered are bounded by slots
//! and queue, so a proxy with many clients, or a program that asks many things at once, can use all of
//! these; beyond both, an address that does not read its answers gets no further places.

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
    /// Of an address: those that are silent, and all.
    most_silent: usize,
    most_of_address: usize,
    board: Arc<Board>,
    taken: AtomicUsize,
    of_address: Mutex<HashMap<IpAddr, Counts>>,
    silent: Mutex<Silent>,
}

/// An address's connections.
#[derive(Default)]
struct Counts {
    all: usize,
    silent: usize,
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
    /// When it fell silent, in turns; 0 while it is being answered.
    turn: AtomicU64,
    dismissed: Arc<Notify>,
}

/// As long as it lives, a connection is being answered and keeps its place.
#[derive(Default)]
pub struct Answering(Option<Arc<Place>>);

impl Places {
    /// As many as limits allow; nobody is there. So many `requests` can be served or wait.
    pub fn new(limits: &Limits, requests: usize, board: Arc<Board>) -> Arc<Places> {
        let most_silent = limits.connections_of_address;
        Arc::new(Places {
            most: limits.connections,
            most_silent,
            most_of_address: most_silent.saturating_add(requests),
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

    /// Connections that are being answered.
    pub fn answering(&self) -> usize {
        self.of_address().values().map(|counts| counts.all.saturating_sub(counts.silent)).sum()
    }

    /// A place for a connection of this address, silent as yet. Where all are taken, others are dismissed
    /// until one is given back; nothing if there is none to be had.
    pub async fn take(self: &Arc<Places>, address: IpAddr) -> Option<Arc<Place>> {
        let is_full = |counts: &Counts| {
            counts.silent >= self.most_silent || counts.all >= self.most_of_address
        };
        if self.of_address().get(&address).is_some_and(is_full) {
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
        self.of_address().entry(address).or_default().all += 1;
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

    fn of_address(&self) -> MutexGuard<'_, HashMap<IpAddr, Counts>> {
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
        match self.turn.swap(turn, Ordering::Relaxed) {
            0 => self.counts(|counts| counts.silent += 1),
            earlier => drop(silent.dismissed.remove(&earlier)),
        }
    }

    fn leave_the_silent(&self) {
        let turn = self.turn.swap(0, Ordering::Relaxed);
        if turn > 0 {
            // Whoever has been dismissed is not there any more.
            self.places.silent().dismissed.remove(&turn);
            self.counts(|counts| counts.silent -= 1);
        }
    }

    fn counts(&self, change: impl FnOnce(&mut Counts)) {
        let mut of_address = self.places.of_address();
        let counts = of_address.entry(self.address).or_default();
        change(counts);
        if counts.all == 0 {
            of_address.remove(&self.address);
        }
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
        self.counts(|counts| counts.all -= 1);
        self.places.taken.fetch_sub(1, Ordering::Relaxed);
        self.places.board.connection(-1);
    }
}

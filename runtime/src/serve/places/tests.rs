//! Who gets a place, and who makes room.

use std::net::Ipv4Addr;

use tokio::task::{JoinHandle, LocalSet};

use super::*;

/// So many connections, so many silent ones of an address, and so many requests.
fn places(most: usize, most_silent: usize, requests: usize) -> Arc<Places> {
    let limits =
        Limits { connections: most, connections_of_address: most_silent, ..Limits::default() };
    Places::new(&limits, requests, Arc::new(Board::new("model", "isa", 1, 1)))
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// A connection that ends when it is dismissed.
fn connect(place: &Arc<Place>) -> JoinHandle<()> {
    let place = Arc::clone(place);
    tokio::task::spawn_local(async move { place.dismissal().await })
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn the_longest_silent_makes_room() {
    run(async {
        let places = places(3, 3, 1);
        let mut connections = Vec::new();
        let mut taken = Vec::new();
        for number in 0..3 {
            let place = places.take(address(number)).await.unwrap();
            connections.push(connect(&place));
            taken.push(Arc::downgrade(&place));
        }
        // The first is answered, and silent again: now the second is the longest so.
        drop(taken[0].upgrade().unwrap().answer());
        for (number, left) in [(3, [0, 2].as_slice()), (4, &[0])] {
            let place = places.take(address(number)).await.unwrap();
            connections.push(connect(&place));
            let still: Vec<usize> =
                (0..3).filter(|index| taken[*index].strong_count() > 0).collect();
            assert_eq!(still, left);
            assert_eq!(places.taken(), 3);
        }
    });
}

#[test]
fn whoever_is_answered_keeps_its_place() {
    run(async {
        let places = places(2, 2, 1);
        let first = places.take(address(1)).await.unwrap();
        let second = places.take(address(2)).await.unwrap();
        let _connections = [connect(&first), connect(&second)];
        let answering = [first.answer(), second.answer()];
        drop((first, second));
        assert!(places.take(address(3)).await.is_none());
        assert_eq!(places.taken(), 2);
        drop(answering);
        assert!(places.take(address(3)).await.is_some());
    });
}

#[test]
fn nobody_makes_room_for_an_address_that_has_all_it_may_have() {
    run(async {
        let places = places(2, 1, 1);
        let other = places.take(address(1)).await.unwrap();
        let own = places.take(address(2)).await.unwrap();
        let connections = [connect(&other), connect(&own)];
        drop((other, own));
        assert!(places.take(address(2)).await.is_none());
        tokio::task::yield_now().await;
        assert!(!connections.iter().any(JoinHandle::is_finished));
        assert_eq!(places.taken(), 2);
    });
}

#[test]
fn connections_that_are_answered_do_not_count_as_silent_ones_of_their_address() {
    run(async {
        let places = places(9, 1, 2);
        let first = places.take(address(1)).await.unwrap();
        assert!(places.take(address(1)).await.is_none());
        let answering = first.answer();
        let second = places.take(address(1)).await.unwrap();
        let answering_too = second.answer();
        let third = places.take(address(1)).await.unwrap();
        // As many as there may be, and nobody is silent.
        let third_answering = third.answer();
        assert!(places.take(address(1)).await.is_none());
        assert!(places.take(address(2)).await.is_some());
        // Silent again: it counts, whatever else its address has.
        drop((third_answering, second, answering_too));
        assert!(places.take(address(1)).await.is_none());
        drop(third);
        assert!(places.take(address(1)).await.is_some());
        drop((first, answering));
        assert!(places.of_address().is_empty());
    });
}

#[test]
fn a_second_answer_on_a_connection_counts_once() {
    run(async {
        let places = places(9, 1, 1);
        let place = places.take(address(1)).await.unwrap();
        let both = [place.answer(), place.answer()];
        assert_eq!(places.answering(), 1);
        assert!(places.take(address(1)).await.is_some());
        drop(both);
        assert!(places.take(address(1)).await.is_none());
        assert_eq!(places.silent().dismissed.len(), 1);
        drop(place);
        assert!(places.silent().dismissed.is_empty() && places.of_address().is_empty());
    });
}

#[test]
fn a_place_is_given_back() {
    run(async {
        let places = places(1, 1, 1);
        for _ in 0..3 {
            let place = places.take(address(1)).await.unwrap();
            let answering = place.answer();
            drop(place);
            assert_eq!(places.taken(), 1);
            drop(answering);
            assert_eq!(places.taken(), 0);
        }
        assert!(places.silent().dismissed.is_empty() && places.of_address().is_empty());
    });
}

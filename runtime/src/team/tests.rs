//! Threads, barrier and faults, with segments written here.

use super::*;

/// Adds every thread's number to hidden values after a barrier between two passes: a thread reads
/// what its neighbour wrote before the barrier.
unsafe extern "C" fn rotate(context: *const StepContext, thread: u32, threads: u32) {
    // SAFETY: `enter` passes a living context whose hidden rows have two values a thread.
    let (context, hidden) = unsafe {
        (&*context, std::slice::from_raw_parts((*context).hidden, 2 * threads as usize).as_ptr())
    };
    // SAFETY: as above; every thread writes its own values, and reads others' after the barrier.
    unsafe {
        let hidden = hidden.cast_mut();
        *hidden.add(thread as usize) = thread as f32 + 1.0;
        (context.barrier)(context.team, thread);
        let neighbour = (thread + 1) % threads;
        *hidden.add((threads + thread) as usize) = *hidden.add(neighbour as usize);
        (context.barrier)(context.team, thread);
    }
}

/// Adds to every value its neighbour's, which a visit before this one may have written.
unsafe extern "C" fn add_neighbour(context: *const StepContext, thread: u32, threads: u32) {
    // SAFETY: as in `rotate`; values are read before the first barrier and written behind it.
    unsafe {
        let context = &*context;
        let (own, neighbour) = (thread as usize, ((thread + 1) % threads) as usize);
        let sum = *context.hidden.add(own) + *context.hidden.add(neighbour);
        (context.barrier)(context.team, thread);
        *context.hidden.add(own) = sum;
        (context.barrier)(context.team, thread);
    }
}

unsafe extern "C" fn complain(context: *const StepContext, thread: u32, _threads: u32) {
    // SAFETY: `enter` passes a living context.
    let context = unsafe { &*context };
    // SAFETY: `team` is what `enter` put there.
    unsafe { (context.fault)(context.team, 7, thread) };
}

fn enter(team: &mut Team, hidden: &mut [f32], segments: &[Segment]) -> Result<(), ReportedFault> {
    let entry = Entry { hidden, ..Entry::default() };
    team.enter(entry, segments.iter().map(|segment| Visit::new(*segment, &[])))
}

#[test]
fn threads_meet_at_the_barrier_again_and_again() {
    for threads in [1, 2, 3, 8] {
        let mut team = Team::new(threads).unwrap();
        assert_eq!(team.threads(), threads);
        for _ in 0..200 {
            let mut hidden = vec![0.0; 2 * threads];
            enter(&mut team, &mut hidden, &[rotate]).unwrap();
            let expected: Vec<f32> =
                (0..threads).map(|thread| ((thread + 1) % threads) as f32 + 1.0).collect();
            assert_eq!(hidden[threads..], expected);
        }
    }
}

#[test]
fn segments_of_an_entry_follow_each_other() {
    for threads in [1_usize, 2, 3] {
        let mut team = Team::new(threads).unwrap();
        for _ in 0..200 {
            let mut hidden = vec![0.0; 2 * threads];
            let segments: Vec<Segment> = vec![rotate, add_neighbour, add_neighbour];
            enter(&mut team, &mut hidden, &segments).unwrap();
            let value = |thread: usize| (thread % threads) as f32 + 1.0;
            let expected: Vec<f32> = (0..threads)
                .map(|thread| value(thread) + 2.0 * value(thread + 1) + value(thread + 2))
                .collect();
            assert_eq!(hidden[..threads], expected);
        }
    }
}

#[test]
fn what_is_watched_is_told_by_segment_and_phase() {
    let mut team = Team::new(2).unwrap();
    team.watch();
    for _ in 0..3 {
        enter(&mut team, &mut [0.0; 4], &[rotate, add_neighbour, add_neighbour]).unwrap();
    }
    let times = team.take_times();
    let told: Vec<_> = times.iter().map(|times| (times.calls, times.phases.len())).collect();
    assert_eq!(told, [(3, 2), (6, 2)]);
    assert!(times.iter().all(|times| times.phases.iter().all(|phase| *phase > Duration::ZERO)));
}

#[test]
fn sleeping_threads_wake_up() {
    let mut team = Team::new(2).unwrap();
    for _ in 0..3 {
        // Much longer than the time that a waiting thread spins.
        std::thread::sleep(Duration::from_millis(20));
        let mut hidden = vec![0.0; 4];
        enter(&mut team, &mut hidden, &[rotate]).unwrap();
        assert_eq!(hidden, [1.0, 2.0, 2.0, 1.0]);
    }
}

#[test]
fn the_first_fault_is_reported_once() {
    let mut team = Team::new(2).unwrap();
    let fault = enter(&mut team, &mut [], &[complain]).unwrap_err();
    assert_eq!(fault.number, 7);
    assert!(fault.detail < 2);
    assert_eq!(enter(&mut team, &mut [0.0; 4], &[rotate]), Ok(()));
}

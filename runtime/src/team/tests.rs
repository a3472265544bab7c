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

unsafe extern "C" fn complain(context: *const StepContext, thread: u32, _threads: u32) {
    // SAFETY: `enter` passes a living context.
    let context = unsafe { &*context };
    // SAFETY: `team` is what `enter` put there.
    unsafe { (context.fault)(context.team, 7, thread) };
}

fn call(hidden: &mut [f32]) -> Call<'_> {
    Call { hidden, ..Call::default() }
}

#[test]
fn threads_meet_at_the_barrier_again_and_again() {
    for threads in [1, 2, 3, 8] {
        let mut team = Team::new(threads).unwrap();
        assert_eq!(team.threads(), threads);
        for _ in 0..200 {
            let mut hidden = vec![0.0; 2 * threads];
            team.enter(rotate, call(&mut hidden)).unwrap();
            let expected: Vec<f32> =
                (0..threads).map(|thread| ((thread + 1) % threads) as f32 + 1.0).collect();
            assert_eq!(hidden[threads..], expected);
        }
    }
}

#[test]
fn sleeping_threads_wake_up() {
    let mut team = Team::new(2).unwrap();
    for _ in 0..3 {
        // Much longer than the time that a waiting thread spins.
        std::thread::sleep(Duration::from_millis(20));
        let mut hidden = vec![0.0; 4];
        team.enter(rotate, call(&mut hidden)).unwrap();
        assert_eq!(hidden, [1.0, 2.0, 2.0, 1.0]);
    }
}

#[test]
fn the_first_fault_is_reported_once() {
    let mut team = Team::new(2).unwrap();
    let fault = team.enter(complain, call(&mut [])).unwrap_err();
    assert_eq!(fault.number, 7);
    assert!(fault.detail < 2);
    assert_eq!(team.enter(rotate, call(&mut [0.0; 4])), Ok(()));
}

//! Views, and the verifier's eye for damaged plans.

use super::*;
use crate::kernels::attention::{CacheShape, CacheType};

fn chain() -> SegmentPlan {
    let view = |buffer| View::dense(Root::Buffer(buffer), 16, vec![16]);
    let copy =
        |from, to| Kernel::Map { op: MapOp::Copy, inputs: vec![view(from)], output: view(to) };
    let hidden = View::dense(Root::Hidden, 16, vec![16]);
    let score = crate::kernels::attention::ScoreSpec { heads: 1, scale: 1.0, softcap: 0.0 };
    let cache = CacheShape { kv_heads: 1, key_width: 16, value_width: 16, number: CacheType::F16 };
    let spec = AttendSpec {
        cache,
        score,
        sinks: false,
        query: (16, 16),
        output_row: 16,
        shared_chunks: 0,
    };
    let kernels = vec![
        Kernel::Map { op: MapOp::Copy, inputs: vec![hidden.clone()], output: view(0) },
        Kernel::Attend { spec, query: view(0), sinks: None, output: view(1), shared: Root::Cache },
        copy(1, 2),
        Kernel::Map { op: MapOp::Copy, inputs: vec![view(2)], output: hidden },
    ];
    let steps = place::phases(kernels);
    let (buffers, arena_bytes) = place::buffers(&steps, &[64; 3], 4);
    SegmentPlan {
        name: "chain".into(),
        steps,
        buffers,
        weights: Vec::new(),
        arena_bytes,
        max_rows: 4,
        head: false,
    }
}

#[test]
fn barriers_stand_where_work_is_divided_otherwise() {
    let plan = chain();
    let phases: Vec<usize> = plan.steps.iter().map(|step| step.phase).collect();
    assert_eq!(phases, [0, 1, 2, 2]);
    // The third buffer lies where the first was, which is dead by then.
    assert_eq!(plan.buffers[2].offset, plan.buffers[0].offset);
    assert_eq!(plan.arena_bytes, 2 * 256);
    verify(&plan).unwrap();
}

#[test]
fn damaged_plans_are_refused() {
    let mut plan = chain();
    plan.buffers[1].offset = plan.buffers[0].offset;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.steps[1].phase = 0;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.arena_bytes -= 1;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.buffers[0].live = (0, 0);
    assert!(verify(&plan).is_err());
}

#[test]
fn views_slice_and_reshape_without_copies() {
    let row = View::dense(Root::Hidden, 48, vec![48]);
    let part = row.sliced(0, 8, 24);
    let heads = part.reshaped(vec![3, 8]).unwrap();
    assert_eq!((heads.offset, heads.strides.as_slice()), (8, &[8, 1][..]));
    let halves = heads.sliced(1, 4, 4);
    assert_eq!(halves.groups(), Some((3, 8, 4)));
    assert!(!halves.is_dense());
    assert_eq!(halves.reshaped(vec![12]), None);
    assert_eq!(halves.reshaped(vec![3, 2, 2]).unwrap().strides, [8, 2, 1]);
}

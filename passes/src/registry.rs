//! All passes by name. The name is the same on the command line, in dumps, as the file's name and as
//! the folder of its tests.

use weir_ir::Graph;

use crate::driver::Options;
use crate::error::PassError;
use crate::{fuse, kv, layers, normalise, recognise, rows, weights};

/// A pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Its name, verb and object.
    pub name: &'static str,
    /// Its file below `passes/src`.
    pub file: &'static str,
    /// Rewrites the graph in place.
    pub run: fn(&mut Graph, &Options) -> Result<Change, PassError>,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// How many places it changed; what a place is, its file says.
    pub count: usize,
    /// What it has to say about them, or about places that it left alone.
    pub notes: Vec<String>,
}

impl From<usize> for Change {
    fn from(count: usize) -> Change {
        Change { count, notes: Vec::new() }
    }
}

/// The passes, in alphabetical order.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "bind-batch",
        file: "normalise/bind_batch.rs",
        run: |graph, _| Ok(normalise::bind_batch::run(graph)?),
    },
    Pass {
        name: "calibrate-weights",
        file: "weights/calibrate_weights.rs",
        run: |graph, options| weights::calibrate_weights::run(graph, options.calibration.as_ref()),
    },
    Pass {
        name: "centre-keys",
        file: "kv/centre_keys.rs",
        run: |graph, options| kv::centre_keys::run(graph, options.kv_dtype, &options.key_text),
    },
    Pass {
        name: "drop-constants",
        file: "layers/drop_constants.rs",
        run: |graph, _| Ok(layers::drop_constants::run(graph).into()),
    },
    Pass {
        name: "fix-shapes",
        file: "layers/fix_shapes.rs",
        run: |graph, _| Ok(layers::fix_shapes::run(graph)?.into()),
    },
    Pass {
        name: "fold-constants",
        file: "normalise/fold_constants.rs",
        run: |graph, _| normalise::fold_constants::run(graph),
    },
    Pass {
        name: "fold-layers",
        file: "layers/fold_layers.rs",
        run: |graph, _| layers::fold_layers::run(graph),
    },
    Pass {
        name: "form-rows",
        file: "rows/form_rows.rs",
        run: |graph, options| Ok(rows::form_rows::run(graph, options.context)?.into()),
    },
    Pass {
        name: "fuse-projections",
        file: "fuse/projections.rs",
        run: |graph, _| fuse::projections::run(graph),
    },
    Pass {
        name: "fuse-residual",
        file: "fuse/residual.rs",
        run: |graph, _| fuse::residual::run(graph),
    },
    Pass {
        name: "insert-kv-cache",
        file: "kv/insert_kv_cache.rs",
        run: |graph, _| Ok(kv::insert_kv_cache::run(graph)?.into()),
    },
    Pass {
        name: "quantise-weights",
        file: "weights/quantise_weights.rs",
        run: |graph, options| weights::quantise_weights::run(graph, &options.weights),
    },
    Pass {
        name: "recognise-gated-mlp",
        file: "fuse/gated_mlp.rs",
        run: |graph, _| fuse::gated_mlp::run(graph),
    },
    Pass {
        name: "recognise-linear",
        file: "recognise/linear.rs",
        run: |graph, _| Ok(recognise::linear::run(graph)?),
    },
    Pass {
        name: "recognise-rms-norm",
        file: "recognise/rms_norm.rs",
        run: |graph, _| recognise::rms_norm::run(graph),
    },
    Pass {
        name: "recognise-rotary",
        file: "recognise/rotary.rs",
        run: |graph, options| recognise::rotary::run(graph, options.context),
    },
    Pass {
        name: "sparsify-kv",
        file: "kv/sparsify_kv.rs",
        run: |graph, options| {
            let rings = kv::sparsify_kv::run(graph, options)?;
            Ok(Change { count: graph.caches.len(), notes: ring_notes(rings) })
        },
    },
    Pass {
        name: "widen-floats",
        file: "normalise/widen_floats.rs",
        run: |graph, _| Ok(normalise::widen_floats::run(graph)?),
    },
];

fn ring_notes(rings: usize) -> Vec<String> {
    match rings {
        0 => Vec::new(),
        rings => vec![format!("{rings} layers with a sliding window keep a plain ring")],
    }
}

/// The pass of a name.
pub fn pass(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|pass| pass.name == name)
}

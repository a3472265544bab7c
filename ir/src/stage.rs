//! The stages of a graph, and sets of them: stage legality is data in each op's table row.

use std::fmt;

/// How far a graph has come. Each stage says what is true of it; the verifier checks that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The model's own graph in core ops; symbols `batch`, `past`, `sequence`.
    Imported,
    /// Rows `[sequence, ...]` of one sequence; attention, rotary, norms and gated MLPs are named
    /// ops; no masks as tensors; layers are applications of layer kinds.
    Canonical,
    /// Attention state is explicit: caches, `cache_append`, `cache_attend`; no value grows with the
    /// sequence.
    Cached,
    /// Each cache has a policy and a layout.
    Sparse,
    /// Every dimension is a number except `rows`, the rows of a step.
    Fixed,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 5] =
        [Stage::Imported, Stage::Canonical, Stage::Cached, Stage::Sparse, Stage::Fixed];

    /// Name in the text form and in options.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Imported => "Imported",
            Stage::Canonical => "Canonical",
            Stage::Cached => "Cached",
            Stage::Sparse => "Sparse",
            Stage::Fixed => "Fixed",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages(u8);

impl Stages {
    /// Every stage.
    pub const ALL: Stages = Stages(0b11111);
    /// The imported graph only.
    pub const IMPORTED: Stages = Stages(0b00001);
    /// Canonical only.
    pub const CANONICAL: Stages = Stages(0b00010);
    /// Imported and Canonical.
    pub const UNTIL_CANONICAL: Stages = Stages(0b00011);
    /// Canonical and later.
    pub const FROM_CANONICAL: Stages = Stages(0b11110);
    /// Cached and later.
    pub const FROM_CACHED: Stages = Stages(0b11100);

    /// Whether the set has the stage.
    pub fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }
}

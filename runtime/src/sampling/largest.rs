//! The largest of many logits, by chunks.
//!
//! A row of 128,000 logits is looked at once, in vectors, for the largest of each chunk; everything
//! else needs a few chunks only. The largest logit lies in the first chunk whose largest it is. And
//! where k chunks reach a value, so do k logits: the k best are not below the k-th of the chunks'
//! largest. Both give exactly what a search through all logits gives, ties included.
//!
//! Doing this in the model's head instead would save one reading of the logits (half a megabyte for
//! 128,000) from caches, in a step that reads the head's weights from memory, hundreds of times as
//! many bytes.

/// Logits of a chunk: enough that their largest are few, few enough that one is soon looked through.
const CHUNK: usize = 256;

/// Lanes in which a chunk's largest is found.
const LANES: usize = 16;

/// The largest logit's id, the lowest among equals; `None` if no logit is a number.
pub fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, 0);
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
        let largest = largest_of(chunk);
        if largest > best.0 {
            best = (largest, index * CHUNK);
        }
    }
    let (largest, first) = best;
    // Where no chunk has more than minus infinity, its first is meant; a NaN equals nothing.
    let is_largest = |logit: &f32| *logit == largest;
    logits[first..].iter().position(is_largest).map(|index| (first + index) as u32)
}

/// The largest of a chunk; minus infinity if it has no number.
fn largest_of(chunk: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut quick = chunk.chunks_exact(LANES);
    for logits in &mut quick {
        for (lane, logit) in lanes.iter_mut().zip(logits) {
            *lane = larger(*lane, *logit);
        }
    }
    lanes.into_iter().chain(quick.remainder().iter().copied()).fold(f32::NEG_INFINITY, larger)
}

/// The largest of each chunk of a row of logits.
#[derive(Clone, Debug, Default)]
pub(super) struct LargestOfChunks {
    largest: Vec<f32>,
    sorted: Vec<f32>,
}

impl LargestOfChunks {
    /// Room for a vocabulary.
    pub(super) fn new(vocabulary: usize) -> LargestOfChunks {
        let chunks = vocabulary.div_ceil(CHUNK);
        LargestOfChunks { largest: Vec::with_capacity(chunks), sorted: Vec::with_capacity(chunks) }
    }

    /// A value that none of the `k` best logits is below; minus infinity if `k` is 0 (all are
    /// wanted) or more than there are chunks.
    pub(super) fn least_of_best(&mut self, logits: &[f32], k: usize) -> f32 {
        self.largest.clear();
        self.largest.extend(logits.chunks(CHUNK).map(largest_of));
        if k == 0 || k > self.largest.len() {
            return f32::NEG_INFINITY;
        }
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.largest);
        let (_, least, _) = self.sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        *least
    }

    /// The largest of all; minus infinity if none of them is a number. The logits are those of the last
    /// call of [`LargestOfChunks::least_of_best`].
    pub(super) fn best(&self) -> f32 {
        self.largest.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    /// Logits that are numbers and not below `least`, with their ids, ascending by id. The logits
    /// are those of the last call of [`LargestOfChunks::least_of_best`].
    pub(super) fn at_least<'a>(
        &'a self,
        logits: &'a [f32],
        least: f32,
    ) -> impl Iterator<Item = (f32, u32)> + 'a {
        let chunks = logits.chunks(CHUNK).zip(&self.largest).enumerate();
        chunks.filter(move |(_, (_, largest))| **largest >= least).flat_map(
            move |(index, (chunk, _))| {
                let first = (index * CHUNK) as u32;
                let ids = (first..).zip(chunk).map(|(id, logit)| (*logit, id));
                ids.filter(move |(logit, _)| *logit >= least)
            },
        )
    }
}

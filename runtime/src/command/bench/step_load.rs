//! What steps have to do, in numbers that a scheduler knows beforehand.
//!
//! Who measures steps and who simulates them count with the same functions, so whatever these leave out
//! is left out of both.

use serde::{Deserialize, Serialize};

use crate::Model;
use crate::forward::{ModelShape, tile_rows};

/// What a step had to do. Rows that are attended to are means over the model's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepLoad {
    /// Rows of sequences that decode.
    #[serde(default)]
    pub decode_rows: f64,
    /// Cache rows that these attended to.
    #[serde(default)]
    pub decode_attended: f64,
    /// Rows of prompts.
    #[serde(default)]
    pub prompt_rows: f64,
    /// Cache rows that these attended to.
    #[serde(default)]
    pub prompt_attended: f64,
    /// Tiles of long prompts, each of one layer.
    #[serde(default)]
    pub tiles: f64,
    /// Their rows.
    #[serde(default)]
    pub tile_rows: f64,
    /// Rows that these attended to.
    #[serde(default)]
    pub tile_attended: f64,
    /// Rows of the prompt whose last tile of a layer this was: the layer's rows are chosen from them.
    #[serde(default)]
    pub chosen_from: f64,
}

impl StepLoad {
    pub(super) fn all(&self, is_right: impl Fn(f64) -> bool) -> bool {
        let StepLoad { decode_rows, decode_attended, prompt_rows, prompt_attended, .. } = *self;
        let StepLoad { tiles, tile_rows, tile_attended, chosen_from, .. } = *self;
        let rows = [decode_rows, decode_attended, prompt_rows, prompt_attended];
        let long = [tiles, tile_rows, tile_attended, chosen_from];
        rows.into_iter().chain(long).all(is_right)
    }
}

/// Layers whose caches are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRows {
    /// How many layers.
    pub layers: u32,
    /// Rows of a slot: no more are attended to.
    pub rows: u32,
    /// Rows that attention sees at most, whatever the cache holds; 0 for all.
    pub window: u32,
}

/// What decides about plans, and about what they have to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepShape {
    /// Slots that the model was compiled for.
    pub slots: u32,
    /// Rows of a step.
    pub step_rows: u32,
    /// Positions of a sequence.
    pub context: u32,
    /// Longest prompt that is no long one.
    pub direct_rows: u32,
    /// Values of a hidden row; tiles of long prompts are whole cache lines of them.
    pub hidden_width: u32,
    /// All layers.
    pub caches: Vec<CacheRows>,
}

impl StepShape {
    pub(super) fn new(shape: &ModelShape, model: &Model) -> StepShape {
        let header = model.compiled().header();
        let mut caches: Vec<CacheRows> = Vec::new();
        for layer in model.compiled().layers() {
            let layout = &shape.layouts[layer.layout as usize];
            let (rows, window) = (layout.rows, layout.window);
            match caches.iter_mut().find(|cache| (cache.rows, cache.window) == (rows, window)) {
                Some(cache) => cache.layers += 1,
                None => caches.push(CacheRows { layers: 1, rows, window }),
            }
        }
        StepShape {
            slots: header.slots,
            step_rows: shape.max_rows,
            context: shape.context,
            direct_rows: shape.direct_rows,
            hidden_width: shape.hidden_width,
            caches,
        }
    }

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.caches.iter().map(|cache| cache.layers).sum()
    }

    /// The mean over layers of what `rows` makes of a layer.
    fn mean(&self, rows: impl Fn(&CacheRows) -> u32) -> f64 {
        let all: f64 =
            self.caches.iter().map(|cache| f64::from(cache.layers) * f64::from(rows(cache))).sum();
        all / f64::from(self.layers().max(1))
    }

    /// Cache rows that the row of a position attends to.
    pub fn attended(&self, position: u32) -> f64 {
        self.mean(|cache| match cache.window {
            0 => cache.rows.min(position + 1),
            window => window.min(position + 1),
        })
    }

    /// Tiles of a long prompt, over all layers.
    pub fn tiles(&self, prompt_rows: u32) -> u64 {
        u64::from(self.layers()) * u64::from(prompt_rows.div_ceil(self.rows_of_tile()))
    }

    fn rows_of_tile(&self) -> u32 {
        tile_rows(self.step_rows as usize, self.hidden_width as usize) as u32
    }

    /// What a tile of a long prompt has to do: the tile with this number, of all.
    pub fn tile(&self, prompt_rows: u32, number: u64) -> StepLoad {
        let rows = self.rows_of_tile();
        let first = (number % u64::from(prompt_rows.div_ceil(rows))) as u32 * rows;
        let end = prompt_rows.min(first + rows);
        // Rows that a layer will drop are still there while it is computed.
        let attended = |position: u32| {
            self.mean(|cache| match cache.window {
                0 => position + 1,
                window => window.min(position + 1),
            })
        };
        StepLoad {
            tiles: 1.0,
            tile_rows: f64::from(end - first),
            tile_attended: (first..end).map(attended).sum(),
            chosen_from: if end == prompt_rows { f64::from(prompt_rows) } else { 0.0 },
            ..StepLoad::default()
        }
    }
}

#[cfg(test)]
mod tests;

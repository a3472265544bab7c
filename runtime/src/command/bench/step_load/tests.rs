//! Rows that are attended to, and tiles of long prompts, counted by hand.

use super::*;

/// Two layers with room for 10 rows, and one that sees the last 4.
fn shape() -> StepShape {
    let cache = |layers, rows, window| CacheRows { layers, rows, window };
    StepShape {
        slots: 1,
        step_rows: 9,
        context: 64,
        direct_rows: 10,
        // 32 bytes: two rows are a cache line.
        hidden_width: 8,
        caches: vec![cache(2, 10, 0), cache(1, 13, 4)],
    }
}

#[test]
fn rows_attend_to_what_their_layers_hold() {
    assert_eq!(shape().attended(0), 1.0);
    assert_eq!(shape().attended(8), (2.0 * 9.0 + 4.0) / 3.0);
    assert_eq!(shape().attended(40), (2.0 * 10.0 + 4.0) / 3.0);
}

#[test]
fn tiles_of_a_long_prompt_have_all_of_its_rows_in_every_layer() {
    let shape = shape();
    // Tiles of 8 rows: three for each of three layers.
    assert_eq!(shape.tiles(20), 9);
    let all: Vec<StepLoad> = (0..9).map(|number| shape.tile(20, number)).collect();
    assert_eq!(
        all.iter().map(|tile| tile.tile_rows).collect::<Vec<_>>(),
        [8.0, 8.0, 4.0, 8.0, 8.0, 4.0, 8.0, 8.0, 4.0]
    );
    // Layers that will drop rows have them all while they are computed: 1 + 2 + … + 20, and in the
    // layer with a window 1 + 2 + 3 + 17 · 4.
    let attended: f64 = all[..3].iter().map(|tile| tile.tile_attended).sum();
    assert!((attended - (2.0 * 210.0 + 74.0) / 3.0).abs() < 1e-9, "{attended}");
    let ends: Vec<f64> = all.iter().map(|tile| tile.chosen_from).collect();
    assert_eq!(ends, [0.0, 0.0, 20.0, 0.0, 0.0, 20.0, 0.0, 0.0, 20.0]);
    assert!(all.iter().all(|tile| tile.tiles == 1.0 && tile.prompt_rows == 0.0));
}

//! Scores against cache size: a panel per task, a line per kind of policy, the dense cache as a
//! horizontal line.
//!
//! Bars are the 95 % intervals of the paired difference, drawn around the dense cache's score: a bar
//! that misses the line is a difference. Without a background and in middle tones, so that the
//! drawing can stand on light and on dark pages.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::axis::Axis;
use crate::{Cell, Error, Summary};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Pixels of a panel.
const PANEL: (u32, u32) = (460, 320);

/// Pixels above the panels.
const HEAD: u32 = 64;

/// Of axes and words.
const INK: RGBColor = RGBColor(128, 128, 128);

/// Colours that people with any sight tell apart (Okabe and Ito, *Color universal design*, 2008),
/// without the yellow and the black, which vanish on white and on black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

impl Summary {
    /// Draws scores against cache size as SVG.
    pub fn chart(&self, title: &str) -> Result<String, Error> {
        let mut drawing = String::new();
        self.draw(title, &mut drawing).map_err(|error| Error::Chart(error.to_string()))?;
        Ok(drawing)
    }

    fn draw(&self, title: &str, drawing: &mut String) -> Drawn<()> {
        let panels = self.rows.len().max(1) as u32;
        let columns = if panels > 4 { 3 } else { panels.min(2) };
        let lines = panels.div_ceil(columns);
        let size = (columns * PANEL.0, HEAD + lines * PANEL.1);
        let area = SVGBackend::with_string(drawing, size).into_drawing_area();
        let (head, body) = area.split_vertically(HEAD);
        let kinds = self.kinds();
        draw_head(&head, title, &kinds)?;
        // The mean stands in front, though it is last in the table.
        let (means, tasks): (Vec<_>, Vec<_>) =
            self.rows.iter().partition(|row| row.first().is_some_and(|c| c.task == Summary::MEAN));
        let panels = body.split_evenly((lines as usize, columns as usize));
        for (panel, row) in panels.iter().zip(means.into_iter().chain(tasks)) {
            self.draw_panel(panel, row, &kinds)?;
        }
        area.present()
    }

    /// Kinds in the order of their first policy, the dense cache aside.
    fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for policy in self.policies.iter().skip(1) {
            if !kinds.contains(&policy.kind.as_str()) {
                kinds.push(&policy.kind);
            }
        }
        kinds
    }

    fn draw_panel(&self, panel: &Area<'_>, row: &[Cell], kinds: &[&str]) -> Drawn<()> {
        let Some(dense) = row.first() else { return Ok(()) };
        let place = |policy: usize| self.share(policy).max(f64::MIN_POSITIVE).log2();
        let places = || (0..self.policies.len()).map(place);
        let left = places().fold(-1.0, f64::min).floor();
        let right = places().fold(0.0, f64::max).ceil();
        let ticks: Vec<f64> = (left as i32..=right as i32).map(f64::from).collect();
        let caption = format!("{}, {} questions", dense.task, dense.questions);
        let words = ("sans-serif", 13).into_font().color(&INK);
        let mut chart = ChartBuilder::on(panel)
            .caption(caption, ("sans-serif", 15).into_font().color(&INK))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(52)
            .build_cartesian_2d(
                Axis { range: left - 0.2..right + 0.2, ticks },
                Axis { range: -2.0..102.0, ticks: (0..=5).map(|n| f64::from(20 * n)).collect() },
            )?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(INK.mix(0.3))
            .light_line_style(INK.mix(0.0))
            .label_style(words.clone())
            .axis_desc_style(words)
            .x_label_formatter(&|place| fraction(*place))
            .y_label_formatter(&|score| format!("{score:.0}"))
            .x_desc("cache, share of dense")
            .y_desc("score, %")
            .draw()?;
        let line = 100.0 * dense.score.value;
        let ends = [(left - 0.2, line), (right + 0.2, line)];
        chart.draw_series([PathElement::new(ends, INK.stroke_width(2))])?;
        for (index, kind) in kinds.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let mut cells: Vec<&Cell> = row
                .iter()
                .skip(1)
                .filter(|cell| self.policies[cell.policy].kind == *kind)
                .collect();
            cells.sort_by(|one, other| place(one.policy).total_cmp(&place(other.policy)));
            let point = |cell: &&Cell| (place(cell.policy), 100.0 * cell.score.value);
            let points: Vec<(f64, f64)> = cells.iter().map(point).collect();
            // Kinds of the same size stand a little beside each other, or bars would hide bars.
            let aside = 0.03 * (index as f64 - (kinds.len() as f64 - 1.0) / 2.0);
            chart.draw_series(cells.iter().filter_map(|cell| {
                let interval = cell.difference?.interval?;
                let x = place(cell.policy) + aside;
                let end = |by: f64| (x, line + 100.0 * by);
                let bar = [end(interval.low), end(interval.high)];
                Some(PathElement::new(bar, colour.stroke_width(1)))
            }))?;
            let moved = || points.iter().map(|(x, y)| (x + aside, *y));
            chart.draw_series(LineSeries::new(moved(), colour.stroke_width(2)))?;
            chart.draw_series(moved().map(|point| Circle::new(point, 4, colour.filled())))?;
        }
        Ok(())
    }
}

/// Title and legend.
fn draw_head(head: &Area<'_>, title: &str, kinds: &[&str]) -> Drawn<()> {
    let words = |size: i32| ("sans-serif", size).into_font().color(&INK);
    head.draw(&Text::new(title.to_owned(), (16, 12), words(18)))?;
    let mut x = 20;
    let mut entry = |name: &str, colour: RGBColor| {
        let line = [(x, 48), (x + 22, 48)];
        head.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        head.draw(&Text::new(name.to_owned(), (x + 28, 41), words(13)))?;
        // A letter of this size is about 7 pixels wide.
        x += 48 + 7 * name.chars().count() as i32;
        Ok(())
    };
    entry("dense", INK)?;
    for (index, kind) in kinds.iter().enumerate() {
        entry(kind, COLOURS[index % COLOURS.len()])?;
    }
    let note = "bars: 95 % of the difference to dense";
    head.draw(&Text::new(note, (x, 41), words(13)))
}

/// A power of two as people write it.
fn fraction(power: f64) -> String {
    let value = power.abs().exp2().round();
    if power < 0.0 { format!("1/{value}") } else { value.to_string() }
}

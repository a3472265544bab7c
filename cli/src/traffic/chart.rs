//! Latencies against the rate of requests: time to the first token in one panel, time between tokens in
//! the other, the median and the 99th percentile in each.
//!
//! Both axes are logarithmic: rates are tried in multiples, and waiting times grow by orders of
//! magnitude where a server has enough. Without a background and in middle tones, so that the drawing
//! can stand on light and on dark pages.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use weir_eval::axis::Axis;

use super::measure::{Distribution, Figures};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Pixels of a panel.
const PANEL: (u32, u32) = (460, 340);

/// Pixels above the panels.
const HEAD: u32 = 64;

/// Of axes and words.
const INK: RGBColor = RGBColor(128, 128, 128);

/// A line of each panel.
struct Line {
    name: &'static str,
    colour: RGBColor,
    value: fn(&Distribution) -> f64,
}

/// In colours that people with any sight tell apart (Okabe and Ito, *Color universal design*, 2008).
const LINES: [Line; 2] = [
    Line { name: "p50", colour: RGBColor(0, 114, 178), value: |all| all.median },
    Line { name: "p99", colour: RGBColor(213, 94, 0), value: |all| all.p99 },
];

/// Least distance of two labels of an axis, as its share: room for a few digits.
const APART: f64 = 0.07;

/// Draws the figures of several rates as SVG; those without a rate are left out.
pub fn draw(figures: &[Figures], model: &str) -> Result<String, String> {
    let mut drawing = String::new();
    draw_all(figures, model, &mut drawing).map_err(|error| error.to_string())?;
    Ok(drawing)
}

fn draw_all(figures: &[Figures], model: &str, drawing: &mut String) -> Drawn<()> {
    let area = SVGBackend::with_string(drawing, (2 * PANEL.0, HEAD + PANEL.1)).into_drawing_area();
    let (head, body) = area.split_vertically(HEAD);
    draw_head(&head, model)?;
    let panels = body.split_evenly((1, 2));
    let first: Curve<'_> = ("time to first token", &|figures| figures.first);
    let gaps: Curve<'_> = ("time between tokens", &|figures| figures.gaps);
    for (panel, (title, curve)) in panels.iter().zip([first, gaps]) {
        let mut points: Vec<(f64, Distribution)> = figures
            .iter()
            .filter_map(|figures| Some((figures.offered.rate()?, curve(figures)?)))
            .collect();
        points.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        draw_panel(panel, title, &points)?;
    }
    area.present()
}

/// What a panel shows.
type Curve<'a> = (&'a str, &'a dyn Fn(&Figures) -> Option<Distribution>);

/// Draws a panel over points in the order of their rates; without any it says so.
fn draw_panel(panel: &Area<'_>, title: &str, points: &[(f64, Distribution)]) -> Drawn<()> {
    let words = ("sans-serif", 13).into_font().color(&INK);
    if points.is_empty() {
        return panel.draw(&Text::new(format!("{title}: no answer"), (20, 20), words));
    }
    // Milliseconds; a gap can be shorter than the clock's grain, and 0 has no logarithm.
    let height = |seconds: f64| (1e3 * seconds).max(0.01);
    let heights: Vec<f64> =
        points.iter().flat_map(|(_, all)| LINES.map(|line| height((line.value)(all)))).collect();
    let rates: Vec<f64> = points.iter().map(|(rate, _)| *rate).collect();
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 15).into_font().color(&INK))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d(rates_axis(&rates), heights_axis(&heights))?;
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(INK.mix(0.3))
        .light_line_style(INK.mix(0.0))
        .label_style(words.clone())
        .axis_desc_style(words)
        .x_label_formatter(&|place| number(place.exp()))
        .y_label_formatter(&|place| number(place.exp()))
        .x_desc("requests per second")
        .y_desc("ms")
        .draw()?;
    for Line { colour, value, .. } in LINES {
        let line = || points.iter().map(|(rate, all)| (rate.ln(), height(value(all)).ln()));
        chart.draw_series(LineSeries::new(line(), colour.stroke_width(2)))?;
        chart.draw_series(line().map(|point| Circle::new(point, 4, colour.filled())))?;
    }
    Ok(())
}

/// Title and legend.
fn draw_head(head: &Area<'_>, model: &str) -> Drawn<()> {
    let words = |size: i32| ("sans-serif", size).into_font().color(&INK);
    head.draw(&Text::new(format!("{model} under load"), (16, 12), words(18)))?;
    for (index, Line { name, colour, .. }) in LINES.into_iter().enumerate() {
        let x = 20 + 80 * index as i32;
        head.draw(&PathElement::new([(x, 48), (x + 22, 48)], colour.stroke_width(2)))?;
        head.draw(&Text::new(name, (x + 28, 41), words(13)))?;
    }
    Ok(())
}

/// An axis of logarithms with labels at the rates that were tried, as far as there is room for them.
fn rates_axis(sorted: &[f64]) -> Axis {
    let places: Vec<f64> = sorted.iter().map(|rate| rate.ln()).collect();
    spaced(around(&places), places)
}

/// An axis of logarithms with labels at round numbers: one, two and five times powers of ten, and where
/// the range is too short for two of these, at any digit.
fn heights_axis(values: &[f64]) -> Axis {
    let range = around(&values.iter().map(|value| value.ln()).collect::<Vec<_>>());
    let ticks = |digits: &[f64]| -> Vec<f64> {
        let decades = (-3..=9).map(|power| 10_f64.powi(power));
        let ticks = decades.flat_map(|decade| digits.iter().map(move |digit| digit * decade));
        ticks.map(f64::ln).filter(|place| range.contains(place)).collect()
    };
    let fine: Vec<f64> = (10..100).map(|tenths| f64::from(tenths) / 10.0).collect();
    let choices: [&[f64]; 4] =
        [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &fine];
    let enough = choices.into_iter().map(ticks).find(|ticks| ticks.len() >= 3);
    spaced(range, enough.unwrap_or_default())
}

/// Labels in rising order, without those that would touch the one before.
fn spaced(range: Range<f64>, labels: Vec<f64>) -> Axis {
    let least = APART * (range.end - range.start);
    let mut ticks: Vec<f64> = Vec::new();
    for place in labels {
        if ticks.last().is_none_or(|last| place - last >= least) {
            ticks.push(place);
        }
    }
    Axis { range, ticks }
}

/// The range of values with a margin.
fn around(places: &[f64]) -> Range<f64> {
    let low = places.iter().copied().fold(f64::INFINITY, f64::min);
    let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let margin = 0.08 * (high - low) + 0.1;
    low - margin..high + margin
}

/// A number with at least three digits that count.
fn number(value: f64) -> String {
    let digits = (2 - value.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests;

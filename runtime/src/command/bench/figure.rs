//! Figures as lines of JSON and as a table.

use std::fmt;
use std::io::Write;

use serde_json::{Value, json};
use weir_abi::IsaLevel;

use super::measure::{Measured, Setup, Speedup};
use crate::RuntimeError;
use crate::probe::Peaks;
use crate::work::Work;

/// What all figures of a run have in common.
#[derive(Clone, Debug)]
pub struct Label {
    /// Name of the model.
    pub model: String,
    /// Format of its weights.
    pub dtype: String,
    /// Threads.
    pub threads: usize,
    /// Level that ran.
    pub isa: IsaLevel,
    /// Cache policy.
    pub kv: String,
    /// Number format of its rows.
    pub kv_dtype: String,
    /// What the machine did at best.
    pub peaks: Peaks,
}

/// A measured figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub metric: &'static str,
    /// Rows before it, or of it.
    pub context: u32,
    /// Sequences.
    pub batch: u32,
    /// In the best repetition.
    pub value: f64,
    /// In the middle one.
    pub median: f64,
    /// Unit of both.
    pub unit: &'static str,
    /// Most megabytes resident.
    pub rss_mb: Option<u64>,
    /// Of the best repetition, for figures whose work is known: seconds, what had to be done in
    /// them, and their shares of the machine.
    pub measured: Option<Measured>,
    /// How many times as fast as the first of several models that took turns.
    pub speedup: Option<Speedup>,
}

impl Figure {
    /// Tokens per second of a best and a middle repetition, of which each step or prompt has
    /// `tokens`.
    pub(super) fn rate(
        metric: &'static str,
        setup: &Setup,
        tokens: u32,
        (best, median): (Measured, f64),
        rss_mb: Option<u64>,
    ) -> Figure {
        let tokens = f64::from(tokens);
        Figure {
            metric,
            context: setup.length,
            batch: setup.batch,
            value: tokens / best.seconds,
            median: tokens / median,
            unit: "tok/s",
            rss_mb,
            measured: Some(best),
            speedup: None,
        }
    }

    /// Seconds from the start of a process.
    pub(super) fn first_token(mut seconds: Vec<f64>, context: u32) -> Figure {
        seconds.sort_by(f64::total_cmp);
        Figure {
            metric: "ttft_cold",
            context,
            batch: 1,
            value: seconds[0],
            median: seconds[seconds.len() / 2],
            unit: "s",
            rss_mb: None,
            measured: None,
            speedup: None,
        }
    }

    /// One object, with the keys that benchmarks of other runtimes have, and ours behind them.
    pub fn json(&self, label: &Label) -> Value {
        let mut line = json!({
            "peer": "weir",
            "version": env!("CARGO_PKG_VERSION"),
            "model": label.model,
            "dtype": label.dtype,
            "threads": label.threads,
            "metric": self.metric,
            "context": self.context,
            "batch": self.batch,
            "value": round(self.value),
            "unit": self.unit,
            "rss_mb": self.rss_mb,
            "median": round(self.median),
            "isa": label.isa.name(),
            "kv": label.kv,
            "kv_dtype": label.kv_dtype,
        });
        if let Some(Measured { seconds, work, share_read, share_peak, peaks }) = self.measured {
            let Work {
                bytes,
                integer_operations,
                tile_operations,
                float_operations,
                bf16_operations,
            } = work;
            line["share_read"] = round(share_read).into();
            line["share_peak"] = round(share_peak).into();
            line["seconds"] = ((seconds * 1e7).round() / 1e7).into();
            line["bytes"] = bytes.into();
            line["integer_operations"] = integer_operations.into();
            line["float_operations"] = float_operations.into();
            line["read_gb_s"] = round(peaks.read.best / 1e9).into();
            line["float_peak_gop_s"] = round(peaks.float.best / 1e9).into();
            line["integer_peak_gop_s"] = round(peaks.integer.best / 1e9).into();
            if peaks.tiles.best > 0.0 {
                line["bf16_tile_operations"] = tile_operations.into();
                line["bf16_tile_peak_gop_s"] = round(peaks.tiles.best / 1e9).into();
            }
            if peaks.bf16.best > 0.0 {
                line["bf16_operations"] = bf16_operations.into();
                line["bf16_peak_gop_s"] = round(peaks.bf16.best / 1e9).into();
            }
        }
        self.speedup.iter().for_each(|speedup| speedup.tell(&mut line));
        line
    }
}

/// A number with four decimals.
fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

impl Speedup {
    /// Adds its keys to those of a figure.
    pub(super) fn tell(&self, line: &mut Value) {
        line["times_first"] = round(self.median).into();
        line["times_first_low"] = round(self.low).into();
        line["times_first_high"] = round(self.high).into();
    }
}

impl fmt::Display for Speedup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Speedup { median, low, high } = self;
        write!(out, "{median:.2} ({low:.2} to {high:.2})")
    }
}

/// Figures for people.
pub fn write_table(
    out: &mut dyn Write,
    figures: &[Figure],
    label: &Label,
) -> Result<(), RuntimeError> {
    let Label { model, dtype, threads, isa, kv, kv_dtype, .. } = label;
    let isa = isa.name();
    writeln!(out, "{model}, {dtype}, cache {kv} in {kv_dtype}, {isa}, threads {threads}")?;
    let is_beside = figures.iter().any(|figure| figure.speedup.is_some());
    writeln!(
        out,
        "{:<14} {:>8} {:>6} {:>11} {:>11}        {:>7} {:>7} {:>8}{}",
        "figure",
        "context",
        "batch",
        "best",
        "median",
        "of read",
        "of peak",
        "MB",
        if is_beside { "   times the first (half of steps)" } else { "" },
    )?;
    for figure in figures {
        let share = |of: fn(&Measured) -> f64| match &figure.measured {
            Some(measured) => format!("{:.1} %", 100.0 * of(measured)),
            None => String::new(),
        };
        let speedup = figure.speedup.map_or(String::new(), |speedup| format!("   {speedup}"));
        writeln!(
            out,
            "{:<14} {:>8} {:>6} {:>11.2} {:>11.2} {:<6} {:>7} {:>7} {:>8}{speedup}",
            figure.metric,
            figure.context,
            figure.batch,
            figure.value,
            figure.median,
            figure.unit,
            share(|measured| measured.share_read),
            share(|measured| measured.share_peak),
            figure.rss_mb.map_or(String::new(), |megabytes| megabytes.to_string()),
        )?;
    }
    Ok(())
}

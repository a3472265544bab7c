//! `--machine`: what the machine does, by working set and by instruction.

use std::io::Write;

use serde_json::{Value, json};
use weir_abi::Probe;

use crate::probe::{BEYOND_CACHES, PAGE, Prober, Rate, memory_to_read};
use crate::weights::Probes;
use crate::{RuntimeError, machine};

/// Working sets that are read, in bytes.
const WORKING_SETS: [usize; 8] =
    [16 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 96 << 20, BEYOND_CACHES];

/// A rate of the machine.
#[derive(Clone, Debug)]
pub struct MachineFigure {
    /// What was measured.
    pub probe: Probe,
    /// Bytes that were read again and again; 0 for arithmetic.
    pub working_set: usize,
    /// Threads.
    pub threads: usize,
    /// Bytes or operations per second.
    pub rate: Rate,
}

/// Measures with one thread and with all.
pub fn measure_machine(
    probes: &Probes,
    threads: usize,
) -> Result<Vec<MachineFigure>, RuntimeError> {
    let mut figures = Vec::new();
    let memory = memory_to_read()?;
    let mut counts = vec![1, threads];
    counts.dedup();
    for threads in counts {
        let mut prober = Prober::new(probes, threads)?;
        for working_set in WORKING_SETS.into_iter().filter(|bytes| *bytes >= threads * PAGE) {
            let rate = prober.read(&memory, working_set)?;
            figures.push(MachineFigure { probe: Probe::Read, working_set, threads, rate });
        }
        let arithmetic = Probe::ALL.into_iter().filter(|probe| *probe != Probe::Read);
        for probe in arithmetic.filter(|probe| machine::runs_probe(*probe)) {
            let rate = prober.arithmetic(probe)?;
            figures.push(MachineFigure { probe, working_set: 0, threads, rate });
        }
    }
    Ok(figures)
}

impl MachineFigure {
    fn metric(&self) -> &'static str {
        let symbol = self.probe.symbol();
        symbol.strip_prefix("probe-").unwrap_or(symbol)
    }

    fn unit(&self) -> &'static str {
        if self.probe == Probe::Read { "GB/s" } else { "Gop/s" }
    }

    /// One object.
    pub fn json(&self) -> Value {
        let round = |number: f64| (number / 1e7).round() / 100.0;
        json!({
            "peer": "weir",
            "version": env!("CARGO_PKG_VERSION"),
            "model": "machine",
            "threads": self.threads,
            "metric": self.metric(),
            "working_set": self.working_set,
            "value": round(self.rate.best),
            "unit": self.unit(),
            "median": round(self.rate.median),
        })
    }
}

/// Writes figures for programs or for people.
pub fn write(
    out: &mut dyn Write,
    figures: &[MachineFigure],
    json: bool,
) -> Result<(), RuntimeError> {
    if json {
        for figure in figures {
            writeln!(out, "{}", figure.json())?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{:<20} {:>11} {:>7} {:>10} {:>10}",
        "probe", "working set", "threads", "best", "median"
    )?;
    for figure in figures {
        let working_set = match figure.working_set {
            0 => String::new(),
            bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
            bytes => format!("{} MiB", bytes >> 20),
        };
        writeln!(
            out,
            "{:<20} {:>11} {:>7} {:>10.1} {:>10.1} {}",
            figure.metric(),
            working_set,
            figure.threads,
            figure.rate.best / 1e9,
            figure.rate.median / 1e9,
            figure.unit(),
        )?;
    }
    Ok(())
}

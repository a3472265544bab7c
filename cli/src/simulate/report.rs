//! Predictions for people and for programs: the figures of `weir load`, what they rest on, and how busy
//! the server was.

use std::fmt::Write;

use serde_json::{Value, json};
use weir_runtime::command::bench::steps::StepTimes;

use super::FitError;
use super::server::{Server, Utilisation};
use crate::traffic::measure::Figures;
use crate::traffic::report::round;

/// What would happen at one rate.
pub struct Prediction {
    /// As if it had been measured.
    pub figures: Figures,
    /// How busy the server was.
    pub utilisation: Utilisation,
}

/// What all predictions of a run rest on.
pub fn head(times: &StepTimes, server: &Server, errors: &[FitError]) -> String {
    let StepTimes { model, dtype, kv, isa, threads, .. } = times;
    let Server { slots, queue, shape, .. } = server;
    let rows = shape.step_rows;
    let queue = match (queue.least(), queue.most()) {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least} to {most}"),
    };
    let mut head = format!(
        "{model}, {dtype}, cache {kv}, {isa}, threads {threads}: {slots} slots, {queue} in the queue, \
         {rows} rows a step\n"
    );
    for FitError { kind, steps, median, p95 } in errors {
        let kind = match kind {
            super::fit::Kind::Decode => "steps that decode",
            super::fit::Kind::Prompt => "steps with prompts",
            super::fit::Kind::Tile => "tiles of long prompts",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            head,
            "  {kind}: {:.1} % off at the median, {:.1} % at the 95th percentile of {steps} held out",
            100.0 * median,
            100.0 * p95
        );
    }
    head
}

/// A part of a whole, 0 of nothing.
fn part(some: f64, all: f64) -> f64 {
    if all > 0.0 { some / all } else { 0.0 }
}

impl Prediction {
    fn rows_per_step(&self) -> f64 {
        let Utilisation { steps, decode_rows, prompt_rows, .. } = self.utilisation;
        part((decode_rows + prompt_rows) as f64, steps as f64)
    }

    /// Parts of the time from the start to the last end.
    fn over_time(&self, sum: f64) -> f64 {
        part(sum, self.figures.seconds)
    }

    fn refused(&self) -> f64 {
        part(self.utilisation.refused as f64, self.figures.sent as f64)
    }

    /// A table.
    pub fn table(&self, server: &Server) -> String {
        let mut table = self.figures.table();
        let Utilisation { steps, busy, slot_seconds, waiting_seconds, .. } = self.utilisation;
        let _ = writeln!(
            table,
            "  busy {:.1} % of the time, {steps} steps of {:.1} rows, {:.1} of {} slots held, {:.1} \
             waiting, {:.1} % refused",
            100.0 * self.over_time(busy),
            self.rows_per_step(),
            self.over_time(slot_seconds),
            server.slots,
            self.over_time(waiting_seconds),
            100.0 * self.refused(),
        );
        table
    }

    /// One object: that of the figures, and ours behind it.
    pub fn json(&self, times: &StepTimes, server: &Server, errors: &[FitError]) -> Value {
        let mut object = self.figures.json(&times.model);
        let Utilisation { steps, tiles, busy, slot_seconds, waiting_seconds, .. } =
            self.utilisation;
        let round_part = |number: f64| (number * 1e6).round() / 1e6;
        let fit: Vec<Value> = errors
            .iter()
            .map(|error| {
                json!({
                    "steps": error.kind,
                    "held_out": error.steps,
                    "median_error": round(error.median),
                    "p95_error": round(error.p95),
                })
            })
            .collect();
        let ours = json!({
            "simulated": true,
            "isa": times.isa,
            "threads": times.threads,
            "slots": server.slots,
            "queue": server.queue.least(),
            "queue_most": server.queue.most(),
            "step_rows": server.shape.step_rows,
            "steps": steps,
            "tiles": tiles,
            "rows_per_step": round(self.rows_per_step()),
            "busy": round_part(self.over_time(busy)),
            "slots_held": round(self.over_time(slot_seconds)),
            "waiting": round(self.over_time(waiting_seconds)),
            "refused": round_part(self.refused()),
            "fit": fit,
            "step_costs_seconds": server.costs,
        });
        if let (Some(object), Value::Object(ours)) = (object.as_object_mut(), ours) {
            object.extend(ours);
        }
        object
    }
}

//! Figures for people and for programs.
//!
//! Fields of JSON have the names that vLLM's benchmark gives them where they mean the same; times are
//! in milliseconds there, too. What has no value is null.

use std::fmt::Write;

use serde_json::{Value, json};

use super::measure::{Distribution, Failures, Figures};
use super::offer::Offered;

/// Seconds by which the 99th percentile of requests may be late: a grain of the timers and what a busy
/// machine adds to it. Beyond it the load was not what was asked for.
const LATE: f64 = 0.01;

impl Figures {
    /// One object.
    pub fn json(&self, model: &str) -> Value {
        let by_kind = |of: fn(&Failures) -> Value| -> serde_json::Map<String, Value> {
            self.failures.iter().map(|(kind, failures)| (kind.to_string(), of(failures))).collect()
        };
        let (burstiness, concurrency) = match self.offered {
            Offered::PerSecond { burstiness, .. } => (Some(burstiness), None),
            Offered::Closed { concurrency } => (None, Some(concurrency)),
            Offered::Unlimited | Offered::Trace => (None, None),
        };
        let rate = |tokens: Option<u64>| tokens.map(|tokens| round(self.per_second(tokens)));
        let all = self.prompt_tokens.map(|tokens| tokens + self.output_tokens);
        let mut object = json!({
            "model_id": model,
            "request_rate": self.offered.rate().map_or(self.offered.to_string().into(), Value::from),
            "burstiness": burstiness,
            "max_concurrency": concurrency,
            "max_concurrent_requests": self.most_at_once,
            "num_prompts": self.sent,
            "completed": self.completed,
            "failed": self.failed(),
            "failures": by_kind(|failures| failures.count.into()),
            "first_failures": by_kind(|failures| failures.example.as_str().into()),
            "duration": round(self.seconds),
            "total_input_tokens": self.prompt_tokens,
            "total_output_tokens": self.output_tokens,
            "uncounted_answers": self.uncounted,
            "request_throughput": round(self.per_second(self.completed as u64)),
            "input_throughput": rate(self.prompt_tokens),
            "output_throughput": rate(Some(self.output_tokens)),
            "total_token_throughput": rate(all),
        });
        for (name, distribution) in [
            ("ttft", self.first),
            ("tpot", self.per_token),
            ("itl", self.gaps),
            ("e2el", self.whole),
            ("late", self.late),
        ] {
            let mut put = |of: &str, value: fn(&Distribution) -> f64| {
                let value = distribution.as_ref().map(|all| round(1e3 * value(all)));
                object[format!("{of}_{name}_ms")] = value.into();
            };
            put("mean", |all| all.mean);
            put("median", |all| all.median);
            put("std", |all| all.deviation);
            put("p90", |all| all.p90);
            put("p99", |all| all.p99);
            put("max", |all| all.max);
        }
        object
    }

    /// A table.
    pub fn table(&self) -> String {
        let mut table = format!(
            "{}: {} requests in {:.1} s, {} answered, {} failed, at most {} at once\n",
            self.offered.title(),
            self.sent,
            self.seconds,
            self.completed,
            self.failed(),
            self.most_at_once,
        );
        let mut line = |name: &str, total: Option<u64>| {
            let figures = total.map(|total| (format!("{:.2}", self.per_second(total)), total));
            let (rate, total) = match figures {
                Some((rate, total)) => (rate, total.to_string()),
                None => ("unknown".to_owned(), String::new()),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(table, "  {name:<20} {rate:>11} /s {total:>11}");
        };
        line("answers", Some(self.completed as u64));
        line("prompt tokens", self.prompt_tokens);
        line("output tokens", Some(self.output_tokens));
        let _ = writeln!(
            table,
            "  {:<20} {:>11} {:>11} {:>11} {:>11} {:>11}",
            "ms", "mean", "p50", "p90", "p99", "max"
        );
        for (name, distribution) in [
            ("first token", self.first),
            ("between tokens", self.gaps),
            ("per output token", self.per_token),
            ("whole answer", self.whole),
            ("sent late by", self.late),
        ] {
            let Some(Distribution { mean, median, p90, p99, max, .. }) = distribution else {
                continue;
            };
            let _ = write!(table, "  {name:<20}");
            for seconds in [mean, median, p90, p99, max] {
                let _ = write!(table, " {:>11.2}", 1e3 * seconds);
            }
            table.push('\n');
        }
        for (kind, failures) in &self.failures {
            let _ = writeln!(table, "  {} × {kind}: {}", failures.count, failures.example);
        }
        table
    }

    /// What the figures would hide.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(late) = self.late.filter(|late| late.p99 > LATE) {
            warnings.push(format!(
                "requests were sent up to {:.0} ms late (99th percentile): this program lacked processor \
                 time, and the load was not what was asked for",
                1e3 * late.p99
            ));
        }
        if self.uncounted > 0 {
            warnings.push(format!(
                "the server did not count the tokens of {} answers; their chunks were counted",
                self.uncounted
            ));
        }
        warnings
    }
}

/// Four decimals: a tenth of a microsecond in milliseconds.
pub fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests;

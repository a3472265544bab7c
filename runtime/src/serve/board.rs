//! What is going on, for whoever looks: Prometheus metrics and the numbers behind `/status`.
//!
//! Metrics are named after vLLM's where they mean the same, with `weir:` in front. The engine's thread
//! writes, connections read; nobody waits for anybody.

use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::cache::KeptRows;
use crate::forward::StepModel;
use crate::{Engine, FinishReason, Usage};

/// How often the slots are looked at while the engine works.
const LOOK: Duration = Duration::from_millis(200);

/// Bounds of histograms of latencies, in seconds, from a fast step of a small model to a long prompt of a
/// large one: a factor of about 1.5 up to a second, where most of them are, and fewer beyond.
const LATENCIES: [f64; 24] = [
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

type IntGauge = Gauge<i64, AtomicI64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    status: u16,
}

/// Rows of a slot's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlotView {
    /// Its number.
    pub slot: u32,
    /// Rows per layer and head that the cache holds of its sequence.
    pub kept: u32,
    /// Rows that were computed and are no longer held.
    pub dropped: u32,
}

/// Tokens per second, over the last moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Of prompts.
    pub prompt: f64,
    /// Of answers.
    pub completion: f64,
}

/// What the slots look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotsView {
    /// All slots.
    pub slots: Vec<SlotView>,
    /// Speed of the engine.
    pub speed: Speed,
}

struct Watch {
    view: SlotsView,
    looked: Instant,
    prompt_rows: u64,
    chosen: u64,
}

/// All numbers of a server.
pub struct Board {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    cache_usage: Gauge<f64, AtomicU64>,
    rows_kept: IntGauge,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generation_tokens: Counter,
    rows_dropped: Counter,
    finished: Family<Reason, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    steps: Histogram,
    answered: Family<Answered, Counter>,
    connections: IntGauge,
    refused: Counter,
    dismissed: Counter,
    traces_dropped: Counter,
    handshakes_failed: Counter,
    certificate_expires: IntGauge,
    watch: Mutex<Watch>,
    slots: u32,
    rows: u32,
}

impl Board {
    /// Numbers of a server with so many slots of so many rows, which runs code of this level.
    pub fn new(model: &str, isa: &'static str, slots: u32, rows: u32) -> Board {
        let mut registry = Registry::default();
        let latencies = || Histogram::new(LATENCIES);
        let board = Board {
            running: IntGauge::default(),
            waiting: IntGauge::default(),
            cache_usage: Gauge::default(),
            rows_kept: IntGauge::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            rows_dropped: Counter::default(),
            finished: Family::default(),
            first_token: latencies(),
            between_tokens: latencies(),
            whole: latencies(),
            steps: latencies(),
            answered: Family::default(),
            connections: IntGauge::default(),
            refused: Counter::default(),
            dismissed: Counter::default(),
            traces_dropped: Counter::default(),
            handshakes_failed: Counter::default(),
            certificate_expires: IntGauge::default(),
            watch: Mutex::new(Watch {
                view: SlotsView {
                    slots: (0..slots).map(|slot| SlotView { slot, kept: 0, dropped: 0 }).collect(),
                    speed: Speed::default(),
                },
                looked: Instant::now(),
                prompt_rows: 0,
                chosen: 0,
            }),
            slots,
            rows,
            registry: Registry::default(),
        };
        let info = prometheus_client::metrics::info::Info::new([
            ("model_name", model.to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("isa", isa.to_owned()),
        ]);
        registry.register("weir:build", "The model and the code that runs", info);
        let gauges = [
            ("weir:num_requests_running", "Requests that hold a slot", &board.running),
            ("weir:num_requests_waiting", "Requests that wait for a slot", &board.waiting),
            ("weir:kv_rows_kept", "Cache rows held, over all slots", &board.rows_kept),
            ("weir:connections", "Open connections", &board.connections),
            (
                "weir:tls_certificate_expires_seconds",
                "When the certificate expires, in seconds since 1970; 0 without TLS",
                &board.certificate_expires,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "weir:kv_cache_usage_perc",
            "Cache rows held, of all there is room for; 1 is full",
            board.cache_usage.clone(),
        );
        let counters = [
            ("weir:prompt_tokens", "Tokens of prompts", &board.prompt_tokens),
            (
                "weir:prompt_tokens_cached",
                "Tokens of prompts whose rows were in the cache",
                &board.cached_tokens,
            ),
            ("weir:generation_tokens", "Tokens chosen", &board.generation_tokens),
            (
                "weir:kv_rows_dropped",
                "Rows that caches had dropped when their requests ended",
                &board.rows_dropped,
            ),
            ("weir:connections_refused", "Connections refused by a limit", &board.refused),
            (
                "weir:connections_dismissed",
                "Silent connections closed because others needed their places",
                &board.dismissed,
            ),
            (
                "weir:trace_lines_dropped",
                "Traces of requests that could not be written, or not in time",
                &board.traces_dropped,
            ),
            (
                "weir:tls_handshakes_failed",
                "Connections that ended before they were secured",
                &board.handshakes_failed,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register("weir:request_success", "Answers that ended", board.finished.clone());
        registry.register("weir:http_requests", "HTTP requests", board.answered.clone());
        let histograms = [
            (
                "weir:time_to_first_token_seconds",
                "From a request to its answer's first token",
                &board.first_token,
            ),
            (
                "weir:inter_token_latency_seconds",
                "From a token to the next one of its answer",
                &board.between_tokens,
            ),
            (
                "weir:e2e_request_latency_seconds",
                "From a request to its answer's end",
                &board.whole,
            ),
            ("weir:step_seconds", "Time of a step of the engine", &board.steps),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
        Board { registry, ..board }
    }

    /// A request's first token was chosen so long after it was asked.
    pub fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A token was chosen so long after the one before it.
    pub fn next_token(&self, after: Duration) {
        self.between_tokens.observe(after.as_secs_f64());
    }

    /// An answer ended so long after it was asked.
    pub fn finished(&self, reason: FinishReason, usage: Usage, after: Duration) {
        self.finished.get_or_create(&Reason { finished_reason: reason.name() }).inc();
        self.whole.observe(after.as_secs_f64());
        self.prompt_tokens.inc_by(usage.prompt_tokens.into());
        self.cached_tokens.inc_by(usage.reused_tokens.into());
        self.generation_tokens.inc_by(usage.completion_tokens.into());
        self.rows_dropped.inc_by(usage.kv_rows_dropped.into());
    }

    /// The engine could not compute an answer.
    pub fn failed(&self) {
        self.finished.get_or_create(&Reason { finished_reason: "error" }).inc();
    }

    /// An HTTP request was answered.
    pub fn answered(&self, route: &str, status: u16) {
        self.answered.get_or_create(&Answered { route: route.to_owned(), status }).inc();
    }

    /// A connection was opened (1) or closed (−1).
    pub fn connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    /// A silent connection had to make room.
    pub fn dismissed(&self) {
        self.dismissed.inc();
    }

    /// A connection was refused by a limit.
    pub fn refuse(&self) {
        self.refused.inc();
    }

    /// A request's trace was dropped.
    pub fn trace_dropped(&self) {
        self.traces_dropped.inc();
    }

    /// A connection was not secured.
    pub fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }

    /// The certificate that is served from now on expires then, in seconds since 1970.
    pub fn certificate_expires(&self, seconds: u64) {
        self.certificate_expires.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// The engine has done a step that began then.
    pub fn step<M: StepModel>(&self, engine: &Engine<M>, began: Instant) {
        self.steps.observe(began.elapsed().as_secs_f64());
        self.running.set(engine.running() as i64);
        self.waiting.set(engine.waiting() as i64);
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.looked.elapsed() >= LOOK {
            self.look(&mut watch, engine);
        }
    }

    /// The engine has nothing to do.
    pub fn idle<M: StepModel>(&self, engine: &Engine<M>) {
        self.running.set(0);
        self.waiting.set(0);
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut watch, engine);
        watch.view.speed = Speed::default();
    }

    fn look<M: StepModel>(&self, watch: &mut Watch, engine: &Engine<M>) {
        let (prompt_rows, chosen) = (engine.prompt_rows(), engine.chosen_tokens());
        let seconds = watch.looked.elapsed().as_secs_f64().max(1e-6);
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        watch.view.speed = Speed {
            prompt: rate(prompt_rows, watch.prompt_rows),
            completion: rate(chosen, watch.chosen),
        };
        watch.looked = Instant::now();
        (watch.prompt_rows, watch.chosen) = (prompt_rows, chosen);
        for view in &mut watch.view.slots {
            (view.kept, view.dropped) = (0, 0);
        }
        let mut all = 0;
        for (slot, KeptRows { kept, dropped }) in engine.held_rows() {
            if let Some(view) = watch.view.slots.get_mut(slot as usize) {
                (view.kept, view.dropped) = (kept, dropped);
            }
            all += u64::from(kept);
        }
        self.rows_kept.set(all as i64);
        let room = u64::from(self.slots) * u64::from(self.rows);
        self.cache_usage.set(all as f64 / room.max(1) as f64);
    }

    /// What the slots look like.
    pub fn slots(&self) -> SlotsView {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).view.clone()
    }

    /// Requests that hold a slot.
    pub fn running(&self) -> usize {
        usize::try_from(self.running.get()).unwrap_or(0)
    }

    /// All metrics in Prometheus' text form.
    pub fn metrics(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;

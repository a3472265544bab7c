//! `info`: what the model is, and what it needs.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use weir_abi::{CachePolicy, HeadResult};

use super::options::{BlockArguments, DraftArguments, RuntimeArguments};
use crate::facts::WeightFacts;
use crate::memory::Mebibytes;
use crate::{Model, RuntimeError, RuntimeOptions, cores, machine, memory};

/// Says what the model is and how much memory it needs.
#[derive(Clone, Debug, Args)]
pub struct Info {
    /// Write one JSON object
    #[arg(long, help_heading = None::<&str>)]
    pub json: bool,
    /// How tokens would be guessed.
    #[command(flatten)]
    pub drafting: DraftArguments,
    /// How many prompts there would be room for.
    #[command(flatten)]
    pub blocks: BlockArguments,
    /// How the model would run.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

impl Info {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        let mut out = std::io::stdout().lock();
        let facts = self.collect(model)?;
        if self.json {
            writeln!(out, "{facts:#}")?;
            return Ok(());
        }
        let text = |key: &str| facts[key].as_str().unwrap_or_default().to_owned();
        writeln!(out, "{}", text("name"))?;
        let build = &model.facts().build;
        writeln!(out, "  built by weir {} from {}", build.weir, build.source)?;
        writeln!(out, "  compute {}, cache {} in {}", build.compute, build.kv, build.kv_dtype)?;
        writeln!(
            out,
            "  {} layers, vocabulary {}, context {}",
            facts["layers"], facts["vocabulary"], facts["context"]
        )?;
        writeln!(out, "  hidden width {}", model.compiled().header().hidden_width)?;
        if model.gives() == HeadResult::Hidden {
            writeln!(out, "  gives embeddings of {} values", model.compiled().header().head_width)?;
        }
        for kind in model.compiled().kinds() {
            writeln!(
                out,
                "  {} query heads over {} key/value heads, {} and {} wide",
                kind.heads, kind.kv_heads, kind.key_width, kind.value_width
            )?;
        }
        if !model.facts().weights.is_empty() {
            writeln!(out, "  weights")?;
        }
        for WeightFacts { part, format, tensors, bytes } in &model.facts().weights {
            let tensors = match tensors {
                1 => "1 tensor".to_owned(),
                count => format!("{count} tensors"),
            };
            let bytes = Mebibytes(*bytes);
            writeln!(out, "    {part:22} {tensors:>12} {bytes:>11}  {format}")?;
        }
        let (slots, blocks) = (&facts["slots"], &facts["blocks"]);
        let blocks = if slots == blocks { String::new() } else { format!(", {blocks} blocks") };
        writeln!(out, "  {slots} slots{blocks}, steps of {} rows", facts["max_rows"])?;
        for layout in facts["cache_layouts"].as_array().into_iter().flatten() {
            let is_anew = layout["reselect"].as_bool() == Some(true);
            let room = if is_anew { ", selected anew after" } else { ", room" };
            let part = |name: &str, what: &str| match layout[name].as_u64() {
                None | Some(0) => String::new(),
                Some(rows) => format!("{what} {rows}"),
            };
            let beside = part("reservoir", ", reservoir")
                + &part("growth", room)
                + &part("redundancy", ", percent of redundancy")
                + &part("second", ", asked")
                + &part("second_share", ", percent chosen by these")
                + &part("in_flight", ", in flight")
                + &part("further", ", selected beside these by head up to");
            // Where it is all rows, their format is the cache's.
            let block = match layout["block_rows"] == layout["rows"] {
                true => String::new(),
                false => part("block_rows", "; in the block's own format"),
            };
            writeln!(
                out,
                "  cache of {} layers: {}, {} rows (sinks {}, selected {}, recent {}, window \
                 {}{beside}{block})",
                layout["layers"],
                layout["policy"].as_str().unwrap_or_default(),
                layout["rows"],
                layout["sinks"],
                layout["selected"],
                layout["recent"],
                layout["window"],
            )?;
        }
        writeln!(out, "  runs {} on {} threads", text("isa"), facts["threads"])?;
        let levels = compiled_levels(model).join(", ");
        writeln!(out, "  has code for {levels}")?;
        let ceiling = model.memory_ceiling(&self.options())?;
        writeln!(out, "  {ceiling}")?;
        let per_slot = facts["cache_bytes_per_slot"].as_u64().unwrap_or_default();
        let per_sample = facts["cache_bytes_per_sample"].as_u64().unwrap_or_default();
        let beside = match per_sample == per_slot {
            true => String::new(),
            false => format!(", without a block {}", Mebibytes(per_sample)),
        };
        writeln!(out, "  cache per slot {}{beside}", Mebibytes(per_slot))?;
        Ok(())
    }

    fn options(&self) -> RuntimeOptions {
        self.blocks.over(self.drafting.over(self.runtime.resolve()))
    }

    fn collect(&self, model: &Model) -> Result<Value, RuntimeError> {
        let options = self.options();
        let compiled = model.compiled();
        let header = compiled.header();
        let ceiling = model.memory_ceiling(&options)?;
        let slots = options.slots_of(compiled);
        let [per_slot, per_sample] = memory::slot_bytes(compiled)?;
        let layouts: Vec<_> = (0_u32..)
            .zip(compiled.layouts())
            .map(|(index, layout)| {
                json!({
                    "policy": CachePolicy::from_number(layout.policy).map(CachePolicy::name),
                    "elastic": layout.elastic != 0,
                    "layers": compiled.layers().iter().filter(|l| l.layout == index).count(),
                    "rows": layout.rows,
                    "sinks": layout.sinks,
                    "selected": layout.selected,
                    "further": layout.further,
                    "recent": layout.recent,
                    "window": layout.window,
                    "observed": layout.observed,
                    "pool": layout.pool,
                    "second": layout.second,
                    "second_share": layout.second_share,
                    "growth": layout.growth,
                    "in_flight": layout.in_flight,
                    "reservoir": layout.reservoir,
                    "reselect": layout.reselect != 0,
                    "redundancy": layout.redundancy,
                    "block_rows": layout.block_rows,
                })
            })
            .collect();
        Ok(json!({
            "name": model.facts().name,
            "build": model.facts().build,
            "layers": compiled.layers().len(),
            "vocabulary": header.vocabulary,
            "hidden_width": header.hidden_width,
            "gives": match model.gives() {
                HeadResult::Logits => "text",
                HeadResult::Hidden => "embeddings",
            },
            "context": header.context,
            "slots": slots,
            "blocks": options.blocks.unwrap_or(slots),
            "max_rows": header.max_rows,
            "tokenizer": !compiled.tokenizer().is_empty(),
            "chat_template": !compiled.chat_template().is_empty(),
            "bos_token_id": model.facts().bos_token_id,
            "eos_token_ids": model.facts().eos_token_ids,
            "sampling": model.facts().sampling,
            "weights": model.facts().weights,
            "passes": model.facts().passes,
            "cache_layouts": layouts,
            "isa": machine::choose_level(compiled, options.isa)?.level.name(),
            "isa_levels": compiled_levels(model),
            "threads": options.threads.unwrap_or_else(cores::default_threads),
            "cache_bytes_per_slot": per_slot,
            "cache_bytes_per_sample": per_sample,
            "memory": ceiling,
            "memory_ceiling_bytes": ceiling.total(),
        }))
    }
}

/// Names of the levels that the model has code for, lowest first.
fn compiled_levels(model: &Model) -> Vec<&'static str> {
    model.compiled().levels().iter().map(|level| level.level.name()).collect()
}

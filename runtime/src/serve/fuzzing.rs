//! What fuzz targets call: reading of requests as the routes do it, without a network or an engine.
//!
//! Compiled for the fuzz targets only (feature `fuzzing`). A broken promise panics, which is the finding.

use super::asked::{GenerationFields, Prompts, read_messages};
use super::json::parse;
use super::limits::{BIASES, Limits, MESSAGES, PROMPTS, SAMPLES, STOP_BYTES, STOPS};
use super::routes::{ChatFields, TextFields};
use crate::Model;

/// Reads a body as a conversation and as a text to be continued; what is accepted keeps to the limits.
pub fn read(model: &Model, body: &[u8]) {
    let depth = Limits::default().json_depth;
    if let Ok(fields) = parse::<GenerationFields>(body, depth)
        && let Ok(generation) = fields.resolve(model)
    {
        let request = &generation.request;
        assert!((1..=SAMPLES).contains(&generation.samples), "samples");
        assert!(request.max_tokens != Some(0), "no tokens");
        assert!(request.stop.len() <= STOPS, "stop texts");
        assert!(request.stop.iter().all(|stop| (1..=STOP_BYTES).contains(&stop.len())), "a stop");
        assert!(request.sampling.logit_bias.len() <= BIASES, "biases");
        let in_range = |bias: f32| (-100.0..=100.0).contains(&bias);
        assert!(request.sampling.logit_bias.iter().all(|(_, bias)| in_range(*bias)), "a bias");
        assert!(request.sampling.check().is_ok(), "sampling");
    }
    if let Ok(fields) = parse::<ChatFields>(body, depth)
        && let Ok(messages) = read_messages(&fields.messages)
    {
        assert!((1..=MESSAGES).contains(&messages.len()), "messages");
        let known = ["system", "user", "assistant"];
        assert!(messages.iter().all(|message| known.contains(&message.role.as_str())), "a role");
    }
    if let Ok(fields) = parse::<TextFields>(body, depth) {
        match fields.prompt {
            Prompts::Texts(texts) => assert!(texts.len() <= PROMPTS, "texts"),
            Prompts::Ids(lists) => assert!(lists.len() <= PROMPTS, "lists of ids"),
        }
    }
}

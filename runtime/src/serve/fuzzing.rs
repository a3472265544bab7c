//! What fuzz targets call: reading of requests as the routes do it, without a network or an engine.
//!
//! Compiled for the fuzz targets only (feature `fuzzing`). A broken promise panics, which is the finding.

use serde::Deserialize;

use super::asked::{
    AnthropicFields, GenerationFields, MessageList, Prompts, ResponsesFields, ToolFieldsOfRequest,
    read_messages,
};
use super::json::parse;
use super::limits::{BIASES, Limits, MESSAGES, PROMPTS, SAMPLES, STOP_BYTES, STOPS, TOOLS};
use crate::Model;
use crate::template::ChatTemplate;

#[derive(Deserialize)]
struct ChatBody {
    messages: MessageList,
}

#[derive(Deserialize)]
struct TextBody {
    prompt: Prompts,
}

/// Reads a body as each interface does; what is accepted keeps to the limits.
pub fn read(model: &Model, template: &ChatTemplate, body: &[u8]) {
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
    if let Ok(ChatBody { messages }) = parse(body, depth)
        && let Ok(messages) = read_messages(&messages, template)
    {
        assert!((1..=MESSAGES).contains(&messages.len()), "messages");
        let known = ["system", "user", "assistant", "tool"];
        assert!(messages.iter().all(|message| known.contains(&message.role.as_str())), "a role");
        let _ = template.render(&messages, true);
    }
    if let Ok(fields) = parse::<ToolFieldsOfRequest>(body, depth)
        && let Ok(tools) = fields.resolve(template)
    {
        assert!(tools.definitions.len() <= TOOLS, "tools");
    }
    if let Ok(TextBody { prompt }) = parse(body, depth) {
        match prompt {
            Prompts::Texts(texts) => assert!(texts.len() <= PROMPTS, "texts"),
            Prompts::Ids(lists) => assert!(lists.len() <= PROMPTS, "lists of ids"),
        }
    }
    if let Ok(fields) = parse::<ResponsesFields>(body, depth)
        && fields.refuse_unsupported().is_ok()
        && let Ok(messages) = fields.messages(template)
    {
        assert!(!messages.is_empty(), "an input without messages");
        let _ = fields.tools(template);
    }
    if let Ok(fields) = parse::<AnthropicFields>(body, depth)
        && let Ok(stops) = fields.stops()
    {
        assert!(stops.len() <= STOPS, "stop sequences");
        let _ = fields.messages(template);
        let _ = fields.tools(template);
    }
}

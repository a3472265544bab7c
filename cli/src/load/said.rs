//! Errors of servers, which put what they say into different places.

use serde_json::Value;

/// Most letters that are shown.
const MOST_SHOWN: usize = 200;

/// What a server says about an error, in a line.
pub fn said(text: &str) -> String {
    let error: Option<Value> = serde_json::from_str(text).ok();
    let message = error.as_ref().and_then(|error| {
        let places = [&error["error"]["message"], &error["message"], &error["error"]];
        places.into_iter().chain([&error["detail"]]).find_map(Value::as_str)
    });
    let line = message.unwrap_or(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

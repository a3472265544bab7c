//! A greedy request is answered among others as it is alone.

use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{completion, generated, start};

pub fn company() -> Result<()> {
    crowd(24, 4)
}

/// One greedy request among others of all kinds, again and again, is answered as if it were alone.
pub fn crowd(requests: usize, clients: usize) -> Result<()> {
    let server = Arc::new(start(&["--queue", "64"])?);
    let alone = generated(&["--max-tokens", "24"])?;
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || -> Result<Vec<Value>> {
                let mut same = Vec::new();
                for number in (client..requests).step_by(clients) {
                    let words = 1 + number * 37 % 400;
                    let other = json!({
                        "prompt": "The dog ran to the tree. ".repeat(words / 6 + 1),
                        "max_tokens": 1 + number * 13 % 40,
                        "temperature": 1,
                        "n": 1 + number % 2,
                    });
                    server.post_ok("/v1/completions", &completion(other))?;
                    let whole = server.post_ok("/v1/completions", &completion(json!({})))?;
                    same.push(whole["choices"][0]["text"].clone());
                }
                Ok(same)
            })
        })
        .collect();
    for thread in threads {
        let texts = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        for text in texts {
            ensure!(text == alone["text"], "{text} instead of {}", alone["text"]);
        }
    }
    Ok(())
}

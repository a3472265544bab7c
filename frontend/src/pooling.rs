//! What is done with the rows that an embedding model's graph ends in.
//!
//! The row of a text's last token is taken and divided by its length: what embedding models do that
//! attend to earlier tokens alone (E5-Mistral, Qwen3-Embedding). The files that sentence-transformers
//! writes beside a model say so (`modules.json`, a `config.json` for its pooling). Where they ask for
//! something else, such as the mean of all rows or a further layer, the model is refused: its vectors
//! would be others than its users know.

use serde_json::Value;

use crate::error::{Place, Problem};
use crate::json::Json;
use crate::source::ModelFiles;

/// The list of what a model consists of.
const MODULES: &str = "modules.json";

/// Where the pooling is described if the list does not say.
const USUAL_PLACE: &str = "1_Pooling";

/// The only pooling there is here.
const LAST_TOKEN: &str = "lasttoken";

/// What a pooling's settings begin with.
const MODE: &str = "pooling_mode_";

/// Refuses what is not done here; all problems at once.
pub fn check(files: &ModelFiles) -> Vec<Problem> {
    match pooling_place(files) {
        Ok(place) => check_pooling(files, place).err().into_iter().collect(),
        Err(problems) => problems,
    }
}

/// The folder that describes the pooling, if the list of modules names one.
fn pooling_place(files: &ModelFiles) -> Result<Option<String>, Vec<Problem>> {
    let place = || Place::File(files.directory().join(MODULES));
    let Some(bytes) = files.beside(MODULES).map_err(|problem| vec![problem])? else {
        return Ok(None);
    };
    let malformed = |message: String| vec![Problem::malformed(place(), message)];
    let modules: Vec<Value> = serde_json::from_slice(&bytes)
        .map_err(|error| malformed(format!("is not a list of modules: {error}")))?;
    let mut found = None;
    let mut problems = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        let text = |name: &str| module.get(name).and_then(Value::as_str);
        let (Some(kind), Some(path)) = (text("type"), text("path")) else {
            problems.extend(malformed(format!("module {index} has no type or no path")));
            continue;
        };
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" | "Normalize" => {}
            "Pooling" => found = Some(path.to_owned()),
            _ => {
                let message = format!("the module {kind:?} behind the graph is not computed here");
                problems.push(Problem::unsupported(place(), message));
            }
        }
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

fn check_pooling(files: &ModelFiles, folder: Option<String>) -> Result<(), Problem> {
    let name = format!("{}/config.json", folder.as_deref().unwrap_or(USUAL_PLACE));
    let Some(config) = Json::beside(files, &name)? else {
        if folder.is_none() {
            return Ok(());
        }
        let message = format!("names a pooling whose file {name} is not there");
        return Err(Problem::malformed(Place::File(files.directory().join(MODULES)), message));
    };
    let mut modes = config.enabled(MODE)?;
    modes.extend(config.string("pooling_mode")?);
    if modes.is_empty() || modes.iter().all(|mode| mode == LAST_TOKEN) {
        return Ok(());
    }
    let message = format!(
        "texts are pooled by {}; only the row of the last token ({LAST_TOKEN}) is taken here",
        modes.join(" and ")
    );
    Err(Problem::unsupported(Place::File(files.directory().join(name)), message))
}

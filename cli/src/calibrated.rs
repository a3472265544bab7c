//! What `compile --calibrate` brought, on text that it has not seen.

use weir_runtime::command::say;
use weir_runtime::{CompiledModel, Model};

use crate::driver::{Emission, Lowered, load, load_whole};
use crate::failure::Failure;
use crate::options::{ComputeOption, ModelOptions, ReportOptions};
use crate::perplexity::{Perplexity, perplexity};
use crate::progress::Progress;

/// Says what the model's perplexity on the held-out windows is with the file's weights, with weights
/// rounded to nearest and with the calibrated ones.
pub fn tell_perplexity(
    lowered: &mut Lowered,
    options: &ModelOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let held_out = std::mem::take(&mut lowered.held_out);
    let measured = |model: CompiledModel| -> Result<Perplexity, Failure> {
        let model = Model::new(model)?;
        Ok(perplexity(&model, held_out.iter().map(Vec::as_slice))?)
    };
    let quiet = ReportOptions { quiet: true, ..ReportOptions::default() };
    let silent = Progress::new(true);
    let nearest = ModelOptions { calibrate: None, ..options.clone() };
    let float =
        ModelOptions { weights: None, compute: Some(ComputeOption::F32), ..nearest.clone() };
    let work = progress.start("measuring");
    let exact = measured(load(&float, &quiet, &silent)?)?;
    let nearest = measured(load(&nearest, &quiet, &silent)?)?;
    let ours = measured(load_whole(lowered, options, &silent, Emission::default())?)?;
    drop(work);
    say(format_args!("perplexity on {} tokens that were held out", exact.tokens));
    say(format_args!("{:>12.4}            float weights", exact.value));
    for (found, what) in [(nearest, "rounded to nearest"), (ours, "calibrated")] {
        let more = 100.0 * (found.value / exact.value - 1.0);
        say(format_args!("{:>12.4}  {more:+7.2} %  {what}", found.value));
    }
    Ok(())
}

//! Suites over whole models, a named test per model and question: `cargo test -p weir-tests NAME`.

mod activations;
mod artefact;
mod broken;
mod company;
mod conversation;
mod embedding;
mod golden;
mod guesses;
mod invariance;
mod library;
mod memory;
mod policies;
mod samples;
mod serving;
mod trained;
mod weights;

use libtest_mimic::{Arguments, Failed, Trial};

/// A test from a check that says what is wrong.
fn trial(name: String, check: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || check().map_err(|error| Failed::from(format!("{error:#}"))))
}

fn main() {
    let arguments = Arguments::from_args();
    if weir_tests::places::shared().is_none() {
        println!("no folder `shared` beside the checkout: larger fixtures and models are skipped");
    }
    let mut trials = Vec::new();
    trials.extend(golden::trials());
    trials.extend(activations::trials());
    trials.extend(trained::trials());
    trials.extend(weights::trials());
    trials.extend(policies::trials());
    trials.extend(guesses::trials());
    trials.extend(company::trials());
    trials.extend(samples::trials());
    trials.extend(conversation::trials());
    trials.extend(embedding::trials());
    trials.extend(invariance::trials());
    trials.extend(artefact::trials());
    trials.extend(broken::trials());
    trials.extend(library::trials());
    trials.extend(serving::trials());
    trials.extend(memory::trials());
    libtest_mimic::run(&arguments, trials).exit();
}

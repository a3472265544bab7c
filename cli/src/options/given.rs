//! Which options a user has given, whatever their values.
//!
//! A value that is the default's may have been written all the same, and options themselves do not say;
//! clap knows while it hands them over.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Id};

/// Options, and the names of those that stand on the command line.
#[derive(Clone, Debug, Default)]
pub struct Given<T> {
    /// What they came to.
    pub options: T,
    /// The long names, as they are written and in the help's order.
    names: Vec<String>,
}

impl<T> Given<T> {
    /// What was given, but for options that matter to every command.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str).filter(|name| *name != "--quiet")
    }
}

impl<T: Args> Given<T> {
    fn find(matches: &ArgMatches) -> Vec<String> {
        let command = T::augment_args(Command::new("options"));
        let is_given =
            |id: &Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let options = command.get_arguments().filter(|option| is_given(option.get_id()));
        options.filter_map(|option| Some(format!("--{}", option.get_long()?))).collect()
    }
}

impl<T: Args> Args for Given<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Args> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given<T>, Error> {
        Given::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Given<T>, Error> {
        // First: what is handed over is no longer there to be asked for.
        let names = Given::<T>::find(matches);
        Ok(Given { options: T::from_arg_matches_mut(matches)?, names })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.update_from_arg_matches_mut(&mut matches.clone())
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.names = Given::<T>::find(matches);
        self.options.update_from_arg_matches_mut(matches)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{ModelOptions, ReportOptions};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        model: Given<ModelOptions>,
        #[command(flatten)]
        report: Given<ReportOptions>,
    }

    fn given(arguments: &[&str]) -> Vec<String> {
        let line = [&["weir", "model"], arguments].concat();
        let Line { model, report } = Line::try_parse_from(line).expect("options that there are");
        model.names().chain(report.names()).map(str::to_owned).collect()
    }

    #[test]
    fn what_is_written_is_given_though_it_changes_nothing() {
        assert_eq!(given(&[]), [""; 0]);
        assert_eq!(given(&["--kv", "snapstream"]), ["--kv"]);
        assert_eq!(given(&["--time", "--step-rows", "128"]), ["--step-rows", "--time"]);
        let text = ["--calibrate", "none", "--calibrate-tokens", "32768"];
        assert_eq!(given(&text), ["--calibrate", "--calibrate-tokens"]);
        assert_eq!(given(&["--dump", "imported", "--context=5"]), ["--context", "--dump"]);
        assert_eq!(given(&["--quiet"]), [""; 0], "it is heeded everywhere");
    }
}

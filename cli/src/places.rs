//! Outputs that would take the place of what a command reads, found before anything is done.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::Failure;

/// A file that a command reads.
#[derive(Clone, Copy, Debug)]
pub struct Input<'p> {
    /// What the user knows it as, such as "the text of --calibrate".
    pub what: &'static str,
    /// Where it is, if it is a file.
    pub path: &'p Path,
}

/// Refuses an output that is one of the inputs, by whichever of its names.
pub fn refuse_overwriting(
    option: &str,
    output: &Path,
    inputs: &[Input<'_>],
) -> Result<(), Failure> {
    let Some(own) = identity(output) else { return Ok(()) };
    match inputs.iter().find(|input| identity(input.path) == Some(own)) {
        Some(Input { what, .. }) => {
            let output = output.display();
            Err(Failure::usage(format!(
                "{option} {output} would replace {what}; choose another name"
            )))
        }
        None => Ok(()),
    }
}

/// What all names of a file have in common, if there is one: links are followed.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_known_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let text = place("text");
        std::fs::write(&text, "once").unwrap();
        std::fs::write(place("other"), "once").unwrap();
        std::os::unix::fs::symlink("text", place("link")).unwrap();
        std::fs::hard_link(&text, place("twin")).unwrap();
        std::fs::create_dir(place("folder")).unwrap();
        let inputs = [Input { what: "the text of --calibrate", path: &text }];
        let refused = |output: &str| refuse_overwriting("-o", &place(output), &inputs).is_err();
        assert!(["text", "link", "twin", "folder/../text"].into_iter().all(refused));
        assert!(!["other", "none", "folder", "folder/text"].into_iter().any(refused));
    }
}

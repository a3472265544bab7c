//! What a server gives up before the first stranger speaks to it: memory dumps, new privileges, files
//! and connections of its own making. What it holds already, its socket, log and model, it keeps.
//!
//! For the thread that serves and those that it starts afterwards, as the kernel has it. Landlock
//! (`landlock(7)`) withholds files since Linux 5.13 and connections since 6.7; where the kernel has less,
//! the rest holds all the same, and [`Confinement`] says what does. Sockets with a path are not among
//! what is withheld: the service manager's is one.

use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// The newest version whose rights are withheld: the last one with nothing but files and TCP.
const NEWEST: ABI = ABI::V5;

/// What holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Prompts and keys in memory go into no file, and no other process of the same user reads them.
    pub memory: bool,
    /// No program that is started gets more rights.
    pub privileges: bool,
    /// No file is written, and those beside keys and certificates alone are read.
    pub files: bool,
    /// No TCP port is bound and no TCP connection made.
    pub connections: bool,
}

impl Confinement {
    /// Gives everything up. Files beside these can still be read: they are replaced by others.
    pub fn enter(files: &[&Path]) -> Confinement {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        let memory = rustix::process::setrlimit(Resource::Core, none).is_ok()
            & rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok();
        let privileges = rustix::thread::set_no_new_privs(true).is_ok();
        let status = withhold(&folders(files)).ok();
        let version = match status.as_ref().map(|status| (&status.ruleset, &status.landlock)) {
            None | Some((RulesetStatus::NotEnforced, _)) => ABI::Unsupported,
            Some((_, LandlockStatus::Available { effective_abi, .. })) => *effective_abi,
            Some(_) => ABI::Unsupported,
        };
        let (files, connections) = (version >= ABI::V1, version >= ABI::V4);
        Confinement { memory, privileges, files, connections }
    }
}

/// Where files lie, and where the files lie that they may be links to.
fn folders(files: &[&Path]) -> Vec<PathBuf> {
    let folder = |file: &Path| match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let linked: Vec<PathBuf> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
    files.iter().copied().chain(linked.iter().map(PathBuf::as_path)).map(folder).collect()
}

fn withhold(readable: &[PathBuf]) -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::ReadFile))?
        .restrict_self()
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.memory, "memory dumps"),
            (self.privileges, "new privileges"),
            (self.files, "files but keys and certificates"),
            (self.connections, "outgoing connections"),
        ];
        let list = |wanted: bool| {
            let named = parts.iter().filter(|(holds, _)| *holds == wanted);
            named.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
        };
        let (given_up, kept) = (list(true), list(false));
        match (given_up.is_empty(), kept.is_empty()) {
            (_, true) => write!(f, "confined: no {given_up}"),
            (true, _) => write!(f, "not confined: this system withholds none of {kept}"),
            _ => write!(f, "confined: no {given_up}; this system does not withhold {kept}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_is_said() {
        let all = Confinement { memory: true, privileges: true, files: true, connections: true };
        let said = all.to_string();
        assert!(said.ends_with("files but keys and certificates, outgoing connections"), "{said}");
        let old = Confinement { files: false, connections: false, ..all };
        let said = old.to_string();
        assert!(said.contains("no memory dumps, new privileges; this system does not"), "{said}");
        assert!(said.ends_with("files but keys and certificates, outgoing connections"), "{said}");
        let none = Confinement { memory: false, privileges: false, ..old };
        assert!(none.to_string().starts_with("not confined"), "{none}");
    }

    #[test]
    fn the_folders_of_a_link_and_of_its_target_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("keys"), folder.path().join("data"));
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("real"), "key").unwrap();
        std::os::unix::fs::symlink(target.join("real"), &link).unwrap();
        let target = target.canonicalize().unwrap();
        assert_eq!(folders(&[&link]), [folder.path().to_owned(), target]);
        assert_eq!(folders(&[Path::new("no-such-file")]), [PathBuf::from(".")]);
        assert!(folders(&[]).is_empty());
    }
}

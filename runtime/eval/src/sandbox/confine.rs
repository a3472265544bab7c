//! The helper's side: what runs in the child between `fork` and the interpreter.
//!
//! Nothing here reports why; the parent needs to know only whether a program ran well.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, Signal};

/// What the probe prints when files can be restricted.
pub(super) const FILES: &str = "files";

/// What the probe prints when namespaces can be left.
pub(super) const NAMESPACES: &str = "namespaces";

/// Bytes of address space: what the published runner of LiveCodeBench gives.
const MEMORY: u64 = 4 << 30;

/// Processes and threads; some solutions run in a thread with a larger stack.
const PROCESSES: u64 = 32;

/// Open files.
const FILES_OPEN: u64 = 64;

/// The helper of a [`Sandbox`](super::Sandbox): confines itself and runs what it is told to.
///
/// To be called by the program that [`Sandbox::allow`](super::Sandbox::allow) names, before it
/// starts a thread, with the arguments behind those that it was given. The answer is its exit code.
pub fn confined(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match arguments.split_first() {
        Some((stage, [])) if stage == "probe" => probe(),
        Some((stage, rest)) if stage == "outer" => outer(rest),
        Some((stage, rest)) if stage == "inner" => inner(rest),
        _ => None,
    }
    .unwrap_or(ExitCode::FAILURE)
}

fn probe() -> Option<ExitCode> {
    if leave_namespaces() {
        println!("{NAMESPACES}");
    }
    if restrict(Path::new("/"), &[]) {
        println!("{FILES}");
    }
    Some(ExitCode::SUCCESS)
}

/// Starts the inner helper and ends it when time is up.
fn outer(arguments: &[OsString]) -> Option<ExitCode> {
    let seconds: u64 = arguments.first()?.to_str()?.parse().ok()?;
    die_with_parent()?;
    leave_namespaces();
    let own = own_arguments()?;
    let mut inner = Command::new(std::env::current_exe().ok()?);
    let mut child = inner.args(own).arg("inner").args(arguments).spawn().ok()?;
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(status) = child.try_wait().ok()? {
            return Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if Instant::now() > end {
            // The first process of a namespace takes all others of it along.
            child.kill().ok()?;
            child.wait().ok()?;
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The arguments that this program was called with in front of the stage.
fn own_arguments() -> Option<Vec<OsString>> {
    let all: Vec<OsString> = std::env::args_os().skip(1).collect();
    let stage = all.iter().position(|argument| argument == "outer")?;
    Some(all[..stage].to_vec())
}

/// Gives up everything and becomes the interpreter.
fn inner(arguments: &[OsString]) -> Option<ExitCode> {
    let [seconds, size, python, prefixes @ ..] = arguments else { return None };
    let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
    die_with_parent()?;
    let mut readable: Vec<PathBuf> = prefixes.iter().map(PathBuf::from).collect();
    readable.push(python.into());
    if !restrict(&std::env::current_dir().ok()?, &readable) {
        return None;
    }
    for (resource, limit) in [
        (Resource::Cpu, number(seconds)?),
        (Resource::As, MEMORY),
        (Resource::Fsize, number(size)?),
        (Resource::Nproc, PROCESSES),
        (Resource::Nofile, FILES_OPEN),
        (Resource::Core, 0),
    ] {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(resource, limit).ok()?;
    }
    // Isolated: neither environment nor working folder changes what is imported.
    let mut program = Command::new(python);
    program.args(["-I", "-B", "-X", "utf8", "program.py"]).env_clear();
    let _why = program.exec();
    None
}

fn die_with_parent() -> Option<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok()
}

/// Whether the kernel let this process into namespaces of its own.
fn leave_namespaces() -> bool {
    use rustix::thread::UnshareFlags as Flags;
    let all = Flags::NEWUSER | Flags::NEWPID | Flags::NEWNET | Flags::NEWIPC | Flags::NEWUTS;
    #[expect(
        deprecated,
        reason = "unsafe only with FILES, which is not among the flags; there is one thread here"
    )]
    rustix::thread::unshare(all).is_ok()
}

/// Whether this process can now read these and the system's libraries only, write to one folder
/// only, and use no network that the kernel can forbid.
fn restrict(writable: &Path, readable: &[PathBuf]) -> bool {
    // The rights that are known to the newest kernels; older ones enforce those that they know.
    let abi = ABI::V6;
    let system =
        ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom", "/dev/null"];
    let read: Vec<PathBuf> =
        system.iter().map(PathBuf::from).chain(readable.iter().cloned()).collect();
    let restricted = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(&read, AccessFs::from_read(abi)))?
            .add_rules(path_beneath_rules([writable], AccessFs::from_all(abi)))?
            .restrict_self()
    };
    restricted().is_ok_and(|status: landlock::RestrictionStatus| {
        status.ruleset != RulesetStatus::NotEnforced && status.no_new_privs
    })
}

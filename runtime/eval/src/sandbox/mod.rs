//! Runs Python programs that a model wrote, locked down.
//!
//! A program runs in a process of its own, which is started by way of a helper: another run of the
//! caller's executable, which calls [`confined`] before it does anything else. There safe calls
//! suffice for what a forked child could only do with `unsafe`:
//!
//! * **outer**: leaves the namespaces of users, processes, network, IPC and host name, so that the
//!   program sees no network and no other process, then starts the inner helper as the first
//!   process of its new namespace, and kills it, and with it all that it started, when time is up;
//! * **inner**: gives up all files but the interpreter, the system's libraries (to read) and a
//!   working folder (to write) with Landlock, all network and any new privileges with it, limits
//!   processor time, memory, sizes of files and numbers of processes and files, and becomes the
//!   interpreter.
//!
//! The environment is empty, standard input is a file, output goes to a file whose size the kernel
//! limits. Both helpers die with their parents. Where the kernel refuses namespaces the rest still
//! holds ([`Sandbox::separated`] tells); root is bound by no limit on processes, whatever the kernel;
//! where it has no Landlock nothing is run at all. This keeps
//! honest mistakes and crude mischief away from the user's files; against somebody who knows a hole
//! in the kernel only a machine of its own helps.

mod confine;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use confine::confined;

use crate::Error;

/// Bytes of output that are read, and of any file that the program may write.
const MOST_OUTPUT: u64 = 16 << 20;

/// Time that the outer helper has to kill and to report, behind the program's own.
const GRACE: Duration = Duration::from_secs(5);

/// The permission to run programs, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    helper: PathBuf,
    arguments: Vec<OsString>,
    python: PathBuf,
    prefixes: Vec<PathBuf>,
    separated: bool,
}

/// What a program did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It ended well and wrote this.
    Wrote(Vec<u8>),
    /// It failed, was too slow or too greedy.
    Failed,
}

impl Sandbox {
    /// Allows programs to be run; to be called only when the user asked for it.
    ///
    /// `helper` with `arguments` is a program that hands the arguments behind these to [`confined`]
    /// at once: usually the caller's own executable. `python3` is looked for in the caller's path.
    ///
    /// # Errors
    ///
    /// [`Error::Sandbox`] if there is no Python, no Landlock, or the helper does not answer.
    pub fn allow(helper: PathBuf, arguments: Vec<OsString>) -> Result<Sandbox, Error> {
        let probe = Command::new(&helper).args(&arguments).arg("probe").output();
        let probe = probe.map_err(|error| wrong("the helper", &error))?;
        let words = String::from_utf8_lossy(&probe.stdout).into_owned();
        if !words.lines().any(|word| word == confine::FILES) {
            let reason = "the kernel cannot restrict files (Landlock, since Linux 5.13)";
            return Err(Error::Sandbox(reason.into()));
        }
        let script = "import sys\nprint(sys.executable, sys.base_prefix, sys.prefix, sep='\\n')";
        let python = Command::new("python3").args(["-I", "-c", script]).output();
        let python = python.map_err(|error| wrong("python3", &error))?;
        let places = String::from_utf8_lossy(&python.stdout).into_owned();
        let mut places = places.lines().map(PathBuf::from);
        let interpreter = places.next().filter(|_| python.status.success());
        let sandbox = Sandbox {
            helper,
            arguments,
            python: interpreter.ok_or_else(|| Error::Sandbox("python3 does not run".into()))?,
            prefixes: places.collect(),
            separated: words.lines().any(|word| word == confine::NAMESPACES),
        };
        match sandbox.run("print(6 * 7)", b"", 10)? {
            Outcome::Wrote(output) if output == b"42\n" => Ok(sandbox),
            _ => Err(Error::Sandbox("python3 does not run when it is locked down".into())),
        }
    }

    /// A permission that nobody makes use of, for tasks that are only read.
    pub(crate) fn idle() -> Sandbox {
        Sandbox {
            helper: PathBuf::new(),
            arguments: Vec::new(),
            python: PathBuf::new(),
            prefixes: Vec::new(),
            separated: false,
        }
    }

    /// Whether programs get namespaces of their own: no network of any kind and no sight of other
    /// processes. Without them Landlock forbids TCP where the kernel is 6.7 or newer, and a limit
    /// on processes counts all of the user's.
    pub fn separated(&self) -> bool {
        self.separated
    }

    /// Runs a program with this standard input for so many seconds at most.
    pub(crate) fn run(&self, program: &str, input: &[u8], seconds: u64) -> Result<Outcome, Error> {
        let folder = tempfile::tempdir().map_err(|error| wrong("a folder", &error))?;
        let (work, script) = (folder.path().join("work"), folder.path().join("work/program.py"));
        let (entry, exit) = (folder.path().join("input"), folder.path().join("output"));
        let file = |error: std::io::Error| wrong("a file", &error);
        std::fs::create_dir(&work).map_err(file)?;
        std::fs::write(&script, program).map_err(file)?;
        std::fs::write(&entry, input).map_err(file)?;
        let child = Command::new(&self.helper)
            .args(&self.arguments)
            .arg("outer")
            .arg(seconds.to_string())
            .arg(MOST_OUTPUT.to_string())
            .arg(&self.python)
            .args(&self.prefixes)
            .env_clear()
            .current_dir(&work)
            .stdin(File::open(&entry).map_err(file)?)
            .stdout(File::create(&exit).map_err(file)?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| wrong("the helper", &error))?;
        let status = wait(child, Duration::from_secs(seconds) + GRACE)?;
        if !status.is_some_and(|status| status.success()) {
            return Ok(Outcome::Failed);
        }
        let mut output = Vec::new();
        let read = File::open(&exit).map_err(file)?.take(MOST_OUTPUT).read_to_end(&mut output);
        read.map_err(file)?;
        Ok(Outcome::Wrote(output))
    }
}

fn wrong(what: &str, error: &std::io::Error) -> Error {
    Error::Sandbox(format!("{what}: {error}"))
}

/// Waits for the end, or kills the child's whole group when time is up; nothing then.
fn wait(mut child: Child, time: Duration) -> Result<Option<ExitStatus>, Error> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| wrong("the helper", &error))? {
            return Ok(Some(status));
        }
        if start.elapsed() > time {
            let group = rustix::process::Pid::from_child(&child);
            // It may have ended in this moment, and then there is nothing to kill.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait().map_err(|error| wrong("the helper", &error))?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

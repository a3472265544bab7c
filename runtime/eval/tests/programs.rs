//! Programs run locked down: what they may do, what they may not, and the tests of LiveCodeBench.
//!
//! This program is its own helper, so it has no harness that would start threads in front of it.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use weir_eval::{Case, Error, Sandbox, Setting, Spec, confined, open};

/// Tells a helper's call from a test run.
const MARK: &str = "--confined";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == MARK) {
        return confined(arguments);
    }
    let helper = std::env::current_exe().expect("a program has a file");
    let sandbox = match Sandbox::allow(helper, vec![OsString::from(MARK)]) {
        Ok(sandbox) => sandbox,
        Err(error) => {
            println!("skipped: {error}");
            return ExitCode::SUCCESS;
        }
    };
    println!("namespaces of their own: {}", sandbox.separated());
    let cases = cases(&sandbox).expect("problems");
    let mut failures = 0;
    let mut check = |name: &str, problem: usize, code: &str, passes: bool| {
        let question = &cases[problem].questions[0];
        let answer = format!("Here it is:\n```python\n{code}\n```\nDone.");
        let found = question.judge.score(&answer).expect("a program that can be run");
        let right = found == f64::from(u8::from(passes));
        println!("{name} ... {}", if right { "ok" } else { "FAILED" });
        failures += usize::from(!right);
    };
    let sum = "a, b = map(int, input().split())\nprint(a + b)";
    check("reads and writes", 0, sum, true);
    check("decimals may be written otherwise", 0, &sum.replace("a + b", "f'{a + b}.0'"), true);
    check("a wrong sum", 0, &sum.replace('+', "-"), false);
    check("a line too many", 0, &format!("{sum}\nprint(a + b)"), false);
    check("an exit code", 0, &format!("{sum}\nsys.exit(1)"), false);
    check("no program", 0, "", false);
    check("without end", 0, &format!("{sum}\nwhile True: pass"), false);
    check("asleep without end", 0, &format!("{sum}\nimport time\ntime.sleep(100)"), false);
    check("a thread with a large stack", 0, &in_thread(sum), true);
    let pairs = "class Solution:\n    def pairs(self, xs: List[int], k: int):\n        return ";
    let right = "sorted((x, k - x) for x in xs if k - x in xs and x < k - x)";
    check("a method", 1, &format!("{pairs}{right}"), true);
    check("floats for integers", 1, &format!("{pairs}[(a * 1.0, b) for a, b in {right}]"), true);
    check("prints beside its result", 1, &format!("print('[]')\n{pairs}{right}"), true);
    check("a wrong result", 1, &format!("{pairs}[]"), false);
    check("a function", 2, "def double(text):\n    return text + text", true);

    // What must fail. Each would print the right sum if it were allowed to do what it tries.
    let attempts = [
        ("reads a file of the user's", format!("open({:?}).read()", manifest())),
        ("lists the root", "import os; os.listdir('/')".into()),
        ("reads passwords", "open('/etc/passwd').read()".into()),
        ("writes beside its folder", "open('../more', 'w').write('x')".into()),
        ("writes to /tmp", "open('/tmp/weir-eval-was-here', 'w').write('x')".into()),
        ("takes much memory", "x = bytearray(5 << 30)".into()),
        ("writes a large file", "open('x', 'wb').write(bytes(64 << 20))".into()),
        ("opens many files", "files = [open('program.py') for _ in range(100)]".into()),
        (
            "raises its limits",
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))".into(),
        ),
    ];
    for (name, attempt) in &attempts {
        check(name, 0, &format!("{attempt}\n{sum}"), false);
    }
    if !rustix::process::getuid().is_root() {
        let fork = "import os, time\nfor _ in range(100):\n    if os.fork() == 0:\n        \
                    time.sleep(3)\n        os._exit(0)";
        check("starts many processes", 0, &format!("{fork}\n{sum}"), false);
    }
    let knows = "import os\nassert not set(os.environ) - {'LC_CTYPE'}, os.environ";
    check("has no environment", 0, &format!("{knows}\n{sum}"), true);
    check("writes in its folder", 0, &format!("open('x', 'w').write('x')\n{sum}"), true);
    if sandbox.separated() {
        let socket = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                      s.sendto(b'x', ('127.0.0.1', 9))";
        check("talks to the network", 0, &format!("{socket}\n{sum}"), false);
        let first = "import os\nassert os.getpid() == 1";
        check("sees no other process", 0, &format!("{first}\n{sum}"), true);
    }
    check_refusals(&sandbox);
    println!("{failures} failures");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn manifest() -> String {
    format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"))
}

fn in_thread(code: &str) -> String {
    let body = code.replace('\n', "\n    ");
    format!(
        "import threading\ndef main():\n    {body}\nthreading.stack_size(1 << 27)\nt = \
         threading.Thread(target=main)\nt.start()\nt.join()"
    )
}

fn spec(file: &str) -> Spec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(file);
    format!("livecodebench:{}", path.display()).parse().expect("a task")
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

fn cases(sandbox: &Sandbox) -> Result<Vec<Case>, Error> {
    let setting = Setting { measure: &words, context: None, sandbox: Some(sandbox) };
    open(&spec("livecodebench.jsonl"), setting)?.collect()
}

/// Without permission nothing is even opened, and damaged tests are named.
fn check_refusals(sandbox: &Sandbox) {
    let setting = Setting { measure: &words, context: None, sandbox: None };
    let refused = open(&spec("livecodebench.jsonl"), setting);
    assert!(matches!(refused.err(), Some(Error::ProgramsNotAllowed)));
    let setting = Setting { measure: &words, context: None, sandbox: Some(sandbox) };
    let damaged = open(&spec("livecodebench-damaged.jsonl"), setting).err();
    let damaged = damaged.expect("an error").to_string();
    assert!(
        damaged.ends_with("damaged.jsonl:1: private_test_cases: not the pickle of one string"),
        "{damaged}"
    );
}

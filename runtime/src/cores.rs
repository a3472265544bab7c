//! How many threads are worth having: the cores that this process may use.
//!
//! Two hardware threads of a core share its multipliers and its path to memory, so a second compute
//! thread on a core gains nothing and makes every barrier wait for the slower half. The system
//! tells which processors belong together; in a chroot without `/proc` and `/sys` all processors
//! count.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Most processors that a list is believed to name.
const MOST: u32 = 1 << 16;

/// Processors that this process may use, by affinity and the control group's quota, when it first asked: a
/// server that answers may not read what the system says about it any more.
pub fn available_processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Number of threads when nobody says: cores by affinity, at most the processors that the control
/// group's quota pays for.
pub fn default_threads() -> usize {
    let processors = available_processors();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let siblings = |processor: u32| {
        let folder = format!("/sys/devices/system/cpu/cpu{processor}/topology");
        ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|file| std::fs::read_to_string(format!("{folder}/{file}")).ok())
    };
    match allowed.and_then(|allowed| cores(allowed, siblings)) {
        Some(cores) => cores.clamp(1, processors),
        None => processors,
    }
}

/// Distinct cores of the allowed processors; `siblings` gives the processors of a processor's
/// core. `None` where a text is not understood.
fn cores(allowed: &str, siblings: impl Fn(u32) -> Option<String>) -> Option<usize> {
    let mut found = BTreeSet::new();
    for processor in processors(allowed)? {
        // A core is known by its first processor, whether or not that one is allowed.
        found.insert(*processors(&siblings(processor)?)?.first()?);
    }
    Some(found.len())
}

/// The numbers of a list such as `0-3,8,10-11`, ascending.
fn processors(list: &str) -> Option<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MOST {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight processors: 0 and 4, 1 and 5, 2 and 6, 3 and 7 share a core.
    fn paired(processor: u32) -> Option<String> {
        Some(format!("{},{}\n", processor % 4, processor % 4 + 4))
    }

    #[test]
    fn siblings_count_once() {
        assert_eq!(cores("\t0-7", paired), Some(4));
        assert_eq!(cores("0,4", paired), Some(1));
        assert_eq!(cores("5-6", paired), Some(2));
        assert_eq!(cores("0-7", |processor| Some(processor.to_string())), Some(8));
    }

    #[test]
    fn what_is_not_understood_is_not_believed() {
        for list in ["", "a", "3-1", "0-", "0-4294967295", "-1"] {
            assert_eq!(cores(list, paired), None, "{list:?}");
        }
        assert_eq!(cores("0-1", |_| None), None);
    }

    #[test]
    fn there_is_always_a_thread() {
        let threads = default_threads();
        assert!((1..=available_processors()).contains(&threads));
    }
}

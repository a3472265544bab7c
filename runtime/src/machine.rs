//! Which instruction sets this processor has, and which level of a model runs on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use weir_abi::{IsaLevel, Probe};

use crate::weights::LevelSegments;
use crate::{CompiledModel, RuntimeError, team};

/// Bytes of a large page of x86-64.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Whether this processor runs code of a level.
pub fn supports(level: IsaLevel) -> bool {
    match level {
        IsaLevel::Portable | IsaLevel::Avx2 => has_x86_64_v3(),
        IsaLevel::AvxVnni => has_x86_64_v3() && has_avx_vnni(),
        IsaLevel::Avx512 => has_x86_64_v3() && has_avx512(),
        IsaLevel::Avx512Pairs => supports(IsaLevel::Avx512) && has_bf16(),
        // Tiles' frames are AVX-512.
        IsaLevel::Amx => supports(IsaLevel::Avx512Pairs) && may_use_tiles(),
    }
}

/// Whether a level is made for this processor: one that is not, though it runs, is only used where it
/// is asked for.
fn suits(level: IsaLevel) -> bool {
    level != IsaLevel::Avx512Pairs || adds_bytes_apart()
}

/// Whether weights are best asked for from far ahead of their use: on AMD's processors from
/// Zen 5 on (`codegen`'s `matmul::assembled::ahead` has what was measured).
pub fn reads_far() -> bool {
    static READS_FAR: OnceLock<bool> = OnceLock::new();
    *READS_FAR.get_or_init(|| adds_bytes_apart() && processor_family() >= ZEN_5)
}

/// Family of the first processors of that design.
const ZEN_5: u32 = 0x1a;

/// The processor's family as its maker counts it.
#[cfg(target_arch = "x86_64")]
fn processor_family() -> u32 {
    let signature = std::arch::x86_64::__cpuid(1).eax;
    let family = signature >> 8 & 0xf;
    if family == 0xf { family + (signature >> 20 & 0xff) } else { family }
}

#[cfg(not(target_arch = "x86_64"))]
fn processor_family() -> u32 {
    0
}

/// Whether vectors of bytes are added in units apart from those that multiply: on AMD's processors
/// (and those by Hygon, of the same design) that have AVX-512. Intel's do both through the same two
/// ports.
#[cfg(target_arch = "x86_64")]
fn adds_bytes_apart() -> bool {
    use std::arch::x86_64::__cpuid;
    let vendor = __cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    [b"AuthenticAMD", b"HygonGenuine"].iter().any(|vendor| name == **vendor)
}

#[cfg(not(target_arch = "x86_64"))]
fn adds_bytes_apart() -> bool {
    false
}

/// Whether this processor has the instructions of a probe.
pub fn runs_probe(probe: Probe) -> bool {
    match probe {
        Probe::Read | Probe::Float128 | Probe::Float256 | Probe::Bytes128 | Probe::Bytes256 => {
            has_x86_64_v3()
        }
        Probe::ByteDots256 => supports(IsaLevel::AvxVnni),
        Probe::Float512 | Probe::ByteDots512 => supports(IsaLevel::Avx512),
        Probe::Bf16Dots512 => supports(IsaLevel::Avx512) && has_bf16(),
        Probe::ByteTiles | Probe::Bf16Tiles => supports(IsaLevel::Amx),
    }
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    std::arch::is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_x86_64_v3() -> bool {
    missing_x86_64_v3().is_empty()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_x86_64_v3() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_avx_vnni() -> bool {
    std::arch::is_x86_feature_detected!("avxvnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx_vnni() -> bool {
    false
}

fn has_avx512() -> bool {
    missing_avx512().is_empty()
}

/// What this processor lacks of the AVX-512 that kernels use, by name: the first ones that had it have
/// no VNNI.
#[cfg(target_arch = "x86_64")]
fn missing_avx512() -> Vec<&'static str> {
    let features = [
        ("AVX512F", std::arch::is_x86_feature_detected!("avx512f")),
        ("AVX512BW", std::arch::is_x86_feature_detected!("avx512bw")),
        ("AVX512DQ", std::arch::is_x86_feature_detected!("avx512dq")),
        ("AVX512VL", std::arch::is_x86_feature_detected!("avx512vl")),
        ("AVX512_VNNI", std::arch::is_x86_feature_detected!("avx512vnni")),
    ];
    absent(&features)
}

#[cfg(not(target_arch = "x86_64"))]
fn missing_avx512() -> Vec<&'static str> {
    vec!["x86-64"]
}

/// Bits of the extended features' third word that stand for tiles of bf16, tiles, tiles of bytes.
const TILE_FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
/// Bits of the saved state's register that stand for tiles' configuration and content.
const TILE_STATE: u64 = 1 << 17 | 1 << 18;

/// Who decides whether a program may use tiles, asked in this order until one refuses.
struct TileAuthorities<Features, State, Permission> {
    /// The processor: the third word of the extended features (`CPUID` leaf 7, `EDX`).
    features: Features,
    /// The system: which state it saves when threads are switched (`XCR0`).
    state: State,
    /// The system again, for this process: tiles' content is saved only for those who ask.
    permission: Permission,
}

impl<Features, State, Permission> TileAuthorities<Features, State, Permission>
where
    Features: FnOnce() -> u32,
    State: FnOnce() -> u64,
    Permission: FnOnce() -> bool,
{
    fn agree(self) -> bool {
        (self.features)() & TILE_FEATURES == TILE_FEATURES
            && (self.state)() & TILE_STATE == TILE_STATE
            && (self.permission)()
    }
}

/// Whether threads of this process may use tiles. The first call asks the system for permission,
/// which holds for all threads, those that run already included.
fn may_use_tiles() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let authorities = TileAuthorities {
            features: extended_features,
            state: team::saved_state,
            permission: team::request_tiles,
        };
        authorities.agree()
    })
}

#[cfg(target_arch = "x86_64")]
fn extended_features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx }
}

#[cfg(not(target_arch = "x86_64"))]
fn extended_features() -> u32 {
    0
}

/// What this processor lacks of x86-64-v3, by name.
#[cfg(target_arch = "x86_64")]
fn missing_x86_64_v3() -> Vec<&'static str> {
    let features = [
        ("AVX", std::arch::is_x86_feature_detected!("avx")),
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("BMI1", std::arch::is_x86_feature_detected!("bmi1")),
        ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
        ("F16C", std::arch::is_x86_feature_detected!("f16c")),
        ("FMA", std::arch::is_x86_feature_detected!("fma")),
        ("LZCNT", std::arch::is_x86_feature_detected!("lzcnt")),
        ("MOVBE", std::arch::is_x86_feature_detected!("movbe")),
        ("POPCNT", std::arch::is_x86_feature_detected!("popcnt")),
        ("SSE4.2", std::arch::is_x86_feature_detected!("sse4.2")),
    ];
    absent(&features)
}

#[cfg(target_arch = "x86_64")]
fn absent(features: &[(&'static str, bool)]) -> Vec<&'static str> {
    features.iter().filter(|(_, present)| !present).map(|(name, _)| *name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn missing_x86_64_v3() -> Vec<&'static str> {
    vec!["x86-64"]
}

/// Refuses processors that no level runs on. Asked before anything else is done.
pub fn check_processor() -> Result<(), RuntimeError> {
    let says = "this processor is older than x86-64-v3, which compiled models need";
    refuse(says, &missing_x86_64_v3())
}

/// Refuses processors that the arithmetic of TLS has no instructions for. It needs more than x86-64-v3,
/// which [`check_processor`] asks for: some processors before 2015 lack it.
pub fn check_tls() -> Result<(), RuntimeError> {
    let says = "this processor cannot do TLS, which a proxy in front of the server can";
    refuse(says, &missing_for_tls())
}

fn refuse(says: &str, missing: &[&str]) -> Result<(), RuntimeError> {
    if missing.is_empty() {
        return Ok(());
    }
    Err(RuntimeError::Machine(format!("{says}: it lacks {}", missing.join(", "))))
}

#[cfg(target_arch = "x86_64")]
fn missing_for_tls() -> Vec<&'static str> {
    let features = [
        ("ADX", std::arch::is_x86_feature_detected!("adx")),
        ("AES", std::arch::is_x86_feature_detected!("aes")),
        ("PCLMULQDQ", std::arch::is_x86_feature_detected!("pclmulqdq")),
    ];
    absent(&features)
}

#[cfg(not(target_arch = "x86_64"))]
fn missing_for_tls() -> Vec<&'static str> {
    vec!["x86-64"]
}

/// The level that is asked for, or else the highest that the model has and that is made for the
/// processor.
pub fn choose_level(
    model: &CompiledModel,
    asked: Option<IsaLevel>,
) -> Result<&LevelSegments, RuntimeError> {
    let levels: Vec<IsaLevel> = model.levels().iter().map(|level| level.level).collect();
    let index = choose(&levels, asked, supports, suits)?;
    Ok(&model.levels()[index])
}

/// Index of the level that serves; `levels` are a model's, lowest first.
fn choose(
    levels: &[IsaLevel],
    asked: Option<IsaLevel>,
    supports: impl Fn(IsaLevel) -> bool,
    suits: impl Fn(IsaLevel) -> bool,
) -> Result<usize, RuntimeError> {
    let names = || levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(", ");
    let Some(asked) = asked else {
        let serves = |level: &IsaLevel| supports(*level) && suits(*level);
        return levels.iter().rposition(serves).ok_or_else(|| {
            let names = names();
            RuntimeError::Machine(format!(
                "this processor runs none of the model's levels: {names}"
            ))
        });
    };
    let index = levels.iter().position(|level| *level == asked).ok_or_else(|| {
        RuntimeError::Options(format!(
            "this model has no code for {}, only for {}",
            asked.name(),
            names()
        ))
    })?;
    if supports(asked) {
        return Ok(index);
    }
    let reason = match asked {
        IsaLevel::Amx if supports(IsaLevel::Avx512Pairs) => {
            ", or its system does not let this program use it".to_owned()
        }
        IsaLevel::Avx512Pairs | IsaLevel::Amx if supports(IsaLevel::Avx512) => {
            ": it lacks AVX512_BF16".to_owned()
        }
        IsaLevel::Avx512 | IsaLevel::Avx512Pairs => {
            format!(": it lacks {}", missing_avx512().join(", "))
        }
        _ => String::new(),
    };
    Err(RuntimeError::Options(format!("this processor does not have {}{reason}", asked.name())))
}

/// Tells how much of this process is in memory, also when it may not open files any more.
#[derive(Debug)]
pub struct Residence {
    status: Option<File>,
}

impl Residence {
    /// Opens what the system says about this process.
    pub fn open() -> Residence {
        Residence { status: File::open("/proc/self/status").ok() }
    }

    /// Bytes in memory; nothing without `/proc`.
    pub fn bytes(&self) -> Option<u64> {
        // Each reading from the start is of that moment. It has some 1,500 bytes.
        let mut status = [0; 8192];
        let length = self.status.as_ref()?.read_at(&mut status, 0).ok()?;
        resident_bytes(std::str::from_utf8(status.get(..length)?).ok()?)
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Which authorities were asked, and what came of it.
    fn ask(features: u32, state: u64, permission: bool) -> (u32, bool) {
        let asked = Cell::new(0);
        let note = |number: u32| asked.set(asked.get() | number);
        let authorities = TileAuthorities {
            features: || {
                note(1);
                features
            },
            state: || {
                note(2);
                state
            },
            permission: || {
                note(4);
                permission
            },
        };
        let agree = authorities.agree();
        (asked.get(), agree)
    }

    #[test]
    fn tiles_need_processor_system_and_permission() {
        assert_eq!(ask(TILE_FEATURES | 1, TILE_STATE | 7, true), (7, true));
        assert_eq!(ask(TILE_FEATURES, TILE_STATE, false), (7, false));
        for missing in [1 << 22, 1 << 24, 1 << 25] {
            assert_eq!(ask(!missing, TILE_STATE, true), (1, false));
        }
        for missing in [1 << 17, 1 << 18] {
            assert_eq!(ask(TILE_FEATURES, !missing, true), (3, false));
        }
    }

    #[test]
    fn where_tiles_are_refused_the_next_level_serves() {
        let level = |asked, amx, avx512| {
            let supports = |level| match level {
                IsaLevel::Amx => amx,
                IsaLevel::Avx512 | IsaLevel::Avx512Pairs => avx512,
                IsaLevel::AvxVnni => false,
                _ => true,
            };
            let suits = |level| level != IsaLevel::Avx512Pairs;
            choose(&IsaLevel::ALL, asked, supports, suits).map(|index| IsaLevel::ALL[index])
        };
        assert_eq!(level(None, true, true).unwrap(), IsaLevel::Amx);
        assert_eq!(level(None, false, true).unwrap(), IsaLevel::Avx512);
        assert_eq!(level(None, false, false).unwrap(), IsaLevel::Avx2);
        assert_eq!(level(Some(IsaLevel::Avx512), true, true).unwrap(), IsaLevel::Avx512);
        let refused = level(Some(IsaLevel::Amx), false, true).unwrap_err().to_string();
        assert!(refused.contains("its system does not let"), "{refused}");
        let absent = level(Some(IsaLevel::Amx), false, false).unwrap_err().to_string();
        assert!(absent.ends_with("does not have amx"), "{absent}");
        let lacking = choose(&[IsaLevel::Avx2], Some(IsaLevel::Amx), |_| true, |_| true);
        assert!(lacking.unwrap_err().to_string().contains("only for avx2"));
    }

    #[test]
    fn a_level_made_for_others_serves_where_it_is_asked_for() {
        let pairs = IsaLevel::Avx512Pairs;
        let level = |asked, apart| {
            let supports = |level| level != IsaLevel::Amx;
            let suits = |level| apart || level != pairs;
            choose(&IsaLevel::ALL, asked, supports, suits).map(|index| IsaLevel::ALL[index])
        };
        assert_eq!(level(None, false).unwrap(), IsaLevel::Avx512);
        assert_eq!(level(None, true).unwrap(), pairs);
        assert_eq!(level(Some(pairs), false).unwrap(), pairs);
        assert_eq!(level(Some(IsaLevel::Avx512), true).unwrap(), IsaLevel::Avx512);
    }

    #[test]
    fn the_answer_does_not_change() {
        assert_eq!(may_use_tiles(), may_use_tiles());
        assert!(!supports(IsaLevel::Amx) || supports(IsaLevel::Avx512));
    }
}

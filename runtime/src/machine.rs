//! Which instruction sets this processor has, and which level of a model runs on it.

use weir_abi::{IsaLevel, Probe};

use crate::weights::LevelSegments;
use crate::{CompiledModel, RuntimeError};

/// Whether this processor runs code of a level.
pub fn supports(level: IsaLevel) -> bool {
    match level {
        IsaLevel::Portable | IsaLevel::Avx2 => has_x86_64_v3(),
        IsaLevel::AvxVnni => has_x86_64_v3() && has_avx_vnni(),
        IsaLevel::Avx512 => has_x86_64_v3() && has_avx512(),
    }
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

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
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
    features.into_iter().filter(|(_, present)| !present).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn missing_x86_64_v3() -> Vec<&'static str> {
    vec!["x86-64"]
}

/// Refuses processors that no level runs on. Asked before anything else is done.
pub fn check_processor() -> Result<(), RuntimeError> {
    let missing = missing_x86_64_v3();
    if missing.is_empty() {
        return Ok(());
    }
    Err(RuntimeError::Machine(format!(
        "this processor is older than x86-64-v3, which compiled models need: it lacks {}",
        missing.join(", ")
    )))
}

/// The level that is asked for, or else the highest that both the model and the processor have.
pub fn choose_level(
    model: &CompiledModel,
    asked: Option<IsaLevel>,
) -> Result<&LevelSegments, RuntimeError> {
    let names = |levels: &[LevelSegments]| {
        levels.iter().map(|level| level.level.name()).collect::<Vec<_>>().join(", ")
    };
    match asked {
        Some(asked) => {
            let level =
                model.levels().iter().find(|level| level.level == asked).ok_or_else(|| {
                    RuntimeError::Options(format!(
                        "this model has no code for {}, only for {}",
                        asked.name(),
                        names(model.levels())
                    ))
                })?;
            if !supports(asked) {
                return Err(RuntimeError::Options(format!(
                    "this processor does not have {}",
                    asked.name()
                )));
            }
            Ok(level)
        }
        None => model.levels().iter().rev().find(|level| supports(level.level)).ok_or_else(|| {
            RuntimeError::Machine(format!(
                "this processor runs none of the model's levels: {}",
                names(model.levels())
            ))
        }),
    }
}

//! The assembled steps of a unit of work, as functions.

use super::{Tile, tile};
use crate::emit::{Assembly, EmitError, FuncId, POINTER, signature};
use crate::kernels::attention::cache::CacheType;
use crate::kernels::attention::vector::{Dots, Emitted, Vectors, Width};

/// What is done with matrix tiles besides products.
pub(super) struct Matrix {
    pub(super) configure: FuncId,
    pub(super) release: FuncId,
    /// Keeps their unit awake while vectors compute.
    pub(super) keep_awake: FuncId,
}

/// The steps.
pub(super) struct Steps {
    /// What matrix tiles need, where there are any.
    pub(super) matrix: Option<Matrix>,
    /// Copies queries, and their sums begin.
    pub(super) take: FuncId,
    /// Writes the results.
    pub(super) means: FuncId,
    /// Rounds queries, where the cache holds codes or bf16.
    pub(super) round: Option<FuncId>,
    pub(super) scores: FuncId,
    pub(super) begin: FuncId,
    pub(super) weigh: FuncId,
    pub(super) values: FuncId,
    pub(super) combine: FuncId,
}

impl Steps {
    /// Assembles the steps of a kernel.
    pub(super) fn assemble(
        assembly: &mut Assembly,
        id: FuncId,
        width: Width,
        tile: &Tile<'_>,
    ) -> Result<Steps, EmitError> {
        let name = assembly.name(id).to_owned();
        let mut step = |what: &str,
                        params: usize,
                        emit: fn(&mut Vectors<'_>, &Tile<'_>) -> Emitted| {
            let id = assembly
                .declare(&format!("{name}-{what}"), signature(&[POINTER].repeat(params), &[]))?;
            assembly.assemble(id, |code| emit(&mut Vectors { code, width }, tile))?;
            Ok::<FuncId, EmitError>(id)
        };
        let take = step("take", 3, tile::take)?;
        let means = step("means", 3, tile::means)?;
        let weigh = step("weigh", 3, tile::weigh)?;
        let begin = step("begin", 2, tile::begin)?;
        let combine = step("combine", 2, tile::combine)?;
        let has_matrix = tile.dots == Dots::Tiles && tile.number == CacheType::Int8;
        let matrix = match has_matrix {
            true => Some(Matrix {
                configure: step("configure", 0, tile::amx::configure)?,
                release: step("release", 0, tile::amx::release)?,
                keep_awake: step("awake", 2, tile::amx::stay_awake)?,
            }),
            false => None,
        };
        Ok(match tile.number {
            CacheType::Int8 => Steps {
                take,
                means,
                matrix,
                round: Some(step("round", 2, tile::integer::round_queries)?),
                scores: step("scores", 6, tile::integer::scores)?,
                begin,
                weigh,
                combine,
                values: step("values", 7, tile::integer::values)?,
            },
            number => Steps {
                take,
                means,
                matrix,
                round: match number {
                    CacheType::Bf16 => Some(step("round", 2, tile::halves::round_queries)?),
                    _ => None,
                },
                scores: step("scores", 6, tile::float::scores)?,
                begin,
                weigh,
                combine,
                values: step("values", if tile.is_paired { 8 } else { 7 }, tile::float::values)?,
            },
        })
    }
}

//! Type inference with the graph's tables: the rules of `const`, `cache_attend` and `layer`, whose
//! results the operands alone do not tell. All other ops go to their own rule.

use crate::constant::Constant;
use crate::entity::{CacheId, Const, Kind, Table};
use crate::graph::{Body, CacheDecl, Graph, LayerKind};
use crate::ops::rules::Inferred;
use crate::ops::{Known, Op, Operand, TypeError};
use crate::types::{DType, TensorType};

/// The tables that types may depend on. It borrows them one by one, so that a body of the same
/// graph can be edited meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// Constants of the graph.
    pub constants: &'a Table<Const, Constant>,
    /// Caches of the graph.
    pub caches: &'a Table<CacheId, CacheDecl>,
    /// Layer kinds of the graph; `None` in a kind's body, where layers cannot be applied.
    pub kinds: Option<&'a Table<Kind, LayerKind>>,
    /// In a kind's body: a cache that `k0` may stand for.
    pub cache: Option<CacheId>,
}

impl Graph {
    /// The tables as `main` sees them.
    pub fn tables(&self) -> Tables<'_> {
        Tables {
            constants: &self.constants,
            caches: &self.caches,
            kinds: Some(&self.kinds),
            cache: None,
        }
    }

    /// The tables as the body of a layer kind sees them.
    pub fn tables_in(&self, kind: Kind) -> Tables<'_> {
        Tables {
            constants: &self.constants,
            caches: &self.caches,
            kinds: None,
            cache: cache_of_kind(&self.main, kind),
        }
    }
}

/// The cache of the first layer of a kind.
pub fn cache_of_kind(main: &Body, kind: Kind) -> Option<CacheId> {
    main.live().find_map(|(_, node)| match &node.op {
        Op::Layer(layer) if layer.kind == kind => layer.cache,
        _ => None,
    })
}

impl<'a> Tables<'a> {
    /// Declaration of the cache that an op names here.
    pub fn cache(&self, named: CacheId) -> Option<&'a CacheDecl> {
        let cache = match (self.kinds, self.cache) {
            (Some(_), _) => named,
            (None, own) => {
                use crate::entity::Entity;
                own.filter(|_| named.index() == 0)?
            }
        };
        self.caches.get(cache)
    }

    /// Result types and contents of any op.
    pub fn infer(&self, op: &Op, operands: &[Operand<'_>]) -> Result<Inferred, TypeError> {
        let error = |message: String| TypeError { op: op.name(), message };
        match op {
            Op::ReadConstant(read) => {
                if !operands.is_empty() {
                    return Err(error("takes no operands".into()));
                }
                let constant = self
                    .constants
                    .get(read.constant)
                    .ok_or_else(|| error(format!("{} does not exist", read.constant)))?;
                Ok(vec![(constant.ty.clone(), Known::of_constant(constant))])
            }
            Op::CacheAppend(append) => {
                let inferred = op.infer(operands)?;
                let cache = self
                    .cache(append.cache)
                    .ok_or_else(|| error(format!("{} does not exist", append.cache)))?;
                let fits =
                    [(0, cache.key_width), (1, cache.value_width)].iter().all(|(index, width)| {
                        let shape = &operands[*index].ty.shape;
                        shape[1] == i64::from(cache.kv_heads).into()
                            && shape[2] == i64::from(*width).into()
                    });
                if !fits {
                    return Err(error(format!(
                        "{} and {} do not fit {}",
                        operands[0].ty, operands[1].ty, append.cache
                    )));
                }
                Ok(inferred)
            }
            Op::CacheAttend(attend) => {
                let cache = self
                    .cache(attend.cache)
                    .ok_or_else(|| error(format!("{} does not exist", attend.cache)))?;
                attend.infer_with(operands, cache).map_err(error)
            }
            Op::Layer(layer) => self.infer_layer(layer, operands).map_err(error),
            _ => op.infer(operands),
        }
    }

    /// The kind of a layer, if the layer has the operands, weights and caches that it takes.
    pub(crate) fn infer_layer_operands(
        &self,
        layer: &crate::ops::Layer,
        operands: usize,
    ) -> Result<&'a LayerKind, String> {
        let kinds = self.kinds.ok_or("a layer kind cannot apply layers")?;
        let kind = kinds.get(layer.kind).ok_or(format!("{} does not exist", layer.kind))?;
        if kind.weights != layer.weights.len() {
            return Err(format!(
                "{} has {} weights, the layer {}",
                layer.kind,
                kind.weights,
                layer.weights.len()
            ));
        }
        if operands.checked_add(kind.weights) != Some(kind.body.params.len()) {
            return Err(format!(
                "{} has {} parameters, the layer {} operands and {} weights",
                layer.kind,
                kind.body.params.len(),
                operands,
                kind.weights
            ));
        }
        if kind.caches != usize::from(layer.cache.is_some()) {
            return Err(format!("{} has {} caches", layer.kind, kind.caches));
        }
        Ok(kind)
    }

    fn infer_layer(
        &self,
        layer: &crate::ops::Layer,
        operands: &[Operand<'_>],
    ) -> Result<Inferred, String> {
        let kind = self.infer_layer_operands(layer, operands.len())?;
        let body = &kind.body;
        let param = |index: usize| -> Result<&TensorType, String> {
            let value = body.params[index].value;
            body.values.get(value).map(|data| &data.ty).ok_or(format!("{value} does not exist"))
        };
        for (index, operand) in operands.iter().enumerate() {
            if param(index)? != operand.ty {
                return Err(format!("operand {index} is {}, not {}", operand.ty, param(index)?));
            }
        }
        for (index, weight) in layer.weights.iter().enumerate() {
            let constant = self.constants.get(*weight).ok_or(format!("{weight} does not exist"))?;
            let expected = param(operands.len() + index)?;
            if constant.ty != *expected {
                return Err(format!("weight {weight} is {}, not {expected}", constant.ty));
            }
        }
        body.results
            .iter()
            .map(|result| match body.values.get(result.value) {
                Some(data) => Ok((data.ty.clone(), None)),
                None => Err(format!("{} does not exist", result.value)),
            })
            .collect()
    }
}

impl crate::ops::CacheAttend {
    /// The type rule with the cache's declaration.
    pub(crate) fn infer_with(
        &self,
        operands: &[Operand<'_>],
        cache: &CacheDecl,
    ) -> Result<Inferred, String> {
        self.check(operands)?;
        let shape = &operands[0].ty.shape;
        if shape[2] != i64::from(cache.key_width).into() {
            return Err(format!("{} has not the key width {}", operands[0].ty, cache.key_width));
        }
        crate::ops::attention::check_groups(&shape[1], &i64::from(cache.kv_heads).into())?;
        let value_width = i64::from(cache.value_width).into();
        let dtype = operands[0].ty.dtype().unwrap_or(DType::F32);
        let shape = vec![shape[0].clone(), shape[1].clone(), value_width];
        Ok(vec![(TensorType::new(dtype, shape), None)])
    }
}

//! Outputs of an independent system beside a fixture (`tests/fixtures/README.md` has the keys).

use std::path::Path;

use anyhow::{Context, Result, bail};
use safetensors::{Dtype, SafeTensors};

/// Rows of logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Values of a row.
    pub width: usize,
    /// All values, row after row.
    pub values: Vec<f32>,
}

impl Rows {
    /// Rows with this one only.
    pub fn single(row: &[f32]) -> Rows {
        Rows { width: row.len(), values: row.to_vec() }
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    /// One row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..(index + 1) * self.width]
    }

    /// The last rows.
    pub fn tail(&self, count: usize) -> Rows {
        let skip = self.count().saturating_sub(count) * self.width;
        Rows { width: self.width, values: self.values[skip..].to_vec() }
    }
}

/// One prompt with what followed.
#[derive(Clone, Debug)]
pub struct Case {
    /// `short` or `long`.
    pub name: &'static str,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// The greedy continuation, which is fed.
    pub forced: Vec<u32>,
    /// Logits of the prompt's last rows.
    pub prefill: Rows,
    /// Row i is the distribution from which token i of `forced` was chosen.
    pub steps: Rows,
}

/// Reads the cases to judge by: the float32 reference where it exists, else the golden.
pub fn read(folder: &Path) -> Result<Vec<Case>> {
    let path = folder.join("golden.safetensors");
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).context("golden.safetensors")?;
    let mut cases = Vec::new();
    for name in ["short", "long"] {
        let reference = format!("reference_f32/{name}/step_logits");
        let prefix = if tensors.tensor(&reference).is_ok() { "reference_f32/" } else { "" };
        cases.push(Case {
            name,
            prompt: ids(&tensors, &format!("{name}/prompt_ids"))?,
            forced: ids(&tensors, &format!("{name}/greedy_ids"))?,
            prefill: rows(&tensors, &format!("{prefix}{name}/prefill_logits"))?,
            steps: rows(&tensors, &format!("{prefix}{name}/step_logits"))?,
        });
    }
    Ok(cases)
}

/// A two-dimensional f32 tensor of a safetensors file.
pub fn rows(tensors: &SafeTensors<'_>, name: &str) -> Result<Rows> {
    let view = tensors.tensor(name).with_context(|| name.to_owned())?;
    let [_, width] = view.shape() else { bail!("{name}: not two-dimensional") };
    if view.dtype() != Dtype::F32 {
        bail!("{name}: not f32");
    }
    let values = view.data().chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap()));
    Ok(Rows { width: *width, values: values.collect() })
}

fn ids(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<u32>> {
    let view = tensors.tensor(name).with_context(|| name.to_owned())?;
    if view.dtype() != Dtype::I64 {
        bail!("{name}: not i64");
    }
    let ids = view.data().chunks_exact(8).map(|raw| i64::from_le_bytes(raw.try_into().unwrap()));
    ids.map(|id| u32::try_from(id).with_context(|| format!("{name}: id {id}"))).collect()
}

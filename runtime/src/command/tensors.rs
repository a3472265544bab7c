//! Writes safetensors row by row, so that logits of a long prompt need not fit into memory.
//!
//! The format: eight bytes with the header's length, the header in JSON, the tensors' bytes.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::whole_file::WholeFile;
use crate::RuntimeError;

/// A file that is being written.
pub struct TensorFile {
    file: WholeFile,
    remaining: u64,
}

/// Name, element type as the format spells it, bytes of an element, dimensions.
pub type TensorEntry<'a> = (&'a str, &'a str, u64, Vec<u64>);

impl TensorFile {
    /// Begins a file with these tensors, whose values follow in this order.
    pub fn create(target: &Path, tensors: &[TensorEntry<'_>]) -> Result<TensorFile, RuntimeError> {
        let mut header = Map::new();
        let mut end = 0;
        for (name, dtype, element_bytes, dimensions) in tensors {
            let start = end;
            end += element_bytes * dimensions.iter().product::<u64>();
            let entry = json!({"dtype": dtype, "shape": dimensions, "data_offsets": [start, end]});
            header.insert((*name).into(), entry);
        }
        let mut header = Value::Object(header).to_string();
        // The data begins at a multiple of eight.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut file = WholeFile::create(target)?;
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(header.as_bytes())?;
        Ok(TensorFile { file, remaining: end })
    }

    /// Appends values.
    pub fn write_f32(&mut self, values: &[f32]) -> Result<(), RuntimeError> {
        self.remaining -= 4 * values.len() as u64;
        values.iter().try_for_each(|value| self.file.write(&value.to_le_bytes()))
    }

    /// Appends values.
    pub fn write_i32(&mut self, values: &[i32]) -> Result<(), RuntimeError> {
        self.remaining -= 4 * values.len() as u64;
        values.iter().try_for_each(|value| self.file.write(&value.to_le_bytes()))
    }

    /// Gives the file its name. All values must have been written.
    pub fn finish(self) -> Result<(), RuntimeError> {
        assert_eq!(self.remaining, 0, "all values have been written");
        self.file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_reader_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let entries = [
            ("a", "F32", 4, vec![2, 3]),
            ("empty", "F32", 4, vec![0, 3]),
            ("b", "I32", 4, vec![1]),
        ];
        let mut file = TensorFile::create(&path, &entries).unwrap();
        file.write_f32(&[1.0, 2.0, 3.0]).unwrap();
        file.write_f32(&[4.0, 5.0, 6.0]).unwrap();
        file.write_i32(&[-7]).unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.tensor("a").unwrap().shape(), [2, 3]);
        assert_eq!(tensors.tensor("a").unwrap().data()[20..], 6.0_f32.to_le_bytes());
        assert_eq!(tensors.tensor("b").unwrap().data(), (-7_i32).to_le_bytes());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        drop(TensorFile::create(&path, &[("a", "F32", 4, vec![1])]).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

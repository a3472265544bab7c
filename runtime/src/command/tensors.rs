//! Writes safetensors row by row, so that logits of a long prompt need not fit into memory.
//!
//! The format: eight bytes with the header's length, the header in JSON, the tensors' bytes. The
//! file appears under its name when it is whole. Errors name it, not the scratch file beside it.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::RuntimeError;

/// A file that is being written.
pub struct TensorFile {
    target: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
    remaining: u64,
    done: bool,
}

/// Name, element type as the format spells it, bytes of an element, dimensions.
pub type TensorEntry<'a> = (&'a str, &'a str, u64, Vec<u64>);

impl TensorFile {
    /// Begins a file with these tensors, whose values follow in this order.
    pub fn create(target: &Path, tensors: &[TensorEntry<'_>]) -> Result<TensorFile, RuntimeError> {
        let place = |source| RuntimeError::File { path: target.to_owned(), source };
        match std::fs::metadata(target) {
            Ok(existing) if existing.is_dir() => {
                return Err(place(ErrorKind::IsADirectory.into()));
            }
            // The new file would take the place of a device or a pipe, not go through it.
            Ok(existing) if !existing.is_file() => {
                return Err(place(std::io::Error::other("it is no regular file; name another")));
            }
            _ => {}
        }
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
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let temporary = target.with_file_name(name);
        let file = File::create(&temporary).map_err(place)?;
        let mut tensors = TensorFile {
            target: target.to_owned(),
            temporary,
            out: BufWriter::new(file),
            remaining: end,
            done: false,
        };
        tensors.write_bytes(&(header.len() as u64).to_le_bytes())?;
        tensors.write_bytes(header.as_bytes())?;
        Ok(tensors)
    }

    /// Appends values.
    pub fn write_f32(&mut self, values: &[f32]) -> Result<(), RuntimeError> {
        self.remaining -= 4 * values.len() as u64;
        values.iter().try_for_each(|value| self.write_bytes(&value.to_le_bytes()))
    }

    /// Appends values.
    pub fn write_i32(&mut self, values: &[i32]) -> Result<(), RuntimeError> {
        self.remaining -= 4 * values.len() as u64;
        values.iter().try_for_each(|value| self.write_bytes(&value.to_le_bytes()))
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.out
            .write_all(bytes)
            .map_err(|source| RuntimeError::File { path: self.target.clone(), source })
    }

    /// Gives the file its name. All values must have been written.
    pub fn finish(mut self) -> Result<(), RuntimeError> {
        assert_eq!(self.remaining, 0, "all values have been written");
        self.out
            .flush()
            .and_then(|()| std::fs::rename(&self.temporary, &self.target))
            .map_err(|source| RuntimeError::File { path: self.target.clone(), source })?;
        self.done = true;
        Ok(())
    }
}

impl Drop for TensorFile {
    fn drop(&mut self) {
        if !self.done {
            // The error that led here is the one worth reporting.
            let _ = std::fs::remove_file(&self.temporary);
        }
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

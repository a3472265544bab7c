//! A file that appears under its name when it is whole. Errors name it, not the scratch file beside it.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::RuntimeError;

/// A file that is being written. Dropped before it is finished, it leaves nothing.
pub struct WholeFile {
    target: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
    done: bool,
}

impl WholeFile {
    /// Begins a file. What cannot be written where it is to be is an error now, not at the end.
    pub fn create(target: &Path) -> Result<WholeFile, RuntimeError> {
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
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let temporary = target.with_file_name(name);
        // Nothing that somebody else has put there is followed or written over.
        let file = File::create_new(&temporary).map_err(place)?;
        let out = BufWriter::new(file);
        Ok(WholeFile { target: target.to_owned(), temporary, out, done: false })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), RuntimeError> {
        let place = |source| RuntimeError::File { path: self.target.clone(), source };
        self.out.write_all(bytes).map_err(place)
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), RuntimeError> {
        self.out
            .flush()
            .and_then(|()| std::fs::rename(&self.temporary, &self.target))
            .map_err(|source| RuntimeError::File { path: self.target.clone(), source })?;
        self.done = true;
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.done {
            // The error that led here is the one worth reporting.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

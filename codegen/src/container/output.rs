//! The file under construction: a temporary beside the output that replaces it when it is whole.
//!
//! Invariant: at the output's place is either what was there before or the whole new file. Long
//! runs of zeros become holes, so that padding and empty weights take no space. Errors name the
//! output, which is what the user knows, and never the temporary.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::ContainerError;

/// Bytes that are looked at together when zeros are left out; a multiple of every block size.
const HOLE_BYTES: usize = 64 << 10;

pub(super) struct OutputFile {
    path: PathBuf,
    file: NamedTempFile,
    position: u64,
}

impl OutputFile {
    /// Begins a file that will be at `path`.
    pub(super) fn create(path: &Path) -> Result<OutputFile, ContainerError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if path.exists() && !path.is_file() {
            // The rename would put the new file in the place of a device, a pipe or a folder.
            let source = std::io::Error::other("it is no regular file; name another");
            return Err(ContainerError::Io { path: path.into(), source });
        }
        // Opened by us and not by the library, whose errors would name the temporary.
        let file = tempfile::Builder::new()
            .prefix(".weir-")
            .suffix(".tmp")
            .make_in(folder, |path| {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(0o600).open(path)
            })
            .map_err(|source| ContainerError::Io { path: path.into(), source })?;
        Ok(OutputFile { path: path.into(), file, position: 0 })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ContainerError> {
        for chunk in bytes.chunks(HOLE_BYTES) {
            if chunk.len() == HOLE_BYTES && is_zero(chunk) {
                self.skip(chunk.len() as u64)?;
            } else {
                self.file().write_all(chunk).map_err(|error| self.error(error))?;
                self.position += chunk.len() as u64;
            }
        }
        Ok(())
    }

    /// Appends zeros up to `position`.
    pub(super) fn pad_to(&mut self, position: u64) -> Result<(), ContainerError> {
        match position.checked_sub(self.position) {
            Some(bytes) => self.skip(bytes),
            None => Err(ContainerError::Image(format!("byte {position} is already written"))),
        }
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ContainerError> {
        self.position += bytes;
        let position = self.position;
        self.file().seek(SeekFrom::Start(position)).map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Overwrites bytes that were written before.
    pub(super) fn rewrite(&mut self, bytes: &[u8], at: u64) -> Result<(), ContainerError> {
        self.file.as_file().write_all_at(bytes, at).map_err(|error| self.error(error))
    }

    /// The file itself, for a writer that needs a stream.
    pub(super) fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Makes the file durable, sets its mode and moves it to its place.
    pub(super) fn finish(self, mode: u32) -> Result<(), ContainerError> {
        let OutputFile { path, file, position } = self;
        let set = |file: &File| {
            let written = file.metadata()?.len();
            file.set_len(written.max(position))?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()
        };
        set(file.as_file())
            .and_then(|()| file.persist(&path).map(drop).map_err(|error| error.error))
            .map_err(|source| ContainerError::Io { path, source })
    }

    /// An error of the operating system at this output.
    pub(super) fn error(&self, source: std::io::Error) -> ContainerError {
        ContainerError::Io { path: self.path.clone(), source }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Words, so that the compiler uses vectors.
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().fold(0, |or, word| or | u64::from_ne_bytes(*word)) == 0
        && rest.iter().all(|byte| *byte == 0)
}

//! The file under construction: it has no name, or a temporary one where the file system knows no
//! files without, and replaces what is at the output's place when it is whole.
//!
//! Invariant: at the output's place is either what was there before or the whole new file; a compiler
//! that is killed leaves nothing beside it. Long runs of zeros become holes, so that padding and
//! empty weights take no space. Errors name the output, which is what the user knows.
//!
//! Bytes are written by units of a large page, at multiples of one: file systems that keep files in memory
//! in pieces of more than a page take pieces as long as what is written at once, and a unit that is one
//! piece is mapped as one large page. A step of a model that reads all weights is up to a tenth faster
//! for it (`docs/kernels.md`, "Large pages").

use std::fs::{File, OpenOptions};
use std::io::Result as IoResult;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use tempfile::{NamedTempFile, TempPath};

use super::{ContainerError, LARGE_PAGE_BYTES};

/// Bytes that are looked at together when zeros are left out; a multiple of every block size.
const HOLE_BYTES: usize = 64 << 10;

/// Bytes that are written at once. A multiple of [`HOLE_BYTES`].
const UNIT_BYTES: usize = LARGE_PAGE_BYTES as usize;

/// The files that this process has open, under names.
const OPEN_FILES: &str = "/proc/self/fd";

/// Permissions of a program and of other files, before the process's mask takes from them what its user
/// keeps private.
pub(super) const PROGRAM: u32 = 0o777;
/// See [`PROGRAM`].
pub(super) const DATA: u32 = 0o666;

pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    /// Its temporary name, if it has one already.
    name: Option<TempPath>,
    /// Where the next byte goes.
    position: u64,
    /// The bytes of the unit in front of it that are not written yet.
    pending: Vec<u8>,
}

impl OutputFile {
    /// Begins a file that will be at `path`, with the permissions that the process's mask leaves of `mode`.
    pub(super) fn create(path: &Path, mode: u32) -> Result<OutputFile, ContainerError> {
        let place = |source| ContainerError::Io { path: path.into(), source };
        if path.exists() && !path.is_file() {
            // The rename would put the new file in the place of a device, a pipe or a folder.
            return Err(place(std::io::Error::other("it is no regular file; name another")));
        }
        let (file, name) = match nameless(folder(path), mode) {
            Some(file) => (file, None),
            None => {
                // Opened by us and not by the library, whose errors would name the temporary.
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(mode);
                let named = temporary(path, |path| options.open(path)).map_err(place)?;
                let (file, name) = named.into_parts();
                (file, Some(name))
            }
        };
        Ok(OutputFile { path: path.into(), file, name, position: 0, pending: Vec::new() })
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ContainerError> {
        while !bytes.is_empty() {
            let room = UNIT_BYTES - (self.position % UNIT_BYTES as u64) as usize;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.pending.extend_from_slice(now);
            self.position += now.len() as u64;
            bytes = later;
            if now.len() == room {
                self.write_pending()?;
            }
        }
        Ok(())
    }

    /// Writes what is pending but its zeros, each run of other bytes at once.
    fn write_pending(&mut self) -> Result<(), ContainerError> {
        let first = self.position - self.pending.len() as u64;
        let is_hole = |chunk: &[u8]| chunk.len() == HOLE_BYTES && is_zero(chunk);
        let chunks: Vec<&[u8]> = self.pending.chunks(HOLE_BYTES).collect();
        let mut begin = 0;
        for run in chunks.chunk_by(|one, next| is_hole(one) == is_hole(next)) {
            let bytes = run.iter().map(|chunk| chunk.len()).sum::<usize>();
            if !is_hole(run[0]) {
                let bytes = &self.pending[begin..begin + bytes];
                let written = self.file.write_all_at(bytes, first + begin as u64);
                written.map_err(|error| self.error(error))?;
            }
            begin += bytes;
        }
        self.pending.clear();
        Ok(())
    }

    /// Appends zeros up to `position`.
    pub(super) fn pad_to(&mut self, position: u64) -> Result<(), ContainerError> {
        if position < self.position {
            return Err(ContainerError::Image(format!("byte {position} is already written")));
        }
        self.write_pending()?;
        self.position = position;
        Ok(())
    }

    /// Overwrites bytes that were written before.
    pub(super) fn rewrite(&mut self, bytes: &[u8], at: u64) -> Result<(), ContainerError> {
        self.write_pending()?;
        self.file.write_all_at(bytes, at).map_err(|error| self.error(error))
    }

    /// The file itself, with all that was written, for a reader or for a writer that needs a stream.
    pub(super) fn file(&mut self) -> Result<&mut File, ContainerError> {
        self.write_pending()?;
        Ok(&mut self.file)
    }

    /// Makes the file durable and moves it to its place.
    pub(super) fn finish(mut self) -> Result<(), ContainerError> {
        self.write_pending()?;
        let OutputFile { path, file, name, position, .. } = self;
        let place = || -> IoResult<()> {
            let written = file.metadata()?.len();
            file.set_len(written.max(position))?;
            file.sync_all()?;
            let name = match name {
                Some(name) => name,
                None => temporary(&path, |name| link(&file, name))?.into_temp_path(),
            };
            name.persist(&path).map_err(|error| error.error)
        };
        let placed = place();
        placed.map_err(|source| ContainerError::Io { path, source })
    }

    /// An error of the operating system at this output.
    pub(super) fn error(&self, source: std::io::Error) -> ContainerError {
        ContainerError::Io { path: self.path.clone(), source }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is nowhere to be found, if there can be one that gets its name later.
fn nameless(folder: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, folder, flags, Mode::from_raw_mode(mode)).ok()?);
    std::fs::symlink_metadata(open_file(&file)).ok().map(|_| file)
}

fn open_file(file: &File) -> PathBuf {
    Path::new(OPEN_FILES).join(file.as_raw_fd().to_string())
}

/// Gives a nameless file a name that no other has.
fn link(file: &File, name: &Path) -> IoResult<()> {
    Ok(linkat(CWD, open_file(file), CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Makes something under a new name beside `path`.
fn temporary<T>(path: &Path, make: impl FnMut(&Path) -> IoResult<T>) -> IoResult<NamedTempFile<T>> {
    tempfile::Builder::new().prefix(".weir-").suffix(".tmp").make_in(folder(path), make)
}

fn is_zero(bytes: &[u8]) -> bool {
    // Words, so that the compiler uses vectors.
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().fold(0, |or, word| or | u64::from_ne_bytes(*word)) == 0
        && rest.iter().all(|byte| *byte == 0)
}

//! Opens the files of a model: the one place that maps files into memory.
//!
//! Invariant: beyond the path that the user typed, nothing outside the model's directory is
//! opened. Names that come from a file are relative, contain no `..`, and are resolved by the
//! kernel beneath the directory without following symbolic links (`openat2(2)` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`; where a sandbox forbids that call, one `openat` with
//! `O_NOFOLLOW` a component). External data must not have a second hard link either. Only regular
//! files are read. `links_under` widens this to link targets beneath one directory that the user
//! named.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Place, Problem, printable};

/// JSON and text beside a model are read whole; a tokenizer of 1 million entries has 60 MB.
const LONGEST_SIDE_FILE: u64 = 512 << 20;

/// The directory of a model, the model's own file and what may be opened beside it.
#[derive(Debug)]
pub struct ModelFiles {
    directory: OwnedFd,
    directory_path: PathBuf,
    model_path: PathBuf,
    model: Bytes,
    links_under: Option<TrustedDirectory>,
    external: BTreeMap<String, Bytes>,
}

/// A directory that the user trusts as the target of links.
#[derive(Debug)]
struct TrustedDirectory {
    directory: OwnedFd,
    canonical: PathBuf,
}

impl ModelFiles {
    /// Opens the model that `path` names: a `.onnx` file, or the directory that holds one.
    ///
    /// A path that is itself a link to a `.onnx` file stands for that file. A link to a file with
    /// another name (caches name contents by their hash) keeps the link's own directory, for the
    /// links beside it belong to the same model.
    pub fn open(path: &Path, links_under: Option<&Path>) -> Result<Self, Problem> {
        let links_under = links_under.map(TrustedDirectory::open).transpose()?;
        let metadata = std::fs::metadata(path).map_err(|error| Problem::io(path, error))?;
        if metadata.is_dir() {
            let directory = open_directory(path).map_err(|error| Problem::io(path, error))?;
            let name = choose_model(path, &directory)?;
            let model_path = path.join(&name);
            let file =
                open_in_model(&directory, path, Path::new(&name), links_under.as_ref(), false)?;
            let model = map(&file, &model_path)?;
            let directory_path = path.to_path_buf();
            let external = BTreeMap::new();
            return Ok(Self {
                directory,
                directory_path,
                model_path,
                model,
                links_under,
                external,
            });
        }
        let target = std::fs::canonicalize(path).map_err(|error| Problem::io(path, error))?;
        let target_is_model = target.extension().is_some_and(|extension| extension == "onnx");
        let model_path = if target_is_model { target } else { path.to_path_buf() };
        let directory_path = match model_path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let directory =
            open_directory(&directory_path).map_err(|error| Problem::io(&directory_path, error))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&model_path, flags, Mode::empty())
            .map_err(|errno| Problem::io(path, io::Error::from(errno)))?;
        let file = regular(file, path)?;
        let model = map(&file, path)?;
        let external = BTreeMap::new();
        Ok(Self { directory, directory_path, model_path, model, links_under, external })
    }

    /// The bytes of the model's own file.
    pub fn model(&self) -> Bytes {
        self.model.clone()
    }

    /// The path of the model's own file, for messages.
    pub fn model_path(&self) -> &Path {
        &self.model_path
    }

    /// The directory of the model, for messages.
    pub fn directory(&self) -> &Path {
        &self.directory_path
    }

    /// Maps the external data file that a tensor names; each file is mapped once.
    pub fn external(&mut self, location: &str) -> Result<Bytes, Problem> {
        if let Some(bytes) = self.external.get(location) {
            return Ok(bytes.clone());
        }
        let relative = Path::new(location);
        let file = open_in_model(
            &self.directory,
            &self.directory_path,
            relative,
            self.links_under.as_ref(),
            true,
        )?;
        let bytes = map(&file, &self.directory_path.join(relative))?;
        self.external.insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// Reads a small file that lies beside the model; `None` where there is none.
    pub fn beside(&self, name: &str) -> Result<Option<Vec<u8>>, Problem> {
        let path = self.directory_path.join(name);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Problem::io(&path, error)),
            Ok(metadata) if metadata.len() > LONGEST_SIDE_FILE => {
                let message = format!("{} bytes, more than we read", metadata.len());
                return Err(Problem::unsupported(Place::File(path), message));
            }
            Ok(_) => {}
        }
        let file = open_in_model(
            &self.directory,
            &self.directory_path,
            Path::new(name),
            self.links_under.as_ref(),
            false,
        )?;
        let length = file.metadata().map_err(|error| Problem::io(&path, error))?.len();
        let mut contents = Vec::new();
        let mut limited = io::Read::take(file, length.min(LONGEST_SIDE_FILE));
        io::Read::read_to_end(&mut limited, &mut contents)
            .map_err(|error| Problem::io(&path, error))?;
        Ok(Some(contents))
    }
}

impl TrustedDirectory {
    fn open(path: &Path) -> Result<Self, Problem> {
        let canonical = std::fs::canonicalize(path).map_err(|error| Problem::io(path, error))?;
        let directory = open_directory(&canonical).map_err(|error| Problem::io(path, error))?;
        Ok(TrustedDirectory { directory, canonical })
    }
}

/// Picks the model file of a directory, or says between which the user has to choose.
fn choose_model(path: &Path, directory: &OwnedFd) -> Result<String, Problem> {
    let unreadable = |error: io::Error| Problem::io(path, error);
    let mut candidates = Vec::new();
    let entries =
        rustix::fs::Dir::read_from(directory).map_err(|errno| unreadable(errno.into()))?;
    for entry in entries {
        let entry = entry.map_err(|errno| unreadable(errno.into()))?;
        if let Ok(name) = entry.file_name().to_str()
            && name.ends_with(".onnx")
        {
            candidates.push(name.to_owned());
        }
    }
    candidates.sort();
    let place = || Place::File(path.to_path_buf());
    if candidates.iter().any(|name| name == "model.onnx") {
        return Ok("model.onnx".to_owned());
    }
    match candidates.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Problem::user(place(), "no .onnx file in this directory")),
        several => {
            let list = several.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ");
            let message = format!("several models in this directory, name one of them: {list}");
            Err(Problem::user(place(), message))
        }
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens `relative`, a name from a file or of ours, beneath the model's directory.
///
/// `sole_link` demands that the file has no second hard link.
fn open_in_model(
    directory: &OwnedFd,
    directory_path: &Path,
    relative: &Path,
    links_under: Option<&TrustedDirectory>,
    sole_link: bool,
) -> Result<File, Problem> {
    let shown = PathBuf::from(printable(&relative.to_string_lossy()));
    let malformed = |message: &str| Problem::malformed(Place::File(shown.clone()), message);
    if relative.as_os_str().is_empty() || relative.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(malformed("external data location is not a file name"));
    }
    for component in relative.components() {
        match component {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => {
                return Err(malformed("external data location leaves its directory by \"..\""));
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(malformed("external data location is an absolute path"));
            }
        }
    }
    let path = directory_path.join(relative);
    let (opened, within_trusted) = match open_beneath(directory, relative) {
        Ok(opened) => (opened, false),
        Err(Errno::LOOP | Errno::NOTDIR) if has_link(directory_path, relative) => match links_under
        {
            Some(trusted) => (open_link_target(&path, trusted)?, true),
            None => return Err(linked(&path)),
        },
        Err(errno) => return Err(Problem::io(&path, io::Error::from(errno))),
    };
    let file = regular(opened, &path)?;
    if sole_link && !within_trusted {
        let links = rustix::fs::fstat(&file)
            .map_err(|errno| Problem::io(&path, io::Error::from(errno)))?
            .st_nlink;
        let trusted = || links_under.is_some_and(|trusted| trusted.contains(&path));
        if links > 1 && !trusted() {
            return Err(hard_linked(&path));
        }
    }
    Ok(file)
}

impl TrustedDirectory {
    fn contains(&self, path: &Path) -> bool {
        std::fs::canonicalize(path).is_ok_and(|target| target.starts_with(&self.canonical))
    }
}

fn linked(path: &Path) -> Problem {
    let message = "is a symbolic link, which may lead out of the model's directory; copy the \
                   model with links resolved (cp -rL), or allow targets beneath a directory with \
                   --links-under DIR";
    Problem::unsupported(Place::File(path.to_path_buf()), message)
}

fn hard_linked(path: &Path) -> Problem {
    let message = "has a second hard link, so it may belong outside the model's directory; copy \
                   the model, or allow files beneath a directory with --links-under DIR";
    Problem::unsupported(Place::File(path.to_path_buf()), message)
}

/// Whether a component of `relative` is a symbolic link.
fn has_link(directory_path: &Path, relative: &Path) -> bool {
    let mut path = directory_path.to_path_buf();
    relative.components().any(|component| {
        path.push(component);
        std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink())
    })
}

/// Opens what a link leads to, provided that it lies beneath the trusted directory.
fn open_link_target(path: &Path, trusted: &TrustedDirectory) -> Result<OwnedFd, Problem> {
    let target = std::fs::canonicalize(path).map_err(|error| Problem::io(path, error))?;
    let Ok(relative) = target.strip_prefix(&trusted.canonical) else {
        let directory = trusted.canonical.display();
        let message = format!("is a link to {}, not beneath {directory}", target.display());
        return Err(Problem::unsupported(Place::File(path.to_path_buf()), message));
    };
    // The canonical path has no links left; if one appears meanwhile, this refuses it.
    open_beneath(&trusted.directory, relative)
        .map_err(|errno| Problem::io(&target, io::Error::from(errno)))
}

/// Opens a file beneath a directory without following any link.
fn open_beneath(directory: &OwnedFd, relative: &Path) -> Result<OwnedFd, Errno> {
    // NONBLOCK keeps a FIFO from stopping us before `regular` sees what it is.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(directory, relative, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => open_by_component(directory, relative, flags),
        other => other,
    }
}

/// `open_beneath` for kernels and sandboxes without `openat2`.
fn open_by_component(
    directory: &OwnedFd,
    relative: &Path,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let names: Vec<_> = relative
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let Some((file_name, directories)) = names.split_last() else {
        return Err(Errno::NOENT);
    };
    let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    for name in directories {
        let from = at.as_ref().map_or(directory.as_fd(), |fd| fd.as_fd());
        at = Some(rustix::fs::openat(from, *name, walk, Mode::empty())?);
    }
    let from = at.as_ref().map_or(directory.as_fd(), |fd| fd.as_fd());
    rustix::fs::openat(from, *file_name, flags | OFlags::NOFOLLOW, Mode::empty())
}

fn regular(opened: OwnedFd, path: &Path) -> Result<File, Problem> {
    let file = File::from(opened);
    let metadata = file.metadata().map_err(|error| Problem::io(path, error))?;
    if !metadata.is_file() {
        return Err(Problem::malformed(Place::File(path.to_path_buf()), "is not a regular file"));
    }
    Ok(file)
}

/// Maps a whole file for reading; the map lives as long as any slice of it.
fn map(file: &File, path: &Path) -> Result<Bytes, Problem> {
    let length = file.metadata().map_err(|error| Problem::io(path, error))?.len();
    if length == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the map is private and read-only, and `Bytes` owns it, so the memory outlives every
    // slice. Another process that writes or truncates the file while we read can change the bytes
    // or end us with SIGBUS; we ask that models are not rewritten during a compilation, as every
    // mapping reader does.
    let mapped = unsafe { Mmap::map(file) }.map_err(|error| Problem::io(path, error))?;
    Ok(Bytes::from_owner(mapped))
}

//! Where fixtures and models lie: in the repository, and beside the checkout where larger ones may
//! be.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).unwrap_or_else(|| here.to_path_buf())
}

/// The folder `shared` beside the checkout, if it is there.
pub fn shared() -> Option<PathBuf> {
    let shared = root().parent()?.join("shared");
    shared.is_dir().then_some(shared)
}

/// Folders with a `golden.safetensors`: those of the repository, then those beside the checkout
/// that the repository does not have. Sorted by name.
pub fn fixtures() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let places =
        [Some(root().join("tests/fixtures/onnx")), shared().map(|s| s.join("fixtures/onnx"))];
    for place in places.into_iter().flatten() {
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let known = found.iter().any(|other| other.file_name() == path.file_name());
            if !known && path.join("golden.safetensors").is_file() {
                found.push(path);
            }
        }
    }
    found.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    found
}

/// Last part of a path as text.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

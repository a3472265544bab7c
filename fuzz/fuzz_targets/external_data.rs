//! External data: locations, offsets and lengths that a stranger wrote, against a folder with a
//! file, a link to a file outside and a folder beside it. Nothing outside is ever read.
//!
//! The input is three lines: location, offset, length.

#![no_main]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use weir_frontend::import_operators;

const SECRET: &[u8; 16] = b"\xc3SECRET-OUTSIDE\xc3";

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let [location, offset, length] = [(); 3].map(|()| lines.next().unwrap_or_default());
    let outer = tempfile::tempdir().expect("a temporary folder");
    let folder = outer.path().join("model");
    std::fs::create_dir_all(folder.join("sub")).expect("a folder");
    std::fs::write(outer.path().join("outside"), SECRET.repeat(4)).expect("a file");
    std::fs::write(folder.join("data"), [7; 64]).expect("a file");
    std::fs::write(folder.join("sub/data"), [7; 64]).expect("a file");
    symlink(outer.path().join("outside"), folder.join("link")).expect("a link");
    symlink(outer.path(), folder.join("up")).expect("a link");
    let path = folder.join("model.onnx");
    let model = weir_fuzz::external_model(location, offset, length);
    std::fs::write(&path, model.encode_to_vec()).expect("a file");
    let Ok(graph) = import_operators(&path, &BTreeMap::new()) else { return };
    for (_, constant) in graph.constants.iter() {
        // Offsets turn the mark, but its first half or its second stays in one piece.
        let stored = weir_fuzz::stored(constant);
        let leaked = stored.windows(4).any(|w| w == &SECRET[1..5] || w == &SECRET[9..13]);
        assert!(!leaked, "{location:?} was read");
    }
});

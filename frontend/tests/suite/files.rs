//! Which file a path means, and what is no model file at all.

use std::path::Path;

use weir_frontend::{Fault, ImportOptions, import};
use weir_ir::ConstData;

use crate::tiny::tiny;

fn refusal(path: &Path) -> (Fault, String) {
    let error = import(path, &ImportOptions::default()).unwrap_err();
    (error.problems[0].fault, error.to_string())
}

#[test]
fn a_directory_names_its_only_model() {
    let directory = tempfile::tempdir().unwrap();
    tiny().write(directory.path());
    let decoder = directory.path().join("decoder_model_merged.onnx");
    std::fs::rename(directory.path().join("model.onnx"), &decoder).unwrap();
    import(directory.path(), &ImportOptions::default()).unwrap();
    std::fs::copy(&decoder, directory.path().join("decoder_model.onnx")).unwrap();
    let (fault, message) = refusal(directory.path());
    assert_eq!(fault, Fault::User);
    assert!(message.contains("decoder_model.onnx, decoder_model_merged.onnx"), "{message}");
    import(&decoder, &ImportOptions::default()).unwrap();
}

#[test]
fn what_is_no_model_is_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(refusal(directory.path()).0, Fault::User);
    assert_eq!(refusal(&directory.path().join("absent")).0, Fault::Io);
    let file = directory.path().join("model.onnx");
    for contents in [&b""[..], b"version https://git-lfs.github.com/spec/v1\n", b"hello, world"] {
        std::fs::write(&file, contents).unwrap();
        assert_eq!(refusal(&file).0, Fault::Malformed);
    }
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(refusal(directory.path()).0, Fault::Malformed);
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.onnx");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: no mkfifo");
        return;
    }
    assert_eq!(refusal(directory.path()).0, Fault::Malformed);
    assert_eq!(refusal(&path).0, Fault::Malformed);
}

#[test]
fn an_unsorted_graph_is_sorted() {
    let directory = tempfile::tempdir().unwrap();
    let mut tiny = tiny();
    tiny.graph().node.reverse();
    tiny.write(directory.path());
    import(directory.path(), &ImportOptions::default()).unwrap();
}

/// The file is sparse: five gigabytes of length, a few kilobytes on disk.
#[test]
fn external_data_beyond_four_gigabytes_is_reached() {
    const FAR: u64 = 5_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    let mut tiny = tiny();
    *tiny.external("head.weight", "offset") = FAR.to_string();
    let data = tiny.files[0].1.split_off(8192 + 4096);
    tiny.write(directory.path());
    let path = directory.path().join("model.onnx.data");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    if file.set_len(FAR + data.len() as u64).is_err() {
        println!("skipped: no sparse files here");
        return;
    }
    std::os::unix::fs::FileExt::write_all_at(&file, &data, FAR).unwrap();
    let imported = import(directory.path(), &ImportOptions::default()).unwrap();
    let head = imported.graph.constants.values().find(|constant| constant.name == "head.weight");
    let ConstData::Dense { bytes, .. } = &head.unwrap().data else { panic!("not dense") };
    assert_eq!(bytes[..], data[..]);
}

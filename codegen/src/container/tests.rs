//! Containers of a tiny invented model: what tools and the kernel see of them, and that the same
//! image gives the same bytes. (That the runtime opens them is tested where both are known.)

use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian as LE, Object as _, ObjectSymbol as _, elf};
use weir_abi::{ABI_VERSION, MAGIC, ModelHeader};

use super::executable::extend_program;
use super::output::OutputFile;
use super::*;
use crate::image::{CodeImage, ModelImage, Symbol, WeightImage, WeightPiece};
use crate::jit::ModelInMemory;

/// `mov eax, 42; ret`
const FORTY_TWO: [u8; 6] = [0xb8, 42, 0, 0, 0, 0xc3];

/// A model whose only function is `weir.embed` and whose tables are a header alone.
fn image(weights: WeightImage<'_>) -> ModelImage<'_> {
    let mut code = CodeImage { bytes: FORTY_TWO.to_vec(), symbols: Vec::new() };
    code.symbols.push(Symbol { name: "weir.embed".into(), offset: 0, bytes: 6 });
    let mut tables = vec![0; size_of::<ModelHeader>() + 64];
    let tables_bytes = tables.len() as u64;
    let mut set = |offset: usize, bytes: &[u8]| {
        tables[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    set(offset_of!(ModelHeader, magic), &MAGIC);
    set(offset_of!(ModelHeader, abi_version), &ABI_VERSION.to_le_bytes());
    set(offset_of!(ModelHeader, tables_bytes), &tables_bytes.to_le_bytes());
    set(offset_of!(ModelHeader, code_bytes), &(code.bytes.len() as u64).to_le_bytes());
    set(offset_of!(ModelHeader, weights_bytes), &weights.bytes.to_le_bytes());
    ModelImage { code, tables, weights }
}

fn weights() -> WeightImage<'static> {
    let piece = |offset: u64, bytes: u64, value: u8| WeightPiece {
        offset,
        bytes,
        name: format!("w{offset}"),
        fill: Box::new(move |place: &mut [u8]| {
            place.fill(value);
            Ok(())
        }),
    };
    WeightImage { bytes: 9000, pieces: vec![piece(0, 100, 7), piece(4096, 4000, 9)] }
}

/// The embedded runtime, or `None` in a build without it.
fn runtime_program() -> Option<&'static [u8]> {
    let program = runtime::program().ok();
    if program.is_none() {
        println!("skipped: this build carries no runtime");
    }
    program
}

fn write(path: &Path) -> Vec<u8> {
    write_executable(&image(weights()), path, &mut |_, _| {}).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn executables_are_static_and_never_writable_and_executable() {
    if runtime_program().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = write(&folder.path().join("model"));
    let header = elf::FileHeader64::<LE>::parse(&bytes[..]).unwrap();
    let segments = header.program_headers(LE, &bytes[..]).unwrap();
    assert!(segments.iter().all(|segment| segment.p_type(LE) != elf::PT_INTERP));
    for segment in segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD) {
        let flags = segment.p_flags(LE).0;
        assert_ne!(flags & 3, 3, "writable and executable");
        assert_eq!(segment.p_vaddr(LE) % 4096, segment.p_offset(LE) % 4096);
    }
    let addresses: Vec<u64> = segments
        .iter()
        .filter(|segment| segment.p_type(LE) == elf::PT_LOAD)
        .map(|segment| segment.p_vaddr(LE))
        .collect();
    assert!(addresses.is_sorted());
    let needed = Command::new("readelf").arg("-d").arg(folder.path().join("model")).output();
    if let Ok(output) = needed {
        assert!(!String::from_utf8_lossy(&output.stdout).contains("NEEDED"));
    }
}

/// The system maps a part of a file by large pages only where file and memory have it at multiples of one.
#[test]
fn many_weights_lie_at_large_pages() {
    if runtime_program().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let large = WeightImage { bytes: 9 << 20, pieces: Vec::new() };
    write_executable(&image(large), &path, &mut |_, _| {}).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let header = elf::FileHeader64::<LE>::parse(&bytes[..]).unwrap();
    let segments = header.program_headers(LE, &bytes[..]).unwrap();
    let mut loaded = segments.iter().rev().filter(|segment| segment.p_type(LE) == elf::PT_LOAD);
    let of_weights = loaded.next().unwrap();
    assert!(of_weights.p_filesz(LE) > 9 << 20);
    assert_eq!(of_weights.p_offset(LE) % LARGE_PAGE_BYTES, 0);
    assert_eq!(of_weights.p_vaddr(LE) % LARGE_PAGE_BYTES, 0);
}

#[test]
fn executables_name_their_kernels() {
    if runtime_program().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = write(&folder.path().join("model"));
    let file = ElfFile64::<LE>::parse(&bytes[..]).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok("weir.embed")).unwrap();
    assert_eq!(symbol.size(), FORTY_TWO.len() as u64);
    let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
    assert_eq!(object::ObjectSection::name(&section), Ok(".weir.code"));
    assert!(file.symbols().any(|symbol| symbol.name() == Ok("main")));
}

#[test]
fn the_same_image_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    if runtime_program().is_some() {
        assert!(write(&path("a")) == write(&path("b")));
    }
    for name in ["a.o", "b.o"] {
        write_object(&image(weights()), &path(name), &mut |_, _| {}).unwrap();
    }
    assert!(std::fs::read(path("a.o")).unwrap() == std::fs::read(path("b.o")).unwrap());
}

#[test]
fn nothing_is_left_when_writing_fails() {
    let Some(program) = runtime_program() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut broken = image(weights());
    broken.weights.pieces[1].bytes = 1 << 20;
    let path = folder.path().join("model");
    let error = extend_program(program, &broken, &path, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("w4096 lies outside"), "{error}");
    // The output's place is taken by a folder: the last step fails.
    std::fs::create_dir(&path).unwrap();
    assert!(write_executable(&image(weights()), &path, &mut |_, _| {}).is_err());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn progress_ends_at_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let object = folder.path().join("model.o");
    write_object(&image(weights()), &object, &mut |done, total| seen.push((done, total))).unwrap();
    let (done, total) = *seen.last().unwrap();
    assert_eq!(done, total);
    assert!(seen.is_sorted());
}

#[test]
fn memory_holds_what_a_file_would() {
    let model = ModelInMemory::load(&image(weights()), &mut |_, _| {}).unwrap();
    assert_eq!(model.code[..], FORTY_TWO);
    assert_eq!(model.weights.len(), 9000);
    assert_eq!(model.weights[..101], [[7; 100].as_slice(), &[0]].concat());
    assert_eq!(model.weights[4096 + 3999..4096 + 4001], [9, 0]);
}

/// A program of somebody else finds the model through the object's symbol, however it is linked.
#[test]
fn objects_link_into_c_programs() {
    const PROGRAM: &str = r#"
        #include <string.h>
        struct slot {
            char magic[16];
            long long code, tables, weights;
            unsigned long long code_bytes, tables_bytes, weights_bytes;
        };
        extern const struct slot weir_model;
        int main(void) {
            const struct slot *slot = &weir_model;
            const char *base = (const char *)slot;
            int (*embed)(void) = (int (*)(void))(base + slot->code);
            const char *weights = base + slot->weights;
            if (memcmp(slot->magic, "weir slot filled", 16)) return 1;
            if (memcmp(base + slot->tables, "WEIRMDL", 8)) return 2;
            if (weights[0] != 7 || weights[4096] != 9 || weights[100]) return 3;
            if (memcmp(weights + slot->weights_bytes, "weir model ends.", 16)) return 4;
            return embed();
        }
    "#;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("main.c"), PROGRAM).unwrap();
    write_object(&image(weights()), &path("model.o"), &mut |_, _| {}).unwrap();
    for linking in [&["-pie"][..], &["-no-pie", "-static"], &["-static-pie"]] {
        let mut cc = Command::new("cc");
        cc.args(["-fPIE", "-Wl,-z,text,--fatal-warnings", "-o"]).arg(path("main")).args(linking);
        let Ok(linked) = cc.args([path("main.c"), path("model.o")]).output() else {
            println!("skipped: there is no cc");
            return;
        };
        assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
        let status = Command::new(path("main")).status().unwrap();
        assert_eq!(status.code(), Some(42), "{linking:?}");
    }
}

/// Bytes arrive in pieces of any length, among them zeros, and are written by units.
#[test]
fn outputs_hold_what_was_written_and_no_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output");
    let mut output = OutputFile::create(&path, 0o600).unwrap();
    let mut expected = Vec::new();
    for (index, bytes) in [100, 64 << 10, 70 << 10, 3 << 20, 2 << 20, 7, 5 << 20].iter().enumerate()
    {
        // Every second piece is zeros; the others have no long run of them.
        let value = |at: usize| if index % 2 == 0 { (at % 251) as u8 } else { 0 };
        let piece: Vec<u8> = (0..*bytes).map(value).collect();
        output.write(&piece).unwrap();
        expected.extend(piece);
    }
    let gap = expected.len() + (1 << 20);
    output.pad_to(gap as u64).unwrap();
    expected.resize(gap, 0);
    output.write(b"end").unwrap();
    expected.extend(b"end");
    output.rewrite(b"first", 3).unwrap();
    expected[3..8].copy_from_slice(b"first");
    assert!(output.pad_to(5).is_err());
    output.write(&[0; 9]).unwrap();
    expected.resize(expected.len() + 9, 0);
    output.finish().unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
    // All but the zeros of the gap and of the long pieces, in blocks of 512 bytes.
    let held = path.metadata().unwrap().blocks() * 512;
    assert!(held < expected.len() as u64 - (3 << 20), "{held} of {}", expected.len());
}

/// Weights beyond 32-bit displacements. Mostly holes, but every byte is hashed: not for each run.
#[test]
#[ignore = "writes and hashes 2.2 GB of zeros"]
fn weights_may_exceed_two_gigabytes() {
    let bytes = 2_200 << 20;
    let last = WeightPiece {
        offset: bytes - 8,
        bytes: 8,
        name: "last".into(),
        fill: Box::new(|place: &mut [u8]| {
            place.fill(5);
            Ok(())
        }),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.o");
    let image = image(WeightImage { bytes, pieces: vec![last] });
    write_object(&image, &path, &mut |_, _| {}).unwrap();
    assert!(path.metadata().unwrap().len() > bytes);
    if runtime_program().is_some() {
        write_executable(&image, &path, &mut |_, _| {}).unwrap();
        assert!(path.metadata().unwrap().len() > bytes);
    }
}

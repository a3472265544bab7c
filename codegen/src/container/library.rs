//! An archive that holds the runtime and one model, and the C header to use them with.
//!
//! The archive's members are those of the runtime archive, then the model's object, in the format
//! and with the symbol index that every linker reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use ar_archive_writer::{
    ArchiveKind, DEFAULT_OBJECT_READER, NewArchiveMember, write_archive_to_stream,
};
use object::read::archive::ArchiveFile;

use super::object_file::{MODEL_SYMBOL, stream_object};
use super::output::OutputFile;
use super::{ContainerError, Progress, runtime};
use crate::image::ModelImage;
use crate::jit::map_own_file;

/// Name of the model's object in the archive.
const MEMBER: &str = "weir-model.o";
/// The runtime's C interface.
const INTERFACE: &str = include_str!(concat!(env!("OUT_DIR"), "/runtime-header"));

/// Writes the model with its runtime as an archive, and the C header `header` for it.
pub fn write_library<'a>(
    image: &ModelImage<'_>,
    output: &Path,
    header: &Path,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    let archive = runtime::archive()?;
    let mut object = OutputFile::create(output)?;
    stream_object(image, &mut object, progress)?;
    let mapped = map_own_file(object.file()).map_err(|error| object.error(error))?;
    let mut library = OutputFile::create(output)?;
    let joined = join(archive, &mapped, library.file());
    joined.map_err(|error| library.error(error))?;
    drop((mapped, object));
    let mut interface = OutputFile::create(header)?;
    interface.write(header_text().as_bytes())?;
    interface.finish(0o644)?;
    library.finish(0o644)
}

fn join(archive: &[u8], object: &[u8], library: &mut File) -> std::io::Result<()> {
    let broken = |error: object::read::Error| std::io::Error::other(error.to_string());
    let mut members = Vec::new();
    for member in ArchiveFile::parse(archive).map_err(broken)?.members() {
        let member = member.map_err(broken)?;
        let name = String::from_utf8_lossy(member.name()).into_owned();
        members.push(new_member(member.data(archive).map_err(broken)?, name));
    }
    members.push(new_member(object, MEMBER.into()));
    let mut stream = BufWriter::new(library);
    write_archive_to_stream(&mut stream, &members, ArchiveKind::Gnu, false, None)?;
    stream.flush()
}

/// A member without time and owner, so that the same input gives the same bytes.
fn new_member(bytes: &[u8], name: String) -> NewArchiveMember<'_> {
    NewArchiveMember {
        buf: Box::new(bytes),
        object_reader: &DEFAULT_OBJECT_READER,
        member_name: name,
        mtime: 0,
        uid: 0,
        gid: 0,
        perms: 0o644,
    }
}

/// The runtime's interface and the declaration of this model.
fn header_text() -> String {
    format!(
        "{INTERFACE}\n\
         #ifdef __cplusplus\n\
         extern \"C\" {{\n\
         #endif\n\
         /* The model in this library. */\n\
         extern const unsigned char {MODEL_SYMBOL}[];\n\
         #ifdef __cplusplus\n\
         }}\n\
         #endif\n"
    )
}

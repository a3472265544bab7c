//! An archive that holds the runtime and one model, and the C header to use them with.
//!
//! The archive's members are the runtime's object and the model's, in the format and with the symbol
//! index that every linker reads.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use ar_archive_writer::{
    ArchiveKind, DEFAULT_OBJECT_READER, NewArchiveMember, write_archive_to_stream,
};

use super::object_file::{MODEL_SYMBOL, stream_object};
use super::output::{DATA, OutputFile};
use super::{ContainerError, Progress, runtime};
use crate::image::ModelImage;
use crate::jit::map_own_file;

/// Names of the objects in the archive.
const RUNTIME: &str = "weir-runtime.o";
const MODEL: &str = "weir-model.o";
/// The runtime's C interface.
const INTERFACE: &str = include_str!(concat!(env!("OUT_DIR"), "/runtime-header"));

/// Writes the model with its runtime as an archive, and the C header `header` for it.
pub fn write_library<'a>(
    image: &ModelImage<'_>,
    output: &Path,
    header: &Path,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    let runtime = runtime::object()?;
    let mut object = OutputFile::create(output, DATA)?;
    stream_object(image, &mut object, progress)?;
    let mapped = map_own_file(object.file()?).map_err(|error| object.error(error))?;
    let mut library = OutputFile::create(output, DATA)?;
    let joined = join(runtime, &mapped, library.file()?);
    joined.map_err(|error| library.error(error))?;
    drop((mapped, object));
    let mut interface = OutputFile::create(header, DATA)?;
    interface.write(header_text().as_bytes())?;
    interface.finish()?;
    library.finish()
}

fn join(runtime: &[u8], model: &[u8], library: &mut File) -> std::io::Result<()> {
    let members = [new_member(runtime, RUNTIME.into()), new_member(model, MODEL.into())];
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

//! Machine code in executable memory: the same bytes that a container would hold.
//!
//! Invariant: memory is never writable and executable at once. The unsafe step is to enter code:
//! it is sound because the bytes come from our own emitters, which access only what the arguments
//! point to.

use memmap2::{Mmap, MmapMut};

use crate::image::{CodeImage, Symbol};

/// A code region mapped read-execute.
pub struct ExecutableCode {
    map: Mmap,
    symbols: Vec<Symbol>,
}

/// An argument of a kernel that is called by itself.
pub enum Argument<'a> {
    /// Address of memory that the kernel reads.
    Read(&'a [u8]),
    /// Address of memory that the kernel reads and writes.
    Write(&'a mut [u8]),
    /// A number.
    Count(u64),
    /// No memory.
    Null,
}

/// Most arguments of a kernel that is called by itself.
const MAX_ARGUMENTS: usize = 8;

impl ExecutableCode {
    /// Copies a code region into executable memory.
    pub fn new(image: &CodeImage) -> std::io::Result<Self> {
        let mut map = MmapMut::map_anon(image.bytes.len().max(1))?;
        map[..image.bytes.len()].copy_from_slice(&image.bytes);
        Ok(Self { map: map.make_exec()?, symbols: image.symbols.clone() })
    }

    /// Start of the region.
    pub fn base(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// Calls a kernel that takes pointers and counts and returns nothing: the door for tests and
    /// benchmarks of single kernels. The caller gives as much memory as the kernel's specification
    /// says.
    ///
    /// # Panics
    ///
    /// If there is no function of this name, or there are more than eight arguments.
    pub fn call_kernel(&self, name: &str, arguments: &mut [Argument<'_>]) {
        let symbol = self.symbols.iter().find(|symbol| symbol.name == name);
        let offset = symbol.expect("the kernel is in the image").offset as usize;
        let mut words = [0u64; MAX_ARGUMENTS];
        assert!(arguments.len() <= MAX_ARGUMENTS, "a kernel takes at most eight arguments");
        for (word, argument) in words.iter_mut().zip(arguments) {
            *word = match argument {
                Argument::Read(bytes) => bytes.as_ptr() as u64,
                Argument::Write(bytes) => bytes.as_mut_ptr() as u64,
                Argument::Count(count) => *count,
                Argument::Null => 0,
            };
        }
        type Kernel = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64);
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: the offset is that of a function of the image, mapped read-execute and alive for
        // the call; by the System V convention a callee with fewer integer parameters ignores the
        // rest; memory that it touches is that of the arguments, by its specification.
        let kernel = unsafe { std::mem::transmute::<*const u8, Kernel>(self.base().add(offset)) };
        kernel(a, b, c, d, e, f, g, h);
    }
}

//! Memory of a call: each argument a region of its own, with nothing mapped around it.

use super::Stop;

/// First address given out.
const FIRST: u64 = 0x1_0000_0000;
/// Unmapped bytes behind a region, and alignment of all regions.
const APART: u64 = 1 << 20;

/// Address of the first argument, if that is memory.
pub const FIRST_ARGUMENT: u64 = FIRST + APART;

/// Addresses of a call's arguments that are memory, of these lengths, so that memory can point to
/// other memory. A call may have more arguments than the function takes.
pub fn addresses(lengths: impl IntoIterator<Item = usize>) -> Vec<u64> {
    let mut next = FIRST_ARGUMENT;
    let place = |length: usize| {
        let base = next;
        next = behind(base, length);
        base
    };
    lengths.into_iter().map(place).collect()
}

/// Where the region behind one begins.
fn behind(base: u64, length: usize) -> u64 {
    (base + length as u64).next_multiple_of(APART).max(FIRST) + APART
}

/// An argument of a kernel.
pub enum Argument<'a> {
    /// Address of memory that the kernel reads.
    Read(&'a [u8]),
    /// Address of memory that the kernel reads and writes.
    Write(&'a mut [u8]),
    /// The word of an earlier argument, by its number.
    Same(usize),
    /// A number.
    Count(u64),
    /// No memory.
    Null,
}

enum Bytes<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    Own(Vec<u8>),
}

impl Bytes<'_> {
    fn slice(&self) -> &[u8] {
        match self {
            Bytes::Read(bytes) => bytes,
            Bytes::Write(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

struct Region<'a> {
    name: String,
    base: u64,
    bytes: Bytes<'a>,
}

#[derive(Default)]
pub(crate) struct Memory<'a> {
    regions: Vec<Region<'a>>,
}

impl<'a> Memory<'a> {
    fn place(&mut self, name: String, bytes: Bytes<'a>) -> u64 {
        let last = self.regions.last();
        let base = last.map_or(FIRST, |last| behind(last.base, last.bytes.slice().len()));
        self.regions.push(Region { name, base, bytes });
        base
    }

    /// Code, which may read the constants that lie behind its instructions. Comes first.
    pub(crate) fn code(&mut self, base: u64, code: &'a [u8]) {
        debug_assert!(self.regions.is_empty(), "regions lie in order");
        self.regions.push(Region { name: "the code".to_owned(), base, bytes: Bytes::Read(code) });
    }

    /// The word that an argument is passed as, behind those of `earlier` ones.
    pub(crate) fn map(&mut self, earlier: &[u64], argument: Argument<'a>) -> u64 {
        let name = format!("argument {}", earlier.len());
        match argument {
            Argument::Read(bytes) => self.place(name, Bytes::Read(bytes)),
            Argument::Write(bytes) => self.place(name, Bytes::Write(bytes)),
            Argument::Same(index) => earlier[index],
            Argument::Count(count) => count,
            Argument::Null => 0,
        }
    }

    /// Memory that nobody outside sees.
    pub(crate) fn own(&mut self, name: &str, bytes: usize) -> u64 {
        self.place(name.to_owned(), Bytes::Own(vec![0xff; bytes]))
    }

    /// The region of an access and the access's offset in it.
    fn find(&self, address: u64, bytes: usize) -> Option<(usize, usize)> {
        let index = self.regions.partition_point(|region| region.base <= address).checked_sub(1)?;
        let region = &self.regions[index];
        let offset = usize::try_from(address - region.base).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= region.bytes.slice().len()).then_some((index, offset))
    }

    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Stop> {
        let bytes = to.len();
        let stop = Stop::Access { what: "reads", address, bytes };
        let (index, offset) = self.find(address, bytes).ok_or(stop)?;
        to.copy_from_slice(&self.regions[index].bytes.slice()[offset..offset + bytes]);
        Ok(())
    }

    pub(crate) fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Stop> {
        let bytes = from.len();
        let stop = || Stop::Access { what: "writes", address, bytes };
        let (index, offset) = self.find(address, bytes).ok_or_else(stop)?;
        let region = match &mut self.regions[index].bytes {
            Bytes::Read(_) => return Err(stop()),
            Bytes::Write(bytes) => &mut **bytes,
            Bytes::Own(bytes) => bytes.as_mut_slice(),
        };
        region[offset..offset + bytes].copy_from_slice(from);
        Ok(())
    }

    /// An address in terms of the region in front of it.
    pub(crate) fn describe(&self, address: u64) -> String {
        let index = self.regions.partition_point(|region| region.base <= address);
        // An access just in front of a region belongs to that region.
        let next = self.regions.get(index).filter(|next| next.base - address < APART / 2);
        let Some(region) = next.or_else(|| self.regions[..index].last()) else {
            return format!("{address:#x}");
        };
        let offset = address as i64 - region.base as i64;
        format!("{} + {offset} of {} bytes", region.name, region.bytes.slice().len())
    }
}

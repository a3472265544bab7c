//! `TensorProto` to a checked tensor: element type, dimensions and little-endian bytes.
//!
//! Invariant: `bytes` holds exactly the elements that `dims` promises, packed as in `raw_data`
//! (4-bit elements two to a byte, the first in the low nibble; ONNX `onnx.proto`, `TensorProto`).
//! Payloads that already have this form, inline or external, stay where they are in the memory
//! map.

use bytes::Bytes;

use super::proto::{LOCATION_EXTERNAL, TensorProto};
use crate::error::{Place, Problem, printable};
use crate::source::ModelFiles;

/// Dimensions of a tensor, at most: models have up to six, and work on shapes is at times quadratic in
/// their number, which a file would otherwise choose.
pub const MAX_RANK: usize = 32;

/// What is wrong with a rank beyond [`MAX_RANK`].
pub fn rank_message(rank: usize) -> String {
    format!("a tensor of rank {rank}, more than {MAX_RANK}")
}

/// An element type of ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the variants are the names of the format")]
pub enum Element {
    Float32,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Int32,
    Int64,
    Bool,
    Float16,
    Float64,
    Uint32,
    Uint64,
    Bfloat16,
    Uint4,
    Int4,
}

impl Element {
    /// The element type with this number in `TensorProto.DataType`, or the name of one that we do
    /// not read.
    pub fn from_wire(number: i32) -> Result<Self, ElementError> {
        Ok(match number {
            1 => Element::Float32,
            2 => Element::Uint8,
            3 => Element::Int8,
            4 => Element::Uint16,
            5 => Element::Int16,
            6 => Element::Int32,
            7 => Element::Int64,
            9 => Element::Bool,
            10 => Element::Float16,
            11 => Element::Float64,
            12 => Element::Uint32,
            13 => Element::Uint64,
            16 => Element::Bfloat16,
            21 => Element::Uint4,
            22 => Element::Int4,
            8 => return Err(ElementError::Unsupported("string")),
            14 => return Err(ElementError::Unsupported("complex64")),
            15 => return Err(ElementError::Unsupported("complex128")),
            17 => return Err(ElementError::Unsupported("float8e4m3fn")),
            18 => return Err(ElementError::Unsupported("float8e4m3fnuz")),
            19 => return Err(ElementError::Unsupported("float8e5m2")),
            20 => return Err(ElementError::Unsupported("float8e5m2fnuz")),
            23 => return Err(ElementError::Unsupported("float4e2m1")),
            24 => return Err(ElementError::Unsupported("float8e8m0")),
            25 => return Err(ElementError::Unsupported("uint2")),
            26 => return Err(ElementError::Unsupported("int2")),
            other => return Err(ElementError::Unknown(other)),
        })
    }

    /// Bits of one element.
    pub fn bits(self) -> u64 {
        match self {
            Element::Uint4 | Element::Int4 => 4,
            Element::Uint8 | Element::Int8 | Element::Bool => 8,
            Element::Uint16 | Element::Int16 | Element::Float16 | Element::Bfloat16 => 16,
            Element::Float32 | Element::Int32 | Element::Uint32 => 32,
            Element::Float64 | Element::Int64 | Element::Uint64 => 64,
        }
    }

    /// The name that ONNX gives the type.
    pub fn name(self) -> &'static str {
        match self {
            Element::Float32 => "float32",
            Element::Uint8 => "uint8",
            Element::Int8 => "int8",
            Element::Uint16 => "uint16",
            Element::Int16 => "int16",
            Element::Int32 => "int32",
            Element::Int64 => "int64",
            Element::Bool => "bool",
            Element::Float16 => "float16",
            Element::Float64 => "float64",
            Element::Uint32 => "uint32",
            Element::Uint64 => "uint64",
            Element::Bfloat16 => "bfloat16",
            Element::Uint4 => "uint4",
            Element::Int4 => "int4",
        }
    }
}

/// Why a number is not an [`Element`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementError {
    /// A type of the format that we do not read.
    Unsupported(&'static str),
    /// No type of the format.
    Unknown(i32),
}

impl ElementError {
    /// The problem at a place.
    pub fn at(self, place: Place) -> Problem {
        match self {
            ElementError::Unsupported(name) => {
                Problem::unsupported(place, format!("element type {name}"))
            }
            ElementError::Unknown(0) => Problem::malformed(place, "no element type"),
            ElementError::Unknown(number) => {
                Problem::malformed(place, format!("unknown element type {number}"))
            }
        }
    }
}

/// A tensor whose bytes have been checked against its shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The name in the file; empty for most tensors in attributes.
    pub name: String,
    /// The element type.
    pub element: Element,
    /// The dimensions; none for a scalar.
    pub dims: Vec<usize>,
    /// The elements, little-endian, packed as in `raw_data`.
    pub bytes: Bytes,
}

impl Tensor {
    /// The number of elements.
    pub fn count(&self) -> usize {
        // The product was checked when the tensor was read.
        self.dims.iter().product()
    }
}

/// Reads tensors and remembers which ranges of which external file they took.
#[derive(Debug)]
pub struct TensorReader<'a> {
    files: &'a mut ModelFiles,
    slices: Vec<Slice>,
    /// Files that could not be opened; each is reported once.
    missing: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Slice {
    location: String,
    start: u64,
    end: u64,
    tensor: String,
}

impl<'a> TensorReader<'a> {
    /// A reader over the files of one model.
    pub fn new(files: &'a mut ModelFiles) -> Self {
        TensorReader { files, slices: Vec::new(), missing: Vec::new() }
    }

    /// Checks one tensor. `label` names it in messages where it has no name of its own.
    ///
    /// `Ok(None)` means that the reason has been reported with an earlier tensor.
    pub fn read(&mut self, proto: &TensorProto, label: &str) -> Result<Option<Tensor>, Problem> {
        let name = if proto.name.is_empty() { label } else { &proto.name };
        let place = || Place::Tensor(name.to_owned());
        let malformed = |message: String| Problem::malformed(place(), message);
        let element = Element::from_wire(proto.data_type).map_err(|error| error.at(place()))?;
        if proto.segment.is_some() {
            return Err(Problem::unsupported(place(), "tensor in segments"));
        }
        if proto.dims.len() > MAX_RANK {
            return Err(Problem::unsupported(place(), rank_message(proto.dims.len())));
        }
        let (dims, count) = checked_dims(&proto.dims).map_err(malformed)?;
        let size = u64::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(element.bits()))
            .map(|bits| bits.div_ceil(8))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or_else(|| malformed(format!("shape {:?} is too large", proto.dims)))?;
        let shape = || format!("{} {dims:?} ({size} bytes)", element.name());
        let sources = used_sources(proto);
        let bytes = if proto.data_location == LOCATION_EXTERNAL {
            if let Some(source) = sources.first() {
                return Err(malformed(format!("is external and has {source} as well")));
            }
            match self.external(proto, name, size)? {
                Some(bytes) => bytes,
                None => return Ok(None),
            }
        } else if proto.data_location != 0 {
            return Err(malformed(format!("unknown data location {}", proto.data_location)));
        } else if !proto.external_data.is_empty() {
            return Err(malformed("names external data but is not marked external".to_owned()));
        } else {
            match sources.as_slice() {
                [] if count == 0 => Bytes::new(),
                [] => return Err(malformed(format!("no data for {}", shape()))),
                ["raw_data"] => {
                    let raw = proto.raw_data.clone().unwrap_or_default();
                    if raw.len() as u64 != size {
                        let found = raw.len();
                        return Err(malformed(format!("{found} bytes of data for {}", shape())));
                    }
                    raw
                }
                [field] => typed_data(proto, element, count, field).map_err(malformed)?,
                [first, second, ..] => {
                    return Err(malformed(format!("has both {first} and {second}")));
                }
            }
        };
        if element == Element::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(malformed("a bool that is neither 0 nor 1".to_owned()));
        }
        Ok(Some(Tensor { name: proto.name.clone(), element, dims, bytes }))
    }

    /// The slice of an external file; `None` if the file's failure has been reported already.
    fn external(
        &mut self,
        proto: &TensorProto,
        name: &str,
        size: u64,
    ) -> Result<Option<Bytes>, Problem> {
        let malformed =
            |message: String| Problem::malformed(Place::Tensor(name.to_owned()), message);
        let mut location = None;
        let mut offset = None;
        let mut length = None;
        for entry in &proto.external_data {
            let number = || {
                decimal(&entry.value).ok_or_else(|| {
                    let value = printable(&entry.value);
                    malformed(format!("external {} \"{value}\" is not a number", entry.key))
                })
            };
            let repeated = match entry.key.as_str() {
                "location" => location.replace(entry.value.as_str()).is_some(),
                "offset" => offset.replace(number()?).is_some(),
                "length" => length.replace(number()?).is_some(),
                // A SHA-1 that no exporter we know of writes; sizes are what memory safety needs.
                "checksum" => false,
                other => {
                    let message = format!("external data key \"{}\"", printable(other));
                    let place = Place::Tensor(name.to_owned());
                    return Err(Problem::unsupported(place, message));
                }
            };
            if repeated {
                return Err(malformed(format!("external {} is given twice", entry.key)));
            }
        }
        let Some(location) = location else {
            return Err(malformed("external data without a location".to_owned()));
        };
        if self.missing.iter().any(|missing| missing == location) {
            return Ok(None);
        }
        let start = offset.unwrap_or(0);
        if let Some(length) = length
            && length != size
        {
            return Err(malformed(format!("external length {length}, its shape has {size} bytes")));
        }
        let file = match self.files.external(location) {
            Ok(file) => file,
            Err(problem) => {
                self.missing.push(location.to_owned());
                let Problem { fault, place, message } = problem;
                let message = format!("external data: {place}: {message}");
                return Err(Problem { fault, place: Place::Tensor(name.to_owned()), message });
            }
        };
        let end = start.checked_add(size).filter(|&end| end <= file.len() as u64);
        let Some(end) = end else {
            let location = printable(location);
            let message = format!(
                "external data {start}+{size} is out of range, \"{location}\" has {} bytes",
                file.len()
            );
            return Err(malformed(message));
        };
        if size > 0 {
            // `./a` and `a` are one file.
            let location = location.split('/').filter(|part| !matches!(*part, "" | "."));
            let location = location.collect::<Vec<_>>().join("/");
            self.slices.push(Slice { location, start, end, tensor: name.to_owned() });
        }
        // Both fit: `end` is at most the length of a slice in memory.
        Ok(Some(file.slice(start as usize..end as usize)))
    }

    /// The pairs of tensors whose external ranges overlap, once all have been read.
    pub fn overlaps(mut self) -> Vec<Problem> {
        self.slices.sort();
        let mut problems = Vec::new();
        let mut furthest: Option<&Slice> = None;
        for slice in &self.slices {
            if let Some(before) = furthest
                && before.location == slice.location
                && slice.start < before.end
            {
                let message = format!(
                    "external data {}..{} overlaps {}..{} of tensor \"{}\"",
                    slice.start,
                    slice.end,
                    before.start,
                    before.end,
                    printable(&before.tensor)
                );
                problems.push(Problem::malformed(Place::Tensor(slice.tensor.clone()), message));
            }
            let extends = furthest
                .is_none_or(|before| before.location != slice.location || slice.end > before.end);
            if extends {
                furthest = Some(slice);
            }
        }
        problems
    }
}

/// A decimal number as the external data entries write it: digits only.
fn decimal(text: &str) -> Option<u64> {
    let digits_only = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits_only.then(|| text.parse().ok()).flatten()
}

fn checked_dims(dims: &[i64]) -> Result<(Vec<usize>, usize), String> {
    let mut count = 1usize;
    let mut has_zero = false;
    let mut sizes = Vec::with_capacity(dims.len());
    for &dim in dims {
        let size = usize::try_from(dim).map_err(|_| format!("negative dimension in {dims:?}"))?;
        sizes.push(size);
        if size == 0 {
            has_zero = true;
            continue;
        }
        // Zeros are left out of the product, so that it bounds that of every sub-shape too.
        count = count
            .checked_mul(size)
            .filter(|&count| isize::try_from(count).is_ok())
            .ok_or_else(|| format!("shape {dims:?} has too many elements"))?;
    }
    Ok((sizes, if has_zero { 0 } else { count }))
}

fn used_sources(proto: &TensorProto) -> Vec<&'static str> {
    let has_raw = proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty());
    [
        (has_raw, "raw_data"),
        (!proto.float_data.is_empty(), "float_data"),
        (!proto.int32_data.is_empty(), "int32_data"),
        (!proto.string_data.is_empty(), "string_data"),
        (!proto.int64_data.is_empty(), "int64_data"),
        (!proto.double_data.is_empty(), "double_data"),
        (!proto.uint64_data.is_empty(), "uint64_data"),
    ]
    .into_iter()
    .filter_map(|(used, field)| used.then_some(field))
    .collect()
}

/// Elements from one of the typed fields, in the form of `raw_data`.
fn typed_data(
    proto: &TensorProto,
    element: Element,
    count: usize,
    field: &str,
) -> Result<Bytes, String> {
    let expect = |found: usize, wanted: usize| {
        if found == wanted {
            Ok(())
        } else {
            Err(format!("{found} elements in {field} for {} {:?}", element.name(), proto.dims))
        }
    };
    let narrow = |value: i32, low: i32, high: i32| {
        if (low..=high).contains(&value) {
            Ok(value)
        } else {
            Err(format!("{value} in {field} is no {}", element.name()))
        }
    };
    let int32s = &proto.int32_data;
    let mut bytes = Vec::new();
    match (element, field) {
        (Element::Float32, "float_data") => {
            expect(proto.float_data.len(), count)?;
            bytes.extend(proto.float_data.iter().flat_map(|value| value.to_le_bytes()));
        }
        (Element::Float64, "double_data") => {
            expect(proto.double_data.len(), count)?;
            bytes.extend(proto.double_data.iter().flat_map(|value| value.to_le_bytes()));
        }
        (Element::Int64, "int64_data") => {
            expect(proto.int64_data.len(), count)?;
            bytes.extend(proto.int64_data.iter().flat_map(|value| value.to_le_bytes()));
        }
        (Element::Uint64, "uint64_data") => {
            expect(proto.uint64_data.len(), count)?;
            bytes.extend(proto.uint64_data.iter().flat_map(|value| value.to_le_bytes()));
        }
        (Element::Uint32, "uint64_data") => {
            expect(proto.uint64_data.len(), count)?;
            for &value in &proto.uint64_data {
                let value = u32::try_from(value)
                    .map_err(|_| format!("{value} in uint64_data is no uint32"))?;
                bytes.extend(value.to_le_bytes());
            }
        }
        (Element::Int32, "int32_data") => {
            expect(int32s.len(), count)?;
            bytes.extend(int32s.iter().flat_map(|value| value.to_le_bytes()));
        }
        (Element::Int16, "int32_data") => {
            expect(int32s.len(), count)?;
            for &value in int32s {
                let value = narrow(value, i32::from(i16::MIN), i32::from(i16::MAX))?;
                bytes.extend((value as i16).to_le_bytes());
            }
        }
        (Element::Uint16 | Element::Float16 | Element::Bfloat16, "int32_data") => {
            expect(int32s.len(), count)?;
            for &value in int32s {
                let value = narrow(value, 0, i32::from(u16::MAX))?;
                bytes.extend((value as u16).to_le_bytes());
            }
        }
        (Element::Int8, "int32_data") => {
            expect(int32s.len(), count)?;
            for &value in int32s {
                bytes.push(narrow(value, i32::from(i8::MIN), i32::from(i8::MAX))? as u8);
            }
        }
        (Element::Uint8, "int32_data") => {
            expect(int32s.len(), count)?;
            for &value in int32s {
                bytes.push(narrow(value, 0, i32::from(u8::MAX))? as u8);
            }
        }
        (Element::Bool, "int32_data") => {
            expect(int32s.len(), count)?;
            for &value in int32s {
                bytes.push(narrow(value, 0, 1)? as u8);
            }
        }
        (Element::Int4 | Element::Uint4, "int32_data") => {
            // One int32 carries one byte, that is two elements.
            expect(int32s.len(), count.div_ceil(2))?;
            for &value in int32s {
                let value = narrow(value, i32::from(i8::MIN), i32::from(u8::MAX))?;
                bytes.push(value as u8);
            }
        }
        (_, field) => return Err(format!("{} elements in {field}", element.name())),
    }
    Ok(bytes.into())
}

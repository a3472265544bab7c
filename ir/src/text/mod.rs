//! The text form: what documents, tests, dumps and bug reports show. [`print()`] writes a graph,
//! [`parse`] reads it back.
//!
//! Values keep their numbers when printed; the parser numbers them anew in the order of their
//! definition, so print → parse gives the same graph up to dead entries of tables. Constants of at
//! most [`INLINE`] elements stand in the text with exact numbers; larger ones are named by a
//! digest, and whoever parses supplies them. A constant that is rounded when it is read is written
//! as its source, of the same name: `int4<block=32, scale=f16, zero=8>[2, 2] = rounded f32[2, 2] =
//! [..]`.

mod parse;
mod print;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::EXAMPLE;

pub use parse::{ParseError, parse, parse_with};
pub use print::{body, print};

use crate::constant::{ConstData, Constant};

/// Most elements of a constant that the text holds.
pub const INLINE: usize = 16;

/// A number that tells constants of one name apart: FNV-1a over the type and up to 4 KiB from each
/// end of the stored bytes. It identifies; it proves nothing.
pub fn digest(constant: &Constant) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325u64;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    feed(constant.ty.to_string().as_bytes());
    let mut ends = |bytes: &[u8]| {
        let reach = bytes.len().min(4096);
        feed(&(bytes.len() as u64).to_le_bytes());
        feed(&bytes[..reach]);
        feed(&bytes[bytes.len() - reach..]);
    };
    match &constant.data {
        ConstData::Dense { bytes, strides } => {
            ends(bytes);
            strides.iter().for_each(|stride| ends(&(*stride as u64).to_le_bytes()));
        }
        ConstData::Quantised(data) => {
            ends(&data.codes);
            ends(&data.scales);
            data.zeros.iter().for_each(|zeros| ends(zeros));
        }
        ConstData::Stacked(parts) => {
            parts.iter().for_each(|part| ends(&digest(part).to_le_bytes()));
        }
        ConstData::Rounded(source) => ends(&digest(source).to_le_bytes()),
    }
    state
}

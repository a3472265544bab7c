//! The AMX version in the instruction interpreter, against the scalar model: every number of rows
//! that its tiles divide differently, every way to treat a zero point, chunks and portions.
//!
//! The interpreter stops at what would raise an exception: a tile used without configuration or beyond
//! its rows, operands whose shapes do not fit, a byte outside of an argument, tiles that are not
//! released.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use super::*;

fn check_tiles(spec: MatmulSpec, rows: impl IntoIterator<Item = usize>) {
    spec.supported().unwrap();
    assert!(spec.symbol(IsaLevel::Amx).ends_with("-amx"), "{}", spec.symbol(IsaLevel::Amx));
    let case = Case::interpreted(spec, IsaLevel::Amx);
    for rows in rows {
        case.check(rows, 1);
    }
}

fn int8_product(format: WeightFormat, channels: usize, reduction: usize) -> MatmulSpec {
    MatmulSpec::new(PackedLayout { channels, reduction, format }, Compute::Int8)
}

const ZEROS: [ZeroPoint; 3] = [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float];

/// Two full groups and a part of a third, a reduction that ends within a block.
#[test]
fn every_number_of_rows_is_bit_equal() {
    for zero in ZEROS {
        let blocks = blocks(32, ScaleType::F16, zero);
        for format in [WeightFormat::Int4(blocks), WeightFormat::Int8(blocks)] {
            check_tiles(int8_product(format, 37, 70), (1..=40).chain([64, 65]));
        }
    }
}

/// The same of weights and activations that are exact in bf16, whose tiles keep sums over blocks: fewer
/// rows than a tile has, tiles that reach back, a chunk's blocks and one more.
#[test]
fn exact_values_are_bit_equal() {
    for (block, channels, reduction) in
        [(32, 37, 70), (32, 16, 544), (32, 80, 512), (64, 70, 300), (128, 64, 257), (256, 90, 1040)]
    {
        let format = WeightFormat::Int4(blocks(block, ScaleType::Short, ZeroPoint::Implied));
        let spec = int8_product(format, channels, reduction).at(IsaLevel::Amx);
        assert!(spec.in_bf16);
        check_tiles(spec, if reduction < 100 { 1..=50 } else { 14..=18 });
        check_tiles(spec, [33, 40, 64, 65]);
        let spec = MatmulSpec { bias: true, residual: true, ..spec };
        check_tiles(spec, [8, 31, 33]);
    }
}

/// Blocks of one, two, three and four activation blocks, in numbers of groups that leave one over, two
/// over or a part of one; a block of 176 elements has activation blocks of 16, which vectors compute.
#[test]
fn every_block_is_bit_equal() {
    for (block, channels, reduction) in
        [(48, 48, 97), (64, 33, 200), (96, 16, 96), (128, 80, 300), (192, 21, 192), (256, 40, 300)]
    {
        for zero in ZEROS {
            for scale in [ScaleType::F32, ScaleType::F16] {
                let blocks = blocks(block, scale, zero);
                for format in [WeightFormat::Int4(blocks), WeightFormat::Int8(blocks)] {
                    let spec = int8_product(format, channels, reduction);
                    check_tiles(spec, [1, 7, 8, 9, 15, 16, 17, 24, 33]);
                }
            }
        }
    }
    let format = WeightFormat::Int4(blocks(176, ScaleType::F16, ZeroPoint::Implied));
    let symbol = int8_product(format, 16, 176).symbol(IsaLevel::Amx);
    assert!(symbol.ends_with("-avx512"), "{symbol}");
}

/// More blocks than a chunk holds, whole chunks and a last one that is shorter.
#[test]
fn chunks_of_the_reduction_are_bit_equal() {
    for (block, reduction) in [(32, 1024), (32, 1100), (128, 1300), (256, 700)] {
        for zero in [ZeroPoint::Implied, ZeroPoint::Float] {
            let blocks = blocks(block, ScaleType::F32, zero);
            for format in [WeightFormat::Int4(blocks), WeightFormat::Int8(blocks)] {
                check_tiles(int8_product(format, 33, reduction), [8, 16, 20]);
            }
        }
    }
}

/// Rows of several portions, of which the last has few rows or many.
#[test]
fn portions_of_rows_are_bit_equal() {
    let format = WeightFormat::Int4(blocks(64, ScaleType::F16, ZeroPoint::Implied));
    check_tiles(int8_product(format, 18, 64), [384, 387, 400, 411]);
}

/// The residual is the output itself: rows that two tiles compute are added to once.
#[test]
fn bias_and_residual_in_place() {
    for (zero, channels) in
        [(ZeroPoint::Implied, 37), (ZeroPoint::Code, 32), (ZeroPoint::Float, 48)]
    {
        let blocks = blocks(32, ScaleType::F16, zero);
        for format in [WeightFormat::Int4(blocks), WeightFormat::Int8(blocks)] {
            for (bias, residual) in [(true, false), (false, true), (true, true)] {
                let spec = MatmulSpec {
                    bias,
                    residual,
                    input_stride: 75,
                    output_stride: 141,
                    ..int8_product(format, channels, 70)
                };
                check_tiles(spec, [3, 8, 11, 16, 21, 31]);
            }
        }
    }
}

/// Threads divide groups: pairs of groups begin anywhere.
#[test]
fn threads_share_the_groups() {
    let format = WeightFormat::Int8(blocks(32, ScaleType::F16, ZeroPoint::Implied));
    let case = Case::interpreted(int8_product(format, 117, 64), IsaLevel::Amx);
    for threads in [2, 3, 5] {
        case.check(19, threads);
    }
}

/// Codes and activations at the ends of their ranges: signs matter, and no sum may wrap.
#[test]
fn the_largest_sums_of_tiles_fit() {
    struct Extremes {
        code: u8,
    }
    impl QuantRows for Extremes {
        fn row(&self, _: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
            codes.fill(self.code);
            scales.fill(1.0);
            zeros.fill(if self.code == 0 { 15.0 } else { 0.0 });
        }
    }
    for zero in ZEROS {
        let blocks = blocks(64, ScaleType::F16, zero);
        for (format, codes) in
            [(WeightFormat::Int4(blocks), [0, 15]), (WeightFormat::Int8(blocks), [0, 255])]
        {
            let spec = int8_product(format, 20, 128);
            let mut case = Case::interpreted(spec, IsaLevel::Amx);
            for code in codes {
                pack_quantised(&spec.layout, &Extremes { code }, &mut case.packed).unwrap();
                for hard in EXTREMES {
                    case.hard = hard;
                    case.check(17, 1);
                }
            }
        }
    }
}

/// Activations that are tiny, huge or infinite follow the specification as on other levels.
#[test]
fn hard_activations_in_tiles() {
    for zero in ZEROS {
        let format = WeightFormat::Int4(blocks(32, ScaleType::F16, zero));
        let mut case = Case::interpreted(int8_product(format, 37, 70), IsaLevel::Amx);
        for hard in [&[1e-45f32, -1e-40, -0.0][..], &[3e38, -3e38, 1e30], &[1.0, f32::INFINITY]] {
            case.hard = hard;
            case.check(18, 1);
        }
    }
}

/// Where the first instruction of this kind begins.
fn place_of(image: &[u8], mnemonic: Mnemonic) -> iced_x86::Instruction {
    let mut decoder = Decoder::with_ip(64, image, 0, DecoderOptions::NONE);
    decoder.iter().find(|instruction| instruction.mnemonic() == mnemonic).unwrap()
}

/// The checks above notice a wrong kernel: each byte of the configuration that describes a tile in use
/// matters, and so does the sign of an operand.
#[test]
fn wrong_tiles_are_noticed() {
    let fails = |rows: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let format = WeightFormat::Int4(blocks(32, ScaleType::F16, ZeroPoint::Implied));
        let mut case = Case::interpreted(int8_product(format, 32, 64), IsaLevel::Amx);
        change(&mut case.image().bytes);
        let check = std::panic::AssertUnwindSafe(|| case.check(rows, 1));
        std::panic::catch_unwind(check).is_err()
    };
    assert!(!fails(24, &|_| ()));
    for tile in 0..8 {
        // 24 rows use both sizes of tiles.
        for at in [16 + 2 * tile, 48 + tile] {
            for step in [-1i8, 1] {
                let change = |bytes: &mut Vec<u8>| {
                    let load = place_of(bytes, Mnemonic::Ldtilecfg);
                    let at = load.memory_displacement64() as usize + at;
                    bytes[at] = bytes[at].wrapping_add_signed(step);
                };
                assert!(fails(24, &change), "tile {tile}, byte {at} by {step}");
            }
        }
    }
    // Signed by unsigned instead of signed by signed, in the prefix of the VEX encoding.
    let change = |bytes: &mut Vec<u8>| {
        let at = place_of(bytes, Mnemonic::Tdpbssd).ip() as usize;
        bytes[at + 2] ^= 1;
    };
    assert!(fails(24, &change));
    // No configuration, no release.
    for (mnemonic, rows) in [(Mnemonic::Ldtilecfg, 8), (Mnemonic::Tilerelease, 8)] {
        let change = |bytes: &mut Vec<u8>| {
            let instruction = place_of(bytes, mnemonic);
            bytes[instruction.ip() as usize..][..instruction.len()].fill(0x90);
        };
        assert!(fails(rows, &change), "{mnemonic:?}");
        // Few rows are computed without tiles.
        let format = WeightFormat::Int4(blocks(32, ScaleType::F16, ZeroPoint::Implied));
        let mut case = Case::interpreted(int8_product(format, 32, 64), IsaLevel::Amx);
        change(&mut case.image().bytes);
        case.check(7, 1);
    }
}

//! Every format returns what was packed, and padding holds zeros.

use super::*;

struct Codes {
    reduction: usize,
    blocks: Blocks,
    levels: u32,
}

fn noise(channel: usize, k: usize) -> u32 {
    let mut x = (channel as u32).wrapping_mul(0x9e37_79b9) ^ (k as u32).wrapping_mul(0x85eb_ca6b);
    x ^= x >> 15;
    x = x.wrapping_mul(0x2c1b_3c6d);
    x ^ (x >> 13)
}

impl Codes {
    fn code(&self, channel: usize, k: usize) -> u8 {
        (noise(channel, k) % self.levels) as u8
    }
    fn scale(&self, channel: usize, block: usize) -> f32 {
        (noise(channel, block + 999) % 64) as f32 / 32.0 - 1.0
    }
    fn zero(&self, channel: usize, block: usize, format: WeightFormat) -> f32 {
        match self.blocks.zero {
            ZeroPoint::Implied => format.implied_zero(),
            ZeroPoint::Code => (noise(channel, block + 77) % self.levels) as f32,
            ZeroPoint::Float => (noise(channel, block + 77) % 100) as f32 / 8.0,
        }
    }
}

struct Rows<'a>(&'a Codes, WeightFormat);

impl QuantRows for Rows<'_> {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        assert_eq!(codes.len(), self.0.reduction);
        for (k, code) in codes.iter_mut().enumerate() {
            *code = self.0.code(channel, k);
        }
        for (block, scale) in scales.iter_mut().enumerate() {
            *scale = self.0.scale(channel, block);
        }
        for (block, zero) in zeros.iter_mut().enumerate() {
            *zero = self.0.zero(channel, block, self.1);
        }
    }
}

#[test]
fn quantised_elements_come_back() {
    for zero in [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float] {
        for scale in [ScaleType::F32, ScaleType::F16, ScaleType::Short] {
            for (block, reduction) in [(16, 16), (32, 100), (64, 64), (48, 97), (256, 300)] {
                let blocks = Blocks { block, scale, zero };
                for (format, levels) in
                    [(WeightFormat::Int4(blocks), 16), (WeightFormat::Int8(blocks), 256)]
                {
                    let layout = PackedLayout { channels: 19, reduction, format };
                    let source = Codes { reduction, blocks, levels };
                    let mut packed = vec![0xaa; layout.bytes()];
                    pack_quantised(&layout, &Rows(&source, format), &mut packed).unwrap();
                    for channel in 0..19 {
                        for k in 0..reduction {
                            let zero = source.zero(channel, k / block, format);
                            let expected = (f32::from(source.code(channel, k)) - zero)
                                * source.scale(channel, k / block);
                            assert_eq!(layout.value(&packed, channel, k), expected);
                        }
                    }
                    // Channels that do not exist have scale 0.
                    assert_eq!(layout.parameters(&packed, 19, 0).0, 0.0);
                }
            }
        }
    }
}

struct Numbers;

impl DenseRows for Numbers {
    fn row(&self, channel: usize, out: &mut [f32]) {
        for (k, value) in out.iter_mut().enumerate() {
            *value = (noise(channel, k) % 255) as f32 / 16.0 - 8.0;
        }
    }
}

#[test]
fn dense_elements_come_back() {
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16] {
        let layout = PackedLayout { channels: 33, reduction: 7, format };
        let mut packed = vec![0xaa; layout.bytes()];
        pack_dense(&layout, &Numbers, &mut packed).unwrap();
        let mut row = [0.0; 7];
        for channel in 0..48 {
            if channel < 33 {
                Numbers.row(channel, &mut row);
            } else {
                row.fill(0.0);
            }
            for (k, expected) in row.iter().enumerate() {
                assert_eq!(layout.value(&packed, channel, k), *expected, "{format:?}");
            }
        }
    }
}

#[test]
fn names_tell_formats_apart() {
    let blocks = Blocks { block: 32, scale: ScaleType::F16, zero: ZeroPoint::Code };
    assert_eq!(WeightFormat::Int4(blocks).name(), "int4b32f16z");
}

#[test]
fn packed_blocks_divide_those_of_the_source() {
    for (source, reduction, size) in [
        (32, 4096, Some(32)),
        (256, 4096, Some(256)),
        (512, 4096, Some(256)),
        (96, 200, Some(96)),
        (272, 4096, Some(16)),
        (4096, 4096, Some(128)),
        (64, 40, Some(48)),
        (40, 4096, None),
        (0, 4096, None),
    ] {
        assert_eq!(Blocks::size_for(source, reduction), size, "{source} of {reduction}");
    }
}

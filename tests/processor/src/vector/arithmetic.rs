//! Sums, products, dot products and shifts, lane by lane.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{bytes_of, flushed, from_half_words, from_longs, from_words, half_word, long, word};
use crate::{Processor, Step, Stop};

/// `min` and `max` give the second operand where either is not a number or both are zeros.
fn second_or(a: f32, b: f32, first: bool) -> f32 {
    if first { a } else { b }
}

pub(super) fn to_int(x: f32, round: impl Fn(f32) -> f32) -> u32 {
    let whole = f64::from(round(x));
    // Outside the range and for what is no number: the "integer indefinite".
    if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) {
        whole as i32 as u32
    } else {
        0x8000_0000
    }
}

/// Two numbers of the lane, rounded to f32 once.
pub(super) fn float_op(mnemonic: Mnemonic, a: f32, b: f32) -> Option<f32> {
    Some(match mnemonic {
        Mnemonic::Vaddps | Mnemonic::Vaddss => a + b,
        Mnemonic::Vsubps | Mnemonic::Vsubss => a - b,
        Mnemonic::Vmulps | Mnemonic::Vmulss => a * b,
        Mnemonic::Vdivps | Mnemonic::Vdivss => a / b,
        Mnemonic::Vmaxps | Mnemonic::Vmaxss => second_or(a, b, a > b),
        Mnemonic::Vminps | Mnemonic::Vminss => second_or(a, b, a < b),
        Mnemonic::Vscalefps | Mnemonic::Vscalefss => {
            // a · 2^floor(b), exact but for the last rounding.
            let endless = b.is_infinite() && (a == 0.0 && b > 0.0 || a.is_infinite() && b < 0.0);
            if a.is_nan() && b.is_infinite() {
                // Infinite powers win over what is no number.
                return Some(if b > 0.0 { b } else { 0.0 });
            }
            if b.is_nan() || endless {
                return Some(f32::NAN);
            }
            let power = f64::from(b.floor()).clamp(-400.0, 400.0);
            (f64::from(a) * power.exp2()) as f32
        }
        _ => return None,
    })
}

/// The three orders of a fused operation: (multiplicand, multiplier, addend) of (destination,
/// second, third operand), and the signs of product and addend.
pub(super) fn fused(mnemonic: Mnemonic) -> Option<(u32, f32, f32)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vfmadd132ps | Vfmadd132ss => (132, 1.0, 1.0),
        Vfmadd213ps | Vfmadd213ss => (213, 1.0, 1.0),
        Vfmadd231ps | Vfmadd231ss => (231, 1.0, 1.0),
        Vfnmadd132ps | Vfnmadd132ss => (132, -1.0, 1.0),
        Vfnmadd213ps | Vfnmadd213ss => (213, -1.0, 1.0),
        Vfnmadd231ps | Vfnmadd231ss => (231, -1.0, 1.0),
        Vfmsub132ps | Vfmsub132ss => (132, 1.0, -1.0),
        Vfmsub213ps | Vfmsub213ss => (213, 1.0, -1.0),
        Vfmsub231ps | Vfmsub231ss => (231, 1.0, -1.0),
        Vfnmsub132ps | Vfnmsub132ss => (132, -1.0, -1.0),
        Vfnmsub213ps | Vfnmsub213ss => (213, -1.0, -1.0),
        Vfnmsub231ps | Vfnmsub231ss => (231, -1.0, -1.0),
        _ => return None,
    })
}

/// Operations on words of 32 bits; shifts have their own function.
pub(super) fn word_op(mnemonic: Mnemonic, a: u32, b: u32) -> Option<u32> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpaddd => a.wrapping_add(b),
        Vpsubd => a.wrapping_sub(b),
        Vpmulld => a.wrapping_mul(b),
        Vpmaxsd => (a as i32).max(b as i32) as u32,
        Vpminsd => (a as i32).min(b as i32) as u32,
        Vpmaxud => a.max(b),
        Vpminud => a.min(b),
        Vpcmpeqd => u32::MAX * u32::from(a == b),
        Vpcmpgtd => u32::MAX * u32::from(a as i32 > b as i32),
        Vpsllvd => a.checked_shl(b).unwrap_or(0),
        Vpsrlvd => a.checked_shr(b).unwrap_or(0),
        Vpmaddwd => {
            let part = |x: u32, high: u32| i32::from((x >> (16 * high)) as i16);
            let sum = |high: u32| part(a, high) * part(b, high);
            sum(0).wrapping_add(sum(1)) as u32
        }
        Vpand | Vpandd | Vandps => a & b,
        Vpandn | Vpandnd | Vandnps => !a & b,
        Vpor | Vpord | Vorps => a | b,
        Vpxor | Vpxord | Vxorps => a ^ b,
        Vpackssdw | Vpackusdw => return None,
        _ => return None,
    })
}

fn half_word_op(mnemonic: Mnemonic, a: u16, b: u16) -> Option<u16> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpaddw => a.wrapping_add(b),
        Vpsubw => a.wrapping_sub(b),
        Vpaddsw => (a as i16).saturating_add(b as i16) as u16,
        Vpmullw => a.wrapping_mul(b),
        Vpmaxsw => (a as i16).max(b as i16) as u16,
        Vpminsw => (a as i16).min(b as i16) as u16,
        // Unsigned bytes of the first operand times signed ones of the second, summed in pairs.
        Vpmaddubsw => {
            let part = |high: u32| {
                let (x, y) = ((a >> (8 * high)) as u8, (b >> (8 * high)) as u8 as i8);
                i32::from(x) * i32::from(y)
            };
            (part(0) + part(1)).clamp(-32768, 32767) as i16 as u16
        }
        _ => return None,
    })
}

fn byte_op(mnemonic: Mnemonic, a: u8, b: u8) -> Option<u8> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpaddb => a.wrapping_add(b),
        Vpsubb => a.wrapping_sub(b),
        Vpmaxub => a.max(b),
        Vpminub => a.min(b),
        Vpabsb => (b as i8).unsigned_abs(),
        Vpsignb => match (b as i8).signum() {
            0 => 0,
            1 => a,
            _ => a.wrapping_neg(),
        },
        _ => return None,
    })
}

impl Processor<'_> {
    /// Lane by lane operations of two operands.
    pub(super) fn lanes(&mut self, instruction: &Instruction) -> Step {
        let mnemonic = instruction.mnemonic();
        let bytes = bytes_of(instruction.op0_register());
        if float_op(mnemonic, 0.0, 0.0).is_some() {
            let is_scalar = format!("{mnemonic:?}").ends_with("ss");
            if is_scalar {
                let a = self.vectors[instruction.op1_register().number()];
                let b = self.vector_operand(instruction, 2, (4, 4), true)?;
                let [x, y] = [&a, &b].map(|value| f32::from_bits(word(value, 0)));
                let result = float_op(mnemonic, x, y).ok_or(Stop::Unknown)?;
                return self.set_scalar(instruction, &a, result);
            }
            let (a, b) = self.sources(instruction, bytes, 4)?;
            let value = from_words(bytes / 4, |lane| {
                let [x, y] = [&a, &b].map(|value| f32::from_bits(word(value, lane)));
                float_op(mnemonic, x, y).unwrap_or_default().to_bits()
            });
            return self.set_vector(instruction, (bytes, 4), &value);
        }
        if word_op(mnemonic, 0, 0).is_some() {
            let (a, b) = self.sources(instruction, bytes, 4)?;
            let value = from_words(bytes / 4, |lane| {
                word_op(mnemonic, word(&a, lane), word(&b, lane)).unwrap_or_default()
            });
            return self.set_vector(instruction, (bytes, 4), &value);
        }
        if half_word_op(mnemonic, 0, 0).is_some() {
            let (a, b) = self.sources(instruction, bytes, 2)?;
            let value = from_half_words(bytes / 2, |lane| {
                half_word_op(mnemonic, half_word(&a, lane), half_word(&b, lane)).unwrap_or_default()
            });
            return self.set_vector(instruction, (bytes, 2), &value);
        }
        if byte_op(mnemonic, 0, 0).is_some() {
            let (a, b) = self.sources(instruction, bytes, 1)?;
            let value =
                std::array::from_fn(|lane| byte_op(mnemonic, a[lane], b[lane]).unwrap_or_default());
            return self.set_vector(instruction, (bytes, 1), &value);
        }
        Err(Stop::Unknown)
    }

    /// A scalar result: the other lanes are those of the first source.
    pub(super) fn set_scalar(
        &mut self,
        instruction: &Instruction,
        first: &[u8; 64],
        result: f32,
    ) -> Step {
        let place = &mut self.vectors[instruction.op0_register().number()];
        let mut value = [0; 64];
        value[..16].copy_from_slice(&first[..16]);
        value[..4].copy_from_slice(&result.to_le_bytes());
        *place = value;
        Ok(())
    }

    pub(super) fn fused(&mut self, instruction: &Instruction) -> Step {
        let Some((order, product, addend)) = fused(instruction.mnemonic()) else {
            return Err(Stop::Unknown);
        };
        let compute = |d: f32, a: f32, b: f32| {
            let (x, y, z) = match order {
                132 => (d, b, a),
                213 => (a, d, b),
                _ => (a, b, d),
            };
            (product * x).mul_add(y, addend * z)
        };
        let d = self.vectors[instruction.op0_register().number()];
        let a = self.vectors[instruction.op1_register().number()];
        if format!("{:?}", instruction.mnemonic()).ends_with("ss") {
            let b = self.vector_operand(instruction, 2, (4, 4), true)?;
            let [x, y, z] = [&d, &a, &b].map(|value| f32::from_bits(word(value, 0)));
            return self.set_scalar(instruction, &d, compute(x, y, z));
        }
        let bytes = bytes_of(instruction.op0_register());
        let b = self.vector_operand(instruction, 2, (bytes, 4), true)?;
        let value = from_words(bytes / 4, |lane| {
            let [d, a, b] = [&d, &a, &b].map(|value| f32::from_bits(word(value, lane)));
            compute(d, a, b).to_bits()
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn unary(&mut self, instruction: &Instruction) -> Step {
        let mnemonic = instruction.mnemonic();
        let bytes = bytes_of(instruction.op0_register());
        let x = self.vector_operand(instruction, 1, (bytes, 4), true)?;
        let mode = match mnemonic {
            Mnemonic::Vroundps | Mnemonic::Vrndscaleps => {
                let mode = instruction.immediate8();
                // Bits 4 ..= 7 of `vrndscaleps` keep binary places.
                if mode >> 4 != 0 || mode & 4 != 0 {
                    return Err(Stop::Unknown);
                }
                mode & 3
            }
            _ => 0,
        };
        let value = from_words(bytes / 4, |lane| {
            let bits = word(&x, lane);
            let float = f32::from_bits(bits);
            match mnemonic {
                Mnemonic::Vcvtdq2ps => (bits as i32 as f32).to_bits(),
                Mnemonic::Vcvtps2dq => to_int(float, f32::round_ties_even),
                Mnemonic::Vcvttps2dq => to_int(float, f32::trunc),
                Mnemonic::Vsqrtps => float.sqrt().to_bits(),
                Mnemonic::Vpabsd => (bits as i32).unsigned_abs(),
                _ => match mode {
                    0 => float.round_ties_even(),
                    1 => float.floor(),
                    2 => float.ceil(),
                    _ => float.trunc(),
                }
                .to_bits(),
            }
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn dot(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let sum = self.vectors[instruction.op0_register().number()];
        let (a, b) = self.sources(instruction, bytes, 4)?;
        let value = from_words(bytes / 4, |lane| {
            let (s, a, b) = (word(&sum, lane), word(&a, lane), word(&b, lane));
            match instruction.mnemonic() {
                Mnemonic::Vpdpbusd => {
                    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
                    let products = a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(b as i8));
                    (s as i32).wrapping_add(products.sum::<i32>()) as u32
                }
                Mnemonic::Vpdpwssd => {
                    let part = |x: u32, high: u32| i32::from((x >> (16 * high)) as i16);
                    let products = (part(a, 0) * part(b, 0)).wrapping_add(part(a, 1) * part(b, 1));
                    (s as i32).wrapping_add(products) as u32
                }
                _ => {
                    // The odd place first; every step is fused and rounded.
                    let part = |x: u32, high: u32| flushed(f32::from_bits(x >> (16 * high) << 16));
                    let odd = part(a, 1).mul_add(part(b, 1), flushed(f32::from_bits(s)));
                    flushed(part(a, 0).mul_add(part(b, 0), flushed(odd))).to_bits()
                }
            }
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    /// Floats of the last source, then of the second, as bf16 side by side; what is below 2⁻¹²⁶ is zero.
    pub(super) fn round_to_bf16(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (second, first) = self.sources(instruction, bytes, 4)?;
        let lanes = bytes / 4;
        let value = from_half_words(2 * lanes, |lane| {
            let source = if lane < lanes { &first } else { &second };
            let float = f32::from_bits(word(source, lane % lanes));
            half::bf16::from_f32(flushed(float)).to_bits()
        });
        self.set_vector(instruction, (bytes, 2), &value)
    }

    /// Sums of neighbouring words of both sources, or of the distances of eight bytes.
    pub(super) fn sum_neighbours(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        if instruction.mnemonic() == Mnemonic::Vpsadbw {
            let (a, b) = self.sources(instruction, bytes, 1)?;
            let value = from_longs(bytes / 8, |lane| {
                (lane * 8..lane * 8 + 8).map(|byte| u64::from(a[byte].abs_diff(b[byte]))).sum()
            });
            return self.set_vector(instruction, (bytes, 8), &value);
        }
        let (a, b) = self.sources(instruction, bytes, 4)?;
        let value = from_words(bytes / 4, |lane| {
            let source = if lane % 4 < 2 { &a } else { &b };
            let first = lane / 4 * 4 + lane % 2 * 2;
            word(source, first).wrapping_add(word(source, first + 1))
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn shift(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        if instruction.op2_kind() != OpKind::Immediate8 {
            return Err(Stop::Unknown);
        }
        let mnemonic = instruction.mnemonic();
        let bytes = bytes_of(instruction.op0_register());
        let count = u32::from(instruction.immediate8());
        let element = match mnemonic {
            Vpsrlw | Vpsllw | Vpsraw => 2,
            Vpsrlq | Vpsllq => 8,
            _ => 4,
        };
        let x = self.vector_operand(instruction, 1, (bytes, element), true)?;
        let value = match element {
            2 => from_half_words(bytes / 2, |lane| {
                let x = half_word(&x, lane);
                match mnemonic {
                    Vpsrlw => x.checked_shr(count).unwrap_or(0),
                    Vpsllw => x.checked_shl(count).unwrap_or(0),
                    _ => ((x as i16) >> count.min(15)) as u16,
                }
            }),
            8 => from_longs(bytes / 8, |lane| {
                let x = long(&x, lane);
                let shifted =
                    if mnemonic == Vpsrlq { x.checked_shr(count) } else { x.checked_shl(count) };
                shifted.unwrap_or(0)
            }),
            _ => from_words(bytes / 4, |lane| {
                let x = word(&x, lane);
                match mnemonic {
                    Vpsrld => x.checked_shr(count).unwrap_or(0),
                    Vpslld => x.checked_shl(count).unwrap_or(0),
                    Vprold => x.rotate_left(count),
                    _ => ((x as i32) >> count.min(31)) as u32,
                }
            }),
        };
        self.set_vector(instruction, (bytes, element), &value)
    }
}

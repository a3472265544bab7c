//! Vector instructions of AVX2, AVX-VNNI and AVX-512 (F, BW, DQ, VL, VNNI, BF16).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::operand::{half_word, long, word};
use super::{Processor, Step, Stop};

/// A number with denormals replaced by zero of the same sign, as the bf16 products do it.
pub(crate) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Bytes of a vector register.
fn bytes_of(register: Register) -> usize {
    if register.is_zmm() {
        64
    } else if register.is_ymm() {
        32
    } else {
        16
    }
}

/// Bytes of an operand that is a vector register or memory.
fn operand_bytes(instruction: &Instruction, operand: u32) -> usize {
    match instruction.op_kind(operand) {
        OpKind::Register => bytes_of(instruction.op_register(operand)),
        _ => instruction.memory_size().size(),
    }
}

fn from_words(lanes: usize, word: impl Fn(usize) -> u32) -> [u8; 64] {
    let mut value = [0; 64];
    for lane in 0..lanes {
        value[lane * 4..lane * 4 + 4].copy_from_slice(&word(lane).to_le_bytes());
    }
    value
}

fn from_half_words(lanes: usize, half_word: impl Fn(usize) -> u16) -> [u8; 64] {
    let mut value = [0; 64];
    for lane in 0..lanes {
        value[lane * 2..lane * 2 + 2].copy_from_slice(&half_word(lane).to_le_bytes());
    }
    value
}

fn from_longs(lanes: usize, long: impl Fn(usize) -> u64) -> [u8; 64] {
    let mut value = [0; 64];
    for lane in 0..lanes {
        value[lane * 8..lane * 8 + 8].copy_from_slice(&long(lane).to_le_bytes());
    }
    value
}

/// `min` and `max` give the second operand where either is not a number or both are zeros.
fn second_or(a: f32, b: f32, first: bool) -> f32 {
    if first { a } else { b }
}

fn to_int(x: f32, round: impl Fn(f32) -> f32) -> u32 {
    let whole = f64::from(round(x));
    // Outside the range and for what is no number: the "integer indefinite".
    if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) {
        whole as i32 as u32
    } else {
        0x8000_0000
    }
}

/// Two numbers of the lane, rounded to f32 once.
fn float_op(mnemonic: Mnemonic, a: f32, b: f32) -> Option<f32> {
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
fn fused(mnemonic: Mnemonic) -> Option<(u32, f32, f32)> {
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
fn word_op(mnemonic: Mnemonic, a: u32, b: u32) -> Option<u32> {
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
    /// Second and third operand; an instruction of two operands has its source twice.
    fn sources(
        &self,
        instruction: &Instruction,
        bytes: usize,
        element: usize,
    ) -> Result<([u8; 64], [u8; 64]), Stop> {
        let last = if instruction.op_count() > 2 && instruction.op_kind(2) != OpKind::Immediate8 {
            2
        } else {
            1
        };
        let first = if last == 2 {
            self.vectors[instruction.op1_register().number()]
        } else {
            self.vector_operand(instruction, 1, (bytes, element), true)?
        };
        let second = match last {
            2 => self.vector_operand(instruction, 2, (bytes, element), true)?,
            _ => first,
        };
        Ok((first, second))
    }

    pub(crate) fn vector(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let mnemonic = instruction.mnemonic();
        let target = instruction.op0_register();
        match mnemonic {
            Vzeroupper => {
                for vector in &mut self.vectors[..16] {
                    vector[16..].fill(0);
                }
                Ok(())
            }
            Kmovb | Kmovw | Kmovd | Kmovq => self.move_mask(instruction),
            Kxnorw | Kxnord | Kandw | Korw | Kxorw | Knotw | Kshiftrw | Kshiftlw => {
                self.combine_masks(instruction)
            }
            Vmovups | Vmovaps | Vmovdqu | Vmovdqa | Vmovdqu32 | Vmovdqa32 => {
                self.move_vector(instruction, 4)
            }
            Vmovdqu8 => self.move_vector(instruction, 1),
            Vmovdqu16 => self.move_vector(instruction, 2),
            Vmovdqu64 | Vmovdqa64 | Vmovupd => self.move_vector(instruction, 8),
            Vmovd | Vmovq | Vmovss => self.move_scalar(instruction),
            Vmaskmovps | Vpmaskmovd => self.move_by_signs(instruction),
            Vbroadcastss | Vpbroadcastd => self.broadcast(instruction, 4),
            Vpbroadcastw => self.broadcast(instruction, 2),
            Vpbroadcastb => self.broadcast(instruction, 1),
            Vpbroadcastq | Vbroadcastsd => self.broadcast(instruction, 8),
            Vbroadcastf128 | Vbroadcasti128 | Vbroadcastf32x4 | Vbroadcasti32x4 => {
                self.broadcast(instruction, 16)
            }
            Vpmovzxbd | Vpmovsxbd | Vpmovzxbw | Vpmovsxbw | Vpmovzxwd | Vpmovsxwd => {
                self.widen(instruction)
            }
            Vcvtph2ps | Vcvtps2ph => self.convert_halves(instruction),
            Vextractf128 | Vextracti128 | Vextractf32x4 | Vextracti32x4 | Vextractf64x4
            | Vextracti64x4 | Vextractf32x8 => self.extract(instruction),
            Vinsertf128 | Vinserti128 | Vinsertf32x4 | Vinserti32x4 | Vinsertf64x4
            | Vinserti64x4 | Vinsertf32x8 => self.insert(instruction),
            Vpshufd | Vpermilps | Vshufps | Vpunpckldq | Vpunpckhdq | Vunpcklps | Vunpckhps
            | Vpermd | Vpermps | Vpunpcklqdq | Vpunpckhqdq | Vunpcklpd | Vunpckhpd | Vpermq
            | Vperm2f128 | Vperm2i128 | Vshuff32x4 | Vshufi32x4 => self.rearrange(instruction),
            Vpshufb => self.shuffle_bytes(instruction),
            Vpackssdw | Vpackusdw | Vpacksswb | Vpackuswb => self.narrow(instruction),
            Vcmpps | Vpcmpd | Vpcmpud => self.compare(instruction),
            Vpternlogd => self.ternary(instruction),
            Vblendvps => self.blend(instruction),
            Vpdpbusd | Vpdpwssd | Vdpbf16ps => self.dot(instruction),
            Vpsrld | Vpslld | Vpsrad | Vpsrlw | Vpsllw | Vpsraw | Vpsrlq | Vpsllq => {
                self.shift(instruction)
            }
            Vpaddq | Vpsubq => {
                let bytes = bytes_of(target);
                let (a, b) = self.sources(instruction, bytes, 8)?;
                let value = from_longs(bytes / 8, |lane| match mnemonic {
                    Vpaddq => long(&a, lane).wrapping_add(long(&b, lane)),
                    _ => long(&a, lane).wrapping_sub(long(&b, lane)),
                });
                self.set_vector(instruction, (bytes, 8), &value)
            }
            Vcvtdq2ps | Vcvtps2dq | Vcvttps2dq | Vsqrtps | Vroundps | Vrndscaleps | Vpabsd => {
                self.unary(instruction)
            }
            _ if fused(mnemonic).is_some() => self.fused(instruction),
            _ => self.lanes(instruction),
        }
    }

    /// Lane by lane operations of two operands.
    fn lanes(&mut self, instruction: &Instruction) -> Step {
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
    fn set_scalar(&mut self, instruction: &Instruction, first: &[u8; 64], result: f32) -> Step {
        let place = &mut self.vectors[instruction.op0_register().number()];
        let mut value = [0; 64];
        value[..16].copy_from_slice(&first[..16]);
        value[..4].copy_from_slice(&result.to_le_bytes());
        *place = value;
        Ok(())
    }

    fn fused(&mut self, instruction: &Instruction) -> Step {
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

    fn unary(&mut self, instruction: &Instruction) -> Step {
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

    fn dot(&mut self, instruction: &Instruction) -> Step {
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

    fn shift(&mut self, instruction: &Instruction) -> Step {
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
                    _ => ((x as i32) >> count.min(31)) as u32,
                }
            }),
        };
        self.set_vector(instruction, (bytes, element), &value)
    }

    fn move_vector(&mut self, instruction: &Instruction, element: usize) -> Step {
        let bytes = operand_bytes(
            instruction,
            if instruction.op0_kind() == OpKind::Memory { 1 } else { 0 },
        );
        let address = self.address(instruction);
        let is_aligned = matches!(
            instruction.mnemonic(),
            Mnemonic::Vmovaps | Mnemonic::Vmovdqa | Mnemonic::Vmovdqa32 | Mnemonic::Vmovdqa64
        );
        let has_memory = (0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        if is_aligned && has_memory && !address.is_multiple_of(bytes as u64) {
            return Err(Stop::Operand(format!("{address:#x} is not a multiple of {bytes}")));
        }
        let value = self.vector_operand(instruction, 1, (bytes, element), true)?;
        self.set_vector(instruction, (bytes, element), &value)
    }

    fn move_scalar(&mut self, instruction: &Instruction) -> Step {
        let bytes = if instruction.mnemonic() == Mnemonic::Vmovq { 8 } else { 4 };
        if instruction.op_count() == 3 {
            // `vmovss` between registers keeps the other lanes of the first source.
            let first = self.vectors[instruction.op1_register().number()];
            let second = self.vectors[instruction.op2_register().number()];
            return self.set_scalar(instruction, &first, f32::from_bits(word(&second, 0)));
        }
        let from_vector = instruction.op1_kind() == OpKind::Register
            && instruction.op1_register().is_vector_register();
        let number = if from_vector {
            long(&self.vectors[instruction.op1_register().number()], 0)
        } else {
            self.integer_operand(instruction, 1, bytes)?
        };
        if instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().is_vector_register()
        {
            let place = &mut self.vectors[instruction.op0_register().number()];
            *place = [0; 64];
            place[..bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
            return Ok(());
        }
        self.set_integer_operand(instruction, 0, bytes, number)
    }

    /// `vmaskmovps`: lanes whose mask has its sign bit set.
    fn move_by_signs(&mut self, instruction: &Instruction) -> Step {
        let signs = self.vectors[instruction.op1_register().number()];
        let address = self.address(instruction);
        let kept = |lane: usize| word(&signs, lane) >> 31 == 1;
        if instruction.op0_kind() == OpKind::Memory {
            let value = self.vectors[instruction.op2_register().number()];
            for lane in 0..bytes_of(instruction.op2_register()) / 4 {
                if kept(lane) {
                    let part = &value[lane * 4..lane * 4 + 4];
                    self.memory.write(address + 4 * lane as u64, part)?;
                }
            }
            return Ok(());
        }
        let mut value = [0; 64];
        for lane in 0..bytes_of(instruction.op0_register()) / 4 {
            if kept(lane) {
                let part = &mut value[lane * 4..lane * 4 + 4];
                self.memory.read(address + 4 * lane as u64, part)?;
            }
        }
        self.vectors[instruction.op0_register().number()] = value;
        Ok(())
    }

    fn broadcast(&mut self, instruction: &Instruction, element: usize) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let mut first = [0; 64];
        if instruction.op1_kind() == OpKind::Memory {
            let address = self.address(instruction);
            self.memory.read(address, &mut first[..element])?;
        } else if instruction.op1_register().is_vector_register() {
            first = self.vectors[instruction.op1_register().number()];
        } else {
            first[..8].copy_from_slice(&self.general(instruction.op1_register()).to_le_bytes());
        }
        let value = std::array::from_fn(|byte| first[byte % element]);
        // Of a broadcast of 128 bits the mask counts words.
        self.set_vector(instruction, (bytes, element.min(4)), &value)
    }

    fn widen(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let bytes = bytes_of(instruction.op0_register());
        let mnemonic = instruction.mnemonic();
        let factor = if matches!(mnemonic, Vpmovzxbd | Vpmovsxbd) { 4 } else { 2 };
        let to = if matches!(mnemonic, Vpmovzxbw | Vpmovsxbw) { 2 } else { 4 };
        let x = self.vector_operand(instruction, 1, (bytes / factor, to / factor), true)?;
        let value = match mnemonic {
            Vpmovzxbd => from_words(bytes / 4, |lane| u32::from(x[lane])),
            Vpmovsxbd => from_words(bytes / 4, |lane| i32::from(x[lane] as i8) as u32),
            Vpmovzxbw => from_half_words(bytes / 2, |lane| u16::from(x[lane])),
            Vpmovsxbw => from_half_words(bytes / 2, |lane| i16::from(x[lane] as i8) as u16),
            Vpmovzxwd => from_words(bytes / 4, |lane| u32::from(half_word(&x, lane))),
            _ => from_words(bytes / 4, |lane| i32::from(half_word(&x, lane) as i16) as u32),
        };
        self.set_vector(instruction, (bytes, to), &value)
    }

    fn convert_halves(&mut self, instruction: &Instruction) -> Step {
        if instruction.mnemonic() == Mnemonic::Vcvtph2ps {
            let bytes = bytes_of(instruction.op0_register());
            let x = self.vector_operand(instruction, 1, (bytes / 2, 2), true)?;
            let value = from_words(bytes / 4, |lane| {
                half::f16::from_bits(half_word(&x, lane)).to_f32().to_bits()
            });
            return self.set_vector(instruction, (bytes, 4), &value);
        }
        // Rounding to nearest even is mode 0; mode 4 takes what the control register says.
        if !matches!(instruction.immediate8(), 0 | 4) {
            return Err(Stop::Unknown);
        }
        let bytes = bytes_of(instruction.op1_register());
        let x = self.vectors[instruction.op1_register().number()];
        let value = from_half_words(bytes / 4, |lane| {
            half::f16::from_f32(f32::from_bits(word(&x, lane))).to_bits()
        });
        self.set_vector(instruction, (bytes / 2, 2), &value)
    }

    fn extract(&mut self, instruction: &Instruction) -> Step {
        let x = self.vectors[instruction.op1_register().number()];
        let bytes = operand_bytes(instruction, 0);
        let part =
            usize::from(instruction.immediate8()) % (bytes_of(instruction.op1_register()) / bytes);
        let mut value = [0; 64];
        value[..bytes].copy_from_slice(&x[part * bytes..(part + 1) * bytes]);
        self.set_vector(instruction, (bytes, 4), &value)
    }

    fn insert(&mut self, instruction: &Instruction) -> Step {
        let whole = bytes_of(instruction.op0_register());
        let bytes = operand_bytes(instruction, 2);
        let mut value = self.vectors[instruction.op1_register().number()];
        let x = self.vector_operand(instruction, 2, (bytes, 4), false)?;
        let part = usize::from(instruction.immediate8()) % (whole / bytes);
        value[part * bytes..(part + 1) * bytes].copy_from_slice(&x[..bytes]);
        self.set_vector(instruction, (whole, 4), &value)
    }

    /// Words moved within 128 bits, or across the register.
    fn rearrange(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let mnemonic = instruction.mnemonic();
        let bytes = bytes_of(instruction.op0_register());
        let has_immediate = instruction.op_kind(instruction.op_count() - 1) == OpKind::Immediate8;
        let control = if has_immediate { usize::from(instruction.immediate8()) } else { 0 };
        let (a, b) = self.sources(instruction, bytes, 4)?;
        let choice = |lane: usize| (control >> (2 * (lane % 4))) & 3;
        let parts = bytes / 16;
        let value = match mnemonic {
            Vperm2f128 | Vperm2i128 => {
                let part = |lane: usize| {
                    let select = control >> (4 * (lane / 4)) & 15;
                    let source = if select & 2 == 0 { &a } else { &b };
                    if select & 8 != 0 { 0 } else { word(source, (select & 1) * 4 + lane % 4) }
                };
                from_words(8, part)
            }
            Vshuff32x4 | Vshufi32x4 => from_words(bytes / 4, |lane| {
                let part = lane / 4;
                let bits = if parts == 4 { 2 } else { 1 };
                let select = control >> (bits * part) & ((1 << bits) - 1);
                let source = if part < parts / 2 { &a } else { &b };
                word(source, select * 4 + lane % 4)
            }),
            Vpermd | Vpermps => {
                // The first source holds the places.
                from_words(bytes / 4, |lane| word(&b, word(&a, lane) as usize % (bytes / 4)))
            }
            Vpermq if has_immediate => from_longs(bytes / 8, |lane| {
                long(&a, lane / 4 * 4 + (control >> (2 * (lane % 4)) & 3))
            }),
            Vpermilps if !has_immediate => {
                from_words(bytes / 4, |lane| word(&a, lane / 4 * 4 + (word(&b, lane) & 3) as usize))
            }
            Vpshufd | Vpermilps => {
                from_words(bytes / 4, |lane| word(&a, lane / 4 * 4 + choice(lane)))
            }
            Vshufps => from_words(bytes / 4, |lane| {
                let source = if lane % 4 < 2 { &a } else { &b };
                word(source, lane / 4 * 4 + choice(lane))
            }),
            Vpunpckldq | Vunpcklps | Vpunpckhdq | Vunpckhps => from_words(bytes / 4, |lane| {
                let high = matches!(mnemonic, Vpunpckhdq | Vunpckhps);
                let source = if lane % 2 == 0 { &a } else { &b };
                word(source, lane / 4 * 4 + lane % 4 / 2 + if high { 2 } else { 0 })
            }),
            Vpunpcklqdq | Vunpcklpd | Vpunpckhqdq | Vunpckhpd => from_longs(bytes / 8, |lane| {
                let high = matches!(mnemonic, Vpunpckhqdq | Vunpckhpd);
                let source = if lane % 2 == 0 { &a } else { &b };
                long(source, lane / 2 * 2 + usize::from(high))
            }),
            _ => return Err(Stop::Unknown),
        };
        self.set_vector(instruction, (bytes, 4), &value)
    }

    fn shuffle_bytes(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (a, b) = self.sources(instruction, bytes, 1)?;
        let value = std::array::from_fn(|lane| match b[lane] {
            zero if zero & 0x80 != 0 => 0,
            place => a[lane / 16 * 16 + usize::from(place & 15)],
        });
        self.set_vector(instruction, (bytes, 1), &value)
    }

    /// Saturating halves; each 128 bits have the first source's numbers, then the second's.
    fn narrow(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let bytes = bytes_of(instruction.op0_register());
        let mnemonic = instruction.mnemonic();
        if matches!(mnemonic, Vpackssdw | Vpackusdw) {
            let (a, b) = self.sources(instruction, bytes, 4)?;
            let value = from_half_words(bytes / 2, |lane| {
                let source = if lane % 8 < 4 { &a } else { &b };
                let x = word(source, lane / 8 * 4 + lane % 4) as i32;
                match mnemonic {
                    Vpackssdw => x.clamp(-32768, 32767) as i16 as u16,
                    _ => x.clamp(0, 65535) as u16,
                }
            });
            return self.set_vector(instruction, (bytes, 2), &value);
        }
        let (a, b) = self.sources(instruction, bytes, 2)?;
        let mut value = [0; 64];
        for (lane, place) in value[..bytes].iter_mut().enumerate() {
            let source = if lane % 16 < 8 { &a } else { &b };
            let x = half_word(source, lane / 16 * 8 + lane % 8) as i16;
            *place = match mnemonic {
                Vpacksswb => x.clamp(-128, 127) as i8 as u8,
                _ => x.clamp(0, 255) as u8,
            };
        }
        self.set_vector(instruction, (bytes, 1), &value)
    }

    fn compare(&mut self, instruction: &Instruction) -> Step {
        let mnemonic = instruction.mnemonic();
        let bytes = operand_bytes(instruction, 1);
        let (a, b) = {
            let first = self.vectors[instruction.op1_register().number()];
            (first, self.vector_operand(instruction, 2, (bytes, 4), true)?)
        };
        let predicate = instruction.immediate8();
        let holds = |lane: usize| {
            let (a, b) = (word(&a, lane), word(&b, lane));
            let order = match mnemonic {
                Mnemonic::Vcmpps => f32::from_bits(a).partial_cmp(&f32::from_bits(b)),
                Mnemonic::Vpcmpud => Some(a.cmp(&b)),
                _ => Some((a as i32).cmp(&(b as i32))),
            };
            let equal = order.is_some_and(|order| order.is_eq());
            let less = order.is_some_and(|order| order.is_lt());
            Some(match (mnemonic, predicate & 15) {
                (_, 0) => equal,
                (_, 1) => less,
                (_, 2) => less || equal,
                (Mnemonic::Vcmpps, 3) => order.is_none(),
                (_, 4) => !equal,
                (_, 5) => !less,
                (_, 6) => !(less || equal),
                (Mnemonic::Vcmpps, 7) => order.is_some(),
                (Mnemonic::Vcmpps, 13) => order.is_some_and(|order| order.is_ge()),
                (Mnemonic::Vcmpps, 14) => order.is_some_and(|order| order.is_gt()),
                _ => return None,
            })
        };
        holds(0).ok_or(Stop::Unknown)?;
        if instruction.op0_register().is_k() {
            let kept = self.mask(instruction);
            let bits = (0..bytes / 4).filter(|lane| holds(*lane) == Some(true));
            let mask = bits.fold(0, |mask, lane| mask | 1 << lane);
            self.masks[instruction.op0_register().number()] = mask & kept;
            return Ok(());
        }
        let value = from_words(bytes / 4, |lane| u32::MAX * u32::from(holds(lane) == Some(true)));
        self.set_vector(instruction, (bytes, 4), &value)
    }

    fn ternary(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let table = instruction.immediate8();
        let d = self.vectors[instruction.op0_register().number()];
        let a = self.vectors[instruction.op1_register().number()];
        let b = self.vector_operand(instruction, 2, (bytes, 4), true)?;
        let value = from_words(bytes / 4, |lane| {
            let (d, a, b) = (word(&d, lane), word(&a, lane), word(&b, lane));
            (0..32).fold(0, |sum, bit| {
                let place = (d >> bit & 1) << 2 | (a >> bit & 1) << 1 | b >> bit & 1;
                sum | u32::from(table >> place & 1) << bit
            })
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    fn blend(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let a = self.vectors[instruction.op1_register().number()];
        let b = self.vector_operand(instruction, 2, (bytes, 4), true)?;
        let signs = self.vectors[instruction.op3_register().number()];
        let value = from_words(bytes / 4, |lane| {
            word(if word(&signs, lane) >> 31 == 1 { &b } else { &a }, lane)
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    fn move_mask(&mut self, instruction: &Instruction) -> Step {
        let bits = match instruction.mnemonic() {
            Mnemonic::Kmovb => 8,
            Mnemonic::Kmovw => 16,
            Mnemonic::Kmovd => 32,
            _ => 64,
        };
        let value = match instruction.op1_kind() {
            OpKind::Register if instruction.op1_register().is_k() => {
                self.masks[instruction.op1_register().number()]
            }
            _ => self.integer_operand(instruction, 1, bits / 8)?,
        };
        let value = if bits == 64 { value } else { value & ((1 << bits) - 1) };
        if instruction.op0_kind() == OpKind::Register && instruction.op0_register().is_k() {
            self.masks[instruction.op0_register().number()] = value;
            return Ok(());
        }
        self.set_integer_operand(instruction, 0, bits / 8, value)
    }

    fn combine_masks(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let mask = |register: Register| self.masks[register.number()];
        let a = mask(instruction.op1_register());
        let b = if instruction.op2_kind() == OpKind::Register && instruction.op_count() == 3 {
            mask(instruction.op2_register())
        } else {
            0
        };
        let count = if instruction.op_count() == 3 && instruction.op2_kind() == OpKind::Immediate8 {
            u32::from(instruction.immediate8())
        } else {
            0
        };
        let wide = if instruction.mnemonic() == Kxnord { 0xffff_ffff } else { 0xffff };
        let value = match instruction.mnemonic() {
            Kxnorw | Kxnord => !(a ^ b),
            Kandw => a & b,
            Korw => a | b,
            Kxorw => a ^ b,
            Knotw => !a,
            Kshiftrw => (a & 0xffff).checked_shr(count).unwrap_or(0),
            _ => a.checked_shl(count).unwrap_or(0),
        };
        self.masks[instruction.op0_register().number()] = value & wide;
        Ok(())
    }
}

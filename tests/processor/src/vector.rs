//! Vector instructions of AVX2, AVX-VNNI and AVX-512 (F, BW, DQ, VL, VNNI, BF16).

mod arithmetic;
mod legacy;
mod masks;
mod movement;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use self::arithmetic::fused;
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
            Addss | Subss | Mulss | Divss | Maxss | Minss | Andps | Andnps | Orps | Xorps
            | Xorpd | Movaps | Movups | Movdqa | Movdqu => self.legacy(instruction),
            Ucomiss | Vucomiss => self.compare_scalars(instruction),
            Cvttss2si | Vcvttss2si => self.scalar_to_integer(instruction),
            Vcvtsi2ss => self.integer_to_scalar(instruction),
            Vroundss => self.round_scalar(instruction),
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
            Vbroadcasti64x4 => self.broadcast(instruction, 32),
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
            | Vperm2f128 | Vperm2i128 | Vshuff32x4 | Vshufi32x4 | Vmovshdup | Vmovhlps => {
                self.rearrange(instruction)
            }
            Vpermt2w => self.pick_half_words(instruction),
            Vpermw => self.permute_half_words(instruction),
            Vpextrb => self.extract_number(instruction, 1),
            Vpextrw => self.extract_number(instruction, 2),
            Vpextrd | Vextractps => self.extract_number(instruction, 4),
            Vpextrq => self.extract_number(instruction, 8),
            Vpinsrw | Vpinsrd => self.insert_number(instruction),
            Vpunpcklwd | Vpunpckhwd => self.interleave_words(instruction),
            Vpunpcklbw | Vpunpckhbw => self.interleave_bytes(instruction),
            Vpshuflw | Vpshufhw => self.shuffle_half_words(instruction),
            Vpshufb => self.shuffle_bytes(instruction),
            Vpackssdw | Vpackusdw | Vpacksswb | Vpackuswb => self.narrow(instruction),
            Vpmovdb | Vpmovsdb | Vpmovusdb => self.narrow_words(instruction),
            Vcmpps | Vcmpss | Vpcmpd | Vpcmpud => self.compare(instruction),
            Vpternlogd => self.ternary(instruction),
            Vblendvps => self.blend(instruction),
            Vpdpbusd | Vpdpwssd | Vdpbf16ps => self.dot(instruction),
            Vcvtne2ps2bf16 => self.round_to_bf16(instruction),
            Vphaddd | Vpsadbw => self.sum_neighbours(instruction),
            Vpsrld | Vpslld | Vpsrad | Vprold | Vpsrlw | Vpsllw | Vpsraw | Vpsrlq | Vpsllq => {
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
}

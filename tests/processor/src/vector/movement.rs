//! Loads, stores, broadcasts, conversions between element types, and elements in another order.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{
    bytes_of, from_half_words, from_longs, from_words, half_word, long, operand_bytes, word,
};
use crate::{Processor, Step, Stop};

impl Processor<'_> {
    pub(super) fn move_vector(&mut self, instruction: &Instruction, element: usize) -> Step {
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

    pub(super) fn move_scalar(&mut self, instruction: &Instruction) -> Step {
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
    pub(super) fn move_by_signs(&mut self, instruction: &Instruction) -> Step {
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

    pub(super) fn broadcast(&mut self, instruction: &Instruction, element: usize) -> Step {
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
        // Of a broadcast of 128 bits the mask counts words, of one of 256 longs.
        let counted = match element {
            16 => 4,
            32 => 8,
            element => element,
        };
        self.set_vector(instruction, (bytes, counted), &value)
    }

    pub(super) fn widen(&mut self, instruction: &Instruction) -> Step {
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

    pub(super) fn convert_halves(&mut self, instruction: &Instruction) -> Step {
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

    pub(super) fn extract(&mut self, instruction: &Instruction) -> Step {
        let x = self.vectors[instruction.op1_register().number()];
        let bytes = operand_bytes(instruction, 0);
        let part =
            usize::from(instruction.immediate8()) % (bytes_of(instruction.op1_register()) / bytes);
        let mut value = [0; 64];
        value[..bytes].copy_from_slice(&x[part * bytes..(part + 1) * bytes]);
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn insert(&mut self, instruction: &Instruction) -> Step {
        let whole = bytes_of(instruction.op0_register());
        let bytes = operand_bytes(instruction, 2);
        let mut value = self.vectors[instruction.op1_register().number()];
        let x = self.vector_operand(instruction, 2, (bytes, 4), false)?;
        let part = usize::from(instruction.immediate8()) % (whole / bytes);
        value[part * bytes..(part + 1) * bytes].copy_from_slice(&x[..bytes]);
        self.set_vector(instruction, (whole, 4), &value)
    }

    /// An integer in the place of one of the first 128 bits' elements.
    /// A number of a vector to memory, or to a general register, whose other bits become zero.
    pub(super) fn extract_number(&mut self, instruction: &Instruction, bytes: usize) -> Step {
        let value = self.vectors[instruction.op1_register().number()];
        let lane = usize::from(instruction.immediate8()) % (16 / bytes);
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&value[lane * bytes..(lane + 1) * bytes]);
        let number = u64::from_le_bytes(number);
        if instruction.op0_kind() == OpKind::Register {
            self.set_general(instruction.op0_register().full_register(), number);
            return Ok(());
        }
        self.set_integer_operand(instruction, 0, bytes, number)
    }

    pub(super) fn insert_number(&mut self, instruction: &Instruction) -> Step {
        let bytes = if instruction.mnemonic() == Mnemonic::Vpinsrw { 2 } else { 4 };
        let mut value = self.vectors[instruction.op1_register().number()];
        let number = self.integer_operand(instruction, 2, bytes)?.to_le_bytes();
        let at = usize::from(instruction.immediate8()) % (16 / bytes) * bytes;
        value[at..at + bytes].copy_from_slice(&number[..bytes]);
        self.set_vector(instruction, (16, bytes), &value)
    }

    /// Words moved within 128 bits, or across the register.
    pub(super) fn rearrange(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let mnemonic = instruction.mnemonic();
        let bytes = bytes_of(instruction.op0_register());
        let has_immediate = instruction.op_kind(instruction.op_count() - 1) == OpKind::Immediate8;
        let control = if has_immediate { usize::from(instruction.immediate8()) } else { 0 };
        let element = match mnemonic {
            Vpermq | Vpunpcklqdq | Vpunpckhqdq | Vunpcklpd | Vunpckhpd => 8,
            _ => 4,
        };
        let (a, b) = self.sources(instruction, bytes, element)?;
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
            Vpermq => from_longs(bytes / 8, |lane| long(&b, long(&a, lane) as usize % (bytes / 8))),
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
            Vmovshdup => from_words(bytes / 4, |lane| word(&a, lane | 1)),
            Vmovhlps => from_longs(2, |lane| if lane == 0 { long(&b, 1) } else { long(&a, 1) }),
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
        self.set_vector(instruction, (bytes, element), &value)
    }

    /// `vpermt2w`: half words of the target and of the last source, by the numbers in the second.
    pub(super) fn pick_half_words(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let first = self.vectors[instruction.op0_register().number()];
        let (numbers, second) = self.sources(instruction, bytes, 2)?;
        let lanes = bytes / 2;
        let value = from_half_words(lanes, |lane| {
            let number = usize::from(half_word(&numbers, lane)) % (2 * lanes);
            let source = if number < lanes { &first } else { &second };
            half_word(source, number % lanes)
        });
        self.set_vector(instruction, (bytes, 2), &value)
    }

    /// `vpermw`: half words of the last source by the numbers in the second.
    pub(super) fn permute_half_words(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (numbers, from) = self.sources(instruction, bytes, 2)?;
        let lanes = bytes / 2;
        let number = |lane: usize| usize::from(half_word(&numbers, lane)) % lanes;
        let value = from_half_words(lanes, |lane| half_word(&from, number(lane)));
        self.set_vector(instruction, (bytes, 2), &value)
    }

    /// Words of 16 bits of both sources in turn, per 128 bits.
    pub(super) fn interleave_words(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (a, b) = self.sources(instruction, bytes, 2)?;
        let half = if instruction.mnemonic() == Mnemonic::Vpunpckhwd { 4 } else { 0 };
        let value = from_half_words(bytes / 2, |lane| {
            let source = if lane % 2 == 0 { &a } else { &b };
            half_word(source, lane / 8 * 8 + lane % 8 / 2 + half)
        });
        self.set_vector(instruction, (bytes, 2), &value)
    }

    /// Bytes of both sources in turn, per 128 bits.
    pub(super) fn interleave_bytes(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (a, b) = self.sources(instruction, bytes, 1)?;
        let half = if instruction.mnemonic() == Mnemonic::Vpunpckhbw { 8 } else { 0 };
        let mut value = [0; 64];
        for (lane, place) in value[..bytes].iter_mut().enumerate() {
            let source = if lane % 2 == 0 { &a } else { &b };
            *place = source[lane / 16 * 16 + lane % 16 / 2 + half];
        }
        self.set_vector(instruction, (bytes, 1), &value)
    }

    /// Four words of 16 bits of each 128 moved among themselves, the lower or the upper ones.
    pub(super) fn shuffle_half_words(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let x = self.vector_operand(instruction, 1, (bytes, 2), true)?;
        let control = usize::from(instruction.immediate8());
        let moved = if instruction.mnemonic() == Mnemonic::Vpshufhw { 1 } else { 0 };
        let value = from_half_words(bytes / 2, |lane| {
            let choice = control >> (2 * (lane % 4)) & 3;
            half_word(&x, if lane / 4 % 2 == moved { lane / 4 * 4 + choice } else { lane })
        });
        self.set_vector(instruction, (bytes, 2), &value)
    }

    pub(super) fn shuffle_bytes(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let (a, b) = self.sources(instruction, bytes, 1)?;
        let value = std::array::from_fn(|lane| match b[lane] {
            zero if zero & 0x80 != 0 => 0,
            place => a[lane / 16 * 16 + usize::from(place & 15)],
        });
        self.set_vector(instruction, (bytes, 1), &value)
    }

    /// Saturating halves; each 128 bits have the first source's numbers, then the second's.
    pub(super) fn narrow(&mut self, instruction: &Instruction) -> Step {
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

    /// A byte of each word, cut off or saturating, side by side.
    pub(super) fn narrow_words(&mut self, instruction: &Instruction) -> Step {
        let x = self.vectors[instruction.op1_register().number()];
        let lanes = bytes_of(instruction.op1_register()) / 4;
        let mut value = [0; 64];
        for (lane, place) in value[..lanes].iter_mut().enumerate() {
            let x = word(&x, lane);
            *place = match instruction.mnemonic() {
                Mnemonic::Vpmovdb => x as u8,
                Mnemonic::Vpmovusdb => x.min(255) as u8,
                _ => (x as i32).clamp(-128, 127) as i8 as u8,
            };
        }
        self.set_vector(instruction, (lanes, 1), &value)
    }
}

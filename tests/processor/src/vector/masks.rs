//! Comparisons, choices bit by bit and lane by lane, and mask registers.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{bytes_of, from_words, operand_bytes, word};
use crate::{Processor, Step, Stop};

impl Processor<'_> {
    pub(super) fn compare(&mut self, instruction: &Instruction) -> Step {
        let mnemonic = instruction.mnemonic();
        let is_float = matches!(mnemonic, Mnemonic::Vcmpps | Mnemonic::Vcmpss);
        let is_scalar = mnemonic == Mnemonic::Vcmpss;
        let bytes = if is_scalar { 4 } else { operand_bytes(instruction, 1) };
        let (a, b) = {
            let first = self.vectors[instruction.op1_register().number()];
            (first, self.vector_operand(instruction, 2, (bytes, 4), true)?)
        };
        let predicate = instruction.immediate8();
        let holds = |lane: usize| {
            let (a, b) = (word(&a, lane), word(&b, lane));
            let order = match mnemonic {
                _ if is_float => f32::from_bits(a).partial_cmp(&f32::from_bits(b)),
                Mnemonic::Vpcmpud => Some(a.cmp(&b)),
                _ => Some((a as i32).cmp(&(b as i32))),
            };
            let equal = order.is_some_and(|order| order.is_eq());
            let less = order.is_some_and(|order| order.is_lt());
            Some(match (is_float, predicate & 15) {
                (_, 0) => equal,
                (_, 1) => less,
                (_, 2) => less || equal,
                (true, 3) => order.is_none(),
                (_, 4) => !equal,
                (_, 5) => !less,
                (_, 6) => !(less || equal),
                (true, 7) => order.is_some(),
                (true, 13) => order.is_some_and(|order| order.is_ge()),
                (true, 14) => order.is_some_and(|order| order.is_gt()),
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
        if is_scalar {
            return self.set_scalar(instruction, &a, f32::from_bits(word(&value, 0)));
        }
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn ternary(&mut self, instruction: &Instruction) -> Step {
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

    pub(super) fn blend(&mut self, instruction: &Instruction) -> Step {
        let bytes = bytes_of(instruction.op0_register());
        let a = self.vectors[instruction.op1_register().number()];
        let b = self.vector_operand(instruction, 2, (bytes, 4), true)?;
        let signs = self.vectors[instruction.op3_register().number()];
        let value = from_words(bytes / 4, |lane| {
            word(if word(&signs, lane) >> 31 == 1 { &b } else { &a }, lane)
        });
        self.set_vector(instruction, (bytes, 4), &value)
    }

    pub(super) fn move_mask(&mut self, instruction: &Instruction) -> Step {
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

    pub(super) fn combine_masks(&mut self, instruction: &Instruction) -> Step {
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

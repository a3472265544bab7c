//! What compiled frames need besides kernels: instructions of SSE in their old encoding, which keep
//! everything of the target that they do not write, and scalars to and from integers.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::arithmetic::{float_op, to_int, word_op};
use super::{from_words, word};
use crate::{Processor, Step, Stop};

impl Processor<'_> {
    /// The target is the first operand of two.
    pub(super) fn legacy(&mut self, instruction: &Instruction) -> Step {
        use Mnemonic::*;
        let mnemonic = instruction.mnemonic();
        let is_aligned =
            matches!(mnemonic, Movaps | Movdqa | Andps | Andnps | Orps | Xorps | Xorpd);
        let has_memory = (0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
        let address = self.address(instruction);
        if is_aligned && has_memory && !address.is_multiple_of(16) {
            return Err(Stop::Operand(format!("{address:#x} is not a multiple of 16")));
        }
        let (is_move, is_scalar) = (
            matches!(mnemonic, Movaps | Movups | Movdqa | Movdqu),
            matches!(mnemonic, Addss | Subss | Mulss | Divss | Maxss | Minss),
        );
        let bytes = if is_scalar { 4 } else { 16 };
        let b = self.vector_operand(instruction, 1, (bytes, 4), false)?;
        if instruction.op0_kind() == OpKind::Memory {
            return self.memory.write(address, &b[..16]);
        }
        let same = match mnemonic {
            Addss => Vaddss,
            Subss => Vsubss,
            Mulss => Vmulss,
            Divss => Vdivss,
            Maxss => Vmaxss,
            Minss => Vminss,
            Andps => Vandps,
            Andnps => Vandnps,
            Orps => Vorps,
            _ => Vxorps,
        };
        let a = self.vectors[instruction.op0_register().number()];
        let value = from_words(bytes / 4, |lane| {
            let (a, b) = (word(&a, lane), word(&b, lane));
            if is_move {
                b
            } else if is_scalar {
                let result = float_op(same, f32::from_bits(a), f32::from_bits(b));
                result.unwrap_or_default().to_bits()
            } else {
                word_op(same, a, b).unwrap_or_default()
            }
        });
        let place = &mut self.vectors[instruction.op0_register().number()];
        place[..bytes].copy_from_slice(&value[..bytes]);
        Ok(())
    }

    /// A number in a vector register or memory.
    fn scalar(&self, instruction: &Instruction, operand: u32) -> Result<f32, Stop> {
        let value = self.vector_operand(instruction, operand, (4, 4), false)?;
        Ok(f32::from_bits(word(&value, 0)))
    }

    pub(super) fn compare_scalars(&mut self, instruction: &Instruction) -> Step {
        let (a, b) = (self.scalar(instruction, 0)?, self.scalar(instruction, 1)?);
        let is_unordered = a.is_nan() || b.is_nan();
        self.flags.zero = is_unordered || a == b;
        self.flags.parity = is_unordered;
        self.flags.carry = is_unordered || a < b;
        (self.flags.overflow, self.flags.sign) = (false, false);
        Ok(())
    }

    /// Toward zero; 32 bits.
    pub(super) fn scalar_to_integer(&mut self, instruction: &Instruction) -> Step {
        let target = instruction.op0_register();
        if target.size() != 4 {
            return Err(Stop::Unknown);
        }
        let whole = to_int(self.scalar(instruction, 1)?, f32::trunc);
        self.set_general(target, u64::from(whole));
        Ok(())
    }

    pub(super) fn integer_to_scalar(&mut self, instruction: &Instruction) -> Step {
        let first = self.vectors[instruction.op1_register().number()];
        let bytes = match instruction.op2_kind() {
            OpKind::Register => instruction.op2_register().size(),
            _ => instruction.memory_size().size(),
        };
        let whole = self.integer_operand(instruction, 2, bytes)?;
        let number = if bytes == 4 { whole as u32 as i32 as f32 } else { whole as i64 as f32 };
        self.set_scalar(instruction, &first, number)
    }

    pub(super) fn round_scalar(&mut self, instruction: &Instruction) -> Step {
        let first = self.vectors[instruction.op1_register().number()];
        let x = self.scalar(instruction, 2)?;
        // Bit 3 keeps the inexact result quiet; bit 2 would take the mode from elsewhere.
        let rounded = match instruction.immediate8() & !8 {
            0 => x.round_ties_even(),
            1 => x.floor(),
            2 => x.ceil(),
            3 => x.trunc(),
            _ => return Err(Stop::Unknown),
        };
        self.set_scalar(instruction, &first, rounded)
    }
}

//! Operands: general registers, effective addresses, vectors with masks and broadcasts.

use iced_x86::{Instruction, OpKind, Register};

use super::{Processor, Step, Stop};

impl Processor<'_> {
    /// A general register, its upper bits zero.
    pub(crate) fn general(&self, register: Register) -> u64 {
        let value = self.general[register.full_register().number()];
        match register.size() {
            1 if matches!(register, Register::AH | Register::BH | Register::CH | Register::DH) => {
                value >> 8 & 0xff
            }
            1 => value & 0xff,
            2 => value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        }
    }

    /// Writes a general register; 32-bit writes clear the upper half, shorter ones keep the rest.
    pub(crate) fn set_general(&mut self, register: Register, value: u64) {
        let place = &mut self.general[register.full_register().number()];
        *place = match register.size() {
            1 => *place & !0xff | value & 0xff,
            2 => *place & !0xffff | value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        };
    }

    pub(crate) fn address(&self, instruction: &Instruction) -> u64 {
        let register = |register: Register| match register {
            Register::None | Register::RIP => 0,
            register => self.general(register),
        };
        // The displacement of an address relative to the instruction is the whole address.
        let index = register(instruction.memory_index());
        register(instruction.memory_base())
            .wrapping_add(index.wrapping_mul(u64::from(instruction.memory_index_scale())))
            .wrapping_add(instruction.memory_displacement64())
    }

    /// An integer operand of `bytes` bytes.
    pub(crate) fn integer_operand(
        &self,
        instruction: &Instruction,
        operand: u32,
        bytes: usize,
    ) -> Result<u64, Stop> {
        match instruction.op_kind(operand) {
            OpKind::Register => Ok(self.general(instruction.op_register(operand))),
            OpKind::Memory => {
                let mut word = [0; 8];
                self.memory.read(self.address(instruction), &mut word[..bytes])?;
                Ok(u64::from_le_bytes(word))
            }
            _ => instruction.try_immediate(operand).map_err(|_| Stop::Unknown),
        }
    }

    pub(crate) fn set_integer_operand(
        &mut self,
        instruction: &Instruction,
        operand: u32,
        bytes: usize,
        value: u64,
    ) -> Step {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                self.set_general(instruction.op_register(operand), value);
                Ok(())
            }
            OpKind::Memory => {
                let address = self.address(instruction);
                self.memory.write(address, &value.to_le_bytes()[..bytes])
            }
            _ => Err(Stop::Unknown),
        }
    }

    /// The lanes that an instruction computes.
    pub(crate) fn mask(&self, instruction: &Instruction) -> u64 {
        match instruction.op_mask() {
            Register::None => u64::MAX,
            mask => self.masks[mask.number()],
        }
    }

    /// A vector operand of `bytes` bytes in elements of `element` bytes. Of memory only the lanes
    /// of the mask are read; `masked` is false for operands whose lanes are not the result's.
    pub(crate) fn vector_operand(
        &self,
        instruction: &Instruction,
        operand: u32,
        (bytes, element): (usize, usize),
        masked: bool,
    ) -> Result<[u8; 64], Stop> {
        if instruction.op_kind(operand) == OpKind::Register {
            return Ok(self.vectors[instruction.op_register(operand).number()]);
        }
        let mut value = [0; 64];
        let address = self.address(instruction);
        if instruction.is_broadcast() {
            let (first, _) = value.split_at_mut(element);
            self.memory.read(address, first)?;
            for lane in 1..bytes / element {
                value.copy_within(..element, lane * element);
            }
            return Ok(value);
        }
        let mask = self.mask(instruction);
        if !masked || mask == u64::MAX {
            self.memory.read(address, &mut value[..bytes])?;
            return Ok(value);
        }
        for (lane, place) in value[..bytes].chunks_exact_mut(element).enumerate() {
            if mask >> lane & 1 == 1 {
                self.memory.read(address + (lane * element) as u64, place)?;
            }
        }
        Ok(value)
    }

    /// Writes the first `bytes` bytes of a result: lanes outside the mask keep their old content
    /// or become zero; a register's bytes beyond the result become zero.
    pub(crate) fn set_vector(
        &mut self,
        instruction: &Instruction,
        (bytes, element): (usize, usize),
        value: &[u8; 64],
    ) -> Step {
        let mask = self.mask(instruction);
        let kept = |lane: usize| mask >> lane & 1 == 1;
        if instruction.op_kind(0) == OpKind::Memory {
            let address = self.address(instruction);
            if mask == u64::MAX {
                return self.memory.write(address, &value[..bytes]);
            }
            for (lane, part) in value[..bytes].chunks_exact(element).enumerate() {
                if kept(lane) {
                    self.memory.write(address + (lane * element) as u64, part)?;
                }
            }
            return Ok(());
        }
        let place = &mut self.vectors[instruction.op0_register().number()];
        for (lane, part) in value[..bytes].chunks_exact(element).enumerate() {
            let to = &mut place[lane * element..(lane + 1) * element];
            if kept(lane) {
                to.copy_from_slice(part);
            } else if instruction.zeroing_masking() {
                to.fill(0);
            }
        }
        place[bytes..].fill(0);
        Ok(())
    }
}

/// Element `lane` of 4 bytes.
pub(crate) fn word(value: &[u8; 64], lane: usize) -> u32 {
    let at = lane * 4;
    u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
}

/// Element `lane` of 2 bytes.
pub(crate) fn half_word(value: &[u8; 64], lane: usize) -> u16 {
    u16::from_le_bytes([value[lane * 2], value[lane * 2 + 1]])
}

/// Element `lane` of 8 bytes.
pub(crate) fn long(value: &[u8; 64], lane: usize) -> u64 {
    u64::from(word(value, 2 * lane)) | u64::from(word(value, 2 * lane + 1)) << 32
}

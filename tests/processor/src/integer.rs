//! Integer instructions, jumps and calls.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

use super::{Processor, Step, Stop};

/// The sign bit of a number of `bytes` bytes.
fn sign_bit(bytes: usize) -> u64 {
    1 << (8 * bytes - 1)
}

/// The lowest `bytes` bytes.
fn cut(value: u64, bytes: usize) -> u64 {
    if bytes == 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}

/// A number of `bytes` bytes with its sign.
fn signed(value: u64, bytes: usize) -> i64 {
    let shift = 64 - 8 * bytes as u32;
    (value << shift) as i64 >> shift
}

/// Bytes of an instruction's integer operands.
fn operand_bytes(instruction: &Instruction, operand: u32) -> usize {
    match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).size(),
        _ => instruction.memory_size().size(),
    }
}

impl Processor<'_> {
    fn holds(&self, condition: ConditionCode) -> Result<bool, Stop> {
        let flags = self.flags;
        Ok(match condition {
            ConditionCode::o => flags.overflow,
            ConditionCode::no => !flags.overflow,
            ConditionCode::b => flags.carry,
            ConditionCode::ae => !flags.carry,
            ConditionCode::e => flags.zero,
            ConditionCode::ne => !flags.zero,
            ConditionCode::be => flags.carry || flags.zero,
            ConditionCode::a => !flags.carry && !flags.zero,
            ConditionCode::p => flags.parity,
            ConditionCode::np => !flags.parity,
            ConditionCode::s => flags.sign,
            ConditionCode::ns => !flags.sign,
            ConditionCode::l => flags.sign != flags.overflow,
            ConditionCode::ge => flags.sign == flags.overflow,
            ConditionCode::le => flags.zero || flags.sign != flags.overflow,
            ConditionCode::g => !flags.zero && flags.sign == flags.overflow,
            _ => return Err(Stop::Unknown),
        })
    }

    pub(crate) fn flow(&mut self, instruction: &Instruction) -> Step {
        match instruction.mnemonic() {
            Mnemonic::Jmp if instruction.op0_kind() == OpKind::NearBranch64 => {
                self.next = instruction.near_branch64();
            }
            Mnemonic::Ret if instruction.op_count() == 0 => self.next = self.pop()?,
            Mnemonic::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
                self.push(self.next)?;
                self.next = instruction.near_branch64();
            }
            Mnemonic::Call if instruction.is_call_near_indirect() => {
                let target = self.integer_operand(instruction, 0, 8)?;
                self.push(self.next)?;
                self.next = target;
            }
            _ if instruction.is_jcc_short_or_near() => {
                if self.holds(instruction.condition_code())? {
                    self.next = instruction.near_branch64();
                }
            }
            _ => return Err(Stop::Unknown),
        }
        Ok(())
    }

    fn push(&mut self, value: u64) -> Step {
        let pointer = &mut self.general[Register::RSP.number()];
        *pointer -= 8;
        self.memory.write(*pointer, &value.to_le_bytes())
    }

    fn pop(&mut self) -> Result<u64, Stop> {
        let pointer = &mut self.general[Register::RSP.number()];
        let mut word = [0; 8];
        self.memory.read(*pointer, &mut word)?;
        *pointer += 8;
        Ok(u64::from_le_bytes(word))
    }

    fn set_logic_flags(&mut self, result: u64, bytes: usize) {
        self.flags.zero = cut(result, bytes) == 0;
        self.flags.sign = result & sign_bit(bytes) != 0;
        self.flags.carry = false;
        self.flags.overflow = false;
        self.flags.parity = (result as u8).count_ones().is_multiple_of(2);
    }

    fn add(&mut self, a: u64, b: u64, bytes: usize) -> u64 {
        let result = cut(a.wrapping_add(b), bytes);
        self.set_logic_flags(result, bytes);
        self.flags.carry = result < cut(a, bytes);
        self.flags.overflow = (a ^ result) & (b ^ result) & sign_bit(bytes) != 0;
        result
    }

    fn subtract(&mut self, a: u64, b: u64, bytes: usize) -> u64 {
        let result = cut(a.wrapping_sub(b), bytes);
        self.set_logic_flags(result, bytes);
        self.flags.carry = cut(a, bytes) < cut(b, bytes);
        self.flags.overflow = (a ^ b) & (a ^ result) & sign_bit(bytes) != 0;
        result
    }

    /// rdx:rax by a divisor of 64 bits: quotient in rax, remainder in rdx.
    fn divide(&mut self, divisor: u64, bytes: usize) -> Step {
        let [low, high] = [Register::RAX, Register::RDX].map(Register::number);
        let whole = u128::from(self.general[high]) << 64 | u128::from(self.general[low]);
        if bytes != 8 || self.general[high] >= divisor {
            return Err(Stop::Unknown);
        }
        self.general[low] = (whole / u128::from(divisor)) as u64;
        self.general[high] = (whole % u128::from(divisor)) as u64;
        Ok(())
    }

    pub(crate) fn integer(&mut self, instruction: &Instruction) -> Step {
        let bytes = operand_bytes(instruction, 0);
        let read = |processor: &Self, operand: u32| {
            processor.integer_operand(instruction, operand, operand_bytes(instruction, operand))
        };
        let result = match instruction.mnemonic() {
            Mnemonic::Div => {
                let divisor = read(self, 0)?;
                return self.divide(divisor, bytes);
            }
            Mnemonic::Mulx => {
                let a = cut(self.general[Register::RDX.number()], bytes);
                let whole = u128::from(a) * u128::from(cut(read(self, 2)?, bytes));
                // The upper half is written last: it wins where both go to one register.
                self.set_general(instruction.op1_register(), cut(whole as u64, bytes));
                (whole >> (8 * bytes)) as u64
            }
            Mnemonic::Mov => read(self, 1)?,
            Mnemonic::Movzx => read(self, 1)?,
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let from = operand_bytes(instruction, 1);
                signed(cut(read(self, 1)?, from), from) as u64
            }
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Push => return self.push(read(self, 0)?),
            Mnemonic::Pop => self.pop()?,
            Mnemonic::Add => {
                let (a, b) = (read(self, 0)?, read(self, 1)?);
                self.add(a, b, bytes)
            }
            Mnemonic::Sub => {
                let (a, b) = (read(self, 0)?, read(self, 1)?);
                self.subtract(a, b, bytes)
            }
            Mnemonic::Cmp => {
                let (a, b) = (read(self, 0)?, read(self, 1)?);
                self.subtract(a, b, bytes);
                return Ok(());
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let (a, carry) = (read(self, 0)?, self.flags.carry);
                let result = match instruction.mnemonic() {
                    Mnemonic::Inc => self.add(a, 1, bytes),
                    _ => self.subtract(a, 1, bytes),
                };
                self.flags.carry = carry;
                result
            }
            Mnemonic::Neg => {
                let a = read(self, 0)?;
                self.subtract(0, a, bytes)
            }
            Mnemonic::Not => !read(self, 0)?,
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
                let (a, b) = (read(self, 0)?, read(self, 1)?);
                let result = match instruction.mnemonic() {
                    Mnemonic::Or => a | b,
                    Mnemonic::Xor => a ^ b,
                    _ => a & b,
                };
                self.set_logic_flags(result, bytes);
                if instruction.mnemonic() == Mnemonic::Test {
                    return Ok(());
                }
                result
            }
            Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar => {
                let a = cut(read(self, 0)?, bytes);
                let count = read(self, 1)? as u32 & if bytes == 8 { 63 } else { 31 };
                if count == 0 {
                    return Ok(());
                }
                let last = if instruction.mnemonic() == Mnemonic::Shl {
                    8 * bytes as u32 - count.min(8 * bytes as u32)
                } else {
                    count - 1
                };
                let result = match instruction.mnemonic() {
                    Mnemonic::Shl => a << count,
                    Mnemonic::Shr => a >> count,
                    _ => (signed(a, bytes) >> count) as u64,
                };
                self.set_logic_flags(result, bytes);
                self.flags.carry = a >> last & 1 == 1;
                result
            }
            Mnemonic::Imul => {
                let (a, b) = match instruction.op_count() {
                    2 => (read(self, 0)?, read(self, 1)?),
                    3 => (read(self, 1)?, read(self, 2)?),
                    _ => return Err(Stop::Unknown),
                };
                let whole = i128::from(signed(a, bytes)) * i128::from(signed(b, bytes));
                let result = cut(whole as u64, bytes);
                let lost = i128::from(signed(result, bytes)) != whole;
                (self.flags.carry, self.flags.overflow) = (lost, lost);
                result
            }
            _ if instruction.condition_code() != ConditionCode::None => {
                let holds = self.holds(instruction.condition_code())?;
                let name = format!("{:?}", instruction.mnemonic());
                if name.starts_with("Set") {
                    u64::from(holds)
                } else if name.starts_with("Cmov") {
                    // The source is read, and a 32-bit target loses its upper half, either way.
                    let source = read(self, 1)?;
                    if holds { source } else { read(self, 0)? }
                } else {
                    return Err(Stop::Unknown);
                }
            }
            _ => return Err(Stop::Unknown),
        };
        self.set_integer_operand(instruction, 0, bytes, result)
    }
}

//! AMX: eight tiles of up to 16 rows of 64 bytes.
//!
//! Integer products sum exactly modulo 2³². `tdpbf16ps` treats denormals as zero, rounds every
//! fused step to nearest even, and sums the products of even and odd places apart before it adds
//! both to the accumulator.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::vector::flushed;
use super::{Processor, Step, Stop, TileShape};

/// Bytes of a tile row at most.
const ROW: usize = 64;

fn rule(message: impl Into<String>) -> Stop {
    Stop::Operand(message.into())
}

impl Processor<'_> {
    fn number(&self, register: Register) -> Result<usize, Stop> {
        if !self.has_tiles {
            return Err(rule("tiles are not configured"));
        }
        Ok(register.number())
    }

    fn configure(&mut self, instruction: &Instruction) -> Step {
        let mut data = [0; 64];
        self.memory.read(self.address(instruction), &mut data)?;
        // Palette 0 is the initial state, which kernels reach by `tilerelease`; a first row other than
        // 0 restarts an interrupted load.
        if data[0] != 1 || data[1] != 0 {
            return Err(rule(format!("palette {} from row {}", data[0], data[1])));
        }
        let is_reserved = |at: usize| matches!(at, 2..16 | 32..48 | 56..64);
        if (0..64).any(|at| is_reserved(at) && data[at] != 0) {
            return Err(rule("reserved bytes of the configuration are not zero"));
        }
        for index in 0..8 {
            let row_bytes =
                usize::from(u16::from_le_bytes([data[16 + 2 * index], data[17 + 2 * index]]));
            let rows = usize::from(data[48 + index]);
            if rows > 16 || row_bytes > ROW || (rows == 0) != (row_bytes == 0) {
                return Err(rule(format!("tile {index} of {rows} rows of {row_bytes} bytes")));
            }
            self.shapes[index] = TileShape { rows, row_bytes };
            self.tiles[index] = [0; 1024];
        }
        self.has_tiles = true;
        Ok(())
    }

    pub(crate) fn tile(&mut self, instruction: &Instruction) -> Step {
        match instruction.mnemonic() {
            Mnemonic::Ldtilecfg => self.configure(instruction),
            Mnemonic::Tilerelease => {
                self.has_tiles = false;
                Ok(())
            }
            Mnemonic::Tilezero => {
                let tile = self.number(instruction.op0_register())?;
                self.used(tile)?;
                self.tiles[tile] = [0; 1024];
                Ok(())
            }
            Mnemonic::Tileloadd | Mnemonic::Tileloaddt1 => {
                let tile = self.number(instruction.op0_register())?;
                let TileShape { rows, row_bytes } = self.used(tile)?;
                let mut content = [0; 1024];
                for (row, address) in self.row_addresses(instruction, rows) {
                    self.memory.read(address, &mut content[row * ROW..][..row_bytes])?;
                }
                self.tiles[tile] = content;
                Ok(())
            }
            Mnemonic::Tilestored => {
                let tile = self.number(instruction.op1_register())?;
                let TileShape { rows, row_bytes } = self.used(tile)?;
                for (row, address) in self.row_addresses(instruction, rows) {
                    let content = self.tiles[tile];
                    self.memory.write(address, &content[row * ROW..][..row_bytes])?;
                }
                Ok(())
            }
            _ => self.tile_product(instruction),
        }
    }

    fn used(&self, tile: usize) -> Result<TileShape, Stop> {
        let shape = self.shapes[tile];
        if shape.rows == 0 { Err(rule(format!("tile {tile} has no rows"))) } else { Ok(shape) }
    }

    /// Rows of a tile in memory; the index register is the distance between them.
    fn row_addresses(
        &self,
        instruction: &Instruction,
        rows: usize,
    ) -> impl Iterator<Item = (usize, u64)> + use<> {
        debug_assert!((0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory));
        let index = match instruction.memory_index() {
            Register::None => 0,
            register => self.general(register),
        };
        let stride = index.wrapping_mul(u64::from(instruction.memory_index_scale()));
        let first = self.address(instruction).wrapping_sub(stride);
        (0..rows).map(move |row| (row, first.wrapping_add(stride.wrapping_mul(row as u64))))
    }

    fn tile_product(&mut self, instruction: &Instruction) -> Step {
        let [c, a, b] = [
            self.number(instruction.op0_register())?,
            self.number(instruction.op1_register())?,
            self.number(instruction.op2_register())?,
        ];
        if c == a || c == b || a == b {
            return Err(rule("two operands are one tile"));
        }
        let [of_c, of_a, of_b] = [self.used(c)?, self.used(a)?, self.used(b)?];
        let fits = of_a.rows == of_c.rows
            && of_a.row_bytes == of_b.rows * 4
            && of_b.row_bytes == of_c.row_bytes
            && of_c.row_bytes.is_multiple_of(4);
        if !fits {
            return Err(rule(format!("{of_c:?} += {of_a:?} * {of_b:?}")));
        }
        for row in 0..of_c.rows {
            for column in 0..of_c.row_bytes / 4 {
                let at = row * ROW + column * 4;
                let unit = |tile: usize, at: usize| -> [u8; 4] {
                    std::array::from_fn(|byte| self.tiles[tile][at + byte])
                };
                let pairs = (0..of_b.rows)
                    .map(|k| (unit(a, row * ROW + k * 4), unit(b, k * ROW + column * 4)));
                let before = unit(c, at);
                let sum = match instruction.mnemonic() {
                    Mnemonic::Tdpbf16ps => {
                        bf16_sum(f32::from_le_bytes(before), pairs).to_le_bytes()
                    }
                    mnemonic => {
                        byte_sum(mnemonic, i32::from_le_bytes(before), pairs)?.to_le_bytes()
                    }
                };
                self.tiles[c][at..at + 4].copy_from_slice(&sum);
            }
        }
        Ok(())
    }
}

fn byte_sum(
    mnemonic: Mnemonic,
    before: i32,
    pairs: impl Iterator<Item = ([u8; 4], [u8; 4])>,
) -> Result<i32, Stop> {
    let (a_signed, b_signed) = match mnemonic {
        Mnemonic::Tdpbssd => (true, true),
        Mnemonic::Tdpbsud => (true, false),
        Mnemonic::Tdpbusd => (false, true),
        Mnemonic::Tdpbuud => (false, false),
        _ => return Err(Stop::Unknown),
    };
    let number =
        |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    let mut sum = before;
    for (a, b) in pairs {
        for (a, b) in a.into_iter().zip(b) {
            sum = sum.wrapping_add(number(a, a_signed) * number(b, b_signed));
        }
    }
    Ok(sum)
}

fn bf16_sum(before: f32, pairs: impl Iterator<Item = ([u8; 4], [u8; 4])>) -> f32 {
    let mut sums = [0.0f32; 2];
    for (a, b) in pairs {
        for (place, sum) in sums.iter_mut().enumerate() {
            let number = |unit: [u8; 4]| {
                let bits = u32::from(u16::from_le_bytes([unit[2 * place], unit[2 * place + 1]]));
                flushed(f32::from_bits(bits << 16))
            };
            *sum = flushed(number(a).mul_add(number(b), *sum));
        }
    }
    flushed(flushed(before) + flushed(sums[0] + sums[1]))
}

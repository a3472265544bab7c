//! Loops that run into a limit of the machine, for the benches to compare kernels with.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_codegen::emit::{Assembly, POINTER, signature};

/// Registers of independent sums.
pub(crate) const YMM: [AsmRegisterYmm; 12] =
    [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11];
/// The same in 512 bits.
pub(crate) const ZMM: [AsmRegisterZmm; 12] =
    [zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11];

/// The middle value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A loop of independent operations: `(turns)`, twelve operations of the widest registers a turn.
pub(crate) fn peak_loop(
    assembly: &mut Assembly,
    name: &str,
    step: impl Fn(&mut CodeAssembler, usize) -> Result<(), IcedError>,
) {
    let id = assembly.declare(name, signature(&[POINTER], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            for index in 0..12 {
                step(code, index)?;
            }
            code.dec(rdi)?;
            code.jnz(again)?;
            code.vzeroupper()?;
            code.ret()
        })
        .expect("instructions of the level");
}

/// `(memory, bytes)`: adds all words.
pub(crate) fn read_loop(assembly: &mut Assembly) {
    let id = assembly.declare("read", signature(&[POINTER; 2], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            code.shr(rsi, 8)?;
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            for (index, sum) in YMM[..8].iter().enumerate() {
                if index % 2 == 0 {
                    code.prefetcht0(byte_ptr(rdi + 4096 + index * 32))?;
                }
                code.vpaddd(*sum, *sum, ymmword_ptr(rdi + index * 32))?;
            }
            code.add(rdi, 256)?;
            code.dec(rsi)?;
            code.jnz(again)?;
            code.vzeroupper()?;
            code.ret()
        })
        .expect("instructions of x86-64-v3");
}

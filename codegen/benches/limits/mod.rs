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

/// The same for products of whole tiles of bytes, six sums in turn.
#[allow(dead_code, reason = "one of the benches has no such products")]
pub(crate) fn tile_loop(assembly: &mut Assembly, name: &str) {
    const SUMS: [AsmRegisterTmm; 6] = [tmm0, tmm1, tmm2, tmm3, tmm4, tmm5];
    let id = assembly.declare(name, signature(&[POINTER], &[])).expect("a new name");
    assembly
        .assemble(id, |code| {
            let mut configuration = code.create_label();
            let mut again = code.create_label();
            code.ldtilecfg(zmmword_ptr(configuration))?;
            code.set_label(&mut again)?;
            for product in 0..12 {
                code.tdpbssd(SUMS[product % SUMS.len()], tmm6, tmm7)?;
            }
            code.dec(rdi)?;
            code.jnz(again)?;
            code.tilerelease()?;
            code.ret()?;
            code.set_label(&mut configuration)?;
            let mut bytes = [0; 64];
            bytes[0] = 1;
            for tile in 0..8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = 16;
            }
            code.db(&bytes)
        })
        .expect("instructions of AMX");
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
                    code.prefetcht0(byte_ptr(rdi + 512 + index * 32))?;
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

//! Emits the probes of [`weir_abi::Probe`]: loops of one kind of instruction.
//!
//! Arithmetic runs on registers alone, twelve independent sums of zeros, so that neither memory nor
//! latency is measured. Reading adds what it loads into four sums and asks for lines a page ahead, as
//! the kernels do.

use std::mem::offset_of;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::{PROBE_SUMS, Probe, StepContext};

use crate::emit::{Assembly, EmitError, segment_signature};
use crate::image::CodeImage;

const XMM: [AsmRegisterXmm; PROBE_SUMS as usize] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11];
const YMM: [AsmRegisterYmm; PROBE_SUMS as usize] =
    [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11];
/// Tiles of sums; the last two are what is multiplied.
const TMM: [AsmRegisterTmm; 6] = [tmm0, tmm1, tmm2, tmm3, tmm4, tmm5];
const ZMM: [AsmRegisterZmm; PROBE_SUMS as usize] =
    [zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11];

/// Emits all probes.
pub fn emit_probes(assembly: &mut Assembly) -> Result<(), EmitError> {
    for probe in Probe::ALL {
        let id = assembly.declare(probe.symbol(), segment_signature())?;
        assembly.assemble(id, |code| match probe {
            Probe::Read => read(code),
            Probe::ByteTiles | Probe::Bf16Tiles => tiles(code, probe),
            _ => arithmetic(code, probe),
        })?;
    }
    Ok(())
}

/// The probes alone, for measuring a machine without a model.
pub fn probe_image() -> Result<CodeImage, EmitError> {
    let mut assembly = Assembly::new()?;
    emit_probes(&mut assembly)?;
    assembly.finish()
}

/// `count` turns of twelve instructions, by every thread.
fn arithmetic(code: &mut CodeAssembler, probe: Probe) -> Result<(), IcedError> {
    code.mov(rax, qword_ptr(rdi + offset_of!(StepContext, segment_weights)))?;
    code.mov(rcx, qword_ptr(rax))?;
    code.imul_2(rcx, qword_ptr(rax + 8))?;
    // Zeros, also in the upper parts: what earlier code left might be slow to compute with.
    for register in XMM.into_iter().chain([xmm12, xmm13, xmm14]) {
        code.vxorps(register, register, register)?;
    }
    let mut again = code.create_label();
    code.set_label(&mut again)?;
    for sum in 0..PROBE_SUMS as usize {
        match probe {
            Probe::Read | Probe::ByteTiles | Probe::Bf16Tiles => {}
            Probe::Float128 => code.vfmadd231ps(XMM[sum], xmm12, xmm13)?,
            Probe::Float256 => code.vfmadd231ps(YMM[sum], ymm12, ymm13)?,
            Probe::Float512 => code.vfmadd231ps(ZMM[sum], zmm12, zmm13)?,
            Probe::Bytes128 => {
                code.vpmaddubsw(xmm14, xmm12, xmm13)?;
                code.vpaddw(XMM[sum], XMM[sum], xmm14)?;
            }
            Probe::Bytes256 => {
                code.vpmaddubsw(ymm14, ymm12, ymm13)?;
                code.vpaddw(YMM[sum], YMM[sum], ymm14)?;
            }
            Probe::ByteDots256 => code.vex().vpdpbusd(YMM[sum], ymm12, ymm13)?,
            Probe::ByteDots512 => code.vpdpbusd(ZMM[sum], zmm12, zmm13)?,
            Probe::Bf16Dots512 => code.vdpbf16ps(ZMM[sum], zmm12, zmm13)?,
        }
    }
    code.dec(rcx)?;
    code.jnz(again)?;
    code.vzeroupper()?;
    code.ret()
}

/// `count` turns of twelve products of whole tiles, by every thread.
fn tiles(code: &mut CodeAssembler, probe: Probe) -> Result<(), IcedError> {
    let mut configuration = code.create_label();
    let mut again = code.create_label();
    code.mov(rax, qword_ptr(rdi + offset_of!(StepContext, segment_weights)))?;
    code.mov(rcx, qword_ptr(rax))?;
    code.imul_2(rcx, qword_ptr(rax + 8))?;
    // Sets all tiles to zero.
    code.ldtilecfg(zmmword_ptr(configuration))?;
    code.set_label(&mut again)?;
    for product in 0..PROBE_SUMS as usize {
        let sum = TMM[product % TMM.len()];
        match probe {
            Probe::Bf16Tiles => code.tdpbf16ps(sum, tmm6, tmm7)?,
            _ => code.tdpbssd(sum, tmm6, tmm7)?,
        }
    }
    code.dec(rcx)?;
    code.jnz(again)?;
    code.tilerelease()?;
    code.ret()?;
    code.set_label(&mut configuration)?;
    // Palette 1; eight tiles of 16 rows of 64 bytes.
    let mut bytes = [0; 64];
    bytes[0] = 1;
    for tile in 0..8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
    }
    code.db(&bytes)
}

/// Thread t of n reads its n-th part, in whole pages, again and again.
fn read(code: &mut CodeAssembler) -> Result<(), IcedError> {
    code.mov(r8, qword_ptr(rdi + offset_of!(StepContext, weights)))?;
    code.mov(rax, qword_ptr(rdi + offset_of!(StepContext, segment_weights)))?;
    code.mov(r9, qword_ptr(rax + 8))?;
    code.mov(rax, qword_ptr(rax))?;
    code.mov(ecx, edx)?;
    code.mov(esi, esi)?;
    code.xor(edx, edx)?;
    code.div(rcx)?;
    code.and(rax, -4096)?;
    code.imul_2(rsi, rax)?;
    code.add(r8, rsi)?;
    code.shr(rax, 8)?;
    let mut end = code.create_label();
    code.test(rax, rax)?;
    code.jz(end)?;
    let mut pass = code.create_label();
    code.set_label(&mut pass)?;
    code.mov(rdi, r8)?;
    code.mov(rcx, rax)?;
    let mut again = code.create_label();
    code.set_label(&mut again)?;
    for (index, sum) in [ymm0, ymm1, ymm2, ymm3, ymm0, ymm1, ymm2, ymm3].into_iter().enumerate() {
        if index % 2 == 0 {
            code.prefetcht0(byte_ptr(rdi + 512 + index * 32))?;
        }
        code.vpaddd(sum, sum, ymmword_ptr(rdi + index * 32))?;
    }
    code.add(rdi, 256)?;
    code.dec(rcx)?;
    code.jnz(again)?;
    code.dec(r9)?;
    code.jnz(pass)?;
    code.set_label(&mut end)?;
    code.vzeroupper()?;
    code.ret()
}

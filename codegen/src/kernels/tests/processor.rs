//! The interpreter of instructions against this machine, one instruction at a time and in whole
//! kernels, so that what it says of levels that a machine lacks can be believed.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::{IsaLevel, Probe, StepContext};
use weir_processor as processor;

use super::Random;
use crate::emit::{Assembly, POINTER, signature};
use crate::jit::{Argument, ExecutableCode};
use crate::kernels::matmul::{Compute, MatmulSpec, emit_matmul, emit_quantise};
use crate::pack::{
    Blocks, DenseRows, PackedLayout, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_dense,
    pack_quantised,
};
use crate::probes::probe_image;

/// What a result is made of, for the comparison.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Bits,
    /// Two results that are not numbers are equal whatever their payload.
    Floats,
}

/// One instruction: result in register 0, operands in registers 1 and 2, all three given.
struct Entry {
    name: &'static str,
    kind: Kind,
    write: fn(&mut CodeAssembler) -> Result<(), IcedError>,
}

macro_rules! entries {
    ($kind:ident: $($name:ident($($operand:expr),*);)*) => {
        [$(Entry {
            name: concat!(stringify!($name), $(" ", stringify!($operand)),*),
            kind: Kind::$kind,
            write: |code| code.$name($($operand),*),
        }),*]
    };
}

fn avx2() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(entries!(Bits:
        vpaddb(ymm0, ymm1, ymm2); vpaddw(ymm0, ymm1, ymm2); vpaddd(ymm0, ymm1, ymm2);
        vpaddq(ymm0, ymm1, ymm2); vpsubb(ymm0, ymm1, ymm2); vpsubw(ymm0, ymm1, ymm2);
        vpsubd(ymm0, ymm1, ymm2); vpmulld(ymm0, ymm1, ymm2); vpmullw(ymm0, ymm1, ymm2);
        vpmaddubsw(ymm0, ymm1, ymm2); vpmaddwd(ymm0, ymm1, ymm2); vpsignb(ymm0, ymm1, ymm2);
        vpand(ymm0, ymm1, ymm2); vpandn(ymm0, ymm1, ymm2); vpor(ymm0, ymm1, ymm2);
        vpxor(ymm0, ymm1, ymm2); vpmaxsd(ymm0, ymm1, ymm2); vpminsd(ymm0, ymm1, ymm2);
        vpcmpeqd(ymm0, ymm1, ymm2); vpcmpgtd(ymm0, ymm1, ymm2); vpabsd(ymm0, ymm1);
        vpabsb(ymm0, ymm1);
        vpsrld(ymm0, ymm1, 4); vpslld(ymm0, ymm1, 16); vpsrad(ymm0, ymm1, 31);
        vpsrlw(ymm0, ymm1, 4); vpsllw(ymm0, ymm1, 9); vpsraw(ymm0, ymm1, 8);
        vpsrlq(ymm0, ymm1, 33); vpsllq(ymm0, ymm1, 7);
        vpmovzxbd(ymm0, xmm1); vpmovsxbd(ymm0, xmm1); vpmovzxbw(ymm0, xmm1);
        vpmovsxbw(ymm0, xmm1); vpmovzxwd(ymm0, xmm1); vpmovsxwd(ymm0, xmm1);
        vpshufb(ymm0, ymm1, ymm2); vpshufd(ymm0, ymm1, 0x1b); vpermilps(ymm0, ymm1, 0x39);
        vshufps(ymm0, ymm1, ymm2, 0x4e); vpunpckldq(ymm0, ymm1, ymm2);
        vpunpckhdq(ymm0, ymm1, ymm2); vpunpcklqdq(ymm0, ymm1, ymm2);
        vpunpckhqdq(ymm0, ymm1, ymm2); vpermd(ymm0, ymm1, ymm2); vpermps(ymm0, ymm1, ymm2);
        vperm2f128(ymm0, ymm1, ymm2, 0x21); vperm2i128(ymm0, ymm1, ymm2, 0x83);
        vpackssdw(ymm0, ymm1, ymm2); vpackusdw(ymm0, ymm1, ymm2); vpacksswb(ymm0, ymm1, ymm2);
        vpackuswb(ymm0, ymm1, ymm2); vextracti128(xmm0, ymm1, 1);
        vinserti128(ymm0, ymm1, xmm2, 1); vpbroadcastb(ymm0, xmm1); vpbroadcastd(ymm0, xmm1);
        vbroadcastss(ymm0, xmm1); vblendvps(ymm0, ymm1, ymm2, ymm0); vmovups(xmm0, xmm1);
        vcvtps2dq(ymm0, ymm1); vcvttps2dq(ymm0, ymm1); vpsllvd(ymm0, ymm1, ymm2);
        vpsrlvd(ymm0, ymm1, ymm2); vpunpcklwd(ymm0, ymm1, ymm2); vpunpckhwd(ymm0, ymm1, ymm2);
        vmovshdup(ymm0, ymm1); vmovhlps(xmm0, xmm1, xmm2); vpunpcklwd(xmm0, xmm1, xmm2);
        vpunpcklbw(ymm0, ymm1, ymm2); vpunpckhbw(ymm0, ymm1, ymm2); vpunpckhbw(xmm0, xmm1, xmm2);
        vmovd(xmm0, dword_ptr(rdi + 36)); vmovq(xmm0, qword_ptr(rdi + 36));
        vpinsrd(xmm0, xmm1, dword_ptr(rdi + 8), 2); vpinsrw(xmm0, xmm1, word_ptr(rdi + 6), 5);
        vmaskmovps(ymm0, ymm1, ymmword_ptr(rdi)); andps(xmm0, xmm1); orps(xmm0, xmm1);
        xorpd(xmm0, xmm1); movdqa(xmm0, xmm1); movdqu(xmm0, xmmword_ptr(rdi + 4));
        vpmaxud(ymm0, ymm1, ymm2); vpmaxud(xmm0, xmm1, xmmword_ptr(rdi + 4));
        vpmaddwd(ymm0, ymm1, ymmword_ptr(rdi + 4)); vpaddd(ymm0, ymm1, ymmword_ptr(rdi + 4));
        vpshuflw(ymm0, ymm1, 0x1b); vpshufhw(ymm0, ymm1, 0x36); vpshuflw(xmm0, xmm1, 0x93);
        vphaddd(ymm0, ymm1, ymm2); vphaddd(xmm0, xmm1, xmmword_ptr(rdi + 4));
        vpsadbw(ymm0, ymm1, ymm2); vpermq(ymm0, ymm1, 0x6c); vcmpss(xmm0, xmm1, xmm2, 1);
        vcmpss(xmm0, xmm1, dword_ptr(rdi + 8), 6);
        vpbroadcastd(ymm0, dword_ptr(rdi + 12)); vpbroadcastq(ymm0, xmm1);
        vpbroadcastq(ymm0, qword_ptr(rdi + 12)); vpackuswb(xmm0, xmm1, xmm2);
        vpackssdw(ymm0, ymm1, ymmword_ptr(rdi + 4)); vandps(ymm0, ymm1, ymm2);
        vandnps(ymm0, ymm1, ymm2); vorps(ymm0, ymm1, ymm2); vxorps(ymm0, ymm1, ymm2);
        vmovaps(ymm0, ymm1); vcvtps2dq(ymm0, ymmword_ptr(rdi + 4));
        vblendvps(ymm0, ymm1, ymmword_ptr(rdi + 4), ymm2);
    ));
    all.extend(frames());
    all.extend(stores());
    all.extend(entries!(Floats:
        vaddps(ymm0, ymm1, ymm2); vsubps(ymm0, ymm1, ymm2); vmulps(ymm0, ymm1, ymm2);
        vdivps(ymm0, ymm1, ymm2); vmaxps(ymm0, ymm1, ymm2); vminps(ymm0, ymm1, ymm2);
        vsqrtps(ymm0, ymm1); vroundps(ymm0, ymm1, 0); vroundps(ymm0, ymm1, 1);
        vroundps(ymm0, ymm1, 3); vcvtdq2ps(ymm0, ymm1); vcvtph2ps(ymm0, xmm1);
        vcvtps2ph(xmm0, ymm1, 0); vaddss(xmm0, xmm1, xmm2); vmulss(xmm0, xmm1, xmm2);
        vmaxss(xmm0, xmm1, xmm2); vminss(xmm0, xmm1, xmm2); vsubss(xmm0, xmm1, xmm2);
        vdivss(xmm0, xmm1, xmm2); vdivss(xmm0, xmm1, dword_ptr(rdi + 20));
        vminps(ymm0, ymm1, ymmword_ptr(rdi + 4)); vcvtdq2ps(ymm0, ymmword_ptr(rdi + 4));
        vcmpps(ymm0, ymm1, ymmword_ptr(rdi + 4), 2); vcmpps(ymm0, ymm1, ymm2, 30);
        vfmadd132ps(ymm0, ymm1, ymm2); vfmadd213ps(ymm0, ymm1, ymm2);
        vfmadd231ps(ymm0, ymm1, ymm2); vfnmadd231ps(ymm0, ymm1, ymm2);
        vfnmadd213ps(ymm0, ymm1, ymm2); vfmsub213ps(ymm0, ymm1, ymm2);
        vfnmsub132ps(ymm0, ymm1, ymm2); vfmadd231ss(xmm0, xmm1, xmm2);
        vcmpps(ymm0, ymm1, ymm2, 1); vcmpps(ymm0, ymm1, ymm2, 3); vcmpps(ymm0, ymm1, ymm2, 14);
        addss(xmm0, xmm1); mulss(xmm0, xmm1); maxss(xmm0, xmm1); minss(xmm0, xmm1);
        vroundss(xmm0, xmm1, xmm2, 8); vroundss(xmm0, xmm1, xmm2, 1);
    ));
    all
}

/// What compiled frames use and vectors cannot show by themselves: through a general register.
fn frames() -> Vec<Entry> {
    let entry = |name, write| Entry { name, kind: Kind::Bits, write };
    vec![
        entry("cvttss2si", |code| {
            code.cvttss2si(eax, xmm1)?;
            code.vmovd(xmm0, eax)
        }),
        entry("vcvtsi2ss of 32 bits", |code| {
            code.mov(eax, dword_ptr(rdi + 4))?;
            code.vcvtsi2ss(xmm0, xmm1, eax)
        }),
        entry("vcvtsi2ss of 64 bits", |code| {
            code.mov(rax, qword_ptr(rdi + 4))?;
            code.vcvtsi2ss(xmm0, xmm1, rax)
        }),
        entry("mulx", |code| {
            code.mov(rdx, qword_ptr(rdi))?;
            code.mulx(rcx, rax, qword_ptr(rdi + 8))?;
            code.vmovq(xmm0, rcx)?;
            code.vmovq(xmm1, rax)?;
            code.vpunpcklqdq(xmm0, xmm0, xmm1)
        }),
        entry("numbers out of vectors", |code| {
            code.vextractps(eax, xmm1, 3)?;
            code.vpextrd(ecx, xmm2, 1)?;
            code.vmovd(xmm0, eax)?;
            code.vpinsrd(xmm0, xmm0, ecx, 1)?;
            code.vpextrb(eax, xmm1, 13)?;
            code.vpinsrd(xmm0, xmm0, eax, 2)?;
            code.vpextrw(eax, xmm2, 6)?;
            code.vpinsrd(xmm0, xmm0, eax, 3)
        }),
        entry("vpextrq", |code| {
            code.vpextrq(rax, xmm1, 1)?;
            code.vmovq(xmm0, rax)
        }),
        // Each condition that a comparison of floats may set, a bit of the result.
        entry("ucomiss", |code| {
            code.ucomiss(xmm1, xmm2)?;
            code.mov(eax, 0)?;
            code.mov(ecx, 0)?;
            code.mov(edx, 0)?;
            code.setp(al)?;
            code.setb(cl)?;
            code.sete(dl)?;
            code.lea(eax, ptr(rax + rcx * 2))?;
            code.lea(eax, ptr(rax + rdx * 4))?;
            code.vmovd(xmm0, eax)
        }),
        entry("add and its parity", |code| {
            code.mov(ecx, 0)?;
            code.mov(eax, dword_ptr(rdi))?;
            code.add(eax, dword_ptr(rdi + 4))?;
            code.setp(cl)?;
            code.vmovd(xmm0, ecx)
        }),
    ]
}

/// Parts of vectors to general registers and to memory, which is zero before.
fn stores() -> Vec<Entry> {
    let entry = |name, write| Entry { name, kind: Kind::Bits, write };
    vec![
        entry("vmovd to memory", |code| {
            code.vmovd(dword_ptr(rsi + 3), xmm1)?;
            code.vmovups(ymm0, ymmword_ptr(rsi))
        }),
        entry("vmovq to memory", |code| {
            code.vmovq(qword_ptr(rsi + 3), xmm1)?;
            code.vmovups(ymm0, ymmword_ptr(rsi))
        }),
        entry("vmovd through a register", |code| {
            code.vmovd(eax, xmm1)?;
            code.vmovd(xmm0, eax)
        }),
        entry("vmovq through a register", |code| {
            code.vmovq(rax, xmm1)?;
            code.vmovq(xmm0, rax)
        }),
        entry("vextracti128 to memory", |code| {
            code.vextracti128(xmmword_ptr(rsi + 3), ymm1, 1)?;
            code.vmovups(ymm0, ymmword_ptr(rsi))
        }),
    ]
}

/// What only AVX-VNNI has: the encoding without masks.
fn avx_vnni() -> Vec<Entry> {
    let entry = |name, write| Entry { name, kind: Kind::Bits, write };
    vec![
        entry("vpdpbusd", |code| code.vex().vpdpbusd(ymm0, ymm1, ymm2)),
        entry("vpdpbusd of memory", |code| code.vex().vpdpbusd(ymm0, ymm1, ymmword_ptr(rdi + 4))),
    ]
}

fn avx512() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(entries!(Bits:
        vpaddd(zmm0.k1(), zmm1, zmm2); vpaddd(zmm0.k1().z(), zmm1, zmm2);
        vpandd(zmm0, zmm1, zmm2); vpxord(zmm0, zmm1, zmm2); vpandnd(zmm0, zmm1, zmm2);
        vpmaddubsw(zmm0, zmm1, zmm2); vpmaddwd(zmm0, zmm1, zmm2); vpdpbusd(zmm0, zmm1, zmm2);
        vpdpwssd(zmm0, zmm1, zmm2); vpdpbusd(zmm0.k1(), zmm1, zmm2);
        vpternlogd(zmm0, zmm1, zmm2, 0xca); vpternlogd(zmm0, zmm1, zmm2, 0x96);
        vpsrld(zmm0, zmm1, 4); vpsrlw(zmm0, zmm1, 4); vpermd(zmm0, zmm1, zmm2);
        vpermps(zmm0, zmm1, zmm2); vshuff32x4(zmm0, zmm1, zmm2, 0x4e);
        vshufi32x4(zmm0, zmm1, zmm2, 0x93); vextractf32x4(xmm0, zmm1, 3);
        vextractf64x4(ymm0, zmm1, 1); vinserti32x4(zmm0, zmm1, xmm2, 2);
        vinsertf64x4(zmm0, zmm1, ymm2, 1); vpmovzxbd(zmm0, xmm1); vpmovsxwd(zmm0, ymm1);
        vpshufb(zmm0, zmm1, zmm2); vpunpckldq(zmm0, zmm1, zmm2); vmovdqu32(zmm0.k1().z(), zmm1);
        vpshufb(zmm0.k1(), zmm1, zmm2); vmovdqu8(zmm0.k1(), zmm1); vcvtps2dq(zmm0, zmm1); vpmaxsd(zmm0, zmm1, zmm2);
        vpabsd(zmm0, zmm1); vpbroadcastd(zmm0, eax); vbroadcastf32x4(zmm0, xmmword_ptr(rdi + 16));
        vpdpbusd(zmm0, zmm1, dword_bcst(rdi + 4)); vpermq(zmm0, zmm1, 0x1b);
        vpdpbusd(zmm0, zmm1, zmmword_ptr(rdi + 4)); vpaddd(zmm0, zmm1, dword_bcst(rdi + 8));
        vpmaddwd(zmm0, zmm1, zmmword_ptr(rdi + 4)); vpmaxud(zmm0, zmm1, zmm2);
        vpmaxud(zmm0.k1().z(), zmm1, dword_bcst(rdi)); vpmovdb(xmm0, zmm1); vpmovdb(xmm0, ymm1);
        vpmovdb(xmm0.k1(), zmm1); vpmovdb(xmm0.k1().z(), zmm1); vpmovusdb(xmm0, zmm1);
        vpmovusdb(xmm0, ymm1); vpmovsdb(xmm0, zmm1); vpackusdw(zmm0, zmm1, zmm2);
        vpackuswb(zmm0, zmm1, zmm2); vpackssdw(zmm0, zmm1, zmm2); vpacksswb(zmm0, zmm1, zmm2);
        vpshuflw(zmm0, zmm1, 0x1b); vpshufhw(zmm0, zmm1, 0x36); vpshufd(zmm0, zmm1, 0x39);
        vpshuflw(zmm0.k1(), zmm1, 0x1b); vpbroadcastd(zmm0, xmm1); vpbroadcastq(zmm0, xmm1);
        vpbroadcastd(zmm0, dword_ptr(rdi + 12)); vpbroadcastq(zmm0, qword_ptr(rdi + 12));
        vpbroadcastq(zmm0.k1(), xmm1); vpbroadcastd(zmm0.k1().z(), dword_ptr(rdi + 12));
        vpsllw(zmm0, zmm1, 9); vpsraw(zmm0, zmm1, 8); vpslld(zmm0, zmm1, 16);
        vpsrad(zmm0, zmm1, 31); vpsrad(zmm0, zmmword_ptr(rdi + 4), 3); vpsrlw(zmm0.k1(), zmm1, 4);
        vpxord(zmm0, zmm1, dword_bcst(rdi + 4)); vpandd(zmm0, zmm1, zmmword_ptr(rdi + 4));
        vpord(zmm0, zmm1, zmm2); vmovups(zmm0.k1().z(), zmm1); vmovaps(zmm0.k1().z(), zmm1);
        vmovups(zmm0.k1().z(), zmmword_ptr(rdi + 4)); vandps(zmm0, zmm1, zmm2);
        vandps(zmm0, zmm1, dword_bcst(rdi + 4)); vandnps(zmm0, zmm1, zmm2);
        vextracti32x4(xmm0, zmm1, 2); vextracti64x4(ymm0, zmm1, 1); vpsadbw(zmm0, zmm1, zmm2);
        vpermq(zmm0, zmm1, zmm2); vpermq(zmm0.k1(), zmm1, 0x1b); vpermd(ymm0, ymm1, ymm2);
        vpermd(zmm0.k1().z(), zmm1, zmm2); vpunpcklqdq(zmm0.k1(), zmm1, zmm2);
        vcvtps2dq(zmm0, dword_bcst(rdi + 8)); vpsubd(zmm0, zmm1, zmm2);
        vpermw(zmm0, zmm1, zmm2); vpermw(zmm0, zmm1, zmmword_ptr(rdi));
        vbroadcasti64x4(zmm0, ymmword_ptr(rdi + 4)); vprold(zmm0, zmm1, 16);
        vinserti64x4(zmm0, zmm1, ymmword_ptr(rdi + 4), 1); vmovaps(zmm0.k1(), zmm1);
        vpmovzxwd(zmm0.k1().z(), ymmword_ptr(rdi + 4));
    ));
    all.extend(masked());
    all.extend(entries!(Floats:
        vfmadd231ps(zmm0, zmm1, zmm2); vfmadd231ps(zmm0.k1(), zmm1, zmm2);
        vfmadd213ps(zmm0, zmm1, dword_bcst(rdi + 8)); vaddps(zmm0.k1().z(), zmm1, zmm2);
        vdivps(zmm0, zmm1, zmm2); vmaxps(zmm0, zmm1, zmm2); vrndscaleps(zmm0, zmm1, 0);
        vscalefps(zmm0, zmm1, zmm2); vcvtdq2ps(zmm0, zmm1); vcvtph2ps(zmm0, ymm1);
        vcvtps2ph(ymm0, zmm1, 0); vsqrtps(zmm0, zmm1);
        vmulps(zmm0.k1().z(), zmm1, zmm2); vmulps(zmm0.k1().z(), zmm1, zmmword_ptr(rdi + 4));
        vmulps(ymm0.k1().z(), ymm1, ymm2); vmulps(zmm0, zmm1, dword_bcst(rdi + 8));
        vminps(zmm0, zmm1, zmm2); vminps(zmm0, zmm1, dword_bcst(rdi + 8));
        vsubps(zmm0, zmm1, zmm2); vcvtdq2ps(zmm0.k1().z(), zmm1);
    ));
    all
}

/// Results in mask registers, and parts in memory.
fn masked() -> Vec<Entry> {
    let entry = |name, write| Entry { name, kind: Kind::Bits, write };
    vec![
        // The assembler takes the encoding without masks for 256 bits if it is not told otherwise.
        entry("vpdpbusd of 256 bits", |code| code.evex().vpdpbusd(ymm0, ymm1, ymm2)),
        entry("vpdpbusd of 256 bits and one word", |code| {
            code.evex().vpdpbusd(ymm0, ymm1, dword_bcst(rdi + 4))
        }),
        entry("vpdpbusd of 256 bits under a mask", |code| {
            code.evex().vpdpbusd(ymm0.k1(), ymm1, ymm2)
        }),
        entry("vcmpps into a mask", |code| {
            code.vcmpps(k2, zmm1, zmm2, 1)?;
            code.kmovw(eax, k2)?;
            code.vmovd(xmm0, eax)
        }),
        entry("vcmpps into a mask, of one number", |code| {
            code.vcmpps(k2, zmm1, dword_bcst(rdi + 4), 14)?;
            code.kmovw(eax, k2)?;
            code.vmovd(xmm0, eax)
        }),
        entry("vcmpps into a mask under another, 256 bits", |code| {
            code.vcmpps(k2.k1(), ymm1, ymm2, 5)?;
            code.kmovw(eax, k2)?;
            code.vmovd(xmm0, eax)
        }),
        entry("vpmovdb to memory", |code| {
            code.vpmovdb(xmmword_ptr(rsi + 3), zmm1)?;
            code.vmovups(zmm0, zmmword_ptr(rsi))
        }),
        entry("vpmovdb of 256 bits to memory", |code| {
            code.vpmovdb(qword_ptr(rsi + 3), ymm1)?;
            code.vmovups(zmm0, zmmword_ptr(rsi))
        }),
        entry("vpmovusdb to memory under a mask", |code| {
            code.vpmovusdb(xmmword_ptr(rsi + 3).k1(), zmm1)?;
            code.vmovups(zmm0, zmmword_ptr(rsi))
        }),
        entry("vextracti32x4 to memory", |code| {
            code.vextracti32x4(xmmword_ptr(rsi + 3), zmm1, 3)?;
            code.vmovups(zmm0, zmmword_ptr(rsi))
        }),
        entry("vextracti64x4 to memory", |code| {
            code.vextracti64x4(ymmword_ptr(rsi + 3), zmm1, 1)?;
            code.vmovups(zmm0, zmmword_ptr(rsi))
        }),
    ]
}

fn bf16() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(entries!(Floats:
        vdpbf16ps(zmm0, zmm1, zmm2); vdpbf16ps(zmm0, zmm1, dword_bcst(rdi + 4));
    ));
    all.extend(entries!(Bits:
        vcvtne2ps2bf16(zmm0, zmm1, zmm2); vcvtne2ps2bf16(zmm0, zmm1, zmmword_ptr(rdi));
    ));
    all
}

/// `name(inputs, output)`: three registers from memory, the instruction, register 0 to memory.
fn program(entry: &Entry, wide: bool) -> ExecutableParts {
    let mut assembly = Assembly::new().unwrap();
    let id = assembly.declare("program", signature(&[POINTER; 2], &[])).unwrap();
    assembly
        .assemble(id, |code| {
            if wide {
                code.mov(eax, 0x5a39)?;
                code.kmovd(k1, eax)?;
                for (at, register) in [zmm0, zmm1, zmm2].into_iter().enumerate() {
                    code.vmovups(register, zmmword_ptr(rdi + 64 * at))?;
                }
            } else {
                for (at, register) in [ymm0, ymm1, ymm2].into_iter().enumerate() {
                    code.vmovups(register, ymmword_ptr(rdi + 64 * at))?;
                }
            }
            (entry.write)(code)?;
            if wide {
                code.vmovups(zmmword_ptr(rsi), zmm0)?;
            } else {
                code.vmovups(ymmword_ptr(rsi), ymm0)?;
            }
            code.vzeroupper()?;
            code.ret()
        })
        .unwrap();
    let image = assembly.finish().unwrap();
    ExecutableParts { code: ExecutableCode::new(&image).unwrap(), bytes: image.bytes }
}

struct ExecutableParts {
    code: ExecutableCode,
    bytes: Vec<u8>,
}

/// Bits of all kinds: any, ordinary floats, and the ones at the borders.
fn operands(random: &mut Random, round: usize) -> Vec<u8> {
    const BORDERS: [u32; 16] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x4f00_0000,
        0xcf00_0000,
        0x3f00_0000,
    ];
    let word = |random: &mut Random| match round % 3 {
        0 => random.next() as u32,
        1 => (random.unit() * 100.0).to_bits(),
        _ => BORDERS[random.below(BORDERS.len())],
    };
    (0..48).flat_map(|_| word(random).to_le_bytes()).collect()
}

fn same(kind: Kind, name: &str, hardware: &[u8], interpreted: &[u8]) -> bool {
    let halves = name.starts_with("vcvtps2ph");
    match (kind, halves) {
        (Kind::Bits, _) => hardware == interpreted,
        (Kind::Floats, false) => {
            hardware.chunks_exact(4).zip(interpreted.chunks_exact(4)).all(|(a, b)| {
                let number = |x: &[u8]| f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                a == b || number(a).is_nan() && number(b).is_nan()
            })
        }
        (Kind::Floats, true) => {
            hardware.chunks_exact(2).zip(interpreted.chunks_exact(2)).all(|(a, b)| {
                let number = |x: &[u8]| half::f16::from_le_bytes([x[0], x[1]]);
                a == b || number(a).is_nan() && number(b).is_nan()
            })
        }
    }
}

fn compare(entries: &[Entry], wide: bool) {
    let mut random = Random::new(41);
    let mut failures = Vec::new();
    for entry in entries {
        let program = program(entry, wide);
        for round in 0..240 {
            let input = operands(&mut random, round);
            let bytes = if wide { 64 } else { 32 };
            let (mut hardware, mut interpreted) = (vec![0; bytes], vec![0; bytes]);
            program.code.call_kernel(
                "program",
                &mut [Argument::Read(&input), Argument::Write(&mut hardware)],
            );
            let arguments = vec![
                processor::Argument::Read(&input),
                processor::Argument::Write(&mut interpreted),
            ];
            if let Err(fault) = processor::call(&program.bytes, 0, arguments) {
                failures.push(format!("{}: {fault}", entry.name));
                break;
            }
            if !same(entry.kind, entry.name, &hardware, &interpreted) {
                failures.push(format!(
                    "{}: of {input:02x?}\n  hardware    {hardware:02x?}\n  interpreted {interpreted:02x?}",
                    entry.name
                ));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn instructions_do_what_this_machine_does() {
    compare(&avx2(), false);
    let has_avx512 = is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    if has_avx512 {
        compare(&avx512(), true);
    } else {
        println!("skipped: this machine has no AVX-512");
    }
    if is_x86_feature_detected!("avxvnni") {
        compare(&avx_vnni(), false);
    } else {
        println!("skipped: this machine has no AVX-VNNI");
    }
    if has_avx512 && is_x86_feature_detected!("avx512bf16") {
        compare(&bf16(), true);
    } else {
        println!("skipped: this machine has no AVX512_BF16");
    }
}

/// Weights and activations of no meaning, fixed.
struct Numbers;

impl DenseRows for Numbers {
    fn row(&self, channel: usize, out: &mut [f32]) {
        out.copy_from_slice(&Random::new(channel as u64 + 1).units(out.len()));
    }
}

impl QuantRows for Numbers {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        let mut random = Random::new(channel as u64 + 1);
        codes.fill_with(|| random.below(16) as u8);
        scales.fill_with(|| random.unit() / 8.0);
        zeros.fill_with(|| random.below(16) as f32);
    }
}

/// The product's output on a level by the interpreter, and by this machine where it can.
fn product(spec: &MatmulSpec, level: IsaLevel, rows: usize, on_machine: bool) -> Vec<u8> {
    let mut assembly = Assembly::new().unwrap();
    emit_matmul(&mut assembly, spec, level).unwrap();
    let image = assembly.finish().unwrap();
    let mut weight = vec![0; spec.layout.bytes()];
    match spec.layout.format.blocks() {
        Some(_) => pack_quantised(&spec.layout, &Numbers, &mut weight).unwrap(),
        None => pack_dense(&spec.layout, &Numbers, &mut weight).unwrap(),
    }
    let mut random = Random::new(7);
    let bytes = rows * spec.input_row_bytes();
    let floats = |count: usize, random: &mut Random| -> Vec<u8> {
        random.units(count).iter().flat_map(|x| x.to_le_bytes()).collect()
    };
    let input = match spec.activation() {
        Some(activation) => {
            let given = floats(rows * spec.input_stride, &mut random);
            let mut rounded = vec![0; bytes];
            let mut assembly = Assembly::new().unwrap();
            emit_quantise(&mut assembly, activation).unwrap();
            let items = (rows * activation.items_per_row()) as u64;
            let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
            code.call_kernel(
                &activation.symbol(),
                &mut [
                    Argument::Read(&given),
                    Argument::Write(&mut rounded),
                    Argument::Count(0),
                    Argument::Count(items),
                ],
            );
            rounded
        }
        None => floats(bytes / 4, &mut random),
    };
    let mut output = vec![0; rows * spec.output_stride * 4];
    let counts = [rows, 0, spec.groups(), rows % 2].map(|count| count as u64);
    if on_machine {
        let mut arguments = vec![
            Argument::Read(&input),
            Argument::Read(&weight),
            Argument::Write(&mut output),
            Argument::Null,
            Argument::Null,
        ];
        arguments.extend(counts.map(Argument::Count));
        let code = ExecutableCode::new(&image).unwrap();
        code.call_kernel(&spec.symbol(level), &mut arguments);
        return output;
    }
    let symbol = image.symbols.iter().find(|symbol| symbol.name == spec.symbol(level)).unwrap();
    let mut arguments = vec![
        processor::Argument::Read(&input),
        processor::Argument::Read(&weight),
        processor::Argument::Write(&mut output),
        processor::Argument::Null,
        processor::Argument::Null,
    ];
    arguments.extend(counts.map(processor::Argument::Count));
    if let Err(fault) = processor::call(&image.bytes, symbol.offset as usize, arguments) {
        panic!("{}: {fault}", symbol.name);
    }
    output
}

/// Every assembled level by the interpreter, whether this machine has it or not: the same bits as
/// the portable version, which this machine runs, and no byte touched outside the arguments.
#[test]
fn products_of_all_levels_are_equal_to_the_portable_one() {
    let blocks = |block, zero| Blocks { block, scale: ScaleType::F16, zero };
    let cases = [
        (WeightFormat::F32, Compute::F32, 37, 19),
        (WeightFormat::F32, Compute::F32, 80, 7),
        (WeightFormat::Int4(blocks(32, ZeroPoint::Implied)), Compute::Int8, 37, 64),
        (WeightFormat::Int4(blocks(64, ZeroPoint::Code)), Compute::Int8, 80, 128),
        (WeightFormat::Int4(blocks(32, ZeroPoint::Float)), Compute::F32, 37, 39),
        (WeightFormat::Int8(blocks(32, ZeroPoint::Implied)), Compute::Int8, 37, 64),
        (WeightFormat::Int8(blocks(64, ZeroPoint::Float)), Compute::Int8, 17, 70),
        (WeightFormat::Int8(blocks(32, ZeroPoint::Code)), Compute::Bf16, 20, 35),
        (WeightFormat::F16, Compute::F32, 37, 19),
        (WeightFormat::Bf16, Compute::Bf16, 40, 8),
    ];
    for (format, compute, channels, reduction) in cases {
        let layout = PackedLayout { channels, reduction, format };
        let spec = MatmulSpec::new(layout, compute);
        for rows in [1, 2, 3, 9, 13] {
            let expected = product(&spec, IsaLevel::Portable, rows, true);
            for level in IsaLevel::ALL {
                if level != IsaLevel::Portable {
                    let interpreted = product(&spec, level, rows, false);
                    assert!(interpreted == expected, "{} with {rows} rows", spec.symbol(level));
                }
            }
        }
    }
}

/// The probes of arithmetic do as many turns as they are asked for, fault at nothing and leave no tile
/// behind, on levels that this machine lacks, too.
#[test]
fn probes_run_their_turns() {
    let image = probe_image().unwrap();
    for probe in Probe::ALL.into_iter().filter(|probe| *probe != Probe::Read) {
        let symbol = image.symbols.iter().find(|symbol| symbol.name == probe.symbol()).unwrap();
        let instructions = |turns: u64, passes: u64| {
            // A context of which only the place of the two numbers counts: they follow it.
            let mut context = vec![0; size_of::<StepContext>()];
            let numbers = processor::FIRST_ARGUMENT + context.len() as u64;
            let at = std::mem::offset_of!(StepContext, segment_weights);
            context[at..at + 8].copy_from_slice(&numbers.to_le_bytes());
            context.extend(turns.to_le_bytes());
            context.extend(passes.to_le_bytes());
            let arguments = vec![processor::Argument::Read(&context)];
            match processor::call(&image.bytes, symbol.offset as usize, arguments) {
                Ok(count) => count,
                Err(fault) => panic!("{}: {fault}", symbol.name),
            }
        };
        let once = instructions(1, 1);
        let turn = instructions(2, 1) - once;
        assert!((14..=26).contains(&turn), "{}: {turn} instructions", symbol.name);
        assert_eq!(instructions(3, 5), once + 14 * turn, "{}", symbol.name);
    }
}

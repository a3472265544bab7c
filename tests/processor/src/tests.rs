//! Programs whose results are known; the comparison with hardware is in `codegen`.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Argument, Fault, call};

fn program(build: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut code = CodeAssembler::new(64).unwrap();
    build(&mut code).unwrap();
    code.assemble(0).unwrap()
}

#[test]
fn loops_sum_and_arguments_beyond_six_lie_on_the_stack() {
    let code = program(|code| {
        let mut again = code.create_label();
        code.mov(rax, qword_ptr(rsp + 8))?;
        code.xor(ecx, ecx)?;
        code.set_label(&mut again)?;
        code.add(rcx, rax)?;
        code.dec(rax)?;
        code.jnz(again)?;
        code.mov(qword_ptr(rdi), rcx)?;
        code.ret()
    });
    let mut sum = [0; 8];
    let mut arguments = vec![Argument::Write(&mut sum)];
    arguments.extend((0..5).map(|_| Argument::Null));
    arguments.push(Argument::Count(100));
    call(&code, 0, arguments).unwrap();
    assert_eq!(u64::from_le_bytes(sum), 5050);
}

#[test]
fn accesses_beyond_an_argument_are_faults() {
    let code = program(|code| {
        code.vmovups(zmm0, zmmword_ptr(rdi + 1))?;
        code.vmovups(zmmword_ptr(rsi), zmm0)?;
        code.ret()
    });
    let (input, mut output) = ([0; 64], [0; 64]);
    let fault = call(&code, 0, vec![Argument::Read(&input), Argument::Write(&mut output)]);
    assert!(matches!(&fault, Err(Fault::Memory { place, .. }) if place.contains("argument 0 + 1")));
    let fault = call(&code, 0, vec![Argument::Read(&[0; 65]), Argument::Read(&input)]);
    assert!(matches!(&fault, Err(Fault::Memory { what: "writes", .. })), "{fault:?}");
}

#[test]
fn masked_lanes_are_not_touched() {
    let code = program(|code| {
        code.mov(eax, 0b101)?;
        code.kmovw(k1, eax)?;
        code.vmovups(zmm1.k1().z(), zmmword_ptr(rdi))?;
        code.vmovups(zmmword_ptr(rsi).k1(), zmm1)?;
        code.vzeroupper()?;
        code.ret()
    });
    let input: Vec<u8> = (0..12).collect();
    let mut output = [0xee; 12];
    call(&code, 0, vec![Argument::Read(&input), Argument::Write(&mut output)]).unwrap();
    assert_eq!(output, [0, 1, 2, 3, 0xee, 0xee, 0xee, 0xee, 8, 9, 10, 11]);
}

#[test]
fn the_callers_registers_must_come_back() {
    let code = program(|code| {
        code.mov(rbx, 1u64)?;
        code.ret()
    });
    assert!(matches!(call(&code, 0, Vec::new()), Err(Fault::Convention(_))));
}

#[test]
fn unknown_instructions_are_named() {
    let code = program(|code| {
        code.cpuid()?;
        code.ret()
    });
    let fault = call(&code, 0, Vec::new()).unwrap_err();
    assert!(fault.to_string().contains("cpuid"), "{fault}");
}

/// C += A · B with A unsigned and B signed bytes, by the manual's definition.
#[test]
fn tiles_multiply_bytes() {
    let (rows, units, columns) = (3usize, 5usize, 7usize);
    let mut configuration = [0u8; 64];
    configuration[0] = 1;
    for (tile, (tile_rows, row_bytes)) in
        [(rows, columns * 4), (rows, units * 4), (units, columns * 4)].into_iter().enumerate()
    {
        configuration[16 + 2 * tile] = row_bytes as u8;
        configuration[48 + tile] = tile_rows as u8;
    }
    let a: Vec<u8> = (0..rows * units * 4).map(|i| (i * 37 + 11) as u8).collect();
    let b: Vec<u8> = (0..units * columns * 4).map(|i| (i * 91 + 5) as u8).collect();
    let code = program(|code| {
        code.ldtilecfg(ptr(rdi))?;
        code.mov(rax, (units * 4) as i64)?;
        code.mov(r8, (columns * 4) as i64)?;
        code.tilezero(tmm0)?;
        code.tileloadd(tmm1, ptr(rsi + rax))?;
        code.tileloadd(tmm2, ptr(rdx + r8))?;
        code.tdpbusd(tmm0, tmm1, tmm2)?;
        code.tilestored(ptr(rcx + r8), tmm0)?;
        code.tilerelease()?;
        code.ret()
    });
    let mut c = vec![0; rows * columns * 4];
    let arguments = vec![
        Argument::Read(&configuration),
        Argument::Read(&a),
        Argument::Read(&b),
        Argument::Write(&mut c),
    ];
    call(&code, 0, arguments).unwrap();
    for row in 0..rows {
        for column in 0..columns {
            let expected: i32 = (0..units * 4)
                .map(|k| {
                    let b = b[(k / 4 * columns + column) * 4 + k % 4] as i8;
                    i32::from(a[row * units * 4 + k]) * i32::from(b)
                })
                .sum();
            let at = (row * columns + column) * 4;
            assert_eq!(i32::from_le_bytes(c[at..at + 4].try_into().unwrap()), expected);
        }
    }
}

#[test]
fn tiles_must_be_released() {
    let code = program(|code| {
        code.ldtilecfg(ptr(rdi))?;
        code.ret()
    });
    let mut configuration = [0u8; 64];
    configuration[0] = 1;
    assert!(call(&code, 0, vec![Argument::Read(&configuration)]).is_err());
}

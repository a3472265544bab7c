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

/// Machines that compare instructions with hardware seldom have this encoding, which AVX-VNNI is.
#[test]
fn bytes_are_multiplied_without_masks() {
    let code = program(|code| {
        for (at, register) in [ymm0, ymm1, ymm2].into_iter().enumerate() {
            code.vmovups(register, ymmword_ptr(rdi + 32 * at))?;
        }
        code.vex().vpdpbusd(ymm0, ymm1, ymm2)?;
        code.vex().vpdpbusd(ymm0, ymm1, ymmword_ptr(rdi + 64))?;
        code.vmovups(ymmword_ptr(rsi), ymm0)?;
        code.ret()
    });
    let input: Vec<u8> = (0..96u32).map(|i| (i * 97 + 13) as u8).collect();
    let mut output = [0; 32];
    call(&code, 0, vec![Argument::Read(&input), Argument::Write(&mut output)]).unwrap();
    for (lane, sum) in output.chunks_exact(4).enumerate() {
        let at = lane * 4;
        let before = i32::from_le_bytes(input[at..at + 4].try_into().unwrap());
        let products: i32 = (at..at + 4)
            .map(|byte| i32::from(input[32 + byte]) * i32::from(input[64 + byte] as i8))
            .sum();
        let expected = before.wrapping_add(2 * products);
        assert_eq!(i32::from_le_bytes(sum.try_into().unwrap()), expected);
    }
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

/// One product of every pair of signs: 0xff is 255 or -1, 0x80 is 128 or -128.
#[test]
fn tiles_take_signs_from_their_operands() {
    let mut configuration = [0u8; 64];
    configuration[0] = 1;
    for tile in 0..3 {
        configuration[16 + 2 * tile] = 4;
        configuration[48 + tile] = 1;
    }
    type Product = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let products: [(Product, i32); 4] = [
        (|code| code.tdpbssd(tmm0, tmm1, tmm2), -(-128)),
        (|code| code.tdpbsud(tmm0, tmm1, tmm2), -128),
        (|code| code.tdpbusd(tmm0, tmm1, tmm2), 255 * -128),
        (|code| code.tdpbuud(tmm0, tmm1, tmm2), 255 * 128),
    ];
    for (product, expected) in products {
        let code = program(|code| {
            code.ldtilecfg(ptr(rdi))?;
            code.tileloadd(tmm1, ptr(rsi))?;
            code.tileloadd(tmm2, ptr(rsi + 4))?;
            product(code)?;
            code.tilestored(ptr(rdx), tmm0)?;
            code.tilerelease()?;
            code.ret()
        });
        let operands = [0, 0xff, 0, 0, 0, 0x80, 0, 0];
        let mut sum = [0; 4];
        let arguments = vec![
            Argument::Read(&configuration),
            Argument::Read(&operands),
            Argument::Write(&mut sum),
        ];
        call(&code, 0, arguments).unwrap();
        assert_eq!(i32::from_le_bytes(sum), expected);
    }
}

/// What raises an exception in hardware, by the manual: each program is right but for one thing.
#[test]
fn misused_tiles_are_faults() {
    /// Runs products of 2 x 8 bytes by 2 x 12 bytes, changed by both.
    fn run(
        change: impl Fn(&mut [u8; 64]),
        product: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> Result<u64, Fault> {
        let mut configuration = [0u8; 64];
        configuration[0] = 1;
        for (tile, (rows, row_bytes)) in [(2, 12), (2, 8), (2, 12)].into_iter().enumerate() {
            configuration[16 + 2 * tile] = row_bytes;
            configuration[48 + tile] = rows;
        }
        change(&mut configuration);
        let code = program(|code| {
            code.mov(rax, 12u64)?;
            code.ldtilecfg(ptr(rdi))?;
            code.tileloadd(tmm1, ptr(rsi + rax))?;
            code.tileloadd(tmm2, ptr(rsi + rax))?;
            product(code)?;
            code.tilerelease()?;
            code.ret()
        });
        let memory = [7; 24];
        call(&code, 0, vec![Argument::Read(&configuration), Argument::Read(&memory)])
    }
    let right = |code: &mut CodeAssembler| code.tdpbssd(tmm0, tmm1, tmm2);
    run(|_| (), right).unwrap();
    // Palette, restart, reserved bytes, more rows or bytes than a tile has, rows without bytes.
    for (at, byte) in [(0, 2), (1, 1), (2, 1), (15, 1), (32, 1), (47, 1), (56, 1), (63, 1)] {
        assert!(run(|configuration| configuration[at] = byte, right).is_err(), "byte {at}");
    }
    for (at, byte) in [(48, 17), (16, 65), (17, 1), (48, 0), (16, 0)] {
        assert!(run(|configuration| configuration[at] = byte, right).is_err(), "byte {at}");
    }
    // Shapes that do not fit each other, or memory.
    for (at, byte) in [(48, 1), (49, 1), (50, 1), (16, 8), (18, 4), (20, 8), (50, 3), (20, 13)] {
        assert!(run(|configuration| configuration[at] = byte, right).is_err(), "byte {at}");
    }
    // A tile without rows, one tile twice, no configuration.
    assert!(run(|_| (), |code| code.tilezero(tmm3)).is_err());
    assert!(run(|_| (), |code| code.tdpbssd(tmm0, tmm1, tmm1)).is_err());
    assert!(run(|_| (), |code| code.tdpbssd(tmm1, tmm1, tmm2)).is_err());
    let released = |code: &mut CodeAssembler| {
        code.tilerelease()?;
        right(code)
    };
    assert!(run(|_| (), released).is_err());
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

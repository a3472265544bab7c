//! The assembled version in 256-bit vectors.
//!
//! The places of a row's heads lie far from each other and seldom in a cache, so all of them are
//! asked for before the first is written: a step of 16 sequences waits for its writes otherwise. A
//! key's numbers go one by one to their places in its block, sixteen numbers from each other; `codes`
//! has those that are rounded to codes. Where the next four rows are those of a quad of codes, they are
//! written together.

mod rows;

use std::mem::offset_of;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, LayerCall, RowSpans, StepContext};

use self::rows::{Rows, has_quads, leave_unless_quad};
use super::{AppendSpec, codes};
use crate::kernels::attention::{CacheType, QUAD, narrow};

pub(super) type Emitted = Result<(), IcedError>;

/// Floats of a vector.
pub(super) const LANES: usize = 8;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

const CONTEXT: AsmRegister64 = rdi;
/// The row's keys and values.
const KEYS: AsmRegister64 = rsi;
const VALUES: AsmRegister64 = rdx;
/// Tables, and in them the row's angles.
const COSINES: AsmRegister64 = rcx;
const SINES: AsmRegister64 = r8;
const ROW_COSINES: AsmRegister64 = r12;
const ROW_SINES: AsmRegister64 = r13;
/// Number of the row's angles.
const ROTARY_ROW: AsmRegister64 = rbx;
/// The first row; then rows left.
const LEFT: AsmRegister64 = r9;
const LAYER: AsmRegister64 = r10;
const SPAN: AsmRegister64 = r11;
/// A head, its place, from place to place, heads left.
const FROM: AsmRegister64 = rax;
const TO: AsmRegister64 = r14;
const HEAD_STRIDE: AsmRegister64 = r15;
const HEADS: AsmRegister64 = rbp;
/// Free between rows, when the context has been read.
const SPARE: AsmRegister64 = rdi;
/// From the first code of a row and head to its scale.
const TO_SCALE: AsmRegister64 = rdi;
/// The row that lies aside on the stack.
const ASIDE: AsmRegister64 = rsp;

const SAVED: [AsmRegister64; 6] = [rbx, rbp, r12, r13, r14, r15];

/// What the kernel keeps on the stack behind the row that lies aside and its constants.
struct Frame {
    begin: usize,
}

impl Frame {
    fn of(begin: usize) -> Frame {
        Frame { begin }
    }

    /// The stack pointer that was.
    fn stack_before(&self) -> AsmMemoryOperand {
        qword_ptr(ASIDE + self.begin)
    }

    /// The first head that is written.
    fn first_head(&self) -> AsmMemoryOperand {
        qword_ptr(ASIDE + self.begin + 8)
    }

    /// How many are.
    fn heads(&self) -> AsmMemoryOperand {
        qword_ptr(ASIDE + self.begin + 16)
    }
}

/// Constants in every lane of their registers.
fn constants(number: CacheType) -> Vec<(AsmRegisterYmm, u32)> {
    if number.is_coded() { codes::constants() } else { narrow::constants(number) }
}

/// One of the cache's two planes.
struct Plane {
    is_key: bool,
    rows: AsmRegister64,
    /// Floats from row to row, and from head to head.
    row_floats: usize,
    head_floats: usize,
    width: usize,
    /// Bytes of a row and head, and of its numbers alone.
    row_bytes: usize,
    bytes: usize,
    base: usize,
    slot_stride: usize,
    head_stride: usize,
    /// How far a head's rows of the ring's format lie from its first, where that is not the same.
    ring: Option<usize>,
}

fn planes(spec: &AppendSpec, is_ring: bool) -> [Plane; 2] {
    [
        Plane {
            is_key: true,
            rows: KEYS,
            row_floats: spec.key.0,
            head_floats: spec.key.1,
            width: spec.cache.key_width,
            row_bytes: spec.cache.key_bytes(),
            bytes: spec.cache.bytes_of(true),
            base: offset_of!(LayerCall, keys),
            slot_stride: offset_of!(LayerCall, key_slot_stride),
            head_stride: offset_of!(LayerCall, key_head_stride),
            ring: is_ring.then_some(offset_of!(LayerCall, key_ring)),
        },
        Plane {
            is_key: false,
            rows: VALUES,
            row_floats: spec.value.0,
            head_floats: spec.value.1,
            width: spec.cache.value_width,
            row_bytes: spec.cache.value_bytes(),
            bytes: spec.cache.bytes_of(false),
            base: offset_of!(LayerCall, values),
            slot_stride: offset_of!(LayerCall, value_slot_stride),
            head_stride: offset_of!(LayerCall, value_head_stride),
            ring: is_ring.then_some(offset_of!(LayerCall, value_ring)),
        },
    ]
}

/// Bytes of a key that lies aside: of codes if it is rotated on its way.
fn bytes_aside(spec: &AppendSpec) -> usize {
    match (spec.cache.number.is_coded(), spec.rotation) {
        (true, Some(_)) => spec.cache.key_width * 4,
        _ => 0,
    }
}

/// Goes on by so many rows; the zero flag says whether none is left.
fn go_on(code: &mut CodeAssembler, row_strides: &[(AsmRegister64, usize)], rows: usize) -> Emitted {
    for (place, bytes) in row_strides {
        code.add(*place, (rows * bytes) as i32)?;
    }
    code.sub(LEFT, rows as i32)
}

/// Emits the whole kernel; `is_ring` if it writes the ring's part of a cache with two.
pub(super) fn assemble(code: &mut CodeAssembler, spec: &AppendSpec, is_ring: bool) -> Emitted {
    let number = spec.cache.number;
    let [mut next_row, mut written, mut done, mut data] = [(); 4].map(|()| code.create_label());
    let row_strides = [
        (KEYS, spec.key.0 * 4),
        (VALUES, spec.value.0 * 4),
        (SPAN, size_of::<RowSpans>()),
        (ROTARY_ROW, 4),
    ];
    for register in SAVED {
        code.push(register)?;
    }
    // Behind what is saved and the address to return to: the row behind the last, the first head, the
    // head behind the last.
    let [last_row, first_head, last_head] =
        [0, 1, 2].map(|number| qword_ptr(rsp + (SAVED.len() + 1 + number) * 8));
    code.mov(HEAD_STRIDE, first_head)?;
    code.mov(TO, last_head)?;
    code.sub(TO, HEAD_STRIDE)?;
    code.jle(done)?;
    code.mov(rax, last_row)?;
    code.sub(rax, LEFT)?;
    code.jle(done)?;
    code.mov(LAYER, qword_ptr(CONTEXT + offset_of!(StepContext, layer)))?;
    code.mov(ROTARY_ROW, qword_ptr(CONTEXT + offset_of!(StepContext, rotary_rows)))?;
    code.mov(SPAN, qword_ptr(LAYER + offset_of!(LayerCall, spans)))?;
    for (place, bytes) in row_strides {
        code.imul_3(SPARE, LEFT, bytes as i32)?;
        code.add(place, SPARE)?;
    }
    code.mov(LEFT, rax)?;
    for (place, head_floats) in [(KEYS, spec.key.1), (VALUES, spec.value.1)] {
        code.imul_3(SPARE, HEAD_STRIDE, head_floats as i32 * 4)?;
        code.add(place, SPARE)?;
    }
    let aside = bytes_aside(spec);
    let stacked = codes::stacked_constants(number);
    // Whole lines, constants and codes of a quad behind them, and above these the heads and the stack
    // pointer that was.
    let stage = aside + stacked.len() * codes::VECTOR;
    let has_quads = has_quads(spec);
    let frame = Frame::of(stage + if has_quads { QUAD * rows::stage_row(spec) } else { 0 });
    code.mov(SPARE, rsp)?;
    code.sub(rsp, (frame.begin + LINE) as i32)?;
    code.and(rsp, -(LINE as i32))?;
    code.mov(frame.stack_before(), SPARE)?;
    code.mov(frame.first_head(), HEAD_STRIDE)?;
    code.mov(frame.heads(), TO)?;
    let constants = constants(number);
    if !constants.is_empty() {
        code.lea(SPARE, ptr(data))?;
        for index in 0..stacked.len() {
            code.vbroadcastss(ymm0, dword_ptr(SPARE + (constants.len() + index) * 4))?;
            code.vmovaps(ymmword_ptr(ASIDE + (aside + index * codes::VECTOR)), ymm0)?;
        }
        for (index, (register, _)) in constants.iter().enumerate() {
            code.vbroadcastss(*register, dword_ptr(SPARE + index * 4))?;
        }
    }
    let rows = Rows { spec, planes: planes(spec, is_ring), frame: &frame, aside, stage };
    code.set_label(&mut next_row)?;
    if has_quads {
        let mut single = code.create_label();
        leave_unless_quad(code, single)?;
        rows.write_quad(code)?;
        go_on(code, &row_strides, QUAD)?;
        code.jnz(next_row)?;
        code.jmp(written)?;
        code.set_label(&mut single)?;
    }
    rows.write_row(code)?;
    go_on(code, &row_strides, 1)?;
    code.jnz(next_row)?;
    code.set_label(&mut written)?;
    code.mov(rsp, frame.stack_before())?;

    code.set_label(&mut done)?;
    code.vzeroupper()?;
    for register in SAVED.into_iter().rev() {
        code.pop(register)?;
    }
    code.ret()?;
    if !constants.is_empty() {
        code.set_label(&mut data)?;
        for word in constants.into_iter().map(|(_, word)| word).chain(stacked) {
            code.dd(&[word])?;
        }
    }
    Ok(())
}

/// Eight floats from the one with this number on.
pub(super) fn floats(base: AsmRegister64, number: usize) -> AsmMemoryOperand {
    ymmword_ptr(base + number * 4)
}

/// The place of the first number of the first head that is written, and how far the next head's is; of codes
/// how far the scale is, too.
fn places(code: &mut CodeAssembler, plane: &Plane, number: CacheType, frame: &Frame) -> Emitted {
    let is_coded = number.is_coded();
    code.mov(r14d, dword_ptr(SPAN + offset_of!(RowSpans, write_slot)))?;
    code.imul_2(TO, qword_ptr(LAYER + plane.slot_stride))?;
    code.mov(edi, dword_ptr(SPAN + offset_of!(RowSpans, write_row)))?;
    if plane.is_key || is_coded {
        // The row's lane in its block, then the block's first row.
        code.mov(r15d, edi)?;
        code.and(r15d, KEY_BLOCK as i32 - 1)?;
        code.sub(edi, r15d)?;
    }
    code.imul_3(SPARE, SPARE, plane.row_bytes as i32)?;
    code.add(TO, SPARE)?;
    code.add(TO, qword_ptr(LAYER + plane.base))?;
    if let Some(ring) = plane.ring {
        code.add(TO, qword_ptr(LAYER + ring))?;
    }
    if is_coded {
        // Scales lie behind the block's codes.
        code.lea(rax, TO + r15 * number.scale_bytes() as i32 + (plane.bytes * KEY_BLOCK))?;
    }
    match (is_coded, plane.is_key) {
        (false, false) => {}
        (false, true) => {
            code.imul_3(r15, r15, number.bytes() as i32)?;
            code.add(TO, r15)?;
        }
        (true, true) => code.lea(TO, TO + r15 * QUAD as i32)?,
        (true, false) => {
            // The row among its four, then the four's first row.
            code.mov(edi, r15d)?;
            code.and(edi, QUAD as i32 - 1)?;
            code.sub(r15d, edi)?;
            code.imul_3(r15, r15, plane.bytes as i32)?;
            code.add(TO, SPARE)?;
            code.add(TO, r15)?;
        }
    }
    if is_coded {
        code.sub(rax, TO)?;
        code.mov(TO_SCALE, rax)?;
    }
    code.mov(HEAD_STRIDE, qword_ptr(LAYER + plane.head_stride))?;
    code.mov(rax, frame.first_head())?;
    code.imul_2(rax, HEAD_STRIDE)?;
    code.add(TO, rax)
}

fn each_head(
    code: &mut CodeAssembler,
    frame: &Frame,
    body: impl FnOnce(&mut CodeAssembler) -> Emitted,
) -> Emitted {
    let mut next = code.create_label();
    code.mov(HEADS, frame.heads())?;
    code.set_label(&mut next)?;
    body(code)?;
    code.dec(HEADS)?;
    code.jnz(next)
}

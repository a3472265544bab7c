//! The assembled version in 256-bit vectors.
//!
//! The places of a row's heads lie far from each other and seldom in a cache, so all of them are
//! asked for before the first is written: a step of 16 sequences waits for its writes otherwise. A
//! key's numbers go one by one to their places in its block, sixteen numbers from each other; `codes`
//! has those that are rounded to codes. Where the next four rows are those of a quad of codes, they are
//! written together.

use std::mem::offset_of;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, LayerCall, RowSpans, StepContext};

use super::AppendSpec;
use super::codes::{self, CodePlace, SIXTEEN};
use crate::kernels::attention::{CacheType, QUAD, narrow};
use crate::kernels::rotary::Rotation;

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

/// Most numbers of a head whose rows are written by fours: the code of four rows is four times as long.
const MOST_OF_QUADS: usize = 256;

/// Whether rows of a quad are written together.
fn has_quads(spec: &AppendSpec) -> bool {
    let is_whole = |width: usize| width.is_multiple_of(SIXTEEN) && width <= MOST_OF_QUADS;
    spec.cache.number == CacheType::Int8
        && is_whole(spec.cache.key_width)
        && is_whole(spec.cache.value_width)
}

/// Goes elsewhere unless the next four rows are those of a quad.
fn leave_unless_quad(code: &mut CodeAssembler, elsewhere: CodeLabel) -> Emitted {
    let [slot, row] = [offset_of!(RowSpans, write_slot), offset_of!(RowSpans, write_row)];
    code.cmp(LEFT, QUAD as i32)?;
    code.jl(elsewhere)?;
    code.mov(r14d, dword_ptr(SPAN + row))?;
    code.test(r14d, QUAD as i32 - 1)?;
    code.jnz(elsewhere)?;
    code.mov(r15d, dword_ptr(SPAN + slot))?;
    for other in 1..QUAD {
        let span = other * size_of::<RowSpans>();
        code.cmp(r15d, dword_ptr(SPAN + (span + slot)))?;
        code.jne(elsewhere)?;
        code.inc(r14d)?;
        code.cmp(r14d, dword_ptr(SPAN + (span + row)))?;
        code.jne(elsewhere)?;
    }
    Ok(())
}

/// Finds the angles of the next row, or of one behind it.
fn angles(code: &mut CodeAssembler, rotation: Rotation, row: usize) -> Emitted {
    code.mov(r12d, dword_ptr(ROTARY_ROW + row * 4))?;
    code.imul_3(ROW_COSINES, ROW_COSINES, (rotation.width / 2 * 4) as i32)?;
    code.lea(ROW_SINES, SINES + ROW_COSINES)?;
    code.add(ROW_COSINES, COSINES)
}

/// Emits the whole kernel; `is_ring` if it writes the ring's part of a cache with two.
pub(super) fn assemble(code: &mut CodeAssembler, spec: &AppendSpec, is_ring: bool) -> Emitted {
    let number = spec.cache.number;
    let is_coded = number.is_coded();
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
    let stage_row = spec.cache.key_width.max(spec.cache.value_width);
    let frame = Frame::of(stage + if has_quads { QUAD * stage_row } else { 0 });
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
    let code_place = |plane: &Plane| CodePlace {
        is_key: plane.is_key,
        first: TO,
        to_scale: TO_SCALE,
        number,
        constants: aside,
        of_quad: None,
    };
    let ask = |code: &mut CodeAssembler| {
        planes(spec, is_ring).into_iter().try_for_each(|plane| {
            places(code, &plane, number, &frame)?;
            let rows = if plane.is_key { KEY_BLOCK } else { 1 };
            each_head(code, &frame, |code| {
                if is_coded {
                    code_place(&plane).prefetch(code, plane.bytes)?;
                } else {
                    for line in 0..(plane.width * rows * number.bytes()).div_ceil(LINE) {
                        code.prefetchw(byte_ptr(TO + line * LINE))?;
                    }
                }
                code.add(TO, HEAD_STRIDE)
            })
        })
    };
    // A row of a head is rotated, and seen; aside if it is a key of codes.
    let see = |code: &mut CodeAssembler, plane: &Plane, to: Place, before: usize| {
        let rotated = match spec.rotation.filter(|_| plane.is_key) {
            Some(Rotation { width, interleaved: true }) => {
                neighbours(code, to, before, width)?;
                width
            }
            Some(Rotation { width, interleaved: false }) => {
                halves(code, to, before, width / 2)?;
                width
            }
            None => 0,
        };
        (rotated..plane.width).step_by(LANES).try_for_each(|at| {
            code.vmovups(ymm4, floats(FROM, before + at))?;
            to.store(code, ymm4, at)
        })
    };
    let place_of = |plane: &Plane| match is_coded {
        true => Place::Codes { is_aside: plane.is_key && aside > 0 },
        false => Place::Cache { number, step: if plane.is_key { KEY_BLOCK } else { 1 } },
    };
    let source = |plane: &Plane, before: usize| match plane.is_key && aside > 0 {
        true => (ASIDE, 0),
        false => (FROM, before),
    };

    code.set_label(&mut next_row)?;
    if has_quads {
        let mut single = code.create_label();
        leave_unless_quad(code, single)?;
        ask(code)?;
        for plane in planes(spec, is_ring) {
            places(code, &plane, number, &frame)?;
            code.mov(FROM, plane.rows)?;
            let stages = [0, 1, 2, 3].map(|row| stage + row * stage_row);
            each_head(code, &frame, |code| {
                for (row, stage) in stages.into_iter().enumerate() {
                    let before = row * plane.row_floats;
                    codes::begin(code)?;
                    if let Some(rotation) = spec.rotation.filter(|_| plane.is_key) {
                        angles(code, rotation, row)?;
                    }
                    see(code, &plane, place_of(&plane), before)?;
                    let place = CodePlace { of_quad: Some((row, stage)), ..code_place(&plane) };
                    place.write(code, source(&plane, before), plane.width)?;
                }
                codes::interleave(code, code_place(&plane), stages, plane.width)?;
                code.add(FROM, plane.head_floats as i32 * 4)?;
                code.add(TO, HEAD_STRIDE)
            })?;
        }
        for (place, bytes) in row_strides {
            code.add(place, (QUAD * bytes) as i32)?;
        }
        code.sub(LEFT, QUAD as i32)?;
        code.jnz(next_row)?;
        code.jmp(written)?;
        code.set_label(&mut single)?;
    }
    ask(code)?;
    if let Some(rotation) = spec.rotation {
        angles(code, rotation, 0)?;
    }
    for plane in planes(spec, is_ring) {
        places(code, &plane, number, &frame)?;
        code.mov(FROM, plane.rows)?;
        each_head(code, &frame, |code| {
            if is_coded {
                codes::begin(code)?;
            }
            see(code, &plane, place_of(&plane), 0)?;
            if is_coded {
                code_place(&plane).write(code, source(&plane, 0), plane.width)?;
            }
            code.add(FROM, plane.head_floats as i32 * 4)?;
            code.add(TO, HEAD_STRIDE)
        })?;
    }
    for (place, bytes) in row_strides {
        code.add(place, bytes as i32)?;
    }
    code.dec(LEFT)?;
    code.jnz(next_row)?;
    if has_quads {
        code.set_label(&mut written)?;
    }
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

/// Rotates pairs (i, i + half) of the row that many floats behind.
fn halves(code: &mut CodeAssembler, to: Place, before: usize, half: usize) -> Emitted {
    for at in (0..half).step_by(LANES) {
        code.vmovups(ymm0, floats(FROM, before + at))?;
        code.vmovups(ymm1, floats(FROM, before + half + at))?;
        code.vmovups(ymm2, floats(ROW_COSINES, at))?;
        code.vmovups(ymm3, floats(ROW_SINES, at))?;
        code.vmulps(ymm4, ymm0, ymm2)?;
        code.vmulps(ymm5, ymm1, ymm3)?;
        code.vmulps(ymm6, ymm1, ymm2)?;
        code.vmulps(ymm7, ymm0, ymm3)?;
        code.vsubps(ymm4, ymm4, ymm5)?;
        code.vaddps(ymm6, ymm6, ymm7)?;
        to.store(code, ymm4, at)?;
        to.store(code, ymm6, half + at)?;
    }
    Ok(())
}

/// Rotates pairs (2i, 2i + 1) likewise.
fn neighbours(code: &mut CodeAssembler, to: Place, before: usize, width: usize) -> Emitted {
    for at in (0..width).step_by(LANES) {
        // Each angle in two lanes.
        for (angles, table) in [(ymm2, ROW_COSINES), (ymm3, ROW_SINES)] {
            code.vpmovzxdq(angles, xmmword_ptr(table + at / 2 * 4))?;
            code.vmovsldup(angles, angles)?;
        }
        code.vmovups(ymm0, floats(FROM, before + at))?;
        code.vpermilps(ymm1, ymm0, 0b10_11_00_01)?;
        code.vmulps(ymm4, ymm0, ymm2)?;
        code.vmulps(ymm5, ymm1, ymm3)?;
        // Subtracts in even lanes, adds in odd ones.
        code.vaddsubps(ymm4, ymm4, ymm5)?;
        to.store(code, ymm4, at)?;
    }
    Ok(())
}

/// Where a head's numbers go.
#[derive(Clone, Copy)]
enum Place {
    /// Into the cache.
    Cache {
        number: CacheType,
        /// Numbers from one of the head's to the next.
        step: usize,
    },
    /// Nowhere yet, but aside if they are not their row's own: codes need the largest of all.
    Codes { is_aside: bool },
}

impl Place {
    /// Takes eight floats, the head's from number `first` on. Spoils them and the first two
    /// registers.
    fn store(self, code: &mut CodeAssembler, value: AsmRegisterYmm, first: usize) -> Emitted {
        let (number, step) = match self {
            Place::Cache { number, step } => (number, step),
            Place::Codes { is_aside } => {
                if is_aside {
                    code.vmovaps(floats(ASIDE, first), value)?;
                }
                return codes::see(code, value);
            }
        };
        let at = |index: usize| TO + index * step * number.bytes();
        let is_dense = step == 1;
        if number == CacheType::F32 {
            if is_dense {
                return code.vmovups(ymmword_ptr(at(first)), value);
            }
            code.vextractf128(xmm1, value, 1)?;
            code.vextractf128(xmm0, value, 0)?;
            for lane in 0..LANES {
                let half = [xmm0, xmm1][lane / 4];
                code.vextractps(dword_ptr(at(first + lane)), half, lane as i32 % 4)?;
            }
            return Ok(());
        }
        narrow::narrow(code, number, value)?;
        if is_dense {
            return code.vmovups(xmmword_ptr(at(first)), xmm1);
        }
        for lane in 0..LANES {
            code.vpextrw(word_ptr(at(first + lane)), xmm1, lane as i32)?;
        }
        Ok(())
    }
}

//! What is written of one row, and of the four rows of a quad: they are asked for, rotated, seen, and stored.

use std::mem::offset_of;

use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, RowSpans};

use super::{
    ASIDE, COSINES, Emitted, FROM, Frame, HEAD_STRIDE, LANES, LEFT, LINE, Plane, ROTARY_ROW,
    ROW_COSINES, ROW_SINES, SINES, SPAN, TO, TO_SCALE, each_head, floats, places,
};
use crate::kernels::append::AppendSpec;
use crate::kernels::append::codes::{self, CodePlace, SIXTEEN};
use crate::kernels::attention::{CacheType, QUAD, narrow};
use crate::kernels::rotary::Rotation;

/// Most numbers of a head whose rows are written by fours: the code of four rows is four times as long.
const MOST_OF_QUADS: usize = 256;

/// Whether rows of a quad are written together.
pub(super) fn has_quads(spec: &AppendSpec) -> bool {
    let is_whole = |width: usize| width.is_multiple_of(SIXTEEN) && width <= MOST_OF_QUADS;
    spec.cache.number == CacheType::Int8
        && is_whole(spec.cache.key_width)
        && is_whole(spec.cache.value_width)
}

/// Goes elsewhere unless the next four rows are those of a quad.
pub(super) fn leave_unless_quad(code: &mut CodeAssembler, elsewhere: CodeLabel) -> Emitted {
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

/// Bytes from the codes of a row of a quad to the next's on the stack.
pub(super) fn stage_row(spec: &AppendSpec) -> usize {
    spec.cache.key_width.max(spec.cache.value_width)
}

/// What a kernel writes.
pub(super) struct Rows<'a> {
    pub(super) spec: &'a AppendSpec,
    pub(super) planes: [Plane; 2],
    pub(super) frame: &'a Frame,
    /// Bytes of the key that lies aside, in front of all else on the stack.
    pub(super) aside: usize,
    /// Where the codes of a quad's rows lie there.
    pub(super) stage: usize,
}

impl Rows<'_> {
    /// The next row, head by head.
    pub(super) fn write_row(&self, code: &mut CodeAssembler) -> Emitted {
        self.ask(code)?;
        if let Some(rotation) = self.spec.rotation {
            angles(code, rotation, 0)?;
        }
        self.each_plane(code, |code, plane| {
            let is_coded = self.number().is_coded();
            if is_coded {
                codes::begin(code)?;
            }
            self.see(code, plane, 0)?;
            if is_coded {
                self.code_place(plane).write(code, self.seen(plane, 0), plane.width)?;
            }
            Ok(())
        })
    }

    /// The next four rows, which are a quad, head by head.
    pub(super) fn write_quad(&self, code: &mut CodeAssembler) -> Emitted {
        let stages = [0, 1, 2, 3].map(|row| self.stage + row * stage_row(self.spec));
        self.ask(code)?;
        self.each_plane(code, |code, plane| {
            for (row, stage) in stages.into_iter().enumerate() {
                let before = row * plane.row_floats;
                codes::begin(code)?;
                if let Some(rotation) = self.spec.rotation.filter(|_| plane.is_key) {
                    angles(code, rotation, row)?;
                }
                self.see(code, plane, before)?;
                let place = CodePlace { of_quad: Some((row, stage)), ..self.code_place(plane) };
                place.write(code, self.seen(plane, before), plane.width)?;
            }
            codes::interleave(code, self.code_place(plane), stages, plane.width)
        })
    }

    fn number(&self) -> CacheType {
        self.spec.cache.number
    }

    /// Where the codes of a head go.
    fn code_place(&self, plane: &Plane) -> CodePlace {
        CodePlace {
            is_key: plane.is_key,
            first: TO,
            to_scale: TO_SCALE,
            number: self.number(),
            constants: self.aside,
            of_quad: None,
        }
    }

    /// Asks for the lines of all heads, to be written.
    fn ask(&self, code: &mut CodeAssembler) -> Emitted {
        let number = self.number();
        for plane in &self.planes {
            places(code, plane, number, self.frame)?;
            let rows = if plane.is_key { KEY_BLOCK } else { 1 };
            each_head(code, self.frame, |code| {
                if number.is_coded() {
                    self.code_place(plane).prefetch(code, plane.bytes)?;
                } else {
                    for line in 0..(plane.width * rows * number.bytes()).div_ceil(LINE) {
                        code.prefetchw(byte_ptr(TO + line * LINE))?;
                    }
                }
                code.add(TO, HEAD_STRIDE)
            })?;
        }
        Ok(())
    }

    /// For each head of both planes.
    fn each_plane(
        &self,
        code: &mut CodeAssembler,
        write: impl Fn(&mut CodeAssembler, &Plane) -> Emitted,
    ) -> Emitted {
        for plane in &self.planes {
            places(code, plane, self.number(), self.frame)?;
            code.mov(FROM, plane.rows)?;
            each_head(code, self.frame, |code| {
                write(code, plane)?;
                code.add(FROM, plane.head_floats as i32 * 4)?;
                code.add(TO, HEAD_STRIDE)
            })?;
        }
        Ok(())
    }

    /// Rotates the head's numbers of the row that lies `before` floats behind the first; then they go into
    /// the cache, or, where it holds codes, the largest is found.
    fn see(&self, code: &mut CodeAssembler, plane: &Plane, before: usize) -> Emitted {
        let number = self.number();
        let to = match number.is_coded() {
            true => Place::Codes { is_aside: self.is_aside(plane) },
            false => Place::Cache { number, step: if plane.is_key { KEY_BLOCK } else { 1 } },
        };
        let rotated = match self.spec.rotation.filter(|_| plane.is_key) {
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
        for at in (rotated..plane.width).step_by(LANES) {
            code.vmovups(ymm4, floats(FROM, before + at))?;
            to.store(code, ymm4, at)?;
        }
        Ok(())
    }

    fn is_aside(&self, plane: &Plane) -> bool {
        plane.is_key && self.aside > 0
    }

    /// Where the numbers lie that were seen.
    fn seen(&self, plane: &Plane, before: usize) -> (AsmRegister64, usize) {
        if self.is_aside(plane) { (ASIDE, 0) } else { (FROM, before) }
    }
}

/// Rotates pairs (i, i + half) of the row that lies `before` floats behind the first.
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

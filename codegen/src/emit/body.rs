//! The vocabulary in which kernels and segments are written.
//!
//! One method is one step of the mathematics: a value, an access to memory, a loop, a call, the
//! team. Sums have a fixed order, so that a result depends on nothing but its inputs. What is not
//! here is reached through [`Body::ins`].

use std::collections::BTreeMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{
    Block, BlockArg, FuncRef, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Type, Value,
    types,
};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FuncInstBuilder, FunctionBuilder};
use weir_abi::{Fault, StepContext, TakeOf};

use super::assembly::Declaration;
use super::{FuncId, signature};

/// A pointer, a count or an index.
pub const POINTER: Type = types::I64;
/// A 32-bit integer.
pub const INT: Type = types::I32;
/// A float.
pub const FLOAT: Type = types::F32;
/// Four floats.
pub const LANES: Type = types::F32X4;
/// Four 32-bit integers.
pub const INTS: Type = types::I32X4;
/// Sixteen bytes.
pub const BYTES: Type = types::I8X16;

/// Work of which threads take parts. See [`weir_abi::Take`].
pub struct Work {
    /// Its number between two barriers.
    pub number: Value,
    /// Its items.
    pub items: Value,
    /// Of how many items a part has whole multiples where it can.
    pub together: u32,
    /// Of whose share parts are taken.
    pub of: TakeOf,
}

/// How many elements one turn of a loop handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// One.
    One,
    /// Four, in one vector.
    Four,
}

impl Lanes {
    /// Number of elements.
    pub fn count(self) -> i64 {
        match self {
            Lanes::One => 1,
            Lanes::Four => 4,
        }
    }

    /// Float type.
    pub fn float(self) -> Type {
        match self {
            Lanes::One => FLOAT,
            Lanes::Four => LANES,
        }
    }

    /// 32-bit integer type.
    pub fn int(self) -> Type {
        match self {
            Lanes::One => INT,
            Lanes::Four => INTS,
        }
    }
}

/// A function body being written.
pub struct Body<'a> {
    pub(super) builder: FunctionBuilder<'a>,
    pub(super) declarations: &'a [Declaration],
    pub(super) imported: BTreeMap<FuncId, FuncRef>,
    entry: Block,
}

/// Memory of kernels is planned and never traps; weights and rows need not be 16-byte aligned.
fn memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

fn bits() -> MemFlagsData {
    MemFlagsData::new().with_endianness(cranelift_codegen::ir::Endianness::Little)
}

fn arguments(values: &[Value]) -> Vec<BlockArg> {
    values.iter().map(|value| BlockArg::Value(*value)).collect()
}

impl<'a> Body<'a> {
    pub(super) fn new(
        builder: FunctionBuilder<'a>,
        entry: Block,
        declarations: &'a [Declaration],
    ) -> Self {
        Self { builder, declarations, imported: BTreeMap::new(), entry }
    }

    pub(super) fn finish(mut self, config: TargetFrontendConfig) {
        self.builder.seal_all_blocks();
        self.builder.finalize(config);
    }

    /// Cranelift's instructions, for what the vocabulary lacks.
    pub fn ins(&mut self) -> FuncInstBuilder<'_, 'a> {
        self.builder.ins()
    }

    /// Cranelift's builder.
    pub fn builder(&mut self) -> &mut FunctionBuilder<'a> {
        &mut self.builder
    }

    /// Type of a value.
    pub fn type_of(&self, value: Value) -> Type {
        self.builder.func.dfg.value_type(value)
    }

    // ---- parameters, return

    /// The function's parameters. `N` is their number.
    pub fn params<const N: usize>(&mut self) -> [Value; N] {
        let params = self.builder.block_params(self.entry);
        params.try_into().expect("a body asks for as many parameters as its signature has")
    }

    /// Parameters of a segment: context, thread and number of threads, the latter as `i64`.
    pub fn segment_params(&mut self) -> (Value, Value, Value) {
        let [context, thread, threads] = self.params();
        let thread = self.ins().uextend(POINTER, thread);
        let threads = self.ins().uextend(POINTER, threads);
        (context, thread, threads)
    }

    /// Ends the function.
    pub fn ret(&mut self, values: &[Value]) {
        self.ins().return_(values);
    }

    // ---- constants

    /// An `i64` constant.
    pub fn int(&mut self, value: i64) -> Value {
        self.ins().iconst(POINTER, value)
    }

    /// An `i32` constant.
    pub fn int32(&mut self, value: i32) -> Value {
        self.ins().iconst(INT, i64::from(value) & 0xffff_ffff)
    }

    /// A float constant.
    pub fn float(&mut self, value: f32) -> Value {
        self.ins().f32const(value)
    }

    /// A float constant in every lane of `ty` (`f32` or `f32x4`).
    pub fn constant(&mut self, ty: Type, value: f32) -> Value {
        let scalar = self.float(value);
        if ty == FLOAT { scalar } else { self.ins().splat(ty, scalar) }
    }

    /// An `i32` constant in every lane of `ty` (`i32` or `i32x4`).
    pub fn constant_int(&mut self, ty: Type, value: i32) -> Value {
        let scalar = self.int32(value);
        if ty == INT { scalar } else { self.ins().splat(ty, scalar) }
    }

    /// Sixteen bytes.
    pub fn constant_bytes(&mut self, bytes: [u8; 16]) -> Value {
        let constant = self.builder.func.dfg.constants.insert(bytes.to_vec().into());
        self.ins().vconst(BYTES, constant)
    }

    /// A scalar in all four lanes.
    pub fn splat(&mut self, scalar: Value) -> Value {
        let ty = self.type_of(scalar).by(4).expect("a scalar of 32 bits");
        self.ins().splat(ty, scalar)
    }

    /// A scalar in as many lanes as `lanes` has.
    pub fn spread(&mut self, lanes: Lanes, scalar: Value) -> Value {
        match lanes {
            Lanes::One => scalar,
            Lanes::Four => self.splat(scalar),
        }
    }

    // ---- integers and addresses

    /// a + b
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.ins().iadd(a, b)
    }

    /// a - b
    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.ins().isub(a, b)
    }

    /// a · b
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.ins().imul(a, b)
    }

    /// a + constant; for pointers, a number of bytes.
    pub fn add_const(&mut self, a: Value, constant: i64) -> Value {
        if constant == 0 { a } else { self.ins().iadd_imm_s(a, constant) }
    }

    /// a · constant
    pub fn mul_const(&mut self, a: Value, constant: i64) -> Value {
        match constant {
            1 => a,
            c if c > 0 && (c as u64).is_power_of_two() => {
                self.ins().ishl_imm_u(a, i64::from(c.trailing_zeros()))
            }
            c => self.ins().imul_imm_s(a, c),
        }
    }

    /// Address of element `index` of a run of elements of `bytes` bytes.
    pub fn element(&mut self, base: Value, index: Value, bytes: i64) -> Value {
        let offset = self.mul_const(index, bytes);
        self.add(base, offset)
    }

    /// min(a, b), signed.
    pub fn min(&mut self, a: Value, b: Value) -> Value {
        self.ins().smin(a, b)
    }

    /// max(a, b), signed.
    pub fn max(&mut self, a: Value, b: Value) -> Value {
        self.ins().smax(a, b)
    }

    /// A comparison of integers, as a condition.
    pub fn compare(&mut self, condition: IntCC, a: Value, b: Value) -> Value {
        self.ins().icmp(condition, a, b)
    }

    /// A comparison of an integer with a constant, as a condition.
    pub fn compare_const(&mut self, condition: IntCC, a: Value, constant: i64) -> Value {
        let ty = self.type_of(a);
        let constant = self.ins().iconst(ty, constant);
        self.ins().icmp(condition, a, constant)
    }

    /// `a` where the condition holds, `b` elsewhere; for lanes the condition is a mask.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let ty = self.type_of(a);
        if ty.is_vector() {
            let mask = self.bitcast(ty, condition);
            self.ins().bitselect(mask, a, b)
        } else {
            self.ins().select(condition, a, b)
        }
    }

    // ---- memory

    /// Loads a value of type `ty` at `address + offset`.
    pub fn load(&mut self, ty: Type, address: Value, offset: i32) -> Value {
        self.ins().load(ty, memory(), address, offset)
    }

    /// Loads an unsigned 32-bit value as an `i64`: an index or count in a call structure.
    pub fn load_count(&mut self, address: Value, offset: i32) -> Value {
        self.ins().uload32(memory(), address, offset)
    }

    /// Stores the low 32 bits of an `i64`: an index or count.
    pub fn store_count(&mut self, value: Value, address: Value, offset: i32) {
        self.ins().istore32(memory(), value, address, offset);
    }

    /// Stores a value at `address + offset`.
    pub fn store(&mut self, value: Value, address: Value, offset: i32) {
        self.ins().store(memory(), value, address, offset);
    }

    /// Stores the low 8 bits of an `i32` or `i64`.
    pub fn store8(&mut self, value: Value, address: Value, offset: i32) {
        self.ins().istore8(memory(), value, address, offset);
    }

    /// Stores the low 16 bits of an `i32` or `i64`.
    pub fn store16(&mut self, value: Value, address: Value, offset: i32) {
        self.ins().istore16(memory(), value, address, offset);
    }

    /// Room on the stack, 16-byte aligned, for the duration of the function.
    pub fn stack(&mut self, bytes: u32) -> Value {
        let slot = self.builder.create_sized_stack_slot(StackSlotData::new(
            StackSlotKind::ExplicitSlot,
            bytes,
            4,
        ));
        self.ins().stack_addr(POINTER, slot, 0)
    }

    // ---- floats: scalars and lanes alike

    /// a + b
    pub fn fadd(&mut self, a: Value, b: Value) -> Value {
        self.ins().fadd(a, b)
    }

    /// a - b
    pub fn fsub(&mut self, a: Value, b: Value) -> Value {
        self.ins().fsub(a, b)
    }

    /// a · b
    pub fn fmul(&mut self, a: Value, b: Value) -> Value {
        self.ins().fmul(a, b)
    }

    /// a / b
    pub fn fdiv(&mut self, a: Value, b: Value) -> Value {
        self.ins().fdiv(a, b)
    }

    /// a · b + c with one rounding.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.ins().fma(a, b, c)
    }

    /// min(a, b); not a number if either is.
    pub fn fmin(&mut self, a: Value, b: Value) -> Value {
        self.ins().fmin(a, b)
    }

    /// max(a, b); not a number if either is.
    pub fn fmax(&mut self, a: Value, b: Value) -> Value {
        self.ins().fmax(a, b)
    }

    /// |a|
    pub fn fabs(&mut self, a: Value) -> Value {
        self.ins().fabs(a)
    }

    /// -a
    pub fn fneg(&mut self, a: Value) -> Value {
        self.ins().fneg(a)
    }

    /// √a
    pub fn sqrt(&mut self, a: Value) -> Value {
        self.ins().sqrt(a)
    }

    /// A comparison of floats: a condition, or a mask for [`Body::select`].
    pub fn fcompare(&mut self, condition: FloatCC, a: Value, b: Value) -> Value {
        self.ins().fcmp(condition, a, b)
    }

    /// Signed 32-bit integers as floats, rounded to nearest even.
    pub fn to_float(&mut self, value: Value) -> Value {
        let ty = if self.type_of(value).is_vector() { LANES } else { FLOAT };
        self.ins().fcvt_from_sint(ty, value)
    }

    /// Floats that are whole numbers in the range of `i32` as integers (others saturate).
    pub fn to_int(&mut self, value: Value) -> Value {
        let ty = if self.type_of(value).is_vector() { INTS } else { INT };
        self.ins().fcvt_to_sint_sat(ty, value)
    }

    /// Rounds to the nearest whole number, ties to even.
    pub fn round(&mut self, value: Value) -> Value {
        self.ins().nearest(value)
    }

    /// The same bits as another type of the same width.
    pub fn bitcast(&mut self, ty: Type, value: Value) -> Value {
        if self.type_of(value) == ty { value } else { self.ins().bitcast(ty, bits(), value) }
    }

    /// One lane of a vector.
    pub fn lane(&mut self, vector: Value, lane: u8) -> Value {
        self.ins().extractlane(vector, lane)
    }

    fn fold_lanes(&mut self, v: Value, op: fn(&mut Self, Value, Value) -> Value) -> Value {
        let [l0, l1, l2, l3] = [0, 1, 2, 3].map(|lane| self.lane(v, lane));
        let even = op(self, l0, l2);
        let odd = op(self, l1, l3);
        op(self, even, odd)
    }

    /// (l0 + l2) + (l1 + l3), always in this order.
    pub fn sum_lanes(&mut self, vector: Value) -> Value {
        self.fold_lanes(vector, Self::fadd)
    }

    /// The largest lane; not a number if any is.
    pub fn max_lanes(&mut self, vector: Value) -> Value {
        self.fold_lanes(vector, Self::fmax)
    }

    // ---- control

    /// For `index` in `begin .. end` by `step`. The bounds are signed.
    pub fn for_range(
        &mut self,
        begin: Value,
        end: Value,
        step: i64,
        body: impl FnOnce(&mut Self, Value),
    ) {
        self.fold_range(begin, end, step, &[], |b, index, _| {
            body(b, index);
            Vec::new()
        });
    }

    /// For `index` in `0 .. count` by `step`, where the count is known to the compiler. No loop is
    /// made for zero or one turn.
    pub fn for_count(&mut self, count: i64, step: i64, body: impl FnOnce(&mut Self, Value)) {
        self.fold_count(count, step, &[], |b, index, _| {
            body(b, index);
            Vec::new()
        });
    }

    /// Like [`Body::for_count`], carrying values from turn to turn.
    pub fn fold_count(
        &mut self,
        count: i64,
        step: i64,
        initial: &[Value],
        body: impl FnOnce(&mut Self, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let begin = self.int(0);
        if count <= 0 {
            return initial.to_vec();
        }
        if count <= step {
            return body(self, begin, initial);
        }
        // The count is not zero, so the test stands at the end only.
        let head = self.builder.create_block();
        let exit = self.builder.create_block();
        let index = self.builder.append_block_param(head, POINTER);
        let carried: Vec<Value> = initial
            .iter()
            .map(|value| {
                let ty = self.type_of(*value);
                self.builder.append_block_param(exit, ty);
                self.builder.append_block_param(head, ty)
            })
            .collect();
        let mut first = vec![begin];
        first.extend(initial);
        self.ins().jump(head, &arguments(&first));
        self.builder.switch_to_block(head);
        let next = body(self, index, &carried);
        let advanced = self.ins().iadd_imm_s(index, step);
        let again = self.compare_const(IntCC::SignedLessThan, advanced, count);
        let mut turn = vec![advanced];
        turn.extend(&next);
        self.ins().brif(again, head, &arguments(&turn), exit, &arguments(&next));
        self.builder.switch_to_block(exit);
        self.builder.block_params(exit).to_vec()
    }

    /// Like [`Body::for_range`], carrying values from turn to turn: `body` gets the values of the
    /// turn before and gives those of the next. Returns those after the last turn.
    pub fn fold_range(
        &mut self,
        begin: Value,
        end: Value,
        step: i64,
        initial: &[Value],
        body: impl FnOnce(&mut Self, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let head = self.builder.create_block();
        let turn = self.builder.create_block();
        let exit = self.builder.create_block();
        let index = self.builder.append_block_param(head, POINTER);
        let carried: Vec<Value> = initial
            .iter()
            .map(|value| {
                let ty = self.type_of(*value);
                self.builder.append_block_param(head, ty)
            })
            .collect();
        let mut first = vec![begin];
        first.extend(initial);
        self.ins().jump(head, &arguments(&first));
        self.builder.switch_to_block(head);
        let more = self.compare(IntCC::SignedLessThan, index, end);
        self.ins().brif(more, turn, &[], exit, &[]);
        self.builder.switch_to_block(turn);
        let next = body(self, index, &carried);
        debug_assert_eq!(next.len(), initial.len());
        let mut again = vec![self.ins().iadd_imm_s(index, step)];
        again.extend(next);
        self.ins().jump(head, &arguments(&again));
        self.builder.switch_to_block(exit);
        carried
    }

    /// Numbers from a first one on, while they are below an end: `body` gets one and gives the next. Then
    /// `more` gives another first number and end, until that end is 0.
    pub fn for_numbers(
        &mut self,
        first: [Value; 2],
        body: impl FnOnce(&mut Self, Value) -> Value,
        more: impl FnOnce(&mut Self) -> [Value; 2],
    ) {
        let [head, turn, behind, exit] = [(); 4].map(|()| self.builder.create_block());
        let number = self.builder.append_block_param(head, POINTER);
        let end = self.builder.append_block_param(head, POINTER);
        self.ins().jump(head, &arguments(&first));
        self.builder.switch_to_block(head);
        let is_below = self.compare(IntCC::SignedLessThan, number, end);
        self.ins().brif(is_below, turn, &[], behind, &[]);
        self.builder.switch_to_block(turn);
        let next = body(self, number);
        self.ins().jump(head, &arguments(&[next, end]));
        self.builder.switch_to_block(behind);
        let more = more(self);
        self.ins().brif(more[1], head, &arguments(&more), exit, &[]);
        self.builder.switch_to_block(exit);
    }

    /// For `index` in `begin .. end`: by fours, then the remainder one by one. `body` is written
    /// twice, once for each width.
    pub fn for_lanes(
        &mut self,
        begin: Value,
        end: Value,
        mut body: impl FnMut(&mut Self, Value, Lanes),
    ) {
        let count = self.sub(end, begin);
        let whole = self.ins().band_imm_s(count, -4);
        let middle = self.add(begin, whole);
        self.for_range(begin, middle, 4, |b, index| body(b, index, Lanes::Four));
        self.for_range(middle, end, 1, |b, index| body(b, index, Lanes::One));
    }

    /// For `index` in `0 .. count`, known to the compiler: by fours, then the remainder.
    pub fn for_count_lanes(&mut self, count: i64, mut body: impl FnMut(&mut Self, Value, Lanes)) {
        let whole = count & !3;
        self.for_count(whole, 4, |b, index| body(b, index, Lanes::Four));
        for rest in whole..count {
            let index = self.int(rest);
            body(self, index, Lanes::One);
        }
    }

    /// `then` if the condition holds.
    pub fn if_then(&mut self, condition: Value, then: impl FnOnce(&mut Self)) {
        let inside = self.builder.create_block();
        let after = self.builder.create_block();
        self.ins().brif(condition, inside, &[], after, &[]);
        self.builder.switch_to_block(inside);
        then(self);
        self.ins().jump(after, &[]);
        self.builder.switch_to_block(after);
    }

    /// One of two, each giving values of the same types.
    pub fn if_else(
        &mut self,
        condition: Value,
        then: impl FnOnce(&mut Self) -> Vec<Value>,
        otherwise: impl FnOnce(&mut Self) -> Vec<Value>,
    ) -> Vec<Value> {
        let [yes, no, after] = [(); 3].map(|()| self.builder.create_block());
        self.ins().brif(condition, yes, &[], no, &[]);
        self.builder.switch_to_block(yes);
        let values = then(self);
        for value in &values {
            let ty = self.type_of(*value);
            self.builder.append_block_param(after, ty);
        }
        self.ins().jump(after, &arguments(&values));
        self.builder.switch_to_block(no);
        let values = otherwise(self);
        self.ins().jump(after, &arguments(&values));
        self.builder.switch_to_block(after);
        self.builder.block_params(after).to_vec()
    }

    // ---- calls and the team

    /// Calls a declared function.
    pub fn call(&mut self, function: FuncId, args: &[Value]) -> Vec<Value> {
        let function = self.import(function);
        let call = self.ins().call(function, args);
        self.builder.inst_results(call).to_vec()
    }

    /// Calls a function of the team, whose pointer is at `field` of the context.
    fn call_team(
        &mut self,
        context: Value,
        field: usize,
        arguments: &[Value],
        returns: &[Type],
    ) -> Option<Value> {
        let function = self.load(POINTER, context, field as i32);
        let team = self.load(POINTER, context, offset_of!(StepContext, team) as i32);
        let arguments = [&[team], arguments].concat();
        let types: Vec<Type> = arguments.iter().map(|value| self.type_of(*value)).collect();
        let signature = self.builder.import_signature(signature(&types, returns));
        let call = self.ins().call_indirect(signature, function, &arguments);
        self.builder.inst_results(call).first().copied()
    }

    /// Waits for the team. `thread` is an `i64`.
    pub fn barrier(&mut self, context: Value, thread: Value) {
        let thread = self.ins().ireduce(INT, thread);
        self.call_team(context, offset_of!(StepContext, barrier), &[thread], &[]);
    }

    /// Reports a fault. `detail` is an `i64`, of which 32 bits are reported.
    pub fn fault(&mut self, context: Value, fault: Fault, detail: Value) {
        let number = self.int32(fault as i32);
        let detail = self.ins().ireduce(INT, detail);
        self.call_team(context, offset_of!(StepContext, fault), &[number, detail], &[]);
    }

    /// Whether a team of several threads has at least so many rows, without which its threads do not
    /// divide a work as they come to it.
    pub fn has_rows(&mut self, rows: Value, threads: Value, least: usize) -> Value {
        let is_alone = self.compare_const(IntCC::Equal, threads, 1);
        let none = self.int(0);
        let rows = self.select(is_alone, none, rows);
        self.compare_const(IntCC::SignedGreaterThanOrEqual, rows, least as i64)
    }

    /// A part of a work that this thread takes, `begin .. end` of its items, which are none if all are
    /// taken. See [`weir_abi::Take`].
    pub fn take(&mut self, [context, thread]: [Value; 2], work: &Work) -> [Value; 2] {
        let Work { number, items, together, of } = *work;
        let [thread, number, items] = [thread, number, items].map(|n| self.ins().ireduce(INT, n));
        let [together, of] = [together, of as u32].map(|n| self.int32(n as i32));
        let arguments = [thread, number, items, together, of];
        let take = offset_of!(StepContext, take);
        let part = self.call_team(context, take, &arguments, &[POINTER]);
        let part = part.expect("the signature has a result");
        let begin = self.ins().ushr_imm_u(part, 32);
        let end = self.ins().ireduce(INT, part);
        [begin, self.ins().uextend(POINTER, end)]
    }

    /// Parts of a work that this thread takes, `begin .. end` of its items, until none is left.
    pub fn for_parts(
        &mut self,
        place: [Value; 2],
        work: &Work,
        body: impl FnOnce(&mut Self, [Value; 2]),
    ) {
        let [head, turn, exit] = [(); 3].map(|()| self.builder.create_block());
        self.ins().jump(head, &[]);
        self.builder.switch_to_block(head);
        let [begin, end] = self.take(place, work);
        self.ins().brif(end, turn, &[], exit, &[]);
        self.builder.switch_to_block(turn);
        body(self, [begin, end]);
        self.ins().jump(head, &[]);
        self.builder.switch_to_block(exit);
    }

    /// This thread's contiguous share of `items`: `items · thread / threads` up to
    /// `items · (thread + 1) / threads`. A fixed rule.
    pub fn partition(&mut self, items: Value, thread: Value, threads: Value) -> (Value, Value) {
        let before = self.mul(items, thread);
        let begin = self.ins().udiv(before, threads);
        let through = self.add(before, items);
        let end = self.ins().udiv(through, threads);
        (begin, end)
    }
}

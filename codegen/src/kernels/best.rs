//! The best of many scores, of equals the first.
//!
//! The count-th best score is found bit by bit on the scores' ordered bits, 32 passes over them; one
//! ascending pass then takes all above it and the first of those equal to it, so that what is taken
//! comes out sorted. Whatever the bits, exactly as many are taken as are asked for, or all.

use crate::emit::{Body, INT, INTS, InstBuilder, IntCC, Lanes, POINTER, Value};

/// Scores of rows from `begin` to `end`, counted from the first row's.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub scores: Value,
    pub begin: Value,
    pub end: Value,
}

impl Scores {
    /// Calls `take` for the `count` best, ascending, with their row and how many came before.
    pub fn for_best(
        &self,
        b: &mut Body<'_>,
        count: Value,
        take: impl FnOnce(&mut Body<'_>, Value, Value),
    ) {
        let zero = b.int32(0);
        let high = b.int32(i32::MIN);
        let (from, to) = (b.int(0), b.int(32));
        // The greatest threshold that at least so many reach.
        let threshold = b.fold_range(from, to, 1, &[zero, high], |b, _, carried| {
            let trial = b.ins().bor(carried[0], carried[1]);
            let reached = self.count(b, IntCC::UnsignedGreaterThanOrEqual, trial);
            let enough = b.compare(IntCC::SignedGreaterThanOrEqual, reached, count);
            let threshold = b.select(enough, trial, carried[0]);
            let one = b.int32(1);
            let next = b.ins().ushr(carried[1], one);
            vec![threshold, next]
        })[0];
        let above = self.count(b, IntCC::UnsignedGreaterThan, threshold);
        let ties = b.sub(count, above);
        let none = b.int(0);
        b.fold_range(self.begin, self.end, 1, &[none, ties], |b, row, carried| {
            let (taken, ties) = (carried[0], carried[1]);
            let bits = self.ordered(b, Lanes::One, row);
            let above = b.compare(IntCC::UnsignedGreaterThan, bits, threshold);
            let equal = b.compare(IntCC::Equal, bits, threshold);
            let left = b.compare_const(IntCC::SignedGreaterThan, ties, 0);
            let tie = b.ins().band(equal, left);
            let is_taken = b.ins().bor(above, tie);
            b.if_then(is_taken, |b| take(b, row, taken));
            let is_taken = b.ins().uextend(POINTER, is_taken);
            let tie = b.ins().uextend(POINTER, tie);
            vec![b.add(taken, is_taken), b.sub(ties, tie)]
        });
    }

    /// Whether a score is not finite.
    pub fn any_not_finite(&self, b: &mut Body<'_>) -> Value {
        let none = b.int(0);
        let wrong = b.fold_range(self.begin, self.end, 1, &[none], |b, row, wrong| {
            let at = b.element(self.scores, row, 4);
            let bits = b.load(INT, at, 0);
            let mask = b.int32(0x7f80_0000);
            let exponent = b.ins().band(bits, mask);
            let bad = b.compare(IntCC::Equal, exponent, mask);
            let bad = b.ins().uextend(POINTER, bad);
            vec![b.ins().bor(wrong[0], bad)]
        })[0];
        b.compare_const(IntCC::NotEqual, wrong, 0)
    }

    /// Bits of scores, one or four, in an order of unsigned numbers that is the order of the scores.
    fn ordered(&self, b: &mut Body<'_>, lanes: Lanes, row: Value) -> Value {
        let at = b.element(self.scores, row, 4);
        let score = b.load(lanes.float(), at, 0);
        // Plus zero: so that the two zeros are equal.
        let zero = b.constant(lanes.float(), 0.0);
        let score = b.fadd(score, zero);
        let bits = b.bitcast(lanes.int(), score);
        let shift = b.int32(31);
        let sign = b.ins().sshr(bits, shift);
        let top = b.constant_int(lanes.int(), i32::MIN);
        let flip = b.ins().bor(sign, top);
        b.ins().bxor(bits, flip)
    }

    /// Rows whose ordered bits fulfil a condition.
    fn count(&self, b: &mut Body<'_>, condition: IntCC, bound: Value) -> Value {
        let zero = b.int(0);
        let rows = b.sub(self.end, self.begin);
        let rows = b.max(rows, zero);
        let rest = b.ins().band_imm_s(rows, 3);
        let whole = b.sub(self.end, rest);
        let none = b.constant_int(INTS, 0);
        let bounds = b.splat(bound);
        let lanes = b.fold_range(self.begin, whole, 4, &[none], |b, row, sums| {
            let bits = self.ordered(b, Lanes::Four, row);
            // All bits of a lane where it fits: minus one.
            let fits = b.compare(condition, bits, bounds);
            vec![b.sub(sums[0], fits)]
        })[0];
        let sum = (0..4).fold(zero, |sum, lane| {
            let of_lane = b.ins().extractlane(lanes, lane);
            let of_lane = b.ins().uextend(POINTER, of_lane);
            b.add(sum, of_lane)
        });
        b.fold_range(whole, self.end, 1, &[sum], |b, row, sum| {
            let bits = self.ordered(b, Lanes::One, row);
            let fits = b.compare(condition, bits, bound);
            let fits = b.ins().uextend(POINTER, fits);
            vec![b.add(sum[0], fits)]
        })[0]
    }
}

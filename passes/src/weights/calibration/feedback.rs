//! Codes of a weight's rows for the inputs that a text gives its product.
//!
//! A row w is to give what it gave before anything was rounded, `t = w · x` for exact inputs, from
//! the inputs x̂ that rounded layers leave it. With `H = Σ x̂ x̂ᵀ` and the damping λ,
//!
//! `Σ (t - ŵ · x̂)² + λ |w - ŵ|²  =  (ŵ - w*) (H + λ) (ŵ - w*)ᵀ + what no ŵ changes`,
//! `w* = w + (H + λ)⁻¹ Σ x̂ (t - w · x̂)`.
//!
//! So w* is rounded in the measure of H: with error feedback, block by block ([`Curvature`]), or to
//! nearest as without calibration; whichever is better is the beginning of rounds of descent. A round
//! moves each code to where the row's error is least, the others fixed, then each scale. No step of
//! it raises the error, so **no row is worse on the text than rounded to nearest**, until w* itself is
//! moved by what the whole model loses ([`super::refine`]).

use bytes::Bytes;
use rayon::prelude::*;
use weir_ir::quantise::Rounder;
use weir_ir::{ConstData, Constant, DType, Element, QuantData, QuantFormat, ZeroPoints};

use super::blocks::{Grid, Scale};
use super::curvature::{Curvature, LANES, Lanes, add_scaled};

/// Rounds of descent.
const ROUNDS: usize = 4;
/// Rounds behind a w* that has moved a little.
const ROUNDS_BEHIND: usize = 2;

/// What the product has lost before its own weight is rounded.
pub struct Lost<'a> {
    /// `Σ x̂ (x - x̂)ᵀ`: exact inputs less those that rounded layers leave, `[inputs, inputs]`.
    pub inputs: &'a [f64],
    /// `Σ x̂ (r - r̂)ᵀ`: the same of the rows that its results are added to, `[inputs, outputs]`.
    pub stream: Option<&'a [f64]>,
}

/// A calibrated weight, and squared errors of its products on the text.
pub struct Calibrated {
    /// The weight in codes.
    pub constant: Constant,
    /// With these codes.
    pub error: f64,
    /// Rounded to nearest.
    pub plain_error: f64,
    /// What can go on choosing, if it was asked for.
    pub rounding: Option<Rounding>,
}

/// Rounds a weight of floats. `None` if one of them is not finite, or too large for the scale of its block:
/// there are no codes for it, whichever way they are chosen. `goes_on`: keeps all that goes on choosing
/// needs, some sixteen bytes a number.
pub fn calibrate(
    source: &Constant,
    format: &QuantFormat,
    curvature: &Curvature,
    lost: &Lost<'_>,
    goes_on: bool,
) -> Option<Calibrated> {
    let [outputs, inputs] = source.matrix()?;
    let mut codes = Codes::new(format, [outputs, inputs]);
    let of_rows = |(index, part): (usize, CodesOfRows<'_>)| {
        let first = index * LANES;
        let count = LANES.min(outputs - first);
        let mut rows = Rows::read(source, first, count, format)?;
        let plain = rows.choose(curvature, lost, [first, outputs]);
        part.write(&rows);
        let sum = |errors: Lanes| errors[..count].iter().sum::<f64>();
        let errors = [sum(rows.error), sum(plain)];
        // Neither the file's weights nor what rounding to nearest gives are asked for any more.
        (rows.weight, rows.plain) = Default::default();
        Some((goes_on.then_some(rows), errors))
    };
    let chosen: Option<Vec<(Option<Rows>, [f64; 2])>> =
        codes.parts().enumerate().map(of_rows).collect();
    let (rows, errors): (Vec<Option<Rows>>, Vec<[f64; 2]>) = chosen?.into_iter().unzip();
    let (error, plain_error) =
        errors.into_iter().fold((0.0, 0.0), |(a, b), [error, plain]| (a + error, b + plain));
    let constant = codes.constant(source)?;
    let rows: Option<Vec<Rows>> = rows.into_iter().collect();
    let rounding = rows.filter(|_| goes_on).map(|rows| Rounding {
        source: source.clone(),
        format: *format,
        sizes: [outputs, inputs],
        rows,
    });
    Some(Calibrated { constant, error, plain_error, rounding })
}

/// A weight whose codes may still move.
#[derive(Clone)]
pub struct Rounding {
    source: Constant,
    format: QuantFormat,
    /// Outputs and inputs.
    sizes: [usize; 2],
    /// [`LANES`] rows each, the last ones as many as there are.
    rows: Vec<Rows>,
}

impl Rounding {
    /// Outputs and inputs.
    pub fn sizes(&self) -> [usize; 2] {
        self.sizes
    }

    /// Moves w* of each row against a gradient, `[outputs, inputs]`, by `steps` times the row's solution
    /// of H, and codes and scales behind it.
    pub fn descend_along(&mut self, curvature: &Curvature, gradient: &[f64], steps: &[f64]) {
        let [outputs, inputs] = self.sizes;
        self.rows.par_iter_mut().enumerate().for_each(|(index, rows)| {
            let first = index * LANES;
            let mut by = vec![[0.0; LANES]; inputs];
            for lane in 0..LANES.min(outputs - first) {
                let row = &gradient[(first + lane) * inputs..][..inputs];
                by.iter_mut().zip(row).for_each(|(by, slope)| by[lane] = *slope);
            }
            curvature.solve(&mut by);
            for (target, by) in rows.target.iter_mut().zip(&by) {
                for ((target, step), by) in target.iter_mut().zip(&steps[first..]).zip(by) {
                    *target -= step * by;
                }
            }
            rows.descend(curvature, ROUNDS_BEHIND);
        });
    }

    /// The weight in codes.
    pub fn constant(&self) -> Option<Constant> {
        let mut codes = Codes::new(&self.format, self.sizes);
        codes.parts().zip(&self.rows).for_each(|(part, rows)| part.write(rows));
        codes.constant(&self.source)
    }
}

/// The bytes of a weight in codes.
struct Codes {
    format: QuantFormat,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    /// Bytes of a row in each of them.
    row_bytes: [usize; 3],
}

/// Those of [`LANES`] rows.
struct CodesOfRows<'a> {
    format: QuantFormat,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    zeros: &'a mut [u8],
    row_bytes: [usize; 3],
}

impl Codes {
    fn new(format: &QuantFormat, [outputs, inputs]: [usize; 2]) -> Codes {
        let blocks = inputs.div_ceil(format.block as usize);
        let bytes = |codes: usize| if format.bits == 4 { codes.div_ceil(2) } else { codes };
        let row_bytes = [bytes(inputs), blocks * format.scale.bytes(), bytes(blocks)];
        let [codes, scales, zeros] = row_bytes.map(|bytes| vec![0u8; outputs * bytes]);
        Codes { format: *format, codes, scales, zeros, row_bytes }
    }

    fn parts(&mut self) -> impl IndexedParallelIterator<Item = CodesOfRows<'_>> {
        let (format, row_bytes) = (self.format, self.row_bytes);
        let [codes, scales, zeros] = row_bytes.map(|bytes| LANES * bytes);
        let places = self
            .codes
            .par_chunks_mut(codes)
            .zip(self.scales.par_chunks_mut(scales))
            .zip(self.zeros.par_chunks_mut(zeros));
        places.map(move |((codes, scales), zeros)| CodesOfRows {
            format,
            codes,
            scales,
            zeros,
            row_bytes,
        })
    }

    /// The constant of these codes, in place of the floats of `source`.
    fn constant(self, source: &Constant) -> Option<Constant> {
        let Codes { format, row_bytes: [code_row, scale_row, zero_row], .. } = self;
        let stride = |row: usize| if format.bits == 4 { 2 * row } else { row };
        let data = QuantData {
            codes: Bytes::from(self.codes),
            code_strides: [stride(code_row), 1],
            signed: false,
            scales: Bytes::from(self.scales),
            scale_strides: [scale_row / format.scale.bytes(), 1],
            zeros: (format.zero == ZeroPoints::Codes).then(|| Bytes::from(self.zeros)),
            zero_strides: [stride(zero_row), 1],
        };
        let mut constant = source.rounded(Element::Quant(format))?;
        constant.data = ConstData::Quantised(data);
        Some(constant)
    }
}

impl CodesOfRows<'_> {
    fn write(self, rows: &Rows) {
        let CodesOfRows { format, row_bytes: [code_row, scale_row, zero_row], .. } = self;
        let places = self
            .codes
            .chunks_exact_mut(code_row)
            .zip(self.scales.chunks_exact_mut(scale_row))
            .zip(self.zeros.chunks_exact_mut(zero_row));
        for (lane, ((codes, scales), zeros)) in places.enumerate() {
            rows.write_codes(lane, codes);
            let places = scales.chunks_exact_mut(format.scale.bytes());
            for (place, scale) in places.zip(&rows.scales) {
                store(format.scale, scale[lane].scale, place);
            }
            let of_blocks = rows.scales.iter().map(|scale| scale[lane].zero as u8);
            write_codes(format.bits, of_blocks, zeros);
        }
    }
}

/// Some rows of a weight on their way to codes; columns first, so that a step is one for all rows.
#[derive(Clone)]
struct Rows {
    grid: Grid,
    weight: Vec<Lanes>,
    /// w*.
    target: Vec<Lanes>,
    /// Codes less their zero points, in whole numbers.
    integers: Vec<Lanes>,
    /// Scale and zero point of each block.
    scales: Vec<[Scale; LANES]>,
    /// Units of the scales.
    units: [f32; LANES],
    /// What rounding to nearest gives.
    plain: (Vec<Lanes>, Vec<[Scale; LANES]>),
    error: Lanes,
}

/// How much larger than the first plain scales short ones may become without leaving the row's unit: what
/// is fed back to later blocks adds to them.
const ROOM: f64 = 1.2;

const NOTHING: Scale = Scale { scale: 0.0, zero: 0.0 };

impl Rows {
    fn read(source: &Constant, first: usize, count: usize, format: &QuantFormat) -> Option<Rows> {
        let [_, inputs] = source.matrix()?;
        let mut values = vec![0.0f32; count * inputs];
        if !source.rows_f32(first, &mut values) || !values.iter().all(|x| x.is_finite()) {
            return None;
        }
        let mut rounder = Rounder::new(format)?;
        let grid = Grid::new(format);
        let blocks = inputs.div_ceil(grid.block);
        let mut weight = vec![[0.0; LANES]; inputs];
        let mut plain = (weight.clone(), vec![[NOTHING; LANES]; blocks]);
        let (mut codes, mut scales) = (vec![0; inputs], vec![0.0; blocks]);
        let mut zeros = scales.clone();
        for (lane, row) in values.chunks_exact(inputs).enumerate() {
            rounder.row(row, &mut codes, &mut scales, &mut zeros);
            if !scales.iter().all(|scale| scale.is_finite()) {
                return None;
            }
            for k in 0..inputs {
                weight[k][lane] = f64::from(row[k]);
                plain.0[k][lane] = f64::from(codes[k]) - f64::from(zeros[k / grid.block]);
            }
            for (scale, (d, z)) in plain.1.iter_mut().zip(scales.iter().zip(&zeros)) {
                scale[lane] = Scale { scale: f64::from(*d), zero: f64::from(*z) };
            }
        }
        let (integers, scales) = (weight.clone(), plain.1.clone());
        let target = weight.clone();
        let (units, error) = ([1.0; LANES], [0.0; LANES]);
        Some(Rows { grid, weight, target, integers, scales, units, plain, error })
    }

    /// Chooses scales and codes; returns the error of rounding to nearest.
    fn choose(
        &mut self,
        curvature: &Curvature,
        lost: &Lost<'_>,
        [first, outputs]: [usize; 2],
    ) -> Lanes {
        self.aim(curvature, lost, [first, outputs]);
        let plain = self.plain_error(curvature);
        self.feed_back(curvature);
        for lane in 0..LANES {
            // What is fed back may go beyond all scales where the weight itself does not.
            if plain[lane] < self.error[lane] || self.error[lane].is_nan() {
                self.error[lane] = plain[lane];
                self.units[lane] =
                    self.grid.unit(largest(&self.plain.1, |scales| scales[lane].scale));
                let pairs = self.integers.iter_mut().zip(&self.plain.0);
                pairs.for_each(|(ours, plain)| ours[lane] = plain[lane]);
                let pairs = self.scales.iter_mut().zip(&self.plain.1);
                pairs.for_each(|(ours, plain)| ours[lane] = plain[lane]);
            }
        }
        self.descend(curvature, ROUNDS);
        plain
    }

    /// Finds w*.
    fn aim(&mut self, curvature: &Curvature, lost: &Lost<'_>, [first, outputs]: [usize; 2]) {
        let inputs = curvature.size();
        let mut missing = vec![[0.0; LANES]; inputs];
        for (missing, row) in missing.iter_mut().zip(lost.inputs.chunks_exact(inputs)) {
            for (moment, weight) in row.iter().zip(&self.weight) {
                add_scaled(missing, *moment, weight);
            }
        }
        if let Some(stream) = lost.stream {
            let width = LANES.min(outputs - first);
            for (missing, row) in missing.iter_mut().zip(stream.chunks_exact(outputs)) {
                for (missing, lost) in missing.iter_mut().zip(&row[first..first + width]) {
                    *missing += lost;
                }
            }
        }
        curvature.solve(&mut missing);
        for (target, by) in self.target.iter_mut().zip(&missing) {
            add_scaled(target, 1.0, by);
        }
    }

    /// Error of rounding w to nearest.
    fn plain_error(&self, curvature: &Curvature) -> Lanes {
        let (integers, scales) = &self.plain;
        curvature.follow(|k, _| {
            let (scales, mut error) = (&scales[k / self.grid.block], self.target[k]);
            for lane in 0..LANES {
                error[lane] -= integers[k][lane] * scales[lane].scale;
            }
            error
        })
    }

    /// Rounds column after column; a block's scales are chosen when it is reached.
    fn feed_back(&mut self, curvature: &Curvature) {
        let Rows { grid, target, integers, scales, units, .. } = self;
        for (lane, unit) in units.iter_mut().enumerate() {
            *unit = grid.unit(ROOM * largest(target, |row| row[lane]) / 8.0);
        }
        let mut values = vec![0.0; grid.block];
        self.error = curvature.follow(|k, asked| {
            let block = k / grid.block;
            if k.is_multiple_of(grid.block) {
                let width = grid.block.min(target.len() - k);
                let values = &mut values[..width];
                for lane in 0..LANES {
                    for (i, value) in values.iter_mut().enumerate() {
                        *value = target[k + i][lane] + asked[i][lane];
                    }
                    let pivots = &curvature.pivots()[k..k + width];
                    scales[block][lane] = grid.choose(values, pivots, units[lane]);
                }
            }
            let mut error = target[k];
            for lane in 0..LANES {
                let scale = &scales[block][lane];
                integers[k][lane] = grid.nearest(target[k][lane] + asked[0][lane], scale);
                error[lane] -= integers[k][lane] * scale.scale;
            }
            error
        });
    }

    /// Rounds of descent on codes and scales.
    fn descend(&mut self, curvature: &Curvature, rounds: usize) {
        let (inputs, block) = (curvature.size(), self.grid.block);
        // The gradient's half, negative: H (w* - ŵ).
        let mut pull = vec![[0.0; LANES]; inputs];
        for k in 0..inputs {
            let mut error = self.target[k];
            for (lane, error) in error.iter_mut().enumerate() {
                *error -= self.integers[k][lane] * self.scales[k / block][lane].scale;
            }
            for (pull, moment) in pull.iter_mut().zip(curvature.moments(k)) {
                add_scaled(pull, *moment, &error);
            }
        }
        for _ in 0..rounds {
            for k in 0..inputs {
                self.move_code(curvature, k, &mut pull);
            }
            for index in 0..inputs.div_ceil(block) {
                self.move_scale(curvature, index, &mut pull);
            }
        }
    }

    fn move_code(&mut self, curvature: &Curvature, k: usize, pull: &mut [Lanes]) {
        let steepness = curvature.moments(k)[k];
        let mut by = [0.0; LANES];
        for lane in 0..LANES {
            let scale = &self.scales[k / self.grid.block][lane];
            let integer = &mut self.integers[k][lane];
            let wanted = *integer * scale.scale + pull[k][lane] / steepness;
            let better = self.grid.nearest(wanted, scale);
            by[lane] = (better - *integer) * scale.scale;
            // What (w* - ŵ) H (w* - ŵ) loses by the move.
            let gain = by[lane] * (2.0 * pull[k][lane] - by[lane] * steepness);
            if gain > 0.0 {
                *integer = better;
                self.error[lane] -= gain;
            } else {
                by[lane] = 0.0;
            }
        }
        if by != [0.0; LANES] {
            for (pull, moment) in pull.iter_mut().zip(curvature.moments(k)) {
                add_scaled(pull, -moment, &by);
            }
        }
    }

    fn move_scale(&mut self, curvature: &Curvature, index: usize, pull: &mut [Lanes]) {
        let begin = index * self.grid.block;
        let end = (begin + self.grid.block).min(curvature.size());
        let integers = &self.integers[begin..end];
        let (mut slope, mut steepness) = ([0.0; LANES], [0.0; LANES]);
        for (i, row) in integers.iter().enumerate() {
            let mut product = [0.0; LANES];
            for (moment, other) in curvature.moments(begin + i)[begin..end].iter().zip(integers) {
                add_scaled(&mut product, *moment, other);
            }
            for lane in 0..LANES {
                slope[lane] += row[lane] * pull[begin + i][lane];
                steepness[lane] += row[lane] * product[lane];
            }
        }
        let mut by = [0.0; LANES];
        for lane in 0..LANES {
            if steepness[lane] <= 0.0 {
                continue;
            }
            let scale = &mut self.scales[index][lane].scale;
            let better = self.grid.stored(*scale + slope[lane] / steepness[lane], self.units[lane]);
            let change = better - *scale;
            let gain = change * (2.0 * slope[lane] - change * steepness[lane]);
            if better.is_finite() && gain > 0.0 {
                *scale = better;
                self.error[lane] -= gain;
                by[lane] = change;
            }
        }
        for (i, row) in self.integers[begin..end].iter().enumerate() {
            let moved: Lanes = std::array::from_fn(|lane| -by[lane] * row[lane]);
            if moved != [0.0; LANES] {
                for (pull, moment) in pull.iter_mut().zip(curvature.moments(begin + i)) {
                    add_scaled(pull, *moment, &moved);
                }
            }
        }
    }

    fn write_codes(&self, lane: usize, out: &mut [u8]) {
        let codes = self.integers.iter().enumerate().map(|(k, integers)| {
            (integers[lane] + self.scales[k / self.grid.block][lane].zero) as u8
        });
        write_codes(self.grid.bits, codes, out);
    }
}

/// The largest magnitude of a lane.
fn largest<T>(of: &[T], lane: impl Fn(&T) -> f64) -> f64 {
    of.iter().map(lane).fold(0.0, |largest, x| largest.max(x.abs()))
}

/// Writes codes, two in a byte where they have four bits, low ones first.
fn write_codes(bits: u8, codes: impl Iterator<Item = u8>, out: &mut [u8]) {
    for (index, code) in codes.enumerate() {
        match bits {
            4 => out[index / 2] |= code << (index % 2 * 4),
            _ => out[index] = code,
        }
    }
}

fn store(dtype: DType, scale: f64, out: &mut [u8]) {
    match dtype {
        DType::F16 => out.copy_from_slice(&half::f16::from_f64(scale).to_le_bytes()),
        DType::BF16 => out.copy_from_slice(&half::bf16::from_f64(scale).to_le_bytes()),
        _ => out.copy_from_slice(&(scale as f32).to_le_bytes()),
    }
}

//! What the type rules share: operand counts, shapes that must agree, broadcasting, and arithmetic
//! on known contents.
//!
//! Symbolic sizes agree if their polynomials are equal; a rule refuses what is certainly wrong (a
//! number that does not fit) and what it cannot prove where sizes must be equal.

use super::{Known, MAX_KNOWN, Operand};
use crate::constant::row_major;
use crate::dim::Dim;
use crate::types::{DType, TensorType};

/// Result types of a node with contents where they follow from shapes.
pub type Inferred = Vec<(TensorType, Option<Known>)>;

/// The operands as an array.
pub(crate) fn operands<'a, const N: usize>(
    given: &[Operand<'a>],
) -> Result<[Operand<'a>; N], String> {
    given.try_into().map_err(|_| format!("takes {N} operands, has {}", given.len()))
}

/// The only result, without known content.
pub(crate) fn single(dtype: DType, shape: Vec<Dim>) -> Result<Inferred, String> {
    single_known(dtype, shape, None)
}

/// The only result.
pub(crate) fn single_known(
    dtype: DType,
    shape: Vec<Dim>,
    known: Option<Known>,
) -> Result<Inferred, String> {
    check_sizes(&shape)?;
    let known = known.and_then(|known| fitted(dtype, known));
    Ok(vec![(TensorType::new(dtype, shape), known)])
}

/// Refuses sizes that are certainly negative.
pub(crate) fn check_sizes(shape: &[Dim]) -> Result<(), String> {
    match shape.iter().find(|dim| dim.as_number().is_some_and(|size| size < 0)) {
        Some(dim) => Err(format!("size {dim} is negative")),
        None => Ok(()),
    }
}

/// The plain element type.
pub(crate) fn plain(operand: Operand<'_>) -> Result<DType, String> {
    operand.ty.dtype().ok_or_else(|| format!("{} is quantised", operand.ty))
}

/// A floating-point element type.
pub(crate) fn float(operand: Operand<'_>) -> Result<DType, String> {
    let dtype = plain(operand)?;
    if dtype.is_float() { Ok(dtype) } else { Err(format!("{} is not of floats", operand.ty)) }
}

/// An integer element type.
pub(crate) fn integer(operand: Operand<'_>) -> Result<DType, String> {
    let dtype = plain(operand)?;
    if dtype.is_integer() { Ok(dtype) } else { Err(format!("{} is not of integers", operand.ty)) }
}

/// Requires equal plain element types.
pub(crate) fn same_dtype(a: Operand<'_>, b: Operand<'_>) -> Result<DType, String> {
    let dtype = plain(a)?;
    if plain(b)? == dtype {
        Ok(dtype)
    } else {
        Err(format!("element types of {} and {} differ", a.ty, b.ty))
    }
}

/// Requires a rank and gives the sizes as an array.
pub(crate) fn sizes<'a, const N: usize>(operand: Operand<'a>) -> Result<&'a [Dim; N], String> {
    let shape: &'a [Dim] = &operand.ty.shape;
    shape.try_into().map_err(|_| format!("{} has not {N} dimensions", operand.ty))
}

/// Requires equal sizes.
pub(crate) fn agree(what: &str, a: &Dim, b: &Dim) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a} and {b} differ")) }
}

/// Checks that an operand is a vector of floats of the given size.
pub(crate) fn vector(what: &str, operand: Operand<'_>, size: &Dim) -> Result<(), String> {
    float(operand)?;
    let [length] = sizes::<1>(operand)?;
    agree(what, length, size)
}

/// The last size.
pub(crate) fn last(operand: Operand<'_>) -> Result<&Dim, String> {
    operand.ty.shape.last().ok_or_else(|| format!("{} has no dimension", operand.ty))
}

/// Checks that an axis is one of a shape.
pub(crate) fn axis_in(axis: usize, shape: &[Dim]) -> Result<(), String> {
    if axis < shape.len() {
        Ok(())
    } else {
        Err(format!("axis {axis} is not below the rank {}", shape.len()))
    }
}

/// The shape that both are broadcast to, numpy-wise.
pub(crate) fn broadcast(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, String> {
    let one = Dim::number(1);
    let rank = a.len().max(b.len());
    let size = |shape: &[Dim], index: usize| -> Dim {
        // Index from the front of the result; missing leading sizes are 1.
        let missing = rank - shape.len();
        if index < missing { Dim::number(1) } else { shape[index - missing].clone() }
    };
    (0..rank)
        .map(|index| match (size(a, index), size(b, index)) {
            (left, right) if left == right || right == one => Ok(left),
            (left, right) if left == one => Ok(right),
            (left, right) => Err(format!("{left} and {right} do not broadcast")),
        })
        .collect()
}

/// Checks that a shape broadcasts to another one.
pub(crate) fn broadcasts_to(from: &[Dim], to: &[Dim]) -> Result<(), String> {
    if broadcast(from, to)? == to {
        Ok(())
    } else {
        Err(format!("{from:?} does not broadcast to {to:?}"))
    }
}

/// Product of sizes; `None` on overflow.
pub(crate) fn product(shape: &[Dim]) -> Option<Dim> {
    shape.iter().try_fold(Dim::number(1), |product, size| product.times(size))
}

/// Whether a - b is certainly at least `bound`.
pub(crate) fn exceeds(a: &Dim, b: &Dim, bound: i64) -> bool {
    a.minus(b).is_some_and(|difference| difference.is_at_least(bound))
}

/// The content if every number fits the element type; drops it otherwise, for arithmetic at run
/// time would wrap. Symbolic sizes are far below 2^31.
pub(crate) fn fitted(dtype: DType, known: Known) -> Option<Known> {
    if dtype.is_float() {
        return None;
    }
    let (least, greatest) = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, u8::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::U64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    let wide = matches!(dtype, DType::I32 | DType::I64) || matches!(dtype, DType::U32 | DType::U64);
    let fits = |dim: &Dim| match dim.as_number() {
        Some(number) => (least..=greatest).contains(&number),
        None => wide && (least < 0 || dim.is_at_least(0)),
    };
    let all = match &known {
        Known::Elements(elements) => elements.iter().all(fits),
        Known::Fill(value) => fits(value),
    };
    all.then_some(known)
}

/// The one value of all elements.
pub(crate) fn uniform<'a>(operand: Operand<'a>) -> Option<&'a Dim> {
    match operand.known? {
        Known::Fill(value) => Some(value),
        Known::Elements(elements) if elements.len() == 1 => elements.first(),
        Known::Elements(_) => None,
    }
}

/// All elements of a short tensor.
pub(crate) fn listed(operand: Operand<'_>) -> Option<Vec<Dim>> {
    let count = short_sizes(&operand.ty.shape)?.into_iter().product();
    match operand.known? {
        Known::Elements(elements) => (elements.len() == count).then(|| elements.clone()),
        Known::Fill(value) => Some(vec![value.clone(); count]),
    }
}

/// Contents of a result that depend element by element on broadcast operands; `None` where one
/// is unknown or undecided.
pub(crate) fn elementwise(
    given: &[Operand<'_>],
    shape: &[Dim],
    function: &dyn Fn(&[&Dim]) -> Option<Dim>,
) -> Option<Known> {
    let uniforms: Option<Vec<&Dim>> = given.iter().map(|operand| uniform(*operand)).collect();
    if let Some(values) = uniforms {
        return function(&values).map(Known::Fill);
    }
    let sizes = short_sizes(shape)?;
    let lists: Vec<Vec<Dim>> = given
        .iter()
        .map(|operand| {
            let from = operand.ty.sizes()?;
            Some(strided(&listed(*operand)?, 0, &broadcast_strides(&from, sizes.len()), &sizes))
        })
        .collect::<Option<_>>()?;
    let count = sizes.iter().product();
    let elements: Option<Vec<Dim>> = (0..count)
        .map(|index| {
            let values: Vec<&Dim> = lists.iter().map(|list| &list[index]).collect();
            function(&values)
        })
        .collect();
    elements.map(Known::Elements)
}

/// Sizes as numbers if the elements are few enough to list.
pub(crate) fn short_sizes(shape: &[Dim]) -> Option<Vec<usize>> {
    let sizes: Vec<usize> = shape.iter().map(Dim::as_size).collect::<Option<_>>()?;
    // A size of 0 counts as 1, so that no partial product overflows.
    let bound = sizes.iter().try_fold(1usize, |count, size| count.checked_mul((*size).max(1)))?;
    (bound <= MAX_KNOWN).then_some(sizes)
}

/// First element and strides of a view.
type View = (usize, Vec<isize>);

/// Content of a result that is a strided view of its operand: `view` maps the operand's sizes to
/// first element, strides and sizes. Content that is one value everywhere stays so.
pub(crate) fn moved(
    operand: Operand<'_>,
    shape: &[Dim],
    view: &dyn Fn(&[usize]) -> Option<View>,
) -> Option<Known> {
    if let Some(Known::Fill(value)) = operand.known {
        return Some(Known::Fill(value.clone()));
    }
    if let (Some(value), None) = (uniform(operand), short_sizes(shape)) {
        return Some(Known::Fill(value.clone()));
    }
    let elements = listed(operand)?;
    let sizes = short_sizes(shape)?;
    let (start, strides) = view(&operand.ty.sizes()?)?;
    Some(Known::Elements(strided(&elements, start, &strides, &sizes)))
}

/// Strides of row-major elements repeated to a greater rank: 0 where a size is 1.
pub(crate) fn broadcast_strides(from: &[usize], rank: usize) -> Vec<isize> {
    let mut strides = vec![0; rank - from.len()];
    let dense = row_major(from);
    strides.extend(
        from.iter().zip(dense).map(|(size, stride)| if *size == 1 { 0 } else { stride as isize }),
    );
    strides
}

/// Elements of a strided view, row-major. The caller guarantees that every index lies in `data`.
pub(crate) fn strided<T: Clone>(
    data: &[T],
    start: usize,
    strides: &[isize],
    sizes: &[usize],
) -> Vec<T> {
    let count: usize = sizes.iter().product();
    let mut elements = Vec::with_capacity(count);
    if count == 0 {
        return elements;
    }
    let Some((inner, outer)) = sizes.split_last() else {
        elements.push(data[start].clone());
        return elements;
    };
    let inner_stride = strides[outer.len()];
    let mut index = vec![0usize; outer.len()];
    let mut place = start as isize;
    loop {
        match inner_stride {
            1 => elements.extend_from_slice(&data[place as usize..place as usize + inner]),
            0 => elements.resize(elements.len() + inner, data[place as usize].clone()),
            _ => elements.extend(
                (0..*inner)
                    .map(|step| data[(place + step as isize * inner_stride) as usize].clone()),
            ),
        }
        // Next index of the outer dimensions, last one fastest. The stride of a size 1 may be
        // anything; it is added and taken away again.
        let mut dimension = outer.len();
        loop {
            if dimension == 0 {
                return elements;
            }
            dimension -= 1;
            index[dimension] += 1;
            place = place.wrapping_add(strides[dimension]);
            if index[dimension] < outer[dimension] {
                break;
            }
            place = place.wrapping_sub(strides[dimension].wrapping_mul(outer[dimension] as isize));
            index[dimension] = 0;
        }
    }
}

//! The number of terms is bounded, and what stays within the bound is exact.

use super::{Dim, MAX_TERMS, Symbol};

/// 1 + symbol^exponent.
fn one_and_power(symbol: Symbol, exponent: u32) -> Dim {
    let power = (0..exponent).try_fold(Dim::number(1), |power, _| power.times(&symbol.into()));
    power.unwrap().plus(&Dim::number(1)).unwrap()
}

/// The product of 1 + symbol^exponent over symbols and exponents, each of which doubles the terms.
fn doubled(symbols: &[Symbol], exponents: &[u32]) -> Option<Dim> {
    let pairs = symbols
        .iter()
        .flat_map(|symbol| exponents.iter().map(|exponent| one_and_power(*symbol, *exponent)));
    pairs.into_iter().try_fold(Dim::number(1), |product, factor| product.times(&factor))
}

#[test]
fn products_have_a_bounded_number_of_terms() {
    let full = doubled(&[Symbol::Batch, Symbol::Sequence], &[1, 2, 4]).unwrap();
    assert_eq!(full.terms.len(), MAX_TERMS);
    assert_eq!(full.times(&one_and_power(Symbol::Past, 1)), None);
    assert_eq!(full.times(&full), None);
    assert_eq!(doubled(&Symbol::ALL, &[1, 2, 4, 8, 16, 32, 64]), None);
    // As many terms as before are none too many.
    assert_eq!(full.scaled(2).unwrap().terms.len(), MAX_TERMS);
    assert_eq!(full.times(&Symbol::Past.into()).unwrap().terms.len(), MAX_TERMS);
    assert_eq!(full.minus(&full), Some(Dim::number(0)));
}

#[test]
fn sums_have_a_bounded_number_of_terms() {
    let full = doubled(&[Symbol::Batch, Symbol::Sequence], &[1, 2, 4]).unwrap();
    assert_eq!(full.plus(&Symbol::Past.into()), None);
    assert_eq!(full.minus(&Symbol::Past.into()), None);
    assert_eq!(full.plus(&Symbol::Batch.into()).unwrap().terms.len(), MAX_TERMS);
}

#[test]
fn substitution_has_a_bounded_number_of_terms() {
    let long = doubled(&[Symbol::Batch], &[1, 2, 4, 8, 16]).unwrap();
    assert_eq!(long.terms.len(), 32);
    // Degree 31 in two symbols.
    assert_eq!(long.substituted(Symbol::Batch, &Dim::total()), None);
    assert_eq!(long.substituted(Symbol::Batch, &Dim::number(1)), Some(Dim::number(32)));
    assert!(!one_and_power(Symbol::Batch, 255).is_at_least(0), "not known");
}

#[test]
fn substitution_is_exact() {
    let dim = Dim::parse("3*batch*batch*past - 2*batch + past + 5").unwrap();
    let value = Dim::parse("sequence - 1").unwrap();
    let wanted = Dim::parse(
        "3*past*sequence*sequence - 6*past*sequence + 3*past - 2*sequence + 2 + past + 5",
    );
    assert_eq!(dim.substituted(Symbol::Batch, &value), wanted);
    assert_eq!(dim.substituted(Symbol::Batch, &Dim::number(0)), Dim::parse("past + 5"));
    assert_eq!(dim.substituted(Symbol::Rows, &value), Some(dim));
}

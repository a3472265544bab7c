//! Dimensions: polynomials with integer coefficients over a few symbols.
//!
//! Exporters compute shapes in the graph (`batch * sequence`, `past + sequence`, `-1` fillers), so
//! sizes and the elements of shape tensors are one type with exact arithmetic. A polynomial is kept
//! normalised (terms sorted, no zero coefficients), so that equal sizes compare equal.
//!
//! Sizes in models have a few terms. Their number is bounded, because a file with a few dozen
//! products of sums of powers would otherwise make polynomials of billions of terms.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(test)]
mod tests;

/// An unknown size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symbol {
    /// Sequences of a batch (bound to 1 on the way to `Canonical`: Weir batches rows).
    Batch,
    /// Rows that are already in the cache.
    Past,
    /// New rows.
    Sequence,
    /// Rows of a step, of any sequences (stage `Fixed`).
    Rows,
}

impl Symbol {
    /// All symbols.
    pub const ALL: [Symbol; 4] = [Symbol::Batch, Symbol::Past, Symbol::Sequence, Symbol::Rows];

    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            Symbol::Batch => "batch",
            Symbol::Past => "past",
            Symbol::Sequence => "sequence",
            Symbol::Rows => "rows",
        }
    }
}

/// Exponents per symbol, in the order of [`Symbol::ALL`].
type Monomial = [u8; 4];
const ONE: Monomial = [0; 4];

/// Terms of a polynomial, at most.
const MAX_TERMS: usize = 64;

/// Pairs of terms that a product multiplies, at most: many of them may have the same monomial.
const MAX_PAIRS: usize = 16 * MAX_TERMS;

/// A size or a shape element: a polynomial in the symbols.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dim {
    /// Coefficient per monomial, at most `MAX_TERMS`; none is zero. No terms is the number 0.
    terms: BTreeMap<Monomial, i64>,
}

impl Dim {
    /// A number.
    pub fn number(value: i64) -> Dim {
        let mut terms = BTreeMap::new();
        if value != 0 {
            terms.insert(ONE, value);
        }
        Dim { terms }
    }

    /// A symbol.
    pub fn symbol(symbol: Symbol) -> Dim {
        let mut monomial = ONE;
        monomial[symbol as usize] = 1;
        Dim { terms: BTreeMap::from([(monomial, 1)]) }
    }

    /// `past + sequence`: rows of the cache after the new ones have been written.
    pub fn total() -> Dim {
        Dim::symbol(Symbol::Past).plus(&Dim::symbol(Symbol::Sequence)).expect("small coefficients")
    }

    /// The value, if no symbol is left.
    pub fn as_number(&self) -> Option<i64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&ONE).copied(),
            _ => None,
        }
    }

    /// The value as a size, if no symbol is left and it is not negative.
    pub fn as_size(&self) -> Option<usize> {
        self.as_number().and_then(|value| usize::try_from(value).ok())
    }

    /// Whether the symbol occurs.
    pub fn mentions(&self, symbol: Symbol) -> bool {
        self.terms.keys().any(|monomial| monomial[symbol as usize] > 0)
    }

    /// Sum; `None` on overflow or with too many terms.
    pub fn plus(&self, other: &Dim) -> Option<Dim> {
        let mut sum = self.clone();
        for (monomial, coefficient) in &other.terms {
            sum.add_term(*monomial, *coefficient)?;
        }
        sum.within_bound()
    }

    /// Adds a term in place; `None` on overflow.
    fn add_term(&mut self, monomial: Monomial, coefficient: i64) -> Option<()> {
        let sum = self.terms.get(&monomial).copied().unwrap_or(0).checked_add(coefficient)?;
        if sum == 0 {
            self.terms.remove(&monomial);
        } else {
            self.terms.insert(monomial, sum);
        }
        Some(())
    }

    /// The polynomial, unless it has too many terms.
    fn within_bound(self) -> Option<Dim> {
        (self.terms.len() <= MAX_TERMS).then_some(self)
    }

    /// Product with a number; `None` on overflow.
    pub fn scaled(&self, factor: i64) -> Option<Dim> {
        self.times(&Dim::number(factor))
    }

    /// Difference; `None` on overflow or with too many terms.
    pub fn minus(&self, other: &Dim) -> Option<Dim> {
        self.plus(&other.scaled(-1)?)
    }

    /// Product; `None` on overflow or with too many terms.
    pub fn times(&self, other: &Dim) -> Option<Dim> {
        if self.terms.len() * other.terms.len() > MAX_PAIRS {
            return None;
        }
        let mut sum = Dim::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut monomial = ONE;
                for (index, exponent) in monomial.iter_mut().enumerate() {
                    *exponent = left[index].checked_add(right[index])?;
                }
                sum.add_term(monomial, a.checked_mul(*b)?)?;
            }
        }
        sum.within_bound()
    }

    /// Exact quotient by a single term (a number, a symbol or their product) or by an equal
    /// polynomial; `None` where it is not exact.
    pub fn divided_exactly(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor && !divisor.terms.is_empty() {
            return Some(Dim::number(1));
        }
        let mut divisor_terms = divisor.terms.iter();
        let (monomial, coefficient) = divisor_terms.next()?;
        if divisor_terms.next().is_some() {
            // (p + s) * n / (p + s): try the quotient of the leading terms and check it.
            let (leading, leading_coefficient) = self.terms.iter().next_back()?;
            let (last, last_coefficient) = divisor.terms.iter().next_back()?;
            let quotient = term_quotient(leading, *leading_coefficient, last, *last_coefficient)?;
            return (quotient.times(divisor)? == *self).then_some(quotient);
        }
        let mut sum = Dim::default();
        for (left, a) in &self.terms {
            sum = sum.plus(&term_quotient(left, *a, monomial, *coefficient)?)?;
        }
        Some(sum)
    }

    /// The polynomial with a symbol replaced; `None` on overflow or with too many terms.
    pub fn substituted(&self, symbol: Symbol, value: &Dim) -> Option<Dim> {
        let mut sum = Dim::default();
        // Terms share the powers of the value, made as far as one needs them.
        let mut powers = vec![Dim::number(1)];
        for (monomial, coefficient) in &self.terms {
            let mut rest = *monomial;
            let exponent = usize::from(std::mem::take(&mut rest[symbol as usize]));
            while powers.len() <= exponent {
                powers.push(powers[powers.len() - 1].times(value)?);
            }
            let rest = Dim { terms: BTreeMap::from([(rest, *coefficient)]) };
            sum = sum.plus(&rest.times(&powers[exponent])?)?;
        }
        Some(sum)
    }

    /// Whether the polynomial is at least `bound` wherever `batch`, `sequence` and `rows` are at
    /// least 1 and `past` at least 0. Sufficient, not necessary.
    pub fn is_at_least(&self, bound: i64) -> bool {
        // With batch = 1 + b and so on, non-negative coefficients in b, past, ... make the constant
        // term the minimum.
        let mut shifted = Some(self.clone());
        for symbol in [Symbol::Batch, Symbol::Sequence, Symbol::Rows] {
            shifted = shifted.and_then(|dim| {
                let plus_one = Dim::symbol(symbol).plus(&Dim::number(1))?;
                dim.substituted(symbol, &plus_one)
            });
        }
        shifted.is_some_and(|dim| {
            let constant = dim.terms.get(&ONE).copied().unwrap_or(0);
            constant >= bound && dim.terms.iter().all(|(m, c)| *m == ONE || *c >= 0)
        })
    }
}

fn term_quotient(left: &Monomial, a: i64, right: &Monomial, b: i64) -> Option<Dim> {
    let mut monomial = ONE;
    for (index, exponent) in monomial.iter_mut().enumerate() {
        *exponent = left[index].checked_sub(right[index])?;
    }
    let quotient = a.checked_div(b)?;
    (quotient.checked_mul(b)? == a && quotient != 0)
        .then(|| Dim { terms: BTreeMap::from([(monomial, quotient)]) })
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim::number(value)
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim::number(i64::try_from(value).expect("sizes are below 2^63"))
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Dim {
        Dim::symbol(symbol)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.as_number() {
            return write!(f, "{number}");
        }
        // Symbols before numbers: `past + sequence - 1`.
        for (index, (monomial, coefficient)) in self.terms.iter().rev().enumerate() {
            match (index, *coefficient < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let size = coefficient.unsigned_abs();
            let mut factors: Vec<String> = Vec::new();
            if size != 1 || *monomial == ONE {
                factors.push(size.to_string());
            }
            for symbol in Symbol::ALL {
                for _ in 0..monomial[symbol as usize] {
                    factors.push(symbol.name().to_owned());
                }
            }
            f.write_str(&factors.join("*"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Dim {
    /// Reads what `Display` writes: `2*past + sequence - 1`.
    pub fn parse(text: &str) -> Option<Dim> {
        let mut sum = Dim::default();
        let mut rest = text.trim();
        let mut sign = 1;
        if let Some(after) = rest.strip_prefix('-') {
            (sign, rest) = (-1, after.trim_start());
        }
        loop {
            let end = rest.find(['+', '-']).unwrap_or(rest.len());
            let mut term = Dim::number(sign);
            for factor in rest[..end].trim().split('*') {
                let symbol = Symbol::ALL.into_iter().find(|symbol| symbol.name() == factor);
                let factor = match symbol {
                    Some(symbol) => Dim::symbol(symbol),
                    None => Dim::number(factor.parse().ok()?),
                };
                term = term.times(&factor)?;
            }
            sum = sum.plus(&term)?;
            match rest[end..].chars().next() {
                None => return Some(sum),
                Some('-') => sign = -1,
                Some(_) => sign = 1,
            }
            rest = rest[end + 1..].trim_start();
        }
    }
}

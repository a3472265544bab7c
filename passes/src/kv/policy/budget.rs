//! How the rows that are selected are shared out among layers.
//!
//! `pyramid` is PyramidKV's (Cai et al. 2024): attention of the first layers is spread over many rows,
//! that of the last ones rests on few, so the number falls evenly from the first layer to the last. The
//! last has a β-th of the mean, the first as much more than the mean as the last has less.

use std::fmt;

use weir_ir::graph::CacheRows;

use super::KvError;

/// β of PyramidKV's code.
const BETA: u32 = 20;

/// What a budget may be, for messages.
const WANTED: &str = "uniform, pyramid, pyramid:BETA, or rows for each layer as in 900/700/500";

/// How selected rows are shared out among the layers that no window bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// Every layer gets as many.
    #[default]
    Uniform,
    /// Fewer from layer to layer; the last gets a β-th of the mean.
    Pyramid(u32),
    /// C of each layer.
    Rows(Vec<u32>),
}

impl Budget {
    /// Reads what stands behind `budget=`.
    pub fn parse(text: &str) -> Result<Budget, KvError> {
        let wrong = || KvError::Value { option: "budget", wanted: WANTED, value: text.to_owned() };
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        match (text, text.strip_prefix("pyramid:")) {
            ("uniform", _) => Ok(Budget::Uniform),
            ("pyramid", _) => Ok(Budget::Pyramid(BETA)),
            (_, Some(beta)) => number(beta).map(Budget::Pyramid).ok_or_else(wrong),
            (list, None) => {
                let rows = list.split('/').map(number).collect::<Option<Vec<u32>>>();
                rows.map(Budget::Rows).ok_or_else(wrong)
            }
        }
    }

    /// Reads a file with C of each layer: numbers with white space between them; what stands behind
    /// `#` is for people. The error names the line.
    pub fn parse_file(text: &str) -> Result<Budget, String> {
        let mut rows = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let numbers = text.split('#').next().unwrap_or_default().split_whitespace();
            for number in numbers {
                match number.parse::<u32>() {
                    Ok(number) if number > 0 => rows.push(number),
                    _ => return Err(format!("line {line}: \"{number}\" is no number of rows")),
                }
            }
        }
        if rows.is_empty() { Err("it holds no numbers".into()) } else { Ok(Budget::Rows(rows)) }
    }

    /// The rows of each of `layers` layers that have these on average.
    pub(super) fn shared_out(
        &self,
        mean: CacheRows,
        layers: usize,
        context: u32,
    ) -> Result<Vec<CacheRows>, KvError> {
        let immovable = mean.sinks + mean.recent + mean.reservoir;
        let selected = match self {
            Budget::Uniform => vec![mean.selected; layers],
            _ if mean.selected == 0 => {
                return Err(KvError::Numbers(format!(
                    "budget {self}: policy {} selects no rows that layers could share",
                    mean.policy.name()
                )));
            }
            Budget::Pyramid(beta) => pyramid(mean.selected, *beta, layers),
            Budget::Rows(rows) if rows.len() != layers => {
                return Err(KvError::Numbers(format!(
                    "the budget has rows for {} layers, and {layers} have no window of their own",
                    rows.len()
                )));
            }
            Budget::Rows(rows) => {
                let selected = |(layer, rows): (usize, &u32)| {
                    rows.checked_sub(immovable).ok_or_else(|| {
                        let reservoir = match mean.reservoir {
                            0 => String::new(),
                            rows => format!(" and a reservoir of {rows}"),
                        };
                        KvError::Numbers(format!(
                            "{} sinks and {} recent rows{reservoir} do not fit into the {rows} rows \
                             that the budget gives layer {layer}",
                            mean.sinks, mean.recent
                        ))
                    })
                };
                rows.iter().enumerate().map(selected).collect::<Result<_, _>>()?
            }
        };
        // More rows than the context has would never be used.
        let most = context.saturating_sub(immovable + mean.growth);
        let rows = selected.into_iter();
        Ok(rows.map(|rows| CacheRows { selected: rows.min(most), ..mean.clone() }).collect())
    }
}

/// Numbers that fall evenly and sum to `mean * layers`.
fn pyramid(mean: u32, beta: u32, layers: usize) -> Vec<u32> {
    let (mean, layers) = (u64::from(mean), layers as u64);
    let last = mean / u64::from(beta);
    let first = 2 * mean - last;
    // The sum of the first `count` numbers, rounded; their differences lose nothing to rounding.
    let sum = |count: u64| match layers {
        0 | 1 => mean * count,
        _ => count * first - (first - last) * count * (count.max(1) - 1) / (2 * (layers - 1)),
    };
    (0..layers).map(|layer| (sum(layer + 1) - sum(layer)) as u32).collect()
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Uniform => f.write_str("uniform"),
            Budget::Pyramid(BETA) => f.write_str("pyramid"),
            Budget::Pyramid(beta) => write!(f, "pyramid:{beta}"),
            Budget::Rows(rows) => {
                let rows: Vec<String> = rows.iter().map(u32::to_string).collect();
                f.write_str(&rows.join("/"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pyramid_falls_evenly_and_has_the_mean() {
        // 100 on average, 5 in the last layer and 195 in the first.
        assert_eq!(pyramid(100, 20, 5), [195, 148, 100, 52, 5]);
        assert_eq!(pyramid(7, 20, 1), [7]);
        for (mean, beta, layers) in [(1, 1, 3), (736, 20, 16), (999, 7, 33), (3, 50, 28)] {
            let rows = pyramid(mean, beta, layers);
            assert_eq!(rows.iter().sum::<u32>(), mean * layers as u32, "{rows:?}");
            assert!(rows.windows(2).all(|pair| pair[0] + 1 >= pair[1]), "{rows:?}");
            assert!(rows[layers - 1].abs_diff(mean / beta) <= 1, "{rows:?}");
        }
    }

    #[test]
    fn texts_are_read_and_written() {
        for text in ["uniform", "pyramid", "pyramid:7", "900/700/500"] {
            assert_eq!(Budget::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "pyramid:", "pyramid:0", "12/", "12/x", "12/0", "cone"] {
            assert!(Budget::parse(text).is_err(), "{text}");
        }
        let file = "# found on a text\n900 700\n500 # the last\n";
        assert_eq!(Budget::parse_file(file), Ok(Budget::Rows(vec![900, 700, 500])));
        let error = "line 2: \"-3\" is no number of rows".to_owned();
        assert_eq!(Budget::parse_file("1\n-3"), Err(error));
        assert!(Budget::parse_file("\n# nothing\n").is_err());
    }
}

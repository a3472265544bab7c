//! How the rows that are selected are shared out among layers, and among the heads of a layer.
//!
//! `pyramid` is PyramidKV's (Cai et al. 2024): attention of the first layers is spread over many rows,
//! that of the last ones rests on few, so the number falls evenly from the first layer to the last. The
//! last has a β-th of the mean, the first as much more than the mean as the last has less.
//!
//! Numbers may differ from head to head as well (the idea is that of AdaKV, Feng et al. 2024, with
//! numbers that are fixed when a model is compiled). Then sinks and recent rows are common to the heads
//! of a layer, and so is everything about prompts that fit its shortest head; of a longer one every head
//! keeps as many candidates as it has rows for, and a head that has rows for all of them keeps all.

use std::fmt;

use weir_ir::graph::CacheRows;

use super::KvError;

/// β of PyramidKV's code.
const BETA: u32 = 20;

/// What a budget may be, for messages.
const WANTED: &str = "uniform, pyramid, pyramid:BETA, or rows for each layer as in 900/700/500, or for \
                      each of its key/value heads as in 900:300/700/500:200";

/// C of one layer: one number, or one of each key/value head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBudget(Vec<u32>);

impl LayerBudget {
    fn parse(text: &str) -> Option<LayerBudget> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        text.split(':').map(number).collect::<Option<Vec<u32>>>().map(LayerBudget)
    }
}

impl fmt::Display for LayerBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&rows.join(":"))
    }
}

/// How selected rows are shared out among the layers that no window bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Budget {
    /// Every layer gets as many.
    #[default]
    Uniform,
    /// Fewer from layer to layer; the last gets a β-th of the mean.
    Pyramid(u32),
    /// C of each layer.
    Rows(Vec<LayerBudget>),
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
                let rows = list.split('/').map(LayerBudget::parse).collect::<Option<Vec<_>>>();
                rows.map(Budget::Rows).ok_or_else(wrong)
            }
        }
    }

    /// Reads a file with C of each layer: numbers with white space between them, or numbers of a layer's
    /// heads with `:` between them; what stands behind `#` is for people. The error names the line.
    pub fn parse_file(text: &str) -> Result<Budget, String> {
        let mut rows = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            for layer in text.split('#').next().unwrap_or_default().split_whitespace() {
                match LayerBudget::parse(layer) {
                    Some(layer) => rows.push(layer),
                    None => return Err(format!("line {line}: \"{layer}\" is no number of rows")),
                }
            }
        }
        if rows.is_empty() { Err("it holds no numbers".into()) } else { Ok(Budget::Rows(rows)) }
    }

    /// The rows of each of some layers that have these on average; `heads` are the key/value heads of
    /// each.
    pub(super) fn shared_out(
        &self,
        mean: CacheRows,
        heads: &[u32],
        context: u32,
    ) -> Result<Vec<CacheRows>, KvError> {
        let layers = heads.len();
        let immovable = mean.sinks + mean.recent + mean.reservoir;
        let alike = |selected: Vec<u32>| selected.into_iter().map(|rows| vec![rows]).collect();
        let selected: Vec<Vec<u32>> = match self {
            Budget::Uniform => alike(vec![mean.selected; layers]),
            _ if mean.selected == 0 => {
                return Err(KvError::Numbers(format!(
                    "budget {self}: policy {} selects no rows that layers could share",
                    mean.policy.name()
                )));
            }
            Budget::Pyramid(beta) => alike(pyramid(mean.selected, *beta, layers)),
            Budget::Rows(rows) if rows.len() != layers => {
                return Err(KvError::Numbers(format!(
                    "the budget has rows for {} layers, and {layers} have no window of their own",
                    rows.len()
                )));
            }
            Budget::Rows(rows) => {
                let layers = rows.iter().zip(heads).enumerate();
                let selected =
                    layers.map(|(layer, (rows, heads))| rows.selected(&mean, layer, *heads));
                selected.collect::<Result<_, _>>()?
            }
        };
        // More rows than the context has would never be used.
        let most = context.saturating_sub(immovable + mean.growth);
        let of_layer = |rows: Vec<u32>| {
            let rows: Vec<u32> = rows.into_iter().map(|rows| rows.min(most)).collect();
            let selected = rows.iter().copied().min().unwrap_or(0);
            let by_head = if rows.iter().all(|rows| *rows == selected) { Vec::new() } else { rows };
            CacheRows { selected, by_head, ..mean.clone() }
        };
        Ok(selected.into_iter().map(of_layer).collect())
    }
}

impl LayerBudget {
    /// K of a layer, or of each of its heads: what is left of C.
    fn selected(&self, mean: &CacheRows, layer: usize, heads: u32) -> Result<Vec<u32>, KvError> {
        let LayerBudget(rows) = self;
        if rows.len() > 1 {
            check_heads(rows.len(), mean, layer, heads)?;
        }
        let immovable = mean.sinks + mean.recent + mean.reservoir;
        let selected = |rows: &u32| {
            rows.checked_sub(immovable).ok_or_else(|| {
                let reservoir = match mean.reservoir {
                    0 => String::new(),
                    rows => format!(" and a reservoir of {rows}"),
                };
                KvError::Numbers(format!(
                    "{} sinks and {} recent rows{reservoir} do not fit into the {rows} rows that the \
                     budget gives layer {layer}",
                    mean.sinks, mean.recent
                ))
            })
        };
        rows.iter().map(selected).collect()
    }
}

/// Whether a layer may have numbers of rows for so many heads.
fn check_heads(given: usize, mean: &CacheRows, layer: usize, heads: u32) -> Result<(), KvError> {
    if given != heads as usize {
        return Err(KvError::Numbers(format!(
            "the budget has rows for {given} heads of layer {layer}, which has {heads} key/value heads"
        )));
    }
    let excluded = [
        ("reservoir", mean.reservoir > 0, "the reservoir has no place beside rows of heads yet"),
        ("reselect", mean.reselect, "no prompt goes on behind different rows of heads yet"),
    ];
    match excluded.into_iter().find(|(_, given, _)| *given) {
        Some((option, _, why)) => Err(KvError::Numbers(format!(
            "a budget by head and {option}= exclude each other: {why}"
        ))),
        None => Ok(()),
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
                let rows: Vec<String> = rows.iter().map(LayerBudget::to_string).collect();
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
        for text in ["uniform", "pyramid", "pyramid:7", "900/700/500", "90:70/50", "9:8:7"] {
            assert_eq!(Budget::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "pyramid:", "pyramid:0", "12/", "12/x", "12/0", "cone", "12:", ":1", "9:0"]
        {
            assert!(Budget::parse(text).is_err(), "{text}");
        }
        let file = "# found on a text\n900 700\n500 # the last\n";
        assert_eq!(Budget::parse_file(file), Ok(Budget::parse("900/700/500").unwrap()));
        let heads = "900:300 700\n500:200 # the last\n";
        assert_eq!(Budget::parse_file(heads), Ok(Budget::parse("900:300/700/500:200").unwrap()));
        let error = "line 2: \"-3\" is no number of rows".to_owned();
        assert_eq!(Budget::parse_file("1\n-3"), Err(error));
        assert!(Budget::parse_file("\n# nothing\n").is_err());
    }
}

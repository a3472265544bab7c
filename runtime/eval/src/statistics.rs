//! Means and paired differences with 95 % intervals.
//!
//! Questions about one document succeed and fail together, so documents, not questions, are the
//! independent draws: variances are clustered by document (Liang and Zeger, *Longitudinal data
//! analysis using generalized linear models*, Biometrika 73, 1986; for evaluations of language
//! models Miller, *Adding error bars to evals*, arXiv 2411.00640, 2024), with the factor G / (G - 1)
//! for G clusters and the quantile of Student's t with G - 1 degrees of freedom. Differences are
//! taken question by question before anything is averaged, for both answers are to the same question
//! about the same document.
//!
//! Where no document deviates from the mean, as when a policy never differs from the dense cache, a
//! variance of nothing would claim certainty. There the interval reaches as far as the exact one
//! (Clopper and Pearson, 1934) of a share none of whose G draws was seen: 1 - 0.025^(1/G), about
//! 3.7 / G, which is the rule of three (Hanley and Lippman-Hand, JAMA 249, 1983) at both sides.
//!
//! One document says nothing of how documents differ, so its mean has no interval.

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean over questions.
    pub value: f64,
    /// Where it is with 95 %; none of fewer than two documents.
    pub interval: Option<Interval>,
}

/// The ends of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What is known of one document: how many questions, and the sum of their values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) count: usize,
    pub(crate) sum: f64,
}

impl Mean {
    /// The mean of differences that have no bounds, such as those of -ln p: for each document how many
    /// there are, and their sum. Where none differs from the mean there is nothing to be uncertain of:
    /// what was computed is the same, or the same but for rounding.
    pub fn of_differences(documents: impl IntoIterator<Item = (usize, f64)>) -> Mean {
        let clusters: Vec<Cluster> =
            documents.into_iter().map(|(count, sum)| Cluster { count, sum }).collect();
        let value = mean(&clusters);
        let half = half(&clusters, squares(&clusters, value));
        Mean { value, interval: half.map(|half| Interval::around(value, half)) }
    }
}

impl Interval {
    fn around(value: f64, half: f64) -> Interval {
        Interval { low: value - half, high: value + half }
    }
}

/// Two-sided 5 %.
const TAIL: f64 = 0.025;

/// The mean over all questions, within the range that values can have.
pub(crate) fn estimate(clusters: &[Cluster], (least, most): (f64, f64)) -> Mean {
    let value = mean(clusters);
    let squares = squares(clusters, value);
    let half = match clusters.len() {
        draws if draws > 1 && squares <= 1e-12 => Some(1.0 - TAIL.powf(1.0 / draws as f64)),
        _ => half(clusters, squares),
    };
    let interval = half.map(|half| {
        let Interval { low, high } = Interval::around(value, half);
        Interval { low: low.max(least), high: high.min(most) }
    });
    Mean { value, interval }
}

fn questions(clusters: &[Cluster]) -> f64 {
    clusters.iter().map(|cluster| cluster.count).sum::<usize>().max(1) as f64
}

fn mean(clusters: &[Cluster]) -> f64 {
    clusters.iter().map(|cluster| cluster.sum).sum::<f64>() / questions(clusters)
}

/// Squares of what documents deviate by from a mean, summed up.
fn squares(clusters: &[Cluster], mean: f64) -> f64 {
    let deviation = |cluster: &Cluster| cluster.sum - cluster.count as f64 * mean;
    clusters.iter().map(|cluster| deviation(cluster).powi(2)).sum()
}

/// How far an interval reaches to either side, if there are documents to compare.
fn half(clusters: &[Cluster], squares: f64) -> Option<f64> {
    let degrees = clusters.len().checked_sub(1).filter(|degrees| *degrees > 0)?;
    let factor = clusters.len() as f64 / degrees as f64;
    let variance = factor * squares / questions(clusters).powi(2);
    Some(student(degrees) * variance.sqrt())
}

/// The mean of several independent means: the distances to either end add as squares (Zou and
/// Donner, *Construction of confidence limits about effect measures*, Statistics in Medicine 27,
/// 2008), so that ends that are not symmetric stay so. Without an interval of each there is none of all.
pub(crate) fn mean_of(means: &[Mean]) -> Mean {
    let count = means.len().max(1) as f64;
    let value = means.iter().map(|mean| mean.value).sum::<f64>() / count;
    let ends = means.iter().map(|mean| Some((mean.value, mean.interval?)));
    let interval = ends.collect::<Option<Vec<(f64, Interval)>>>().map(|ends| {
        let reach = |distance: fn(&(f64, Interval)) -> f64| {
            ends.iter().map(|ends| distance(ends).powi(2)).sum::<f64>().sqrt() / count
        };
        Interval {
            low: value - reach(|(value, interval)| value - interval.low),
            high: value + reach(|(value, interval)| interval.high - value),
        }
    });
    Mean { value, interval }
}

/// The 97.5 % quantile of Student's t.
///
/// Exact for 1 and 2 degrees of freedom (of which there is at least 1), else the expansion in powers of
/// 1 / degrees (Abramowitz and Stegun, 26.7.5), which is off by less than 0.004 from 3 on.
fn student(degrees: usize) -> f64 {
    const NORMAL: f64 = 1.959_963_984_540_054;
    match degrees {
        0 | 1 => 12.706_204_736_174_7,
        2 => 4.302_652_729_911_28,
        _ => {
            let (v, z) = (degrees as f64, NORMAL);
            let odd = |n: i32| z.powi(n);
            z + (odd(3) + z) / (4.0 * v)
                + (5.0 * odd(5) + 16.0 * odd(3) + 3.0 * z) / (96.0 * v.powi(2))
                + (3.0 * odd(7) + 19.0 * odd(5) + 17.0 * odd(3) - 15.0 * z) / (384.0 * v.powi(3))
                + (79.0 * odd(9) + 776.0 * odd(7) + 1482.0 * odd(5) - 1920.0 * odd(3) - 945.0 * z)
                    / (92160.0 * v.powi(4))
        }
    }
}

#[cfg(test)]
mod tests;

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

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean over questions.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// What is known of one document: how many questions, and the sum of their values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) count: usize,
    pub(crate) sum: f64,
}

impl Estimate {
    /// The mean of differences that have no bounds, such as those of -ln p: for each document how many
    /// there are, and their sum. Where none differs from the mean there is nothing to be uncertain of.
    pub fn of_differences(documents: impl IntoIterator<Item = (usize, f64)>) -> Estimate {
        let clusters: Vec<Cluster> =
            documents.into_iter().map(|(count, sum)| Cluster { count, sum }).collect();
        if clusters.iter().all(|cluster| cluster.sum == 0.0) {
            return Estimate { mean: 0.0, low: 0.0, high: 0.0 };
        }
        estimate(&clusters, (f64::NEG_INFINITY, f64::INFINITY))
    }
}

/// Two-sided 5 %.
const TAIL: f64 = 0.025;

/// The mean over all questions, within the range that values can have.
pub(crate) fn estimate(clusters: &[Cluster], (least, most): (f64, f64)) -> Estimate {
    let count: usize = clusters.iter().map(|cluster| cluster.count).sum();
    let mean = clusters.iter().map(|cluster| cluster.sum).sum::<f64>() / count.max(1) as f64;
    let deviation = |cluster: &Cluster| cluster.sum - cluster.count as f64 * mean;
    let squares: f64 = clusters.iter().map(|cluster| deviation(cluster).powi(2)).sum();
    let draws = clusters.len() as f64;
    let half = if squares > 1e-12 {
        let variance = draws / (draws - 1.0) * squares / (count as f64).powi(2);
        student(clusters.len() - 1) * variance.sqrt()
    } else {
        1.0 - TAIL.powf(1.0 / draws.max(1.0))
    };
    Estimate { mean, low: (mean - half).max(least), high: (mean + half).min(most) }
}

/// The mean of several independent estimates: the distances to either end add as squares (Zou and
/// Donner, *Construction of confidence limits about effect measures*, Statistics in Medicine 27,
/// 2008), so that ends that are not symmetric stay so.
pub(crate) fn mean_of(estimates: &[Estimate]) -> Estimate {
    let count = estimates.len().max(1) as f64;
    let mean = estimates.iter().map(|estimate| estimate.mean).sum::<f64>() / count;
    let reach = |distance: fn(&Estimate) -> f64| {
        estimates.iter().map(|estimate| distance(estimate).powi(2)).sum::<f64>().sqrt() / count
    };
    Estimate {
        mean,
        low: mean - reach(|e| e.mean - e.low),
        high: mean + reach(|e| e.high - e.mean),
    }
}

/// The 97.5 % quantile of Student's t.
///
/// Exact for 1 and 2 degrees of freedom, else the expansion in powers of 1 / degrees (Abramowitz
/// and Stegun, 26.7.5), which is off by less than 0.004 from 3 on.
fn student(degrees: usize) -> f64 {
    const NORMAL: f64 = 1.959_963_984_540_054;
    match degrees {
        0 => f64::INFINITY,
        1 => 12.706_204_736_174_7,
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

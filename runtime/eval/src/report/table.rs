//! The table: a block per task, a line per policy.

use std::io::{self, Write};

use crate::Summary;

impl Summary {
    /// Writes a table: scores and differences in percent, differences with their 95 % intervals, if they
    /// have any.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.policies.iter().map(|policy| policy.name.len()).max().unwrap_or(0).max(6);
        for row in &self.rows {
            let Some(first) = row.first() else { continue };
            let (task, questions, documents) = (&first.task, first.questions, first.documents);
            writeln!(out, "{task}: {questions} questions about {documents} documents")?;
            writeln!(
                out,
                "  {:<width$} {:>8} {:>10} {:>8} {:>7}   to dense  95 % interval",
                "policy", "rows", "bytes", "of dense", "score"
            )?;
            for cell in row {
                let policy = &self.policies[cell.policy];
                let difference = cell.difference.map_or(String::new(), |difference| {
                    let ends = difference.interval.map_or("–".to_owned(), |interval| {
                        format!("{:+.1} to {:+.1}", 100.0 * interval.low, 100.0 * interval.high)
                    });
                    format!("{:>+8.1}  {ends}", 100.0 * difference.value)
                });
                let line = format!(
                    "  {:<width$} {:>8} {:>10} {:>6.1} % {:>7.1}   {difference}",
                    policy.name,
                    policy.rows,
                    size(policy.bytes),
                    100.0 * self.share(cell.policy),
                    100.0 * cell.score.value,
                );
                writeln!(out, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// Bytes with a binary unit.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

//! A drawing has both panels, the rates that were tried and no labels over each other.

use super::*;
use crate::traffic::offer::Offered;
use crate::traffic::outcome::{Answer, Outcome, Sent};

fn figures(rate: f64, first: f64) -> Figures {
    let answer =
        Answer { first: Some(first), gaps: vec![0.03, 0.05], seconds: 2.0, ..Answer::default() };
    let outcomes = vec![Outcome { late: None, answer: Ok(answer) }];
    let sent = Sent { outcomes, seconds: 3.0, most_at_once: 1 };
    Figures::new(Offered::PerSecond { rate, burstiness: 1.0 }, sent)
}

#[test]
fn both_panels_show_the_rates() {
    let all = [figures(0.5, 0.2), figures(2.0, 4.0), figures(1.0, 0.4)];
    let drawing = draw(&all, "tiny").expect("a drawing");
    for text in ["tiny under load", "time to first token", "time between tokens", "p99"] {
        assert!(drawing.contains(text), "{text}");
    }
    // Of each panel two lines with a point for each rate.
    assert_eq!(drawing.matches("<circle").count(), 2 * 2 * 3);
    assert!(drawing.starts_with("<svg") && !drawing.contains("NaN"));
}

#[test]
fn nothing_to_draw_is_said() {
    let sent = Sent { outcomes: Vec::new(), seconds: 0.0, most_at_once: 0 };
    let offered = Offered::PerSecond { rate: 1.0, burstiness: 1.0 };
    let drawing = draw(&[Figures::new(offered, sent)], "tiny").expect("a drawing");
    assert!(drawing.contains("time between tokens: no answer"));
}

#[test]
fn labels_are_round_and_apart() {
    for (values, expected) in [
        (vec![4.0, 9000.0], vec!["10", "100", "1000", "10000"]),
        (vec![40.0, 90.0], vec!["40", "50", "60", "70", "80", "90", "100"]),
        (vec![12.0], vec!["11", "12", "13"]),
    ] {
        let axis = heights_axis(&values);
        let labels: Vec<String> = axis.ticks.iter().map(|place| number(place.exp())).collect();
        assert_eq!(labels, expected, "{values:?}");
    }
    let axis = rates_axis(&[1.0, 1.01, 2.0, 4.0]);
    assert_eq!(axis.ticks.len(), 3);
    assert_eq!(["0.5", "12.3", "1234"], [0.5, 12.34, 1234.5].map(number));
}

//! The targets, and how what was measured stands to them.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// What was measured under one condition; a line of the JSON file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Figure {
    /// `T1` and so on, or the name of a scenario that has no target.
    pub(super) target: String,
    pub(super) condition: String,
    pub(super) unit: String,
    pub(super) gate: Option<f64>,
    pub(super) aim: Option<f64>,
    /// `None` if the run was void, or there is no way to measure it here.
    pub(super) measured: Option<f64>,
    pub(super) gate_met: Option<bool>,
    pub(super) aim_met: Option<bool>,
    /// Of rounds, of which `measured` is the median: the least and the greatest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) range: Option<[f64; 2]>,
    /// Why it is void, or where the figure is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) note: String,
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    AtLeast {
        gate: f64,
        aim: f64,
    },
    AtMost {
        gate: f64,
        aim: f64,
    },
    /// It is only shown.
    Nothing,
}

impl Figure {
    pub(super) fn new(target: &str, condition: impl Into<String>, unit: &str, want: Want, measured: f64) -> Self {
        let (gate, aim, met): (_, _, fn(f64, f64) -> bool) = match want {
            Want::AtLeast { gate, aim } => (Some(gate), Some(aim), |measured, bound| measured >= bound),
            Want::AtMost { gate, aim } => (Some(gate), Some(aim), |measured, bound| measured <= bound),
            Want::Nothing => (None, None, |_, _| true),
        };
        Self {
            target: target.to_owned(),
            condition: condition.into(),
            unit: unit.to_owned(),
            gate,
            aim,
            measured: Some(measured),
            gate_met: gate.map(|gate| met(measured, gate)),
            aim_met: aim.map(|aim| met(measured, aim)),
            range: None,
            note: String::new(),
        }
    }

    /// The median of rounds, or why there is none.
    pub(super) fn of_rounds(
        target: &str,
        condition: impl Into<String>,
        unit: &str,
        want: Want,
        measured: Result<Summary, String>,
    ) -> Self {
        let range = measured.as_ref().ok().map(|summary| [summary.min, summary.max]);
        Self { range, ..Self::of(target, condition, unit, want, measured.map(|summary| summary.median)) }
    }

    /// What was measured, or why that is void.
    pub(super) fn of(
        target: &str,
        condition: impl Into<String>,
        unit: &str,
        want: Want,
        measured: Result<f64, String>,
    ) -> Self {
        match measured {
            Ok(value) => Self::new(target, condition, unit, want, value),
            Err(reason) => Self::new(target, condition, unit, want, 0.0).void(&reason),
        }
    }

    /// Says where it is from, behind what has been said.
    pub(super) fn note(mut self, note: &str) -> Self {
        if !self.note.is_empty() {
            self.note.push_str("; ");
        }
        self.note.push_str(note);
        self
    }

    /// It is not judged.
    pub(super) fn unjudged(mut self) -> Self {
        (self.gate_met, self.aim_met) = (None, None);
        self
    }

    /// It is measured elsewhere, and not here.
    pub(super) fn elsewhere(mut self, note: &str) -> Self {
        self.measured = None;
        self.unjudged().note(note)
    }

    fn void(self, reason: &str) -> Self {
        self.elsewhere(&format!("void: {reason}"))
    }

    fn verdict(&self) -> &'static str {
        match (self.gate_met, self.aim_met) {
            (Some(true), Some(true)) => "aim",
            (Some(true), _) => "gate",
            (Some(false), _) => "MISSED",
            (None, _) => "-",
        }
    }
}

/// All figures for people.
pub(super) fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["target", "condition", "gate", "aim", "measured", "rounds", "", "reached", "note"]);
    for figure in figures {
        let number = |value: Option<f64>| {
            Cell::new(value.map_or_else(|| "-".to_owned(), short)).set_alignment(CellAlignment::Right)
        };
        table.add_row([
            Cell::new(&figure.target),
            Cell::new(&figure.condition),
            number(figure.gate),
            number(figure.aim),
            number(figure.measured),
            Cell::new(
                figure.range.map_or_else(String::new, |[least, most]| format!("{} to {}", short(least), short(most))),
            ),
            Cell::new(&figure.unit),
            Cell::new(figure.verdict()),
            Cell::new(&figure.note),
        ]);
    }
    table
}

/// Three digits, or all in front of the point.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        above if above >= 100.0 => 0,
        above if above >= 10.0 => 1,
        above if above >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_judged_by_its_gate_and_by_its_aim() {
        let judged = |want, measured| Figure::new("T", "", "", want, measured).verdict();
        let (least, most) = (Want::AtLeast { gate: 0.9, aim: 0.95 }, Want::AtMost { gate: 2.0, aim: 1.5 });
        assert_eq!([0.96, 0.95, 0.92, 0.8].map(|value| judged(least, value)), ["aim", "aim", "gate", "MISSED"]);
        assert_eq!([1.0, 1.6, 2.1].map(|value| judged(most, value)), ["aim", "gate", "MISSED"]);
        assert_eq!(judged(Want::Nothing, 1.0), "-");
    }

    #[test]
    fn what_is_void_is_not_judged() {
        let figure = Figure::new("T1", "2x", "of C", Want::AtLeast { gate: 0.9, aim: 0.95 }, 1.0).void("late");
        assert_eq!((figure.measured, figure.verdict()), (None, "-"));
        assert_eq!(figure.note("by one round").note, "void: late; by one round");
    }

    #[test]
    fn a_line_of_json_has_the_names_that_are_documented() {
        let figure = Figure::new("T1", "2x", "of C", Want::AtLeast { gate: 0.98, aim: 0.99 }, 0.985);
        let line = serde_json::to_string(&figure).expect("plain data");
        let expected = r#"{"target":"T1","condition":"2x","unit":"of C","gate":0.98,"aim":0.99,"measured":0.985,"gate_met":true,"aim_met":false}"#;
        assert_eq!(line, expected);
    }
}

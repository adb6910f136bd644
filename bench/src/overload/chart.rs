//! Lines over the offered load: one chart per question.

use std::fs;
use std::path::{Path, PathBuf};

use bench_kit::BoxError;

use super::matrix::{self, Control, Point};
use super::workload::{W1, W2, Workload};
use crate::svg::axis::Axis;
use crate::svg::style::{BARE, GRID, LABEL, OURS, PEER, SMALL, TITLE};
use crate::svg::{Anchor, Style, Svg};

/// What a chart asks.
struct Question {
    file: &'static str,
    title: &'static str,
    axis: &'static str,
    /// `None` where there is nothing to be asked.
    figure: fn(&Point) -> Option<f64>,
    scale: Axis,
    /// On the vertical axis.
    marks: &'static [(f64, &'static str)],
}

const GOODPUT: Question = Question {
    file: "goodput",
    title: "How much is served in time?",
    axis: "served within the deadline, as a share of the capacity",
    // Nothing at all is an answer, and the one that matters most.
    figure: |point| Some(point.goodput),
    scale: Axis::between(0.0, 1.1, false),
    marks: &[(0.0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %")],
};

const LATENCY: Question = Question {
    file: "latency",
    title: "How long does it take who is let in?",
    axis: "p99 of those who were let in, or gave up without an answer, in ms, logarithmic",
    figure: |point| (point.ok + point.late + point.expired > 0).then_some(point.p99_us / 1e3),
    scale: Axis::between(0.2, 60.0, true),
    marks: &[(0.2, "0.2"), (0.5, "0.5"), (1.0, "1"), (2.0, "2"), (5.0, "5"), (10.0, "10"), (20.0, "20"), (50.0, "50")],
};

/// Draws what `points` have, a file for each service and question; says which.
pub(super) fn draw(points: &[Point], folder: &Path) -> Result<Vec<PathBuf>, BoxError> {
    fs::create_dir_all(folder)?;
    let mut files = Vec::new();
    for workload in [&W1, &W2] {
        for question in [&GOODPUT, &LATENCY] {
            let lines = lines(points, workload, question);
            if lines.iter().any(|(_, line)| line.len() > 1) {
                let file = folder.join(format!("{}-{}.svg", question.file, workload.name.to_lowercase()));
                fs::write(&file, chart(workload, question, &lines, &failing(points, workload)))?;
                files.push(file);
            }
        }
    }
    Ok(files)
}

type Line = Vec<(f64, f64)>;

/// Medians of the rounds that count; bursts are another question.
fn lines(points: &[Point], workload: &Workload, question: &Question) -> Vec<(Control, Line)> {
    let line = |control: Control| {
        let of =
            |point: &&Point| point.workload == workload.name && point.control == control.name() && point.burst == 1.0;
        let mut loads: Vec<_> = points.iter().filter(of).map(|point| point.load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let median = |load| {
            let here = points.iter().filter(of).filter(|point| point.load == load);
            let asked = here.filter(|point| (question.figure)(point).is_some());
            let median = matrix::median(asked, |point| (question.figure)(point).unwrap_or(0.0));
            median.map(|summary| summary.median).ok()
        };
        (control, loads.into_iter().filter_map(|load| Some((load, median(load)?))).collect())
    };
    Control::ALL.into_iter().map(line).collect()
}

/// Those of whose calls more than one in a thousand failed in another way than by being late or refused.
fn failing(points: &[Point], workload: &Workload) -> Vec<Control> {
    let fails = |point: &Point| point.failed as f64 > 0.001 * point.offered as f64;
    let of = |control: &Control| {
        points
            .iter()
            .any(|p| p.workload == workload.name && p.control == control.name() && p.void.is_none() && fails(p))
    };
    Control::ALL.into_iter().filter(of).collect()
}

fn named(control: Control, failing: &[Control]) -> String {
    let remark = if failing.contains(&control) { " (calls failed)" } else { "" };
    format!("{}{remark}", control.name())
}

fn chart(workload: &Workload, question: &Question, lines: &[(Control, Line)], failing: &[Control]) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.text((LEFT, 30.0), question.title, TITLE);
    let subtitle =
        format!("{}: {}; callers wait for {} ms", workload.name, workload.about, workload.deadline.as_millis());
    svg.text((LEFT, 50.0), &subtitle, SMALL);
    svg.text((LEFT, 70.0), question.axis, SMALL);
    for &(value, mark) in question.marks {
        let y = question.y(value);
        svg.line((LEFT, y), (RIGHT, y), GRID);
        svg.text((LEFT - 8.0, y + 4.0), mark, Style { anchor: Anchor::End, ..SMALL });
    }
    for (load, mark) in LOADS {
        svg.line((x(load), TOP), (x(load), BOTTOM), GRID);
        svg.text((x(load), BOTTOM + 18.0), mark, Style { anchor: Anchor::Middle, ..SMALL });
    }
    let middle = Style { anchor: Anchor::Middle, ..SMALL };
    svg.text(
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 38.0),
        "offered load, in multiples of the capacity, logarithmic",
        middle,
    );
    for (nth, (control, line)) in lines.iter().filter(|(_, line)| !line.is_empty()).enumerate() {
        let colour = colour(*control);
        let places: Vec<_> = line.iter().map(|&(load, value)| (x(load), question.y(value))).collect();
        svg.curve(&places, colour);
        let at = TOP + 12.0 + 22.0 * nth as f64;
        svg.curve(&[(RIGHT + 18.0, at), (RIGHT + 42.0, at)], colour);
        svg.text((RIGHT + 50.0, at + 4.0), &named(*control, failing), LABEL);
    }
    svg.finish()
}

impl Question {
    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.scale.place(value) * (BOTTOM - TOP)
    }
}

fn x(load: f64) -> f64 {
    LEFT + Axis::between(LOADS[0].0, LOADS[LOADS.len() - 1].0, true).place(load) * (RIGHT - LEFT)
}

fn colour(control: Control) -> &'static str {
    match control {
        Control::Fixed => OURS,
        Control::Adaptive => "#2a9d73",
        Control::None => BARE,
        Control::Tonic => PEER,
        Control::Tarpc => "#a8508c",
    }
}

const LOADS: [(f64, &str); 7] =
    [(0.5, "0.5x"), (0.8, "0.8x"), (1.0, "1x"), (1.5, "1.5x"), (2.0, "2x"), (5.0, "5x"), (10.0, "10x")];
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 410.0;

#[cfg(test)]
mod tests {
    use bench_kit::overload::Tally;

    use super::*;

    #[test]
    fn ends_of_the_axes_are_where_they_are_drawn() {
        assert_eq!((x(0.5), x(10.0)), (LEFT, RIGHT));
        assert_eq!((GOODPUT.y(0.0), GOODPUT.y(1.1), GOODPUT.y(7.0)), (BOTTOM, TOP, TOP));
        assert_eq!((LATENCY.y(0.0), LATENCY.y(60.0)), (BOTTOM, TOP));
    }

    #[test]
    fn a_server_that_serves_nothing_in_time_has_a_goodput_and_no_latency_where_nobody_was_let_in() {
        let point = |load, ok, goodput, p99_us| Point {
            workload: W2.name.to_owned(),
            control: Control::None.name().to_owned(),
            load,
            goodput,
            ok,
            p99_us,
            ..Point::from(&Tally::default())
        };
        let points =
            [point(1.0, 9, 0.9, 9_000.0), point(2.0, 0, 0.0, 0.0), point(2.0, 0, 0.0, 0.0), point(2.0, 3, 0.3, 1.0)];
        let of = |question| {
            let lines = lines(&points, &W2, question);
            lines.into_iter().find(|(control, _)| *control == Control::None).map(|(_, line)| line)
        };
        assert_eq!(of(&GOODPUT), Some(vec![(1.0, 0.9), (2.0, 0.0)]));
        assert_eq!(of(&LATENCY), Some(vec![(1.0, 9.0), (2.0, 0.001)]));
    }
}

//! Lines over the offered load: one chart per question.

use std::fs;
use std::path::{Path, PathBuf};

use bench_kit::BoxError;

use super::matrix::{self, Control, Point};
use super::workload::{W1, W2, Workload};
use crate::svg::{Anchor, Style, Svg};

/// What a chart asks.
struct Question {
    file: &'static str,
    title: &'static str,
    axis: &'static str,
    figure: fn(&Point) -> f64,
    log: bool,
    /// Marks of the vertical axis, the first and the last of which are its ends.
    marks: &'static [(f64, &'static str)],
}

const GOODPUT: Question = Question {
    file: "goodput",
    title: "How much is served in time?",
    axis: "served within the deadline, as a share of the capacity",
    figure: |point| point.goodput,
    log: false,
    marks: &[(0.0, "0"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %"), (1.1, "")],
};

const LATENCY: Question = Question {
    file: "latency",
    title: "How long does it take who is served in time?",
    axis: "p99 of those served within the deadline, in ms, logarithmic",
    figure: |point| point.p99_us / 1e3,
    log: true,
    marks: &[
        (0.2, "0.2"),
        (0.5, "0.5"),
        (1.0, "1"),
        (2.0, "2"),
        (5.0, "5"),
        (10.0, "10"),
        (20.0, "20"),
        (50.0, "50"),
        (60.0, ""),
    ],
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
                fs::write(&file, chart(workload, question, &lines))?;
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
        let of = |point: &&Point| {
            point.workload == workload.name && point.control == control.name() && point.burst == 1.0 && point.ok > 0
        };
        let mut loads: Vec<_> = points.iter().filter(of).map(|point| point.load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let median = |load| matrix::median(points.iter().filter(of).filter(|p| p.load == load), question.figure).ok();
        (control, loads.into_iter().filter_map(|load| Some((load, median(load)?))).collect())
    };
    Control::ALL.into_iter().map(line).collect()
}

fn chart(workload: &Workload, question: &Question, lines: &[(Control, Line)]) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.text((LEFT, 30.0), question.title, TITLE);
    let subtitle =
        format!("{}: {}; callers wait for {} ms", workload.name, workload.about, workload.deadline.as_millis());
    svg.text((LEFT, 50.0), &subtitle, SMALL);
    svg.text((LEFT, 70.0), question.axis, SMALL);
    for &(value, mark) in question.marks {
        if !mark.is_empty() {
            let y = question.y(value);
            svg.line((LEFT, y), (RIGHT, y), GRID);
            svg.text((LEFT - 8.0, y + 4.0), mark, Style { anchor: Anchor::End, ..SMALL });
        }
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
        svg.text((RIGHT + 50.0, at + 4.0), control.name(), LABEL);
    }
    svg.finish()
}

impl Question {
    fn y(&self, value: f64) -> f64 {
        let (least, most) = (self.marks[0].0, self.marks[self.marks.len() - 1].0);
        let value = value.clamp(least, most);
        let place =
            if self.log { (value / least).ln() / (most / least).ln() } else { (value - least) / (most - least) };
        BOTTOM - place * (BOTTOM - TOP)
    }
}

fn x(load: f64) -> f64 {
    let (least, most) = (LOADS[0].0, LOADS[LOADS.len() - 1].0);
    LEFT + (load / least).ln() / (most / least).ln() * (RIGHT - LEFT)
}

fn colour(control: Control) -> &'static str {
    match control {
        Control::Fixed => "#1f6fb2",
        Control::Adaptive => "#2a9d73",
        Control::None => "#8a8f94",
        Control::Tonic => "#d98a3d",
        Control::Tarpc => "#a8508c",
    }
}

const LOADS: [(f64, &str); 7] =
    [(0.5, "0.5x"), (0.8, "0.8x"), (1.0, "1x"), (1.5, "1.5x"), (2.0, "2x"), (5.0, "5x"), (10.0, "10x")];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 410.0;
const GRID: &str = "#e3e6e8";
const TITLE: Style = Style { size: 19.0, colour: "#1a1a1a", bold: true, anchor: Anchor::Start };
const LABEL: Style = Style { size: 12.0, colour: "#1a1a1a", bold: false, anchor: Anchor::Start };
const SMALL: Style = Style { size: 11.5, colour: "#5a6268", bold: false, anchor: Anchor::Start };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_the_axes_are_where_they_are_drawn() {
        assert_eq!((x(0.5), x(10.0)), (LEFT, RIGHT));
        assert_eq!((GOODPUT.y(0.0), GOODPUT.y(1.1), GOODPUT.y(7.0)), (BOTTOM, TOP, TOP));
        assert_eq!((LATENCY.y(0.0), LATENCY.y(60.0)), (BOTTOM, TOP));
    }
}

//! A panel: the bars of one workload on one scale.

use bench_kit::workload::Kind;

use crate::contender::Contender;
use crate::report::{Row, number};
use crate::stats::{self, Summary};
use crate::svg::axis::Axis;
use crate::svg::style::{BARE, GRID, LABEL, OURS, PEER, SMALL, TITLE};
use crate::svg::{Anchor, Style, Svg};

/// What the bars of a panel show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) title: &'static str,
    pub(super) figure: fn(&Row) -> Option<f64>,
    decimals: usize,
}

/// What a workload is about.
pub(super) fn measure_of(kind: Kind) -> Measure {
    match kind {
        Kind::Served | Kind::PendingOnce | Kind::Stream => {
            Measure { title: "calls per second, more is better", figure: |row| Some(row.per_sec), decimals: 0 }
        }
        Kind::Idle => Measure {
            title: "bytes per connection on the server, less is better",
            figure: |row| row.server_bytes_per_connection,
            decimals: 0,
        },
        Kind::Refused => Measure {
            title: "server CPU in us per call, less is better",
            figure: |row| Some(row.server_cpu_us_per_call),
            decimals: 2,
        },
    }
}

/// One stack under the workload.
#[derive(Debug)]
pub(super) struct Bar {
    name: &'static str,
    colour: &'static str,
    summary: Summary,
    ratio: Option<f64>,
}

impl Bar {
    /// `None` if nothing was measured.
    pub(super) fn new(of: &Contender, values: &[(usize, f64)], references: &[(usize, f64)]) -> Option<Self> {
        let figures: Vec<_> = values.iter().map(|&(_, figure)| figure).collect();
        let colour = match (of.package, of.name.starts_with("sluicegate")) {
            (Some(_), _) => PEER,
            (None, true) => OURS,
            (None, false) => BARE,
        };
        let ratio = stats::median_ratio(values, references);
        Some(Self { name: of.name, colour, summary: stats::summary(&figures)?, ratio })
    }
}

/// The bars of one workload.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) measure: Measure,
    pub(super) bars: Vec<Bar>,
}

/// All panels, two beside each other.
pub(super) fn draw(panels: &[Panel], subtitle: &str) -> String {
    let rows: Vec<_> = panels.chunks(COLUMNS).collect();
    let height_of = |row: &[Panel]| row.iter().map(Panel::height).fold(0.0, f64::max) + PANEL_GAP;
    let height = HEAD + rows.iter().map(|row| height_of(row)).sum::<f64>() + PANEL_GAP / 2.0;
    let columns = panels.len().min(COLUMNS);
    let width = MARGIN * 2.0 + columns as f64 * PANEL_WIDTH + (columns - 1) as f64 * PANEL_GAP;
    let mut svg = Svg::new(width, height);
    svg.text((MARGIN, 34.0), "Sluicegate, bare loops and peers", TITLE);
    svg.text((MARGIN, 54.0), subtitle, SMALL);
    legend(&mut svg);
    let mut y = HEAD;
    for row in rows {
        for (column, panel) in row.iter().enumerate() {
            panel.draw(&mut svg, (MARGIN + column as f64 * (PANEL_WIDTH + PANEL_GAP), y));
        }
        y += height_of(row);
    }
    svg.finish()
}

fn legend(svg: &mut Svg) {
    let mut x = MARGIN;
    for (colour, meaning) in [(OURS, "Sluicegate"), (BARE, "bare tokio loop"), (PEER, "peer")] {
        svg.rect((x, 66.0), (11.0, 11.0), colour);
        svg.text((x + 17.0, 76.0), meaning, SMALL);
        x += 40.0 + 7.5 * meaning.len() as f64;
    }
}

impl Panel {
    fn height(&self) -> f64 {
        BARS_AT + self.bars.len() as f64 * BAR_PITCH + AXIS
    }

    fn draw(&self, svg: &mut Svg, (x, y): (f64, f64)) {
        let scale = Axis::of(self.bars.iter().map(|bar| (bar.summary.min, bar.summary.max)));
        let kind = if scale.log { ", logarithmic" } else { "" };
        svg.text((x, y + 14.0), &self.title, HEADING);
        svg.text((x, y + 31.0), &format!("{}{kind}", self.measure.title), SMALL);
        let left = x + NAMES;
        let bars_end = y + BARS_AT + self.bars.len() as f64 * BAR_PITCH;
        for mark in scale.marks() {
            let at = left + scale.place(mark) * BAR_LEN;
            svg.line((at, y + BARS_AT - 4.0), (at, bars_end), GRID);
            svg.text((at, bars_end + 14.0), &short(mark), Style { anchor: Anchor::Middle, ..SMALL });
        }
        for (index, bar) in self.bars.iter().enumerate() {
            let top = y + BARS_AT + index as f64 * BAR_PITCH;
            self.draw_bar(svg, bar, &scale, (left, top));
        }
    }

    fn draw_bar(&self, svg: &mut Svg, bar: &Bar, scale: &Axis, (left, top): (f64, f64)) {
        let at = |value| left + scale.place(value) * BAR_LEN;
        let Summary { median, min, max } = bar.summary;
        let middle = top + BAR_HEIGHT / 2.0;
        let baseline = middle + 4.0;
        let bold = bar.colour == OURS;
        svg.text((left - 8.0, baseline), bar.name, Style { anchor: Anchor::End, bold, ..LABEL });
        svg.rect((left, top), ((at(median) - left).max(1.0), BAR_HEIGHT), bar.colour);
        svg.line((at(min), middle), (at(max), middle), RANGE);
        let ratio = bar.ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
        let value = format!("{}{ratio}", number(median, self.measure.decimals));
        svg.text((at(max).max(at(median)) + 6.0, baseline), &value, Style { bold, ..LABEL });
    }
}

/// A number for an axis.
fn short(value: f64) -> String {
    // An axis in steps of a fifth has nothing beyond the second digit.
    let trimmed = |value: f64, unit: &str| {
        let text = format!("{value:.2}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    if value >= 1e6 {
        trimmed(value / 1e6, " M")
    } else if value >= 1e3 {
        trimmed(value / 1e3, " k")
    } else {
        trimmed(value, "")
    }
}

const COLUMNS: usize = 2;
const MARGIN: f64 = 28.0;
const HEAD: f64 = 104.0;
const PANEL_WIDTH: f64 = 590.0;
const PANEL_GAP: f64 = 34.0;
const NAMES: f64 = 132.0;
/// What is left of it is for the figure at the end of a bar.
const BAR_LEN: f64 = 330.0;
const BARS_AT: f64 = 44.0;
const BAR_PITCH: f64 = 21.0;
const BAR_HEIGHT: f64 = 15.0;
const AXIS: f64 = 18.0;

const RANGE: &str = "#222222";
const HEADING: Style = Style { size: 13.5, ..TITLE };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_has_short_numbers() {
        assert_eq!(["0", "200", "1.5 k", "2 M"], [0.0, 200.0, 1_500.0, 2e6].map(short)[..]);
    }
}

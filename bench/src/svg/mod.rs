//! The few shapes of a chart as SVG.

pub(crate) mod axis;
pub(crate) mod style;

use std::fmt::Write;

/// A picture that is being drawn.
#[derive(Debug)]
pub(crate) struct Svg {
    shapes: String,
    width: f64,
    height: f64,
}

/// Where the given point of a text is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) size: f64,
    pub(crate) colour: &'static str,
    pub(crate) bold: bool,
    pub(crate) anchor: Anchor,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let mut new = Self { shapes: String::new(), width, height };
        new.rect((0.0, 0.0), (width, height), "#ffffff");
        new
    }

    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.shape(&format!(r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#));
    }

    pub(crate) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.shape(&format!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="1"/>"#
        ));
    }

    /// A line through all points, each of which is marked.
    pub(crate) fn curve(&mut self, points: &[(f64, f64)], colour: &str) {
        let places: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let places = places.join(" ");
        self.shape(&format!(r#"<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>"#));
        for (x, y) in points {
            self.shape(&format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#));
        }
    }

    pub(crate) fn text(&mut self, (x, y): (f64, f64), text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold { "bold" } else { "normal" };
        let (size, colour, text) = (style.size, style.colour, escaped(text));
        self.shape(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    pub(crate) fn finish(self) -> String {
        let Self { shapes, width, height } = self;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif">
{shapes}</svg>
"#
        )
    }

    fn shape(&mut self, shape: &str) {
        writeln!(self.shapes, "{shape}").expect("a string takes everything");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("Vec<u8> & more"), "Vec&lt;u8&gt; &amp; more");
    }
}

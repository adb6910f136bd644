//! What has been found so far: written down as soon as it is known.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bench_kit::BoxError;
use serde::{Deserialize, Serialize};

use super::matrix::Point;
use super::target::{self, Figure};

/// A line of the JSON file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum Line {
    Figure(Figure),
    Point(Point),
}

/// Figures of all parts.
#[derive(Debug)]
pub(super) struct Results {
    json: Option<File>,
    /// With `--quick` nothing is judged.
    judged: bool,
    /// Of these targets, unless a part was asked for by its name; of all, if there are none.
    targets: Vec<String>,
    figures: Vec<Figure>,
}

impl Results {
    pub(super) fn new(json: Option<&Path>, judged: bool) -> Result<Self, BoxError> {
        let json = json.map(File::create).transpose()?;
        Ok(Self { json, judged, targets: Vec::new(), figures: Vec::new() })
    }

    /// What is going to be found counts only if it is of these targets; if there are none, all does.
    pub(super) fn only(&mut self, targets: &[String]) {
        self.targets = targets.to_vec();
    }

    pub(super) fn figure(&mut self, figure: Figure) -> Result<(), BoxError> {
        if !self.targets.is_empty() && !self.targets.contains(&figure.target) {
            return Ok(());
        }
        let figure = if self.judged { figure } else { figure.unjudged() };
        self.write(&Line::Figure(figure.clone()))?;
        self.figures.push(figure);
        Ok(())
    }

    pub(super) fn point(&mut self, point: &Point) -> Result<(), BoxError> {
        self.write(&Line::Point(point.clone()))
    }

    /// All figures for people, by target.
    pub(super) fn table(&self) -> String {
        let nth = |figure: &Figure| figure.target.strip_prefix('T').and_then(|nth| nth.parse().ok());
        let mut figures = self.figures.clone();
        figures.sort_by_key(|figure| nth(figure).unwrap_or(usize::MAX));
        target::table(&figures).to_string()
    }

    fn write(&mut self, line: &Line) -> Result<(), BoxError> {
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", serde_json::to_string(line)?)?;
        }
        Ok(())
    }
}

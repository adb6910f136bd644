//! Draws what `bench run --json` wrote: a panel of bars per workload, as SVG and as PNG.

mod panel;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bench_kit::BoxError;
use bench_kit::workload::WORKLOADS;
use clap::Args;
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::{self, fontdb};

use crate::contender;
use crate::plot::panel::{Bar, Panel};
use crate::report::Row;

/// What to draw, and where to.
#[derive(Debug, Args)]
pub(crate) struct PlotArgs {
    /// What `run --json` wrote.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// Where to draw: this name with `.svg` and with `.png`; that of the JSON if not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The stack that ratios are to.
    #[arg(long, value_name = "STACK", default_value = "raw-mux")]
    relative_to: String,
}

/// Draws; nothing is drawn of workloads that are not in the file.
pub(crate) fn plot(args: &PlotArgs) -> Result<(), BoxError> {
    let rows = read(&args.json)?;
    let panels = panels(&rows, &args.relative_to);
    if panels.is_empty() {
        return Err(format!("{} has no results", args.json.display()).into());
    }
    let drawn = panel::draw(&panels, &subtitle(&rows, &args.relative_to));
    let out = args.out.as_ref().unwrap_or(&args.json);
    let (svg, png) = (out.with_extension("svg"), out.with_extension("png"));
    fs::write(&svg, &drawn)?;
    rasterise(&drawn, &png)?;
    println!("drew {} and {}", svg.display(), png.display());
    Ok(())
}

fn read(path: &Path) -> Result<Vec<Row>, BoxError> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rows = text.lines().enumerate().map(|(line, row)| {
        serde_json::from_str(row).map_err(|error| format!("{}, line {}: {error}", path.display(), line + 1).into())
    });
    rows.collect()
}

/// In the order of the workloads and stacks of this program, whatever the order of the file.
fn panels(rows: &[Row], reference: &str) -> Vec<Panel> {
    let panels = WORKLOADS.iter().filter_map(|workload| {
        let measure = panel::measure_of(workload.kind);
        let of = |stack: &str| -> Vec<(usize, f64)> {
            let of_stack = rows.iter().filter(|row| row.workload == workload.name && row.stack == stack);
            of_stack.filter_map(|row| Some((row.round, (measure.figure)(row)?))).collect()
        };
        let references = of(reference);
        let bars = contender::all().iter().filter_map(|one| Bar::new(one, &of(one.name), &references));
        let bars: Vec<_> = bars.collect();
        let title = format!("({}) {}", workload.name, workload.describe());
        (!bars.is_empty()).then_some(Panel { title, measure, bars })
    });
    panels.collect()
}

fn subtitle(rows: &[Row], reference: &str) -> String {
    let rounds: BTreeSet<_> = rows.iter().map(|row| row.round).collect();
    let pins: BTreeSet<_> = rows.iter().map(|row| &*row.pin).collect();
    let pins: Vec<_> = pins.into_iter().collect();
    format!(
        "Median of {} rounds, the line is their range; in brackets the ratio to {reference}. Pin: {}.",
        rounds.len(),
        pins.join(", ")
    )
}

/// Twice the size of the SVG, for screens with fine dots.
const SCALE: f32 = 2.0;

fn rasterise(svg: &str, path: &Path) -> Result<(), BoxError> {
    // A font that is brought along: text is to look the same everywhere, also where there is no font.
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    let options = usvg::Options { fontdb: Arc::new(fonts), ..usvg::Options::default() };
    let tree = usvg::Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("an empty picture")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or("an empty picture")?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.save_png(path)?;
    Ok(())
}

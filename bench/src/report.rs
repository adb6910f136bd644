//! Results as lines of JSON, and as a table for people.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde::{Deserialize, Serialize};

use crate::stats;

/// One stack under one workload in one round; a line of the JSON file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) stack: String,
    pub(crate) workload: String,
    pub(crate) round: usize,
    pub(crate) per_sec: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) server_cpu_us_per_call: f64,
    pub(crate) client_cpu_us_per_call: f64,
    pub(crate) server_peak_rss_kib: u64,
    /// Of workloads that measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_bytes_per_connection: Option<f64>,
    pub(crate) max_us: f64,
    pub(crate) calls: u64,
    pub(crate) pin: String,
    pub(crate) workers: usize,
}

/// What a column shows of a row.
struct Column {
    title: &'static str,
    figure: fn(&Row) -> Option<f64>,
    decimals: usize,
}

const COLUMNS: &[Column] = &[
    column("calls/s", |row| Some(row.per_sec), 0),
    column("p50 us", |row| Some(row.p50_us), 1),
    column("p99 us", |row| Some(row.p99_us), 1),
    column("server CPU us/call", |row| Some(row.server_cpu_us_per_call), 2),
    column("client CPU us/call", |row| Some(row.client_cpu_us_per_call), 2),
    column("server peak KiB", |row| Some(row.server_peak_rss_kib as f64), 0),
    column("server B/connection", |row| row.server_bytes_per_connection, 0),
];

/// The rows of one workload as a table, a line per stack in the order given.
///
/// Each cell has the median of the rounds, its ratio to `reference` (median of the ratios within
/// rounds), and the least and greatest value.
pub(crate) fn table(rows: &[Row], workload: &str, stacks: &[&str], reference: &str) -> Table {
    let of = |stack: &str, column: &Column| -> Vec<(usize, f64)> {
        rows.iter()
            .filter(|row| row.workload == workload && row.stack == stack)
            .filter_map(|row| Some((row.round, (column.figure)(row)?)))
            .collect()
    };
    // A column is shown if anybody has a figure in it.
    let columns: Vec<_> =
        COLUMNS.iter().filter(|column| stacks.iter().any(|stack| !of(stack, column).is_empty())).collect();
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let titles = columns.iter().map(|column| column.title);
    table.set_header(["stack"].into_iter().chain(titles));
    for stack in stacks {
        let figures = columns.iter().map(|column| {
            let text = cell(&of(stack, column), &of(reference, column), column.decimals);
            Cell::new(text).set_alignment(CellAlignment::Right)
        });
        table.add_row([Cell::new(stack)].into_iter().chain(figures));
    }
    table
}

const fn column(title: &'static str, figure: fn(&Row) -> Option<f64>, decimals: usize) -> Column {
    Column { title, figure, decimals }
}

fn cell(values: &[(usize, f64)], references: &[(usize, f64)], decimals: usize) -> String {
    let only: Vec<f64> = values.iter().map(|&(_, value)| value).collect();
    let Some(found) = stats::summary(&only) else {
        return "-".to_owned();
    };
    let ratio = stats::median_ratio(values, references).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    format!(
        "{} ({ratio})\n{}..{}",
        number(found.median, decimals),
        number(found.min, decimals),
        number(found.max, decimals),
    )
}

/// A number with its thousands apart.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) = match plain.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (plain.as_str(), String::new()),
    };
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(number(999.4, 0), "999");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(12_345.678, 2), "12,345.68");
    }

    #[test]
    fn cell_has_median_ratio_and_range() {
        let values = [(0, 1.0), (1, 3.0), (2, 2.0)];
        assert_eq!(cell(&values, &values, 1), "2.0 (1.00)\n1.0..3.0");
        assert_eq!(cell(&values, &[], 1), "2.0 (-)\n1.0..3.0");
        assert_eq!(cell(&[], &values, 1), "-");
    }

    #[test]
    fn json_lines_have_the_names_that_plots_read() {
        let row = Row {
            stack: "raw".to_owned(),
            workload: "a".to_owned(),
            round: 0,
            per_sec: 1.0,
            p50_us: 2.0,
            p99_us: 3.0,
            server_cpu_us_per_call: 4.0,
            client_cpu_us_per_call: 5.0,
            server_peak_rss_kib: 6,
            server_bytes_per_connection: None,
            max_us: 7.0,
            calls: 8,
            pin: "free".to_owned(),
            workers: 2,
        };
        let line = serde_json::to_string(&row).expect("a row is plain data");
        let start = r#"{"stack":"raw","workload":"a","round":0,"per_sec":1.0,"p50_us":2.0,"p99_us":3.0,"server_cpu_us_per_call":4.0,"client_cpu_us_per_call":5.0,"server_peak_rss_kib":6"#;
        assert!(line.starts_with(start), "{line}");
    }
}

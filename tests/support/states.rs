//! The tables of states in `docs/protocol.md`.

/// What the specification says becomes of a frame in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is handled.
    Yes,
    /// It is ignored and counted.
    Late,
    /// The connection ends.
    Error,
}

/// The rows of the table whose first column is headed `heading`: the state, and what becomes of each frame.
pub(crate) fn table(heading: &str) -> Vec<(String, Vec<(String, Fate)>)> {
    const DOCUMENT: &str = include_str!("../../docs/protocol.md");
    let mut lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(&format!("| {heading} |")));
    let names = cells(lines.next().expect("there is such a table"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|')).map(|line| {
        let mut cells = cells(line).into_iter();
        let state = cells.next().expect("a state");
        let fates = names[1..].iter().cloned().zip(cells.map(|cell| match &*cell {
            "yes" => Fate::Yes,
            "late" => Fate::Late,
            "error" => Fate::Error,
            other => panic!("{other} is no fate"),
        }));
        (state, fates.collect())
    });
    rows.collect()
}

fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

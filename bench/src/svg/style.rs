//! How all charts look.

use super::{Anchor, Style};

const INK: &str = "#1a1a1a";

pub(crate) const TITLE: Style = Style { size: 20.0, colour: INK, bold: true, anchor: Anchor::Start };
pub(crate) const LABEL: Style = Style { size: 11.5, bold: false, ..TITLE };
pub(crate) const SMALL: Style = Style { size: 11.0, colour: "#5a6268", ..LABEL };

pub(crate) const GRID: &str = "#e3e6e8";

/// By who it is.
pub(crate) const OURS: &str = "#1f6fb2";
pub(crate) const BARE: &str = "#9aa3ab";
pub(crate) const PEER: &str = "#d98a3d";

//! Tables for terminals: their lines, and the alignment of cells.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};

/// A table with horizontal lines only, as wide as its content.
pub fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()))
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// A cell whose text is at its right end.
pub fn right(text: impl Into<String>) -> Cell {
    Cell::new(text.into()).set_alignment(CellAlignment::Right)
}

/// The text of a table, without spaces at the ends of lines.
pub fn text(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

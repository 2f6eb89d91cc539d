//! Tables of plain text.
//!
//! Invariant: columns are as wide as their widest cell, no line ends in blanks, and nothing depends
//! on the terminal.

use page::escape;

/// How the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Words of more characters than this are given room on a page, so that they are no column of single
/// words.
const LONG_CHARS: usize = 40;

/// The cell of what is not known.
const UNKNOWN: &str = "-";

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins a table with its columns.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    /// Takes a column out.
    pub fn leave_out(&mut self, name: &str) {
        let Some(at) = self.columns.iter().position(|(column, _)| column == name) else { return };
        self.columns.remove(at);
        self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
    }

    /// Takes all columns out of which no cell is known.
    pub fn leave_out_unknown(&mut self) {
        let is_unknown = |at: &usize| self.rows.iter().all(|row| row[*at] == UNKNOWN);
        let unknown: Vec<String> =
            (0..self.columns.len()).filter(is_unknown).map(|at| self.columns[at].0.clone()).collect();
        unknown.iter().for_each(|name| self.leave_out(name));
    }

    /// The table as text, each line after `indent`.
    pub fn text(&self, indent: &str) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut text = String::new();
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        for row in [&names, &rule].into_iter().chain(&self.rows) {
            let mut line = String::from(indent);
            for (at, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[at] - cell.chars().count());
                match self.columns[at].1 {
                    Align::Left => line.extend([cell.as_str(), &blanks]),
                    Align::Right => line.extend([blanks.as_str(), cell]),
                }
                line.push_str("  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The table as HTML; it scrolls within itself where it is wider than the page.
    pub fn html(&self) -> String {
        let mut text = String::from("<div class=\"wide\"><table>\n<tr>");
        for (name, align) in &self.columns {
            text.push_str(&format!("<th{}>{}</th>", class(*align), escape(name)));
        }
        text.push_str("</tr>\n");
        for row in &self.rows {
            text.push_str("<tr>");
            for (cell, (_, align)) in row.iter().zip(&self.columns) {
                let class = match cell.chars().count() > LONG_CHARS {
                    true if *align == Align::Left => " class=\"words long\"",
                    _ => class(*align),
                };
                text.push_str(&format!("<td{class}>{}</td>", escape(cell)));
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table></div>\n");
        text
    }
}

fn class(align: Align) -> &'static str {
    match align {
        Align::Left => " class=\"words\"",
        Align::Right => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_no_line_ends_in_blanks() {
        let mut table = Table::new(&[("who", Align::Left), ("rate", Align::Right)]);
        table.row(vec!["a".to_owned(), "65,000".to_owned()]);
        table.row(vec!["long one".to_owned(), "3,000".to_owned()]);
        table.columns.push(("why".to_owned(), Align::Left));
        table.rows.iter_mut().for_each(|row| row.push("-".to_owned()));
        table.leave_out_unknown();
        assert_eq!(table.text(""), "who         rate\n--------  ------\na         65,000\nlong one   3,000\n");
    }
}

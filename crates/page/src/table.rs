//! Tables of a page: what stands beside each other, by how much it differs, and who is best.
//!
//! Invariant: the first run is what ratios are to. A difference that nobody can rely on (under two
//! of a hundred) makes nobody the best.

use crate::escape;
use crate::figures::ratio;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Rates.
    Higher,
    /// Waits and costs.
    Lower,
}

/// What is as good as the best.
const TIE: f64 = 0.02;

/// The best of these; `None` where it is not clear, or fewer than two have a value.
pub fn best(values: &[Option<f64>], better: Better) -> Option<usize> {
    let mut ranked: Vec<(usize, f64)> =
        values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?))).collect();
    ranked.sort_by(|a, b| match better {
        Better::Higher => b.1.total_cmp(&a.1),
        Better::Lower => a.1.total_cmp(&b.1),
    });
    let [first, second, ..] = ranked[..] else { return None };
    ((first.1 - second.1).abs() > TIE * first.1.abs().max(second.1.abs())).then_some(first.0)
}

/// What the `at`-th is of the first, as a ratio; `None` where that says nothing.
pub fn to_first(values: &[Option<f64>], at: usize) -> Option<String> {
    let (first, value) = (values.first().copied().flatten()?, values.get(at).copied().flatten()?);
    (at > 0 && first > 0.0 && value > 0.0).then(|| ratio(value / first))
}

/// A row: a name and a cell for each column, or only a name, which then heads a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Text of each cell, and whether it is the best of its row.
    pub cells: Vec<(String, bool)>,
    /// The part of the page that its name leads to.
    link: Option<String>,
}

impl Row {
    /// A row of cells.
    pub fn of(name: impl Into<String>, cells: Vec<(String, bool)>) -> Row {
        Row { name: name.into(), cells, link: None }
    }

    /// A row of cells none of which is the best.
    pub fn plain(name: impl Into<String>, cells: impl IntoIterator<Item = String>) -> Row {
        Row::of(name, cells.into_iter().map(|cell| (cell, false)).collect())
    }

    /// A row that heads those behind it.
    pub fn group(name: impl Into<String>) -> Row {
        Row::of(name, Vec::new())
    }

    /// The same with a name that leads to this part of the page.
    pub fn to(self, part: &str) -> Row {
        Row { link: Some(part.to_owned()), ..self }
    }
}

/// A table; it scrolls within itself where it is wider than the page, and its first column stays.
pub fn html(heads: &[String], rows: &[Row]) -> String {
    let cells: String = heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
    table(&format!("<tr>{cells}</tr>\n"), &vec![Align::Right; heads.len()], rows)
}

/// A table whose columns stand in groups: the name of each, and those of its columns.
pub fn spanned(heads: &[(String, Vec<String>)], rows: &[Row]) -> String {
    let group = |(name, columns): &(String, Vec<String>)| {
        format!("<th class=\"over\" colspan=\"{}\">{}</th>", columns.len(), escape(name))
    };
    let groups: String = heads.iter().map(group).collect();
    let columns = || heads.iter().flat_map(|(_, columns)| columns);
    let names: String = columns().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let heads = format!("<tr><th></th>{groups}</tr>\n<tr><th></th>{names}</tr>\n");
    table(&heads, &vec![Align::Right; 1 + columns().count()], rows)
}

/// The same table in Markdown.
pub fn markdown(heads: &[String], rows: &[Row]) -> String {
    let line = |cells: &[String]| {
        let cells = cells.iter().map(|cell| cell.replace('|', "/").replace('\n', " "));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let columns = heads.len() - 1;
    let mut text = format!("{}|---|{}\n", line(heads), "--:|".repeat(columns));
    for row in rows {
        let cells = row.cells.iter().map(|(cell, is_best)| if *is_best { format!("**{cell}**") } else { cell.clone() });
        let cells: Vec<String> = std::iter::once(row.name.clone()).chain(cells).collect();
        match row.cells.is_empty() {
            true => text.push_str(&format!("| **{}** |{}\n", row.name, " |".repeat(columns))),
            false => text.push_str(&line(&cells)),
        }
    }
    text
}

fn table(heads: &str, columns: &[Align], rows: &[Row]) -> String {
    let mut text = format!("<div class=\"wide\"><table>\n{heads}");
    for row in rows {
        let name = escape(&row.name);
        if row.cells.is_empty() {
            text.push_str(&format!("<tr><td class=\"group\" colspan=\"{}\">{name}</td></tr>\n", columns.len()));
            continue;
        }
        text.push_str(&match &row.link {
            Some(part) => format!("<tr><td><a href=\"#{}\">{name}</a></td>", escape(part)),
            None => format!("<tr><td>{name}</td>"),
        });
        for ((cell, is_best), align) in row.cells.iter().zip(&columns[1..]) {
            let class = match is_best {
                true => " class=\"win\"",
                false if cell.chars().count() > LONG_CHARS => " class=\"words long\"",
                false => align.class(),
            };
            text.push_str(&format!("<td{class}>{}</td>", escape(cell)));
        }
        text.push_str("</tr>\n");
    }
    text + "</table></div>\n"
}

/// How the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

impl Align {
    fn class(self) -> &'static str {
        if self == Align::Left { " class=\"words\"" } else { "" }
    }
}

/// Words of more characters than this are given room on a page, so that they are no column of single
/// words.
const LONG_CHARS: usize = 40;

/// The cell of what is not known.
pub const UNKNOWN: &str = "-";

/// A table for a terminal and for a page: its columns are as wide as their widest cell.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins a table with its columns, `who | >rate`; those of numbers begin with the side to which they
    /// stand.
    pub fn new(columns: &str) -> Table {
        let column = |name: &str| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), Align::Right),
            None => (name.to_owned(), Align::Left),
        };
        Table { columns: columns.split('|').map(|name| column(name.trim())).collect(), rows: Vec::new() }
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

    /// The table as text, each line after `indent`; no line ends in blanks.
    pub fn text(&self, indent: &str) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([self.columns[at].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths).zip(&self.columns).map(|((cell, width), (_, align))| match align {
                Align::Left => format!("{cell:<width$}  "),
                Align::Right => format!("{cell:>width$}  "),
            });
            format!("{indent}{}", padded.collect::<String>()).trim_end().to_owned() + "\n"
        };
        [&names, &rule].into_iter().chain(&self.rows).map(line).collect()
    }

    /// The table on a page.
    pub fn html(&self) -> String {
        let head = |(name, align): &(String, Align)| format!("<th{}>{}</th>", align.class(), escape(name));
        let heads: String = self.columns.iter().map(head).collect();
        let row = |cells: &Vec<String>| Row::plain(&*cells[0], cells[1..].to_vec());
        let aligns: Vec<Align> = self.columns.iter().map(|(_, align)| *align).collect();
        table(&format!("<tr>{heads}</tr>\n"), &aligns, &self.rows.iter().map(row).collect::<Vec<_>>())
    }
}

/// Something that is there for whoever wants to know, closed until then.
pub fn folded(title: &str, inside: &str, is_open: bool) -> String {
    let open = if is_open { " open" } else { "" };
    format!("<details{open}><summary>{}</summary>\n{inside}</details>\n", escape(title))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_clear_or_nobody() {
        let of = |values: &[f64], better| best(&values.iter().map(|value| Some(*value)).collect::<Vec<_>>(), better);
        assert_eq!(of(&[4.0, 3.0, 9.0], Better::Lower), Some(1));
        assert_eq!(of(&[4.0, 3.0, 9.0], Better::Higher), Some(2));
        assert_eq!(of(&[1000.0, 1010.0], Better::Higher), None, "as good as each other");
        assert_eq!(best(&[Some(1.0), None], Better::Lower), None, "against nothing");
    }

    #[test]
    fn a_ratio_is_to_the_first() {
        let values = [Some(2.0), Some(5.0), None, Some(0.0)];
        let told: Vec<Option<String>> = (0..4).map(|at| to_first(&values, at)).collect();
        assert_eq!(told, [None, Some("2.50×".to_owned()), None, None]);
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_in_blanks() {
        let mut table = Table::new("who | >rate | why");
        table.row(["a", "65,000", "-"].map(str::to_owned).to_vec());
        table.row(["long one", "3,000", "-"].map(str::to_owned).to_vec());
        table.leave_out_unknown();
        assert_eq!(table.text(""), "who         rate\n--------  ------\na         65,000\nlong one   3,000\n");
        assert!(
            table.html().contains("<tr><th class=\"words\">who</th><th>rate</th></tr>\n<tr><td>a</td><td>65,000</td>")
        );
    }

    #[test]
    fn rows_have_their_group_and_their_best() {
        let rows = [
            Row::group("end to end"),
            Row::of("p99 <ms>", vec![("1".to_owned(), true), ("2".to_owned(), false)]).to("a"),
        ];
        let text = html(&["".to_owned(), "a".to_owned(), "b".to_owned()], &rows);
        assert!(text.contains("<td class=\"group\" colspan=\"3\">end to end</td>"), "{text}");
        assert!(
            text.contains("<td><a href=\"#a\">p99 &lt;ms&gt;</a></td><td class=\"win\">1</td><td>2</td>"),
            "{text}"
        );
        let text = markdown(&["".to_owned(), "a|b".to_owned(), "c".to_owned()], &rows);
        assert_eq!(text, "|  | a/b | c |\n|---|--:|--:|\n| **end to end** | | |\n| p99 <ms> | **1** | 2 |\n");
    }
}

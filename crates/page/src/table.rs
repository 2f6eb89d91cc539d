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
    table(&format!("<tr>{cells}</tr>\n"), heads.len(), rows)
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
    table(&heads, 1 + columns().count(), rows)
}

fn table(heads: &str, columns: usize, rows: &[Row]) -> String {
    let mut text = format!("<div class=\"wide\"><table>\n{heads}");
    for row in rows {
        if row.cells.is_empty() {
            text.push_str(&format!("<tr><td class=\"group\" colspan=\"{columns}\">{}</td></tr>\n", escape(&row.name)));
            continue;
        }
        match &row.link {
            Some(part) => {
                text.push_str(&format!("<tr><td><a href=\"#{}\">{}</a></td>", escape(part), escape(&row.name)));
            }
            None => text.push_str(&format!("<tr><td>{}</td>", escape(&row.name))),
        }
        for (cell, is_best) in &row.cells {
            match is_best {
                true => text.push_str(&format!("<td class=\"win\">{}</td>", escape(cell))),
                false => text.push_str(&format!("<td>{}</td>", escape(cell))),
            }
        }
        text.push_str("</tr>\n");
    }
    text + "</table></div>\n"
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
    }
}

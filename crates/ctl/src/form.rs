//! The forms of a result: RabbitMQ's tables with tabs, tables with lines, JSON, CSV and terms of
//! Erlang.
//!
//! Invariant: JSON and CSV are all that is on standard output, without a banner, so a program reads
//! them as they are.

use crate::output::heading;
use crate::term::{Cell, atom};
use serde_json::{Value, json};

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Table,
    Pretty,
    Json,
    Csv,
    Erlang,
}

impl Form {
    pub(crate) const NAMES: [(&str, Form); 5] = [
        ("table", Form::Table),
        ("pretty_table", Form::Pretty),
        ("json", Form::Json),
        ("csv", Form::Csv),
        ("erlang", Form::Erlang),
    ];

    pub(crate) fn of(name: &str) -> Option<Form> {
        Form::NAMES.iter().find(|(known, _)| *known == name).map(|(_, form)| *form)
    }

    /// Whether a program reads it.
    pub(crate) fn is_for_programs(self) -> bool {
        matches!(self, Form::Json | Form::Csv)
    }
}

/// What a verb has to show.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    /// Nothing: it is done.
    Done,
    /// A sentence.
    Line(String),
    /// A sentence, and what a program reads in its stead.
    Told(Value, String),
    /// A list.
    Rows(Rows),
    /// One thing, as a program reads it and as a person does.
    Document(Value, String),
    /// Words as they are, in every form.
    Raw(String),
}

/// A list with its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    /// Whether it is drawn with lines where nobody asks for another form.
    pub(crate) is_pretty: bool,
    /// Whether RabbitMQ's tool never shows a line of column names in a table.
    pub(crate) is_headless: bool,
}

impl Rows {
    pub(crate) fn new(columns: &[&str]) -> Rows {
        Rows { columns: columns.iter().map(|&name| name.to_owned()).collect(), ..Rows::default() }
    }

    pub(crate) fn with(mut self, rows: impl IntoIterator<Item = Vec<Cell>>) -> Shown {
        self.rows.extend(rows);
        Shown::Rows(self)
    }
}

/// The text that goes to standard output.
pub(crate) fn written(shown: &Shown, form: Option<Form>, has_header: bool, on_terminal: bool, node: &str) -> String {
    let form_or = |default| form.unwrap_or(default);
    match shown {
        Shown::Done if form == Some(Form::Json) => format!("{}\n", json!({ "node": node, "result": "ok" })),
        Shown::Done => String::new(),
        Shown::Line(text) => match form_or(Form::Table) {
            Form::Json => format!("{}\n", json!({ "message": text, "node": node, "result": "ok" })),
            Form::Csv => format!("{}\n", quoted(text)),
            _ => format!("{text}\n"),
        },
        Shown::Told(value, text) => match form_or(Form::Table) {
            Form::Json => format!("{value}\n"),
            Form::Csv => format!("{}\n", quoted(text)),
            _ => format!("{text}\n"),
        },
        Shown::Document(value, text) => match form_or(Form::Table) {
            Form::Json => format!("{value}\n"),
            _ => text.clone(),
        },
        Shown::Raw(text) => text.clone(),
        Shown::Rows(rows) => match form_or(if rows.is_pretty { Form::Pretty } else { Form::Table }) {
            Form::Table => table(rows, has_header),
            Form::Pretty => pretty(rows, has_header, on_terminal),
            Form::Json => rows_json(rows),
            Form::Csv => csv(rows, has_header),
            Form::Erlang => erlang(rows),
        },
    }
}

/// The header stands above something only.
fn table(rows: &Rows, has_header: bool) -> String {
    let mut text = String::new();
    if has_header && !rows.rows.is_empty() && !rows.is_headless {
        text += &rows.columns.join("\t");
        text.push('\n');
    }
    for row in &rows.rows {
        text += &row.iter().map(Cell::shown).collect::<Vec<_>>().join("\t");
        text.push('\n');
    }
    text
}

fn csv(rows: &Rows, has_header: bool) -> String {
    let mut text = String::new();
    if has_header && !rows.rows.is_empty() {
        text += &rows.columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    for row in &rows.rows {
        text += &row.iter().map(|cell| quoted(&cell.shown())).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// One object a line, as RabbitMQ streams them.
fn rows_json(rows: &Rows) -> String {
    if rows.rows.is_empty() {
        return "[]\n".to_owned();
    }
    let object = |row: &Vec<Cell>| {
        let fields = rows.columns.iter().zip(row);
        let fields = fields.map(|(name, cell)| format!("{}:{}", Value::from(name.as_str()), cell.json()));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    };
    format!("[\n{}\n]\n", rows.rows.iter().map(object).collect::<Vec<_>>().join("\n,"))
}

fn erlang(rows: &Rows) -> String {
    let list = |row: &Vec<Cell>| {
        let fields = rows.columns.iter().zip(row).map(|(name, cell)| format!("{{{},{}}}", atom(name), cell.term()));
        format!("[{}]", fields.collect::<Vec<_>>().join(","))
    };
    format!("[{}]\n", rows.rows.iter().map(list).collect::<Vec<_>>().join(",\n "))
}

fn pretty(rows: &Rows, has_header: bool, on_terminal: bool) -> String {
    let one_line = |text: String| text.replace('\t', "\\t");
    let cells: Vec<Vec<String>> =
        rows.rows.iter().map(|row| row.iter().map(|cell| one_line(cell.drawn())).collect()).collect();
    let width = |text: &str| ratatui::text::Line::raw(text).width();
    let widths: Vec<usize> = (0..rows.columns.len())
        .map(|at| {
            let below = cells.iter().filter_map(|row| row.get(at)).map(|cell| width(cell)).max().unwrap_or(0);
            if has_header { below.max(width(&rows.columns[at])) } else { below }
        })
        .collect();
    let rule = |[left, middle, right]: [&str; 3]| {
        let parts: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", parts.join(middle))
    };
    let line = |row: &[String], is_header: bool| {
        let padded = row.iter().zip(&widths).map(|(cell, wide)| {
            let space = " ".repeat(wide - width(cell));
            format!(" {}{space} ", if is_header { heading(cell, on_terminal) } else { cell.clone() })
        });
        format!("│{}│\n", padded.collect::<Vec<_>>().join("│"))
    };
    let mut text = rule(["┌", "┬", "┐"]);
    if has_header {
        text += &line(&rows.columns, true);
        if !cells.is_empty() {
            text += &rule(["├", "┼", "┤"]);
        }
    }
    for row in &cells {
        text += &line(row, false);
    }
    text + &rule(["└", "┴", "┘"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Shown {
        Rows::new(&["user", "tags"]).with([vec![Cell::text("guest"), Cell::Words(vec!["administrator".to_owned()])]])
    }

    fn as_form(form: Form) -> String {
        written(&users(), Some(form), true, false, "n")
    }

    #[test]
    fn the_forms_are_rabbitmqs() {
        assert_eq!(as_form(Form::Table), "user\ttags\nguest\t[administrator]\n");
        assert_eq!(as_form(Form::Csv), "\"user\",\"tags\"\n\"guest\",\"[administrator]\"\n");
        assert_eq!(as_form(Form::Json), "[\n{\"user\":\"guest\",\"tags\":[\"administrator\"]}\n]\n");
        assert_eq!(as_form(Form::Erlang), "[[{user,<<\"guest\">>},{tags,[administrator]}]]\n");
        let drawn = "┌───────┬───────────────┐\n│ user  │ tags          │\n├───────┼───────────────┤\n\
                     │ guest │ administrator │\n└───────┴───────────────┘\n";
        assert_eq!(as_form(Form::Pretty), drawn);
    }

    #[test]
    fn a_header_goes_with_rows_and_only_where_it_is_wanted() {
        assert_eq!(written(&users(), None, false, false, "n"), "guest\t[administrator]\n");
        assert_eq!(written(&Rows::new(&["a"]).with([]), None, true, false, "n"), "");
        assert_eq!(written(&Rows::new(&["a"]).with([]), Some(Form::Json), true, false, "n"), "[]\n");
    }

    #[test]
    fn quotes_in_csv_are_doubled() {
        let shown = Rows::new(&["a"]).with([vec![Cell::text("x\"y")]]);
        assert_eq!(written(&shown, Some(Form::Csv), false, false, "n"), "\"x\"\"y\"\n");
    }
}

//! Usage and help, made from the table of verbs.

use crate::options::{EVERYWHERE, Switch, Takes};
use crate::output::heading;
use crate::tool::Tool;
use crate::verb::{self, Section, Verb};

/// All verbs of a tool under their headings.
pub(crate) fn all(tool: Tool, on_terminal: bool) -> String {
    let name = tool.name();
    let mut text = format!(
        "\n{}\n\n{name} [--node <node>] [--timeout <timeout>] [--longnames] [--quiet] <command> [<command options>]\n\n\
         Available commands:\n",
        heading("Usage", on_terminal)
    );
    let width = verb::of(tool).map(|verb| verb.name.len()).max().unwrap_or(0);
    for (section, title) in Section::ALL {
        let mut verbs: Vec<&Verb> = verb::of(tool).filter(|verb| verb.section == section).collect();
        if verbs.is_empty() {
            continue;
        }
        verbs.sort_by_key(|verb| verb.name);
        text += &format!("\n{}:\n\n", heading(title, on_terminal));
        for verb in verbs {
            text += &format!("   {:width$}  {}\n", verb.name, verb.about);
        }
    }
    text + &format!("\nUse '{name} help <command>' to learn more about a specific command\n")
}

/// One line: how a verb is called.
pub(crate) fn usage(tool: Tool, verb: &Verb, on_terminal: bool) -> String {
    let own = if verb.usage.is_empty() { String::new() } else { format!(" {}", verb.usage) };
    let name = tool.name();
    format!(
        "\n{}\n\n{name} [--node <node>] [--longnames] [--quiet] {}{own} [--timeout <timeout>]\n",
        heading("Usage", on_terminal),
        verb.name
    )
}

/// Everything about a verb.
pub(crate) fn of(tool: Tool, verb: &Verb, on_terminal: bool) -> String {
    let mut text = usage(tool, verb, on_terminal);
    text += &format!("\n{}.\n", verb.about);
    if !verb.columns.is_empty() {
        let mut columns = verb.columns.to_vec();
        columns.sort_unstable();
        text += &format!("\n{}\n\n<column>\n\tone of {}\n", heading("Columns", on_terminal), columns.join(", "));
    }
    if !verb.switches.is_empty() {
        text += &format!("\n{}\n\n{}", heading("Options", on_terminal), switches(verb.switches));
    }
    text + &format!("\n{}\n\n{}", heading("General Options", on_terminal), switches(EVERYWHERE))
}

fn switches(switches: &[Switch]) -> String {
    let shown = |switch: &Switch| {
        let value = match switch.takes {
            Takes::Nothing => "",
            Takes::Text => " <text>",
            Takes::Number => " <number>",
            Takes::MaybeNumber => "[=<number>]",
        };
        let short = switch.short.map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
        (format!("{short}--{}{value}", switch.name), switch.about)
    };
    let shown: Vec<(String, &str)> = switches.iter().map(shown).collect();
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    shown.iter().map(|(name, about)| format!("{name:width$}  {about}\n")).collect()
}

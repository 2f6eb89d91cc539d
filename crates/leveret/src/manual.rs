//! What a shell completes our words with, and manual pages: both made from the table of commands.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::arguments::whole_command;
use crate::exit::{Exit, print, say};

/// The section of commands.
const SECTION: &str = "1";

pub(crate) fn completions(shell: Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut whole_command(), "leveret", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn write(folder: &Path) -> Exit {
    let mut command = whole_command();
    command.build();
    match std::fs::create_dir_all(folder).and_then(|()| write_pages(&command, "leveret", folder)) {
        Ok(()) => Exit::Done,
        Err(error) => {
            say(&format!("{}: {error}", folder.display()));
            Exit::Failed
        }
    }
}

/// A page for the command, and one for each that it has.
fn write_pages(command: &Command, name: &str, folder: &Path) -> std::io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).section(SECTION).render(&mut page)?;
    std::fs::write(folder.join(format!("{name}.{SECTION}")), page)?;
    for inner in command.get_subcommands() {
        write_pages(inner, &format!("{name}-{}", inner.get_name()), folder)?;
    }
    Ok(())
}

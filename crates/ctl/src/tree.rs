//! The verbs as a tree of commands, for completions and manual pages.

use crate::options::{EVERYWHERE, Switch, Takes};
use crate::tool::Tool;
use crate::verb;
use clap::{Arg, ArgAction, Command};

/// `leveret ctl` with all its verbs. Nothing is parsed with it: the words are read as RabbitMQ's
/// tools read them.
pub fn command() -> Command {
    let verbs = verb::of(Tool::Leveret).map(|verb| {
        let mut command = Command::new(verb.name).about(verb.about).disable_help_flag(true);
        command = command.args(verb.switches.iter().map(argument));
        if verb.words.1 > 0 {
            let mut words = Arg::new("words").num_args(0..).value_name("WORDS").help(verb.usage);
            if !verb.columns.is_empty() {
                words = words.value_parser(verb.columns.to_vec());
            }
            command = command.arg(words);
        }
        command
    });
    Command::new("ctl")
        .about("Ask and change a running node: RabbitMQ's commands")
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .args(EVERYWHERE.iter().map(|switch| argument(switch).global(true)))
        .subcommands(verbs)
        .subcommand(Command::new("top").about("Queues, rates and backlogs, live"))
        .subcommand(Command::new("admin").about("rabbitmqadmin's commands"))
        .subcommand(Command::new("plugins").about("rabbitmq-plugins' commands"))
}

fn argument(switch: &Switch) -> Arg {
    let argument = Arg::new(switch.name).long(switch.name).help(switch.about);
    let argument = match switch.short {
        Some(letter) => argument.short(letter),
        None => argument,
    };
    match switch.takes {
        Takes::Nothing => argument.action(ArgAction::SetTrue),
        Takes::MaybeNumber => argument.num_args(0..=1).require_equals(true).value_name("SECONDS"),
        Takes::Text | Takes::Number => argument.action(ArgAction::Set).value_name("VALUE"),
    }
}

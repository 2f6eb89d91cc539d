//! The command line: flags made from the table of settings, help to learn from, and errors of one
//! line.
//!
//! Invariant: a setting has a flag because it is in the table; no flag of a setting is written
//! here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{Styles, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use clap_complete::Shell;
use server::config::{SETTINGS, Setting, Sources, nearest_setting, variable_name};
use storage::inspect::Depth;

use crate::certificates::{self, Certificates};
use crate::demo::{self, Demo};
use crate::inspect::{Inspection, Part};
use crate::join::{self, Join};
use crate::recover::{self, Recover};
use crate::repair::{self, Repair};
use crate::sizing::{self, Sizing};
use crate::version::VERSION;

/// Width of help where the terminal does not say or is wider: longer lines are hard to read.
const HELP_COLUMNS_MAX: usize = 100;

/// What the person wants.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Help or the version: print it.
    Show(String),
    /// Run a node.
    Server(Sources),
    /// Run a node that joins a cluster.
    Join(Join),
    /// Look into a data folder.
    Inspect(Inspection),
    /// Go on with a damaged data folder.
    Repair(Repair),
    /// Go on with one node of a cluster that has lost most others.
    Recover(Recover),
    /// Measure clusters, report on them, predict others.
    Sizing(Sizing),
    /// Load a broker; the words are the load generator's own.
    Bench(Vec<String>),
    /// Start nodes on this machine to try them.
    Demo(Demo),
    /// Ask and change a running node; the words are those of RabbitMQ's tools.
    Control(Vec<String>),
    /// Make certificates for the nodes of a cluster.
    Certificates(Certificates),
    /// Print what a shell completes words with.
    Completions(Shell),
    /// Write manual pages into this folder.
    Manual(PathBuf),
}

/// Reads the command line, its first word included. The error is one line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, String> {
    let words: Vec<OsString> = words.into_iter().collect();
    let mut matches = match command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) => return shown_or_error(&error, &commands(&words)),
    };
    match matches.remove_subcommand() {
        Some((name, matches)) if name == "server" => Ok(Invocation::Server(sources(matches))),
        Some((name, matches)) if name == "inspect" => Ok(Invocation::Inspect(inspection(matches))),
        Some((name, matches)) if name == "repair" => Ok(Invocation::Repair(repair::asked(matches))),
        Some((name, matches)) if name == "sizing" => Ok(Invocation::Sizing(sizing::asked(matches))),
        Some((name, mut matches)) if name == "bench" => {
            Ok(Invocation::Bench(matches.remove_many("words").into_iter().flatten().collect()))
        }
        Some((name, mut matches)) if name == "ctl" => {
            Ok(Invocation::Control(matches.remove_many("words").into_iter().flatten().collect()))
        }
        Some((name, matches)) if name == "cluster" => Ok(cluster(matches)),
        Some((name, mut matches)) if name == "completions" => {
            Ok(Invocation::Completions(matches.remove_one("shell").expect("clap requires it")))
        }
        Some((name, mut matches)) if name == "manual" => {
            Ok(Invocation::Manual(matches.remove_one("folder").expect("clap requires it")))
        }
        other => unreachable!("clap accepts only the commands above, not {other:?}"),
    }
}

fn command() -> Command {
    Command::new("leveret")
        .version(VERSION.as_str())
        .about("A message broker that speaks RabbitMQ's protocol: durable, quick, small.")
        .after_long_help(AFTER_HELP)
        .after_help("`leveret --help` has examples and exit codes, `leveret server --help` all settings.")
        .max_term_width(HELP_COLUMNS_MAX)
        .styles(Styles::plain())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .propagate_version(true)
        .disable_help_subcommand(true)
        .subcommand(server_command())
        .subcommand(inspect_command())
        .subcommand(repair::command())
        .subcommand(sizing::command())
        .subcommand(bench_command())
        .subcommand(control_command())
        .subcommand(cluster_command())
        .subcommand(completions_command())
        .subcommand(manual_command())
}

/// The same with all verbs of `ctl`, whose words are not read by clap.
pub(crate) fn whole_command() -> Command {
    command().mut_subcommand("ctl", |_| ctl::command())
}

/// Its words are read as RabbitMQ's tools read them.
fn control_command() -> Command {
    let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true).value_name("COMMAND");
    Command::new("ctl")
        .about("Ask and change a running node, with RabbitMQ's commands")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(words)
}

fn cluster_command() -> Command {
    Command::new("cluster")
        .about("Prepare nodes to be one cluster, look at them, and try what they are")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(certificates::command())
        .subcommand(demo::command())
        .subcommand(join::command(server_command()))
        .subcommand(cluster_leave_command())
        .subcommand(recover::command())
        .subcommand(cluster_status_command())
}

/// Its words are those of `leveret ctl`.
fn cluster_leave_command() -> Command {
    let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true).value_name("OPTIONS");
    Command::new("leave")
        .about("Take the node of this machine out of its cluster for good: it is drained, forgotten, and ends")
        .after_help("--data-dir DIR and the other options of `leveret ctl help leave_cluster`")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(words)
}

/// Its words are those of `leveret ctl`.
fn cluster_status_command() -> Command {
    let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true).value_name("OPTIONS");
    Command::new("status")
        .about("Show nodes, leaders, how far members are behind, and what a confirm is worth now")
        .after_help("--json, --watch, --data-dir DIR and the other options of `leveret ctl help cluster`")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(words)
}

/// The same as words of `leveret ctl`.
fn cluster_status(mut matches: ArgMatches) -> Invocation {
    let words = matches.remove_many::<String>("words").into_iter().flatten();
    let words = words.map(|word| if word == "--json" { "--formatter=json".to_owned() } else { word });
    Invocation::Control(std::iter::once("cluster".to_owned()).chain(words).collect())
}

fn cluster(mut matches: ArgMatches) -> Invocation {
    match matches.remove_subcommand() {
        Some((name, matches)) if name == "certificates" => Invocation::Certificates(certificates::asked(matches)),
        Some((name, matches)) if name == "status" => cluster_status(matches),
        Some((name, matches)) if name == "recover" => Invocation::Recover(recover::asked(matches)),
        Some((name, matches)) if name == "join" => Invocation::Join(join::asked(matches, sources)),
        Some((name, mut matches)) if name == "leave" => {
            let words = matches.remove_many::<String>("words").into_iter().flatten();
            Invocation::Control(std::iter::once("leave_cluster".to_owned()).chain(words).collect())
        }
        Some((name, matches)) if name == "demo" => Invocation::Demo(demo::asked(matches)),
        other => unreachable!("clap accepts only the commands above, not {other:?}"),
    }
}

fn completions_command() -> Command {
    let shell = Arg::new("shell")
        .value_name("SHELL")
        .required(true)
        .value_parser(clap::value_parser!(Shell))
        .help("The shell that is to complete our words");
    Command::new("completions")
        .about("Print what a shell completes the words of this program with")
        .after_help("bash: leveret completions bash > /usr/share/bash-completion/completions/leveret")
        .arg(shell)
}

fn manual_command() -> Command {
    let folder = Arg::new("folder")
        .value_name("DIR")
        .required(true)
        .value_parser(ValueParser::path_buf())
        .help("The folder, which has to be there");
    Command::new("manual")
        .about("Write manual pages into a folder, one for each command")
        .after_help("leveret manual /usr/local/share/man/man1 && man leveret-ctl-list_queues")
        .arg(folder)
}

/// Its words go to the load generator as they are: they are PerfTest's, with single dashes before
/// long names too.
fn bench_command() -> Command {
    let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true).value_name("OPTIONS");
    Command::new("bench")
        .about("Load a broker, measure it, and check every message")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(words)
}

fn server_command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(ValueParser::path_buf())
        .help("Read settings from this TOML file")
        .long_help("Read settings from this TOML file. No file is read without being named.\n[env: LEVERET_CONFIG]");
    let rabbitmq_config = Arg::new("rabbitmq-config")
        .long("rabbitmq-config")
        .value_name("FILE")
        .value_parser(ValueParser::path_buf())
        .help("Read settings from this rabbitmq.conf, or from a folder of such")
        .long_help(
            "Read settings from this rabbitmq.conf, or from all *.conf of this folder. Keys that have a meaning here become settings, others \
             are told with their line. All other ways to say a setting go before it.\n[env: LEVERET_RABBITMQ_CONFIG]",
        );
    let settings = SETTINGS.iter().map(setting_flag);
    Command::new("server")
        .about("Run a broker until SIGTERM or SIGINT")
        .long_about(SERVER_ABOUT)
        .after_long_help(AFTER_SERVER_HELP)
        .arg(config)
        .arg(rabbitmq_config)
        .args(settings)
}

fn setting_flag(setting: &'static Setting) -> Arg {
    Arg::new(setting.name)
        .long(setting.flag_name())
        .value_name(setting.kind.placeholder())
        .action(if setting.is_list() { ArgAction::Append } else { ArgAction::Set })
        .allow_negative_numbers(true)
        .help_heading(setting.section.title())
        .help(first_words(setting.help))
        .long_help(format!(
            "{}\n[default: {}]\n[env: {}]",
            setting.help,
            setting.default_shown(),
            variable_name(setting)
        ))
}

/// The part of a help text that is enough to know whether this is the setting one looks for.
fn first_words(help: &str) -> &str {
    let end = [". ", "; ", ": "].iter().filter_map(|stop| help.find(stop)).min();
    end.map_or(help.trim_end_matches('.'), |end| &help[..end])
}

fn sources(mut matches: ArgMatches) -> Sources {
    let config_file = matches.remove_one::<PathBuf>("config");
    let rabbitmq_config = matches.remove_one::<PathBuf>("rabbitmq-config");
    let mut flags = Vec::new();
    for setting in &SETTINGS {
        let texts = matches.remove_many::<String>(setting.name).into_iter().flatten();
        flags.extend(texts.map(|text| (setting.key, text)));
    }
    Sources { config_file, rabbitmq_config, environment: std::env::vars_os().collect(), flags }
}

fn inspect_command() -> Command {
    let folder = Arg::new("folder")
        .value_name("DIR")
        .required(true)
        .value_parser(ValueParser::path_buf())
        .help("The data folder of a node, running or not");
    let parts = Arg::new("part")
        .value_name("PART")
        .num_args(0..)
        .value_parser(Part::ALL.map(|(name, _)| name))
        .help("Parts to list; all without one");
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    Command::new("inspect")
        .about("Show what is in a data folder and what is damaged in it")
        .long_about(INSPECT_ABOUT)
        .after_long_help(AFTER_INSPECT_HELP)
        .arg(folder)
        .arg(parts)
        .arg(flag("json", "One JSON object a line instead of tables"))
        .arg(flag("records", "Show each frame and record of the log, not only its files"))
        .arg(flag("messages", "Check the messages of the extents one by one, so that each damaged one is named"))
        .arg(
            flag("quick", "Read only the tables of extents: damage in their messages is not found")
                .conflicts_with("messages"),
        )
        .arg(
            flag(
                "export",
                "Print the messages of all extents instead, those that a repair kept aside too, as lines of JSON",
            )
            .conflicts_with_all(["part", "records", "messages", "quick"]),
        )
}

fn inspection(mut matches: ArgMatches) -> Inspection {
    let named: Vec<String> = matches.remove_many("part").into_iter().flatten().collect();
    let is_wanted = |name: &str| named.is_empty() || named.iter().any(|wanted| wanted == name);
    Inspection {
        folder: matches.remove_one("folder").expect("clap requires it"),
        parts: Part::ALL.iter().filter(|(name, _)| is_wanted(name)).map(|(_, part)| *part).collect(),
        json: matches.get_flag("json"),
        depth: Depth {
            records: matches.get_flag("records"),
            contents: !matches.get_flag("quick"),
            messages: matches.get_flag("messages"),
        },
        exports: matches.get_flag("export"),
    }
}

/// The words that stand before the first flag, which name the command.
fn commands(words: &[OsString]) -> Vec<&str> {
    words.iter().skip(1).map_while(|word| word.to_str()).take_while(|word| !word.starts_with('-')).collect()
}

/// What is to be done about a flag that the command has not. `near`: what clap takes it for.
fn unknown_flag(flag: &str, commands: &[&str], near: Option<&str>) -> String {
    let name = flag.trim_start_matches("--");
    let of_server = match name {
        "config" | "rabbitmq-config" => Some(name.to_owned()),
        _ => nearest_setting(&name.replace('-', "_")).map(|setting| setting.replace('_', "-")),
    };
    let near = match (commands, of_server) {
        ([], Some(name)) => {
            return format!("a command goes before its flags: `leveret server --{name} ...` runs a broker");
        }
        (["server", ..] | ["cluster", "join", ..], Some(name)) => Some(format!("--{name}")),
        _ => near.map(str::to_owned),
    };
    match near {
        Some(near) => format!("unknown flag {}; did you mean {near}?", shown(flag)),
        None => format!("unknown flag {}; --help lists all", shown(flag)),
    }
}

/// Help and version are what was asked for; everything else becomes a line that says what to do. `commands`: the
/// words of the command that was given.
fn shown_or_error(error: &clap::Error, commands: &[&str]) -> Result<Invocation, String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    // clap adds what stands for the value: `--partitions <COUNT>`.
    let without_value = |name| str::split_once(name, " <").map_or(name, |(name, _)| name);
    let argument = without_value(text(ContextKind::InvalidArg).unwrap_or("an argument"));
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Invocation::Show(error.render().to_string())),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Err("say what to do: `leveret server` runs a broker, `leveret --help` tells more".to_owned())
        }
        ErrorKind::InvalidSubcommand => {
            let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            Err(match text(ContextKind::SuggestedSubcommand) {
                Some(near) => format!("unknown command {}; did you mean {near}?", shown(name)),
                None => format!("unknown command {}; leveret --help lists all", shown(name)),
            })
        }
        ErrorKind::UnknownArgument => Err(match argument.starts_with("--") {
            true => unknown_flag(argument, commands, text(ContextKind::SuggestedArg)),
            false => format!("{} is not expected here; --help tells more", shown(argument)),
        }),
        ErrorKind::InvalidValue | ErrorKind::TooFewValues | ErrorKind::NoEquals
            if text(ContextKind::InvalidValue).is_none_or(str::is_empty) =>
        {
            Err(format!("{argument} needs a value"))
        }
        ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            let allowed = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(words)) => words.join(", "),
                _ => "listed by --help".to_owned(),
            };
            Err(format!("{} is not allowed for {argument}; allowed: {allowed}", shown(value)))
        }
        ErrorKind::ArgumentConflict => Err(match text(ContextKind::PriorArg).map(without_value) {
            Some(other) if other != argument => format!("{argument} and {other} contradict each other; give one"),
            _ => format!("{argument} was given twice; give it once"),
        }),
        ErrorKind::MissingRequiredArgument => Err(format!("{argument} is missing; --help tells more")),
        ErrorKind::InvalidUtf8 => Err("an argument is not UTF-8 text".to_owned()),
        _ => {
            let text = error.render().to_string();
            Err(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
        }
    }
}

/// What a person typed, on one line.
fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}

const AFTER_HELP: &str = "\
Examples:
  leveret server
      A broker on port 5672 with its files in ./data; guest/guest may log in from this machine.
  leveret server --data-dir /var/lib/leveret --amqp 127.0.0.1:5672
      The same with files and address of your choice.
  LEVERET_DATA_DIR=/var/lib/leveret leveret server --config leveret.toml
      Settings from a file; variables go before the file, flags before variables.
  leveret inspect /var/lib/leveret
      What is in a data folder, and whether anything in it is damaged.
  leveret repair /var/lib/leveret --dry-run
      What a repair of a damaged data folder would give up; without --dry-run it is done.
  leveret cluster recover /var/lib/leveret
      What a cluster that has lost the disks of most nodes would go on with on this one; with --yes it is done.
  leveret sizing report --study
      Which cluster holds a load and what it costs, on the example that ships with this program.
  leveret bench --quorum-queue --queue qq --rate 10000 --confirm 3000 --size 1000 --time 20
      Load the broker on this machine, with PerfTest's options; `leveret bench --help` lists them.
  leveret cluster certificates certs n1.example n2.example n3.example
      An authority of your own and a certificate for each node, with which nodes encrypt what they say to each other.
  leveret ctl list_queues name messages consumers
      What RabbitMQ's tools tell and do, on the node of this machine; `leveret ctl help` lists all, `leveret ctl top` shows it live.
      Linked to under the names rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues, rabbitmq-upgrade, rabbitmq-plugins and rabbitmqadmin it is these.

Exit codes:
  0  done; a server was told to stop and has closed everything in order
  1  the server could not start or had to stop, and another start may go better; inspect or repair --dry-run found damage; cluster recover did nothing; bench missed what was required
  2  the command line, the configuration or a file that it names (definitions, certificates, keys) is wrong or missing; or the server's data folder is damaged, is not this \
node's, or the cluster has forgotten it: no start goes better before somebody has changed something
  3  inspect, repair or cluster recover could not read the folder, or it is not one of a node; bench could not make its run
  4  bench: more was sent than received, or messages were refused, and nothing else is wrong
  64 to 78  ctl: those of RabbitMQ's tools: 64 wrong words, 65 wrong names, 67 no such user, 69 refused or no node, 70 failed, 75 too late
  130, 143  a second SIGINT or SIGTERM ended the server at once
  130  bench was interrupted before the end of its run";

const SERVER_ABOUT: &str = "\
Run a broker until SIGTERM or SIGINT.

Every setting can be a flag, an environment variable or a line of the TOML file; the first of these that has it counts. A wrong or \
unknown setting is an error, and the broker does not start. The log goes to standard error.";

const AFTER_SERVER_HELP: &str = "\
Numbers of bytes may have a unit: 64MiB, 1GiB, 50MB. Lists have commas, or their flag comes several times.

Signals:
  SIGTERM, SIGINT  stop in order: connections are closed, everything is synced; a second one ends at once
  SIGHUP           read certificates and definitions again; all else is read at the start only
  SIGUSR1          log the gauges: value at risk, connections, bytes and syncs of the log";

const INSPECT_ABOUT: &str = "\
Show what is in a data folder and what is damaged in it.

Reads only and takes no lock. Damage is called out with its file and offset, and is told even in parts that were not asked for. The \
folder of a running node can be inspected too; what is written meanwhile may then look unfinished, and is not called damage.";

const AFTER_INSPECT_HELP: &str = "\
Examples:
  leveret inspect data
      Files of the log, extents with their runs of messages, checkpoints.
  leveret inspect data wal --records
      The same of the log only, with every record.
  leveret inspect data --messages --json | grep '\"damage\"'
      Check every message, print damage for a program.
  leveret inspect data --export > messages.json
      Every message that an extent still has: queue, number, exchange, routing key, properties, payload in base64. Which of them were
      settled an extent does not know; after a repair that lost a state, who knows the application picks what is to be published anew.

Exit codes: 0 nothing is damaged, 1 something is, 2 wrong command line, 3 not readable or not a data folder.";

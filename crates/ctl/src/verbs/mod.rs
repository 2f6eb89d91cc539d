//! What the verbs do, a file for each group.
//!
//! Invariant: a verb that has nothing to do here is in `meaningless` with what to use instead, and
//! none claims to have done what it did not.

mod access;
mod cluster;
mod connections;
mod definitions;
mod flags;
mod health;
mod leave;
mod lifetime;
mod limits;
mod listings;
mod meaningless;
mod parameters;
mod plugins;
mod policies;
mod queues;
mod replicas;
mod report;
mod settings;
mod status;
mod upgrade;
mod users;
mod vhosts;
mod whole;

use crate::verb::{Section, VERB, Verb};

/// All of them.
pub(crate) const ALL: &[&[Verb]] = &[
    HELP,
    lifetime::VERBS,
    cluster::VERBS,
    status::VERBS,
    report::VERBS,
    users::VERBS,
    access::VERBS,
    limits::VERBS,
    vhosts::VERBS,
    whole::VERBS,
    policies::VERBS,
    parameters::VERBS,
    definitions::VERBS,
    flags::VERBS,
    listings::VERBS,
    queues::VERBS,
    replicas::VERBS,
    upgrade::VERBS,
    leave::VERBS,
    connections::VERBS,
    health::VERBS,
    settings::VERBS,
    plugins::VERBS,
    meaningless::VERBS,
];

/// Answered before a verb is looked for; here for the list.
const EVERY_TOOL: u8 =
    crate::tool::CTL | crate::tool::DIAGNOSTICS | crate::tool::QUEUES | crate::tool::UPGRADE | crate::tool::PLUGINS;
const HELP: &[Verb] = &[
    Verb {
        name: "help",
        tools: EVERY_TOOL,
        section: Section::Help,
        usage: "[<command>]",
        about: "Lists the commands, or tells what one does",
        words: (0, 1),
        ..VERB
    },
    Verb {
        name: "version",
        tools: EVERY_TOOL,
        section: Section::Help,
        about: "Tells the version of this tool",
        ..VERB
    },
    Verb {
        name: "autocomplete",
        tools: EVERY_TOOL,
        section: Section::Help,
        usage: "<begin>",
        about: "Lists the commands whose names begin so",
        words: (0, 1),
        ..VERB
    },
];

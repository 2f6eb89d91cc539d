//! What can be asked for: the shape of the table of verbs, and how one is found in it.
//!
//! Invariant: a verb is in the table once, with all that its usage, its help, completions and manual
//! pages are made of.

use crate::context::Cx;
use crate::failure::Failure;
use crate::form::Shown;
use crate::options::Switch;
use crate::tool::{Tool, Tools};

/// A verb.
#[derive(Debug)]
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    pub(crate) tools: Tools,
    pub(crate) section: Section,
    /// Its own words, behind its name.
    pub(crate) usage: &'static str,
    pub(crate) about: &'static str,
    /// The fewest and the most words.
    pub(crate) words: (usize, usize),
    pub(crate) switches: &'static [Switch],
    /// Columns that may be named, where it lists.
    pub(crate) columns: &'static [&'static str],
    /// How long it may take where nobody says, in seconds; 0 is for ever.
    pub(crate) timeout_s: u64,
    pub(crate) run: fn(&Cx<'_>) -> Result<Shown, Failure>,
}

/// What most verbs are.
pub(crate) const VERB: Verb = Verb {
    name: "",
    tools: crate::tool::CTL,
    section: Section::Operations,
    usage: "",
    about: "",
    words: (0, 0),
    switches: &[],
    columns: &[],
    timeout_s: 60,
    run: |_| Ok(Shown::Done),
};

/// Any number of words.
pub(crate) const ANY: usize = usize::MAX;

/// A heading in the list of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Help,
    Nodes,
    Cluster,
    Replication,
    Users,
    Access,
    Monitoring,
    Parameters,
    Policies,
    VirtualHosts,
    Configuration,
    Definitions,
    Flags,
    Operations,
    Queues,
    Plugins,
    Meaningless,
}

impl Section {
    pub(crate) const ALL: [(Section, &str); 17] = [
        (Section::Help, "Help"),
        (Section::Nodes, "Nodes"),
        (Section::Cluster, "Cluster"),
        (Section::Replication, "Replication"),
        (Section::Users, "Users"),
        (Section::Access, "Access Control"),
        (Section::Monitoring, "Monitoring, observability and health checks"),
        (Section::Parameters, "Parameters"),
        (Section::Policies, "Policies"),
        (Section::VirtualHosts, "Virtual hosts"),
        (Section::Configuration, "Configuration and Environment"),
        (Section::Definitions, "Definitions"),
        (Section::Flags, "Feature flags"),
        (Section::Operations, "Operations"),
        (Section::Queues, "Queues"),
        (Section::Plugins, "Plugin Management"),
        (Section::Meaningless, "Without a meaning here"),
    ];
}

/// All verbs of a tool.
pub(crate) fn of(tool: Tool) -> impl Iterator<Item = &'static Verb> {
    crate::verbs::ALL.iter().flat_map(|group| group.iter()).filter(move |verb| tool.has(verb.tools))
}

/// A tool's verb of this name.
pub(crate) fn find(tool: Tool, name: &str) -> Option<&'static Verb> {
    of(tool).find(|verb| verb.name == name)
}

/// The verb that was probably meant.
pub(crate) fn nearest(tool: Tool, name: &str) -> Option<&'static str> {
    /// Below this two words only happen to share letters.
    const LIKENESS_MIN: f64 = 0.8;
    let likeness = |verb: &'static Verb| (strsim::jaro(name, verb.name), verb.name);
    let near = of(tool).filter(|verb| verb.section != Section::Meaningless).map(likeness);
    let near = near.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (near.0 > LIKENESS_MIN).then_some(near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_in_a_tools_table_once() {
        for tool in [Tool::Leveret, Tool::Ctl, Tool::Diagnostics, Tool::Queues, Tool::Upgrade, Tool::Plugins] {
            let mut names: Vec<&str> = of(tool).map(|verb| verb.name).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{tool:?}");
        }
    }

    #[test]
    fn every_verb_says_what_it_does() {
        for verb in of(Tool::Leveret).chain(of(Tool::Plugins)) {
            assert!(!verb.about.is_empty() && verb.words.0 <= verb.words.1, "{verb:?}");
            assert!(
                verb.usage.is_empty() == (verb.words.1 == 0 && verb.switches.is_empty()) || !verb.usage.is_empty(),
                "{verb:?}"
            );
        }
    }

    #[test]
    fn the_nearest_verb_is_meant() {
        assert_eq!(nearest(Tool::Ctl, "list_quues"), Some("list_queues"));
        assert_eq!(nearest(Tool::Ctl, "delete_quee"), Some("delete_queue"));
        assert_eq!(nearest(Tool::Ctl, "frobnicate"), None);
    }
}

//! Which tool we are: by the name that we were started under.

/// A command line tool of RabbitMQ, or all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `leveret ctl`: all verbs.
    Leveret,
    /// `rabbitmqctl`.
    Ctl,
    /// `rabbitmq-diagnostics`.
    Diagnostics,
    /// `rabbitmq-queues`.
    Queues,
    /// `rabbitmq-upgrade`.
    Upgrade,
    /// `rabbitmq-plugins`.
    Plugins,
    /// `rabbitmqadmin`.
    Admin,
}

/// A set of tools, for the table of verbs.
pub(crate) type Tools = u8;
pub(crate) const CTL: Tools = 1;
pub(crate) const DIAGNOSTICS: Tools = 2;
pub(crate) const QUEUES: Tools = 4;
pub(crate) const PLUGINS: Tools = 8;
/// Verbs that no tool of RabbitMQ has.
pub(crate) const LEVERET: Tools = 16;
pub(crate) const UPGRADE: Tools = 32;

impl Tool {
    /// The tool that a program of this path is, if it is one.
    pub fn of_program(path: &str) -> Option<Tool> {
        match path.rsplit('/').next()? {
            "rabbitmqctl" => Some(Tool::Ctl),
            "rabbitmq-diagnostics" => Some(Tool::Diagnostics),
            "rabbitmq-queues" => Some(Tool::Queues),
            "rabbitmq-upgrade" => Some(Tool::Upgrade),
            "rabbitmq-plugins" => Some(Tool::Plugins),
            "rabbitmqadmin" => Some(Tool::Admin),
            _ => None,
        }
    }

    /// As a person calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Leveret => "leveret ctl",
            Tool::Ctl => "rabbitmqctl",
            Tool::Diagnostics => "rabbitmq-diagnostics",
            Tool::Queues => "rabbitmq-queues",
            Tool::Upgrade => "rabbitmq-upgrade",
            Tool::Plugins => "rabbitmq-plugins",
            Tool::Admin => "rabbitmqadmin",
        }
    }

    /// Whether a verb of these tools is one of this tool's.
    pub(crate) fn has(self, tools: Tools) -> bool {
        let own = match self {
            Tool::Leveret => CTL | DIAGNOSTICS | QUEUES | UPGRADE | LEVERET,
            Tool::Ctl => CTL,
            Tool::Diagnostics => DIAGNOSTICS,
            Tool::Queues => QUEUES,
            Tool::Upgrade => UPGRADE,
            Tool::Plugins => PLUGINS,
            Tool::Admin => 0,
        };
        own & tools != 0
    }
}

//! From a definitions file to the commands that make the topology what the file says.
//!
//! Invariant: the commands were carried out in their order on a copy of the topology, without a
//! refusal.
//!
//! In reading order: the parts of a file in their order (here), who is there and may do what (`access`),
//! parameters and policies (`parameters`), exchanges, queues and bindings (`routing`), and what a field
//! says (`values`).

mod access;
mod parameters;
mod routing;
mod values;

use super::document::{Fields, Node, WrongDefinitions};
use super::hashes::ClearPasswords;
use crate::patterns::{Meter, check_cost};
use broker::topology::{Applied, Command, Name, PolicySurvey, Topology, Unplanned};
use broker::{PartitionId, VhostId};
pub use parameters::meaningless_global;
use values::{name, sentence};

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// In order; replicated ones are for the log, others for this node.
    pub(crate) commands: Vec<Planned>,
    /// What is there and differs, a sentence each.
    pub(crate) different: Vec<String>,
    /// What is meant for others and is not kept, a sentence each.
    pub(crate) left_out: Vec<String>,
    /// Nothing was there before.
    pub(crate) is_fresh: bool,
}

/// One command and how it is carried out.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) command: Command,
    pub(crate) is_local: bool,
}

/// Whether nothing was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// Nothing was there when the file was first looked at, whatever it brought since.
    Yes,
    /// It is to be seen.
    IfUntouched,
    /// Somebody asks who is logged in, and stays so: only at its start RabbitMQ makes no default user
    /// for the sake of a file.
    Never,
}

/// Plans what makes a topology, of which `copy` is one that nobody else has, what `text` says.
///
/// - `fresh`: whether the file takes the place of the user that a new broker has.
/// - `place` chooses where a new queue lives; true asks for one of this node only.
/// - `clear` has the hashes of passwords that the file has in the clear.
/// - Errors: the first thing that is wrong with the file; of queues all.
pub(crate) fn plan(
    copy: Topology,
    text: &str,
    fresh: Fresh,
    place: &mut dyn FnMut(bool) -> PartitionId,
    clear: &ClearPasswords,
) -> Result<Plan, WrongDefinitions> {
    let document = Node::document(text)?;
    let is_fresh = match fresh {
        Fresh::Yes => true,
        Fresh::IfUntouched => copy.is_untouched(),
        Fresh::Never => false,
    };
    let mut planner = Planner { copy, plan: Plan::default(), place, clear, meter: Meter::of_change() };
    planner.read(&document, is_fresh)?;
    Ok(Plan { is_fresh, ..planner.plan })
}

struct Planner<'p> {
    copy: Topology,
    plan: Plan,
    place: &'p mut dyn FnMut(bool) -> PartitionId,
    clear: &'p ClearPasswords,
    /// What the patterns of the whole file may take.
    meter: Meter,
}

type Done = Result<(), WrongDefinitions>;

impl Planner<'_> {
    fn read(&mut self, document: &Node<'_>, is_fresh: bool) -> Done {
        let mut top = document.fields()?;
        let mut has_guest = false;
        let users = items(&mut top, "users")?;
        for vhost in items(&mut top, "vhosts")? {
            self.vhost(&vhost)?;
        }
        for user in users {
            has_guest |= self.user(&user)? == "guest";
        }
        // RabbitMQ makes no default user where definitions are to be imported, as they bring their
        // own.
        if is_fresh && !has_guest {
            self.run(document, Command::DeleteUser { name: Name::from("guest") })?;
        }
        for permission in items(&mut top, "permissions")? {
            self.permission(&permission)?;
        }
        for permission in items(&mut top, "topic_permissions")? {
            self.topic_permission(&permission)?;
        }
        for parameter in items(&mut top, "parameters")? {
            self.parameter(&parameter)?;
        }
        for parameter in items(&mut top, "global_parameters")? {
            self.global_parameter(&parameter)?;
        }
        for policy in items(&mut top, "policies")? {
            let mut fields = policy.fields()?;
            let vhost = self.vhost_of(&mut fields)?;
            let name = name(&fields.need("name")?)?;
            self.policy(&policy, fields, vhost, false, name)?;
        }
        for exchange in items(&mut top, "exchanges")? {
            self.exchange(&exchange)?;
        }
        // All that are of a kind that is not there, or not yet, are told at once.
        let wrong: Vec<_> = items(&mut top, "queues")?.iter().filter_map(|queue| self.queue(queue).err()).collect();
        WrongDefinitions::all(wrong)?;
        // So are all whose exchange an export left out.
        let wrong: Vec<_> =
            items(&mut top, "bindings")?.iter().filter_map(|binding| self.binding(binding).err()).collect();
        WrongDefinitions::all(wrong)?;
        // Versions, names and explanations of the exporting broker are texts; anything else that is
        // not known would be lost.
        top.end_of_parts()
    }

    /// Carries out a command on the copy and adds it to the plan.
    fn run(&mut self, at: &Node<'_>, command: Command) -> Done {
        self.weigh(&command).map_err(|unplanned| at.wrong(unplanned))?;
        let Applied { outcome, .. } = self.copy.apply(&command);
        outcome.map_err(|refusal| at.wrong(sentence(&refusal)))?;
        self.plan.commands.push(Planned { command, is_local: false });
        Ok(())
    }

    /// Refuses patterns that take too long, before anything of the file is done.
    fn weigh(&mut self, command: &Command) -> Result<(), Unplanned> {
        let name_of = |vhost| self.copy.vhost_of(vhost).map(|vhost| vhost.name.clone());
        check_cost(name_of, command, &self.meter)?;
        if let Some(mut survey) = PolicySurvey::begin(&self.copy, command) {
            while survey.collect(&self.copy) {}
            self.copy.expect_policy(survey.judge(&mut || self.meter.goes_on())?);
        }
        Ok(())
    }

    fn leave_out(&mut self, at: &Node<'_>, text: String) {
        self.plan.left_out.push(at.wrong(text).to_string());
    }

    fn vhost_of(&self, fields: &mut Fields<'_>) -> Result<VhostId, WrongDefinitions> {
        let node = fields.need("vhost")?;
        let name = name(&node)?;
        self.copy.vhost(&name).ok_or_else(|| node.wrong(format!("there is no virtual host '{name}'")))
    }
}

fn items<'a>(top: &mut Fields<'a>, name: &'static str) -> Result<Vec<Node<'a>>, WrongDefinitions> {
    top.take(name).map_or(Ok(Vec::new()), |node| node.items())
}

//! What the cluster's topology does in a script: it decides, is late, or takes the node for gone.

use super::{Question, Script};
use broker::topology::{Command as Change, CommandReply, Home, Refusal};
use broker::{NodeNumber, VhostId};
use session::Cx;

impl Script {
    /// The node is one of several: the others know what it has in memory.
    pub(crate) fn among_others(&mut self) {
        self.node.topology.borrow_mut().set_own_home(Some(NodeNumber(1)));
        self.node.has_peers = true;
    }

    /// The others take this node for gone.
    pub(crate) fn end_own_home(&mut self) {
        let home = Home { node: NodeNumber(1), era: 0 };
        self.node.topology.borrow_mut().apply(&Change::EndHome(home));
    }

    /// The topology's log decides about all that was proposed.
    pub(crate) fn decide(&mut self) {
        for (change, Question { channel, request }) in self.node.proposals.take() {
            let outcome = self.node.topology.borrow_mut().apply(&change).outcome;
            let Script { session, machine, node, .. } = self;
            session.handle_decided((channel, 1), request, outcome, &mut Cx { client: machine, host: node });
        }
    }

    /// The node knows all that was decided.
    pub(crate) fn catch_up(&mut self) {
        for Question { channel, request } in self.node.catch_ups.take() {
            let Script { session, machine, node, .. } = self;
            let cx = &mut Cx { client: machine, host: node };
            session.handle_decided((channel, 1), request, Ok(CommandReply::Done), cx);
        }
    }

    /// The topology's log ends with what was proposed to it, and nobody finds out how far it went.
    pub(crate) fn lose_log(&mut self) {
        let proposed = self.node.proposals.take().into_iter().map(|(_, question)| question);
        for Question { channel, request } in proposed.chain(self.node.catch_ups.take()) {
            let outcome = Err(Refusal::undecided());
            let Script { session, machine, node, .. } = self;
            session.handle_decided((channel, 1), request, outcome, &mut Cx { client: machine, host: node });
        }
    }

    /// Somebody else deletes a queue.
    pub(crate) fn lose_queue(&mut self, name: &str) {
        let mut topology = self.node.topology.borrow_mut();
        let queue = topology.find_queue(VhostId(0), name.as_bytes()).map(|queue| queue.id).expect("it is there");
        let broker::topology::Checked::Propose(change) = topology.deletion(queue) else { panic!("it is replicated") };
        topology.apply(&change).outcome.expect("it may go");
    }
}

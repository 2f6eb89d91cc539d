//! What the log is told of changes over AMQP and of what was refused for want of a right: who, from
//! where, what.
//!
//! Invariant: the target is `audit`, each line names user and peer, and none has anything of a
//! message or a password in it. That a client cannot fill a disk with them is seen to where lines
//! are written.

use super::history::NewBinding;
use super::session::log_text;
use super::{Client, Cx, Host, Session};
use amqp::{ChannelError, MethodId, Reply, ReplyCode};
use broker::topology::{Binding, Name, Refusal};

/// A binding that comes or goes, until that is decided.
#[derive(Debug)]
pub(super) struct BindingChange {
    /// Which method asked for it.
    pub(super) method: &'static str,
    pub(super) binding: Binding,
    /// What a new binding brings with it.
    pub(super) history: Option<NewBinding>,
}

impl Session {
    /// Who declared, deleted or purged what.
    pub(super) fn tell_audit(&self, method: &'static str, name: &[u8], messages: Option<u64>) {
        let (user, vhost, name) = (log_text(&self.user), log_text(&self.vhost_name), log_text(name));
        tracing::info!(target: "audit", user = &*user, peer = %self.peer, change = method, vhost = &*vhost, name = &*name, messages, "audit");
    }

    /// A binding was made or removed: its client and the log are told.
    pub(super) fn binding_changed(&mut self, at: usize, change: BindingChange, cx: &mut Cx<'_, impl Host>) {
        let BindingChange { method, binding, history } = change;
        let (user, vhost, key) = (log_text(&self.user), log_text(&self.vhost_name), log_text(&binding.key));
        let source = log_text(&Name::stripped(&binding.source));
        let destination = log_text(&Name::stripped(&binding.destination));
        tracing::info!(target: "audit", user = &*user, peer = %self.peer, change = method, vhost = &*vhost, source = &*source, destination = &*destination, key = &*key, "audit");
        match history {
            Some(history) => self.replay(at, history, cx),
            None => cx.client.reply(self.channels[at].id, Reply::Done),
        }
    }

    /// What a channel was refused, if it was for want of a right.
    pub(super) fn tell_refused(&self, at: usize, error: &ChannelError) {
        if error.code == ReplyCode::AccessRefused {
            let is_publish = error.method == MethodId::BASIC_PUBLISH;
            let method = if is_publish { "basic.publish" } else { self.channels[at].asked.method() };
            self.tell_refusal(method, &log_text(&self.vhost_name), &error.text);
        }
    }

    /// A virtual host that was not opened.
    pub(super) fn tell_not_opened(&self, vhost: &[u8], refusal: &Refusal) {
        self.tell_refusal("connection.open", &log_text(vhost), &refusal.text);
    }

    fn tell_refusal(&self, method: &'static str, vhost: &str, reason: &str) {
        let user = log_text(&self.user);
        tracing::info!(target: "audit", user = &*user, peer = %self.peer, refused = method, vhost, reason, "audit");
    }
}

//! What a node tells all others of itself, and what it makes of what they tell: alarms, who has how
//! much open, what is traced.
//!
//! Invariant: it is told as it stands when it goes into the outbox of the link, and a link begins with
//! all of it; so the last word that a node hears is true, in whatever order changes and links come.

use super::shared::Shared;
use super::traced::Said;
use crate::shard::Parcel;
use broker::{NodeNumber, VhostId};
use partition::peer::news_form::News;
use session::Taken;
use std::sync::Arc;

/// That a virtual host is traced, or not.
pub(crate) fn trace_news(vhost: VhostId, Said { stamp, on }: Said) -> News {
    News::Traced { vhost, on, stamp }
}

fn taken_news(taken: Taken) -> News {
    match taken {
        Taken::User { name, connections, channels } => {
            News::User { name, connections: connections as u64, channels: channels as u64 }
        }
        Taken::Vhost { vhost, connections } => News::Vhost { vhost, connections: connections as u64 },
    }
}

impl Shared {
    /// Tells all nodes that are linked; `news` is asked for each, as late as can be.
    pub(crate) fn tell_nodes(&self, news: impl Fn() -> Vec<News>) {
        if let Some(links) = self.links.get() {
            links.tell(news);
        }
    }

    /// Which alarms hold publishers everywhere. The operator holds those of one node.
    pub(crate) fn alarm_news(&self) -> News {
        let alarms = self.alarms.read();
        News::Alarms { disk: alarms.disk, memory: alarms.memory }
    }

    /// Whether this node is to lead nothing.
    pub(crate) fn rest_news(&self) -> News {
        News::Rests { on: self.leaders.rests(self.leaders.own()) }
    }

    /// All that a node is to hear that was just linked.
    pub(crate) fn all_news(&self) -> Vec<News> {
        let mut all = vec![self.alarm_news(), self.rest_news()];
        all.extend(self.sessions.occupancy.all().into_iter().map(taken_news));
        all.extend(self.traced.all().into_iter().map(|(vhost, said)| trace_news(vhost, said)));
        all
    }

    /// Tells all nodes who has how much open, where that changed.
    pub(crate) fn tell_taken(&self) {
        let untold: Vec<News> = self.sessions.occupancy.take_untold().into_iter().map(taken_news).collect();
        if !untold.is_empty() {
            self.tell_nodes(|| untold.clone());
        }
    }

    /// Another node tells something of itself.
    pub(crate) fn hear(&self, node: NodeNumber, news: News) {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        match news {
            News::Alarms { disk, memory } => self.note_alarms(node, disk, memory),
            News::User { name, connections, channels } => {
                let (connections, channels) = (count(connections), count(channels));
                self.sessions.occupancy.note(node, Taken::User { name, connections, channels });
            }
            News::Vhost { vhost, connections } => {
                self.sessions.occupancy.note(node, Taken::Vhost { vhost, connections: count(connections) });
            }
            News::Traced { vhost, on, stamp } => self.traced.note(vhost, Said { stamp, on }),
            News::Rests { on } => {
                self.leaders.rest(node, on);
            }
        }
    }

    /// The link to another node is gone: what it told of itself is true no longer.
    pub(crate) fn unhear(&self, node: NodeNumber) {
        self.note_alarms(node, false, false);
        self.leaders.rest(node, false);
        self.sessions.occupancy.forget(node);
    }

    fn note_alarms(&self, node: NodeNumber, disk: bool, memory: bool) {
        if self.alarms.note(node, disk, memory) {
            let node = self.topology().shown_node(node);
            let blocked = self.alarms.blocked_reason();
            match blocked {
                Some(reason) => {
                    tracing::warn!(node, reason, "alarms of another node changed: publishers are blocked")
                }
                None => tracing::warn!(node, "the alarm of another node is over: publishers go on"),
            }
            self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::Alarms));
        }
    }
}

/// Has others told of what sessions take, whenever `wake` has been called.
pub(crate) fn tell_taken_by(shared: &Arc<Shared>, wake: impl Fn() + Send + Sync + 'static) {
    shared.sessions.occupancy.tell_others(Box::new(wake));
}

//! What goes with what: auto-delete exchanges, displaced things, snapshots under a running node.
//! Each test is a trace.
//!
//! Invariant: a line is a request and the lines after it are what followed, so that a trace reads
//! like a log.
#![allow(clippy::unwrap_used)]

use amqp::{Table, Value};
use broker::ids::{PartitionId, QueueId, VhostId};
use broker::topology::{
    Actor, Applied, Binding, Checked, Command, DeclareQueue, Effect, ExchangeDeclare, HashOn, HistoryId, Kind,
    MessageFacts, Name, NoFacts, Permission, QueueDeclare, QueueDeclared, QueueType, RouteRequest, Topology,
    VHOST_DESCRIPTION_BYTES_MAX, VhostDescription,
};

const SLASH: VhostId = VhostId(0);

/// A node whose requests are written as words: `durable queue a`,
/// `exchange x fanout transient auto`, `bind x a key`, `bind x >y key` (to an exchange),
/// `unbind …`, `delete queue a`, `delete exchange x`. Answers with what the request was (`done`,
/// `logged`, `local`) and its effects.
struct Node {
    topology: Topology,
}

impl Node {
    fn new() -> Self {
        Self { topology: Topology::new() }
    }

    fn say(&mut self, line: &str) -> String {
        self.say_as(1, line)
    }

    fn say_as(&mut self, connection: u64, line: &str) -> String {
        let checked = self.check(Actor { user: b"guest", connection, scopes: None }, line);
        self.carry_out(checked)
    }

    fn carry_out(&mut self, checked: Checked) -> String {
        match checked {
            Checked::Done => "done".to_owned(),
            Checked::Propose(command) => {
                let applied = self.topology.apply(&command);
                format!("logged{}", self.told(applied))
            }
            Checked::Local(command) => {
                let applied = self.topology.apply_local(&command);
                format!("local{}", self.told(applied))
            }
        }
    }

    fn told(&self, applied: Applied) -> String {
        if let Err(refusal) = applied.outcome {
            return format!(", {refusal}");
        }
        let number =
            |id: QueueId| format!("{}{}", if id.is_local() { "local " } else { "" }, id.0 & !QueueId::LOCAL_BIT);
        let effects = applied.effects.iter().map(|effect| match effect {
            Effect::QueueCreated { id, .. } => format!(", created {}", number(*id)),
            Effect::QueueDeleted { id, .. } => format!(", deleted {}", number(*id)),
            Effect::ExchangeUnused { name, .. } => format!(", unused {name}"),
            Effect::QueueRulesChanged { id, .. } => format!(", rules of {}", id.0),
            Effect::MembersChanged { partition } => format!(", members of {}", partition.0),
            Effect::UserDeleted { name } => format!(", no user {name}"),
            Effect::VhostDeleted { name, .. } => format!(", no vhost {name}"),
        });
        effects.collect()
    }

    fn check(&self, actor: Actor<'_>, line: &str) -> Checked {
        let words: Vec<&str> = line.split(' ').collect();
        let arguments = Table::new();
        match words[..] {
            [kind, "queue", name] if kind != "delete" => {
                let declare = QueueDeclare {
                    vhost: SLASH,
                    name: name.as_bytes(),
                    server_named: false,
                    durable: kind.starts_with("durable"),
                    exclusive: kind == "exclusive",
                    auto_delete: kind.ends_with("auto"),
                    arguments: &arguments,
                };
                match self.topology.check_queue_declare(actor, &declare, |_| PartitionId(1)).unwrap() {
                    QueueDeclared::Existing(_) => Checked::Done,
                    QueueDeclared::Propose(command) => Checked::Propose(command),
                    QueueDeclared::Local(command) => Checked::Local(command),
                }
            }
            ["exchange", name, kind, ref flags @ ..] => {
                let declare = ExchangeDeclare {
                    vhost: SLASH,
                    name: name.as_bytes(),
                    kind: kind.as_bytes(),
                    durable: !flags.contains(&"transient"),
                    auto_delete: flags.contains(&"auto"),
                    internal: false,
                    arguments: &arguments,
                };
                self.topology.check_exchange_declare(actor, &declare).unwrap()
            }
            ["bind", source, target, key] => self.topology.check_bind(actor, binding(source, target, key)).unwrap(),
            ["unbind", source, target, key] => self.topology.check_unbind(actor, binding(source, target, key)).unwrap(),
            ["delete", "queue", name] => self.topology.check_queue_delete(actor, SLASH, name.as_bytes()).unwrap(),
            ["delete", "exchange", name] => {
                self.topology.check_exchange_delete(actor, SLASH, name.as_bytes(), false).unwrap()
            }
            _ => panic!("no such request: {line}"),
        }
    }

    fn has(&self, exchange: &str) -> bool {
        self.topology.find_exchange(SLASH, exchange.as_bytes()).is_some()
    }
}

fn binding(source: &str, target: &str, key: &str) -> Binding {
    let (destination_kind, destination) = match target.strip_prefix('>') {
        Some(exchange) => (Kind::Exchange, exchange),
        None => (Kind::Queue, target),
    };
    Binding {
        vhost: SLASH,
        source: Name::from(source),
        destination_kind,
        destination: Name::from(destination),
        key: Name::from(key),
        arguments: Table::new(),
    }
}

/// A message that counts how often its headers were asked for.
#[derive(Default)]
struct Asked {
    headers: std::cell::Cell<u32>,
}

impl MessageFacts for Asked {
    fn headers(&self) -> Option<Table> {
        self.headers.set(self.headers.get() + 1);
        None
    }

    fn property(&self, _: HashOn) -> Option<Value> {
        None
    }

    fn random(&self) -> u64 {
        0
    }

    fn remembered_by(&self, _: HistoryId, _: u32) {}
}

/// Runs a trace: each line is a request, then `->`, then what is expected.
#[track_caller]
fn trace(node: &mut Node, lines: &[&str]) {
    for line in lines {
        let (request, expected) = line.split_once(" -> ").expect("a line has an arrow");
        assert_eq!(node.say(request), expected, "{request}");
    }
}

#[test]
fn a_durable_auto_delete_exchange_goes_with_its_last_binding_and_takes_its_feeders_along() {
    let mut node = Node::new();
    trace(
        &mut node,
        &[
            "durable queue a -> logged, created 1",
            "exchange feeder topic auto -> logged",
            "exchange x fanout auto -> logged",
            "exchange stays direct -> logged",
            "bind feeder >x # -> logged",
            "bind stays >x k -> logged",
            "bind x a 1 -> logged",
            "bind x a 2 -> logged",
            "unbind x a 1 -> logged",
        ],
    );
    assert!(node.has("x"), "one binding is left");
    trace(&mut node, &["delete queue a -> logged, deleted 1"]);
    assert_eq!((node.has("x"), node.has("feeder"), node.has("stays")), (false, false, true));
    assert_eq!(node.topology.binding_count(), 0);
}

#[test]
fn an_auto_delete_exchange_without_bindings_stays_until_it_had_one() {
    let mut node = Node::new();
    trace(&mut node, &["exchange x direct auto -> logged", "durable queue a -> logged, created 1"]);
    trace(&mut node, &["delete queue a -> logged, deleted 1"]);
    assert!(node.has("x"));
}

#[test]
fn a_binding_of_this_node_only_keeps_an_exchange_until_it_goes_too() {
    let mut node = Node::new();
    trace(
        &mut node,
        &[
            "durable queue a -> logged, created 1",
            "transient queue t -> local, created local 1",
            "exchange x direct auto -> logged",
            "bind x a k -> logged",
            "bind x t k -> local",
            "delete queue a -> logged, deleted 1",
        ],
    );
    assert!(node.has("x"), "the transient queue is still bound");
    trace(&mut node, &["delete queue t -> local, deleted local 1, unused x"]);
    assert!(node.has("x"), "only the log may delete it");
    let delete = node.topology.deletion_of_unused(SLASH, &Name::from("x"));
    assert_eq!(node.carry_out(delete), "logged");
    assert!(!node.has("x"));
    assert_eq!(node.topology.deletion_of_unused(SLASH, &Name::from("x")), Checked::Done);
}

#[test]
fn an_unused_exchange_goes_without_the_feeder_that_still_has_a_binding_of_this_node_only() {
    let mut node = Node::new();
    trace(
        &mut node,
        &[
            "exchange feeder direct auto -> logged",
            "exchange x direct auto -> logged",
            "exchange t direct transient -> local",
            "transient queue q -> local, created local 1",
            "bind feeder >x k -> logged",
            "bind feeder >t k -> local",
            "bind x q k -> local",
            "delete queue q -> local, deleted local 1, unused x",
        ],
    );
    let delete = node.topology.deletion_of_unused(SLASH, &Name::from("x"));
    assert_eq!(node.carry_out(delete), "logged");
    assert_eq!((node.has("x"), node.has("feeder")), (false, true));
    trace(&mut node, &["delete exchange t -> local, unused feeder", "bind feeder >amq.direct k -> logged"]);
    assert_eq!(node.topology.deletion_of_unused(SLASH, &Name::from("feeder")), Checked::Done, "it is bound again");
}

#[test]
fn a_transient_exchange_lives_and_goes_on_this_node_only() {
    let mut node = Node::new();
    let before = node.topology.encode_snapshot();
    trace(
        &mut node,
        &[
            "exchange t fanout transient auto -> local",
            "exchange u fanout transient auto -> local",
            "exclusive queue e -> local, created local 1",
            "bind u >t k -> local",
            "bind t e k -> local",
            "bind amq.fanout e k -> local",
            "unbind t e k -> local",
        ],
    );
    assert_eq!((node.has("t"), node.has("u")), (false, false), "the last binding of each went");
    assert_eq!(node.topology.encode_snapshot(), before);
    assert!(node.topology.exclusive_queues(1).eq([QueueId(QueueId::LOCAL_BIT | 1)]));
    let gone = node.topology.deletion(node.topology.exclusive_queues(1).next().unwrap());
    assert_eq!(node.carry_out(gone), "local, deleted local 1");
    assert_eq!(node.topology.binding_count(), 0);
    assert_eq!(node.topology.deletion(QueueId(QueueId::LOCAL_BIT | 1)), Checked::Done);
}

#[test]
fn the_exclusive_queues_of_one_connection_go_as_quickly_as_they_came() {
    const QUEUES: usize = 60_000;
    let mut node = Node::new();
    let begun = std::time::Instant::now();
    (0..QUEUES).for_each(|number| drop(node.say(&format!("exclusive queue e{number}"))));
    let came = begun.elapsed();
    let owned: Vec<QueueId> = node.topology.exclusive_queues(1).collect();
    assert!(owned.len() == QUEUES && owned.is_sorted(), "by id, which is the order of their declares");
    let begun = std::time::Instant::now();
    for queue in owned {
        node.carry_out(node.topology.deletion(queue));
    }
    let gone = begun.elapsed();
    assert_eq!(node.topology.exclusive_queues(1).next(), None);
    // With a search among all that are left for each it is ten times as long.
    assert!(gone < came * 3, "they came in {came:?} and went in {gone:?}");
}

#[test]
fn what_the_log_declares_displaces_what_only_this_node_knows() {
    let mut node = Node::new();
    let (elsewhere_queue, elsewhere_exchange) = {
        let elsewhere = Node::new();
        let guest = Actor { user: b"guest", connection: 9, scopes: None };
        (elsewhere.check(guest, "durable queue q"), elsewhere.check(guest, "exchange x topic"))
    };
    trace(
        &mut node,
        &[
            "transient queue q -> local, created local 1",
            "exchange x fanout transient -> local",
            "bind x q k -> local",
            "bind amq.fanout q k -> local",
        ],
    );
    assert_eq!(node.carry_out(elsewhere_queue), "logged, deleted local 1, created 1");
    assert_eq!(node.topology.binding_count(), 0);
    assert_eq!(node.carry_out(elsewhere_exchange), "logged");
    assert_eq!(node.say("bind x q a.#"), "logged");
}

#[test]
fn a_queue_declared_anew_is_not_hit_by_a_late_delete_of_the_old_one() {
    let mut node = Node::new();
    trace(&mut node, &["durable queue q -> logged, created 1"]);
    let late = node.topology.deletion(QueueId(1));
    trace(&mut node, &["delete queue q -> logged, deleted 1", "durable queue q -> logged, created 2"]);
    assert_eq!(node.carry_out(late), "logged");
    assert_eq!(node.topology.find_queue(SLASH, b"q").unwrap().id, QueueId(2));
}

#[test]
fn ids_are_not_given_out_again_after_a_snapshot() {
    let mut node = Node::new();
    trace(&mut node, &["durable queue q -> logged, created 1", "delete queue q -> logged, deleted 1"]);
    node.topology = Topology::decode_snapshot(&node.topology.encode_snapshot()).unwrap();
    trace(&mut node, &["durable queue q -> logged, created 2"]);
}

#[test]
fn a_durable_auto_delete_queue_goes_through_the_log() {
    let mut node = Node::new();
    trace(
        &mut node,
        &["durable-auto queue q -> logged, created 1", "transient-auto queue r -> local, created local 1"],
    );
    assert!(node.topology.find_queue(SLASH, b"q").unwrap().shape.auto_delete);
}

#[test]
fn a_redeclare_or_rebind_that_changes_nothing_needs_no_command_and_no_new_version() {
    let mut node = Node::new();
    let lines = ["durable queue q", "exchange x headers", "bind x q k", "transient queue t", "bind x t k"];
    for line in lines {
        let before = node.topology.version();
        assert_ne!(node.say(line), "done");
        assert!(node.topology.version() > before);
    }
    for line in lines {
        let before = node.topology.version();
        assert_eq!(node.say(line), "done");
        assert_eq!(node.topology.version(), before);
    }
}

#[test]
fn a_declare_that_lost_the_race_answers_as_if_it_had_come_second() {
    let mut node = Node::new();
    let guest = Actor { user: b"guest", connection: 1, scopes: None };
    let (first, second) = (node.check(guest, "durable queue q"), node.check(guest, "durable queue q"));
    let other = node.check(guest, "durable-auto queue q");
    assert_eq!(node.carry_out(first), "logged, created 1");
    assert_eq!(node.carry_out(second), "logged");
    assert_eq!(
        node.carry_out(other),
        "logged, 406 PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' \
         but current is 'false'"
    );
}

#[test]
fn a_snapshot_installed_under_a_running_node_keeps_what_lives_there() {
    let mut leader = Node::new();
    trace(
        &mut leader,
        &[
            "durable queue a -> logged, created 1",
            "durable queue b -> logged, created 2",
            "exchange x direct -> logged",
            "exchange y direct -> logged",
        ],
    );
    let mut node = Node { topology: Topology::decode_snapshot(&leader.topology.encode_snapshot()).unwrap() };
    trace(
        &mut node,
        &[
            "transient queue t -> local, created local 1",
            "transient queue c -> local, created local 2",
            "exchange z fanout transient auto -> local",
            "bind x t k -> local",
            "bind y t k -> local",
            "bind z a k -> local",
        ],
    );
    trace(
        &mut leader,
        &[
            "delete queue a -> logged, deleted 1",
            "durable queue c -> logged, created 3",
            "delete exchange y -> logged",
            "bind x b k -> logged",
        ],
    );
    let before = node.topology.version();
    let effects = node.topology.install_snapshot(&leader.topology.encode_snapshot()).unwrap();
    let (partition, local) = (PartitionId(1), |n| QueueId(QueueId::LOCAL_BIT | n));
    assert_eq!(
        effects,
        [
            Effect::QueueDeleted { id: QueueId(1), partition },
            Effect::QueueDeleted { id: local(2), partition },
            Effect::QueueCreated { id: QueueId(3), partition },
        ]
    );
    assert!(node.topology.version() > before);
    assert_eq!(node.topology.encode_snapshot(), leader.topology.encode_snapshot());
    let mut out = Vec::new();
    node.topology
        .route(&RouteRequest { vhost: SLASH, exchange: b"x", keys: &[b"k"], facts: &NoFacts }, &mut out)
        .unwrap();
    assert_eq!(out.iter().map(|t| t.queue).collect::<Vec<_>>(), [QueueId(2), local(1)]);
    assert!(!node.has("y"));
    assert!(!node.has("z"), "its only binding led to a queue that is gone");
    trace(&mut node, &["transient queue u -> local, created local 3"]);
    assert!(node.topology.install_snapshot(b"garbage").is_err());
    assert!(node.topology.find_queue(SLASH, b"u").is_some(), "a refused snapshot changes nothing");
}

#[test]
fn exchanges_bound_in_a_circle_route_each_queue_once() {
    let mut node = Node::new();
    trace(
        &mut node,
        &[
            "durable queue a -> logged, created 1",
            "durable queue b -> logged, created 2",
            "exchange x fanout -> logged",
            "exchange y fanout -> logged",
            "bind x >y k -> logged",
            "bind y >x k -> logged",
            "bind x >x k -> logged",
            "bind y b k -> logged",
            "bind y a k -> logged",
            "bind x a k -> logged",
        ],
    );
    let mut out = Vec::new();
    for exchange in [b"x", b"y", b"x"] {
        node.topology.route(&RouteRequest { vhost: SLASH, exchange, keys: &[b""], facts: &NoFacts }, &mut out).unwrap();
        assert_eq!(out.iter().map(|t| t.queue.0).collect::<Vec<_>>(), [1, 2], "also over several calls");
    }
    trace(&mut node, &["delete exchange x -> logged", "delete exchange y -> logged"]);
    assert_eq!(node.topology.binding_count(), 0);
}

#[test]
fn virtual_hosts_share_nothing() {
    let mut topology = Topology::new();
    let create = Command::CreateVhost { name: Name::from("other") };
    topology.apply(&create).outcome.unwrap();
    topology.apply(&create).outcome.expect("creating it again finds it");
    let other = topology.vhost(b"other").unwrap();
    assert_eq!(topology.vhosts().count(), 2);
    for vhost in [SLASH, other] {
        let declare = DeclareQueue {
            vhost,
            name: Name::from("q"),
            durable: true,
            exclusive: None,
            auto_delete: false,
            arguments: Table::new(),
            partition: PartitionId(0),
            home: None,
        };
        topology.apply(&Command::DeclareQueue(declare)).outcome.unwrap();
    }
    let mut out = Vec::new();
    topology.route(&RouteRequest { vhost: other, exchange: b"", keys: &[b"q"], facts: &NoFacts }, &mut out).unwrap();
    assert_eq!(out.iter().map(|t| t.queue.0).collect::<Vec<_>>(), [2]);
    assert!(
        topology
            .route(&RouteRequest { vhost: VhostId(2), exchange: b"", keys: &[b"q"], facts: &NoFacts }, &mut out)
            .is_err()
    );
    assert!(
        topology
            .route(&RouteRequest { vhost: other, exchange: b"missing", keys: &[b"q"], facts: &NoFacts }, &mut out)
            .is_err()
    );
}

#[test]
fn headers_are_read_at_most_once_and_only_for_a_headers_exchange() {
    let mut node = Node::new();
    trace(
        &mut node,
        &[
            "durable queue a -> logged, created 1",
            "exchange f fanout -> logged",
            "bind f a k -> logged",
            "exchange h headers -> logged",
            "exchange i headers -> logged",
            "bind h >i k -> logged",
            "bind i a k -> logged",
        ],
    );
    let facts = Asked::default();
    let mut out = Vec::new();
    let to = |exchange: &'static [u8]| RouteRequest { vhost: SLASH, exchange, keys: &[b""], facts: &facts };
    node.topology.route(&to(b"f"), &mut out).unwrap();
    assert_eq!((out.len(), facts.headers.get()), (1, 0));
    out.clear();
    node.topology.route(&to(b"h"), &mut out).unwrap();
    assert_eq!((out.len(), facts.headers.get()), (1, 1));
}

#[test]
fn a_topology_may_be_read_by_many_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Topology>();
}

#[test]
fn a_command_of_the_log_does_not_see_what_took_the_place_of_its_ends() {
    let mut node = Node::new();
    let guest = Actor { user: b"guest", connection: 1, scopes: None };
    trace(
        &mut node,
        &[
            "durable queue q -> logged, created 1",
            "exchange x direct -> logged",
            "durable queue r -> logged, created 2",
            "bind x r k -> logged",
        ],
    );
    let late = ["bind x q k", "bind x r l", "unbind x r k"].map(|line| node.check(guest, line));
    trace(
        &mut node,
        &[
            "delete queue q -> logged, deleted 1",
            "transient queue q -> local, created local 1",
            "delete exchange x -> logged",
            "exchange x direct transient -> local",
            "bind x r k -> local",
        ],
    );
    let missing = "logged, 404 NOT_FOUND - no exchange 'x' in vhost '/'";
    let answers = late.map(|checked| node.carry_out(checked));
    assert_eq!(answers, [missing, missing, "logged"], "the source first, as on a node that has neither");
    assert_eq!(node.topology.binding_count(), 1);
    let to_queue = node.check(guest, "bind amq.direct r k");
    trace(&mut node, &["delete queue r -> logged, deleted 2", "transient queue r -> local, created local 2"]);
    assert_eq!(node.carry_out(to_queue), "logged, 404 NOT_FOUND - no queue 'r' in vhost '/'");
    let to_local = node.check(guest, "bind amq.direct r k");
    trace(&mut node, &["delete queue r -> local, deleted local 2", "durable queue r -> logged, created 3"]);
    assert_eq!(node.carry_out(to_local), "local, 404 NOT_FOUND - no exchange 'amq.direct' in vhost '/'");
}

#[test]
fn bindings_differ_by_their_arguments_but_not_by_the_order_of_these() {
    use amqp::Value;
    let mut node = Node::new();
    trace(&mut node, &["durable queue q -> logged, created 1"]);
    let guest = Actor { user: b"guest", connection: 1, scopes: None };
    let with = |fields: &[(&'static str, i32)]| {
        let mut arguments = Table::new();
        for (name, value) in fields {
            arguments.push(*name, Value::I32(*value));
        }
        Binding { arguments, ..binding("amq.direct", "q", "k") }
    };
    for fields in [&[][..], &[("a", 1)], &[("a", 2)], &[("a", 1), ("b", 2)]] {
        let checked = node.topology.check_bind(guest, with(fields)).unwrap();
        assert_eq!(node.carry_out(checked), "logged");
    }
    assert_eq!(node.topology.check_bind(guest, with(&[("b", 2), ("a", 1)])), Ok(Checked::Done));
    assert_eq!(node.topology.binding_count(), 4);
    let routed = |node: &Node| {
        let mut out = Vec::new();
        node.topology
            .route(&RouteRequest { vhost: SLASH, exchange: b"amq.direct", keys: &[b"k"], facts: &NoFacts }, &mut out)
            .unwrap();
        out.len()
    };
    for (left, fields) in [(3, &[][..]), (2, &[("b", 2), ("a", 1)]), (1, &[("a", 1)]), (0, &[("a", 2)])] {
        assert_eq!(routed(&node), 1);
        let checked = node.topology.check_unbind(guest, with(fields)).unwrap();
        assert_eq!(node.carry_out(checked), "logged");
        assert_eq!(node.topology.binding_count(), left);
    }
    assert_eq!(routed(&node), 0);
}

#[test]
fn a_virtual_host_goes_with_everything_in_it_and_its_id_is_not_given_out_again() {
    let mut topology = Topology::new();
    let untouched = topology.encode_snapshot();
    let create = Command::CreateVhost { name: Name::from("other") };
    topology.apply(&create).outcome.unwrap();
    let other = topology.vhost(b"other").unwrap();
    let declare = |name: &str, durable| DeclareQueue {
        vhost: other,
        name: Name::from(name),
        durable,
        exclusive: None,
        auto_delete: false,
        arguments: Table::new(),
        partition: PartitionId(1),
        home: None,
    };
    topology.apply(&Command::DeclareQueue(declare("q", true))).outcome.unwrap();
    topology.apply_local(&Command::DeclareQueue(declare("here only", false))).outcome.unwrap();
    let bind = |queue: &str| Binding {
        vhost: other,
        source: Name::from("amq.topic"),
        destination_kind: Kind::Queue,
        destination: Name::from(queue),
        key: Name::from("#"),
        arguments: Table::new(),
    };
    topology.apply(&Command::Bind(bind("q"))).outcome.unwrap();
    topology.apply_local(&Command::Bind(bind("here only"))).outcome.unwrap();
    let guest = Name::from("guest");
    let permission = Permission::everything();
    topology.apply(&Command::PutPermission { user: guest.clone(), vhost: other, permission }).outcome.unwrap();
    let delete = Command::DeleteVhost { vhost: other };
    let effects = topology.apply(&delete).effects;
    let deleted = |effect: &Effect| matches!(effect, Effect::QueueDeleted { .. });
    assert_eq!(effects.iter().filter(|effect| deleted(effect)).count(), 2);
    assert_eq!(effects.last(), Some(&Effect::VhostDeleted { vhost: other, name: Name::from("other") }));
    assert!(topology.vhost(b"other").is_none() && topology.vhost_of(other).is_none());
    assert_eq!((topology.queues().count(), topology.binding_count()), (0, 0));
    assert!(topology.exchanges().all(|exchange| exchange.vhost == SLASH));
    assert!(!topology.user(b"guest").unwrap().permissions.contains_key(&other));
    assert_eq!(topology.apply(&delete).effects, [], "there is nothing to delete any more");
    // What was on its way meets nobody, also after another one of the name came.
    let late = Command::DeclareQueue(declare("late", true));
    assert_eq!(topology.apply(&late).outcome.unwrap_err().code, 530);
    topology.apply(&create).outcome.unwrap();
    assert_eq!(topology.vhost(b"other"), Some(VhostId(other.0 + 1)));
    assert_eq!(topology.apply(&late).outcome.unwrap_err().code, 530);
    let copy = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!((copy.vhost(b"other"), copy.vhost_of(other)), (Some(VhostId(other.0 + 1)), None));
    // A member that fell behind hears of it too.
    let mut behind = Topology::decode_snapshot(&untouched).unwrap();
    behind.apply(&create).outcome.unwrap();
    let effects = behind.install_snapshot(&topology.encode_snapshot()).unwrap();
    assert!(effects.contains(&Effect::VhostDeleted { vhost: other, name: Name::from("other") }));
}

#[test]
fn a_queue_without_a_type_is_of_its_virtual_hosts_default_type_where_its_flags_go_with_it() {
    let mut topology = Topology::new();
    let mut description =
        VhostDescription { text: "d".to_owned(), tags: vec![Name::from("t")], default_queue_type: None };
    let declared = |topology: &Topology, durable, exclusive, arguments: Table| {
        let declare = QueueDeclare {
            vhost: SLASH,
            name: b"q",
            server_named: false,
            durable,
            exclusive,
            auto_delete: false,
            arguments: &arguments,
        };
        let actor = Actor { user: b"guest", connection: 1, scopes: None };
        let checked = topology.check_queue_declare(actor, &declare, |_| PartitionId(1)).unwrap();
        let (QueueDeclared::Propose(Command::DeclareQueue(new)) | QueueDeclared::Local(Command::DeclareQueue(new))) =
            checked
        else {
            panic!("{checked:?}")
        };
        match new.arguments.get("x-queue-type") {
            Some(Value::LongString(word)) if &word[..] == b"quorum" => QueueType::Quorum,
            _ => QueueType::Classic,
        }
    };
    assert_eq!(declared(&topology, true, false, Table::new()), QueueType::Classic);
    description.default_queue_type = Some(QueueType::Quorum);
    let describe = Command::DescribeVhost { vhost: SLASH, description: description.clone() };
    assert_eq!(Command::decode(&describe.encode()).unwrap(), describe);
    topology.apply(&describe).outcome.unwrap();
    assert_eq!(declared(&topology, true, false, Table::new()), QueueType::Quorum);
    assert_eq!(declared(&topology, true, true, Table::new()), QueueType::Classic);
    assert_eq!(declared(&topology, false, false, Table::new()), QueueType::Classic);
    let mut classic = Table::new();
    classic.push("x-queue-type", Value::LongString(bytes::Bytes::from_static(b"classic")));
    assert_eq!(declared(&topology, true, false, classic), QueueType::Classic);
    // Named without a value it is the default's too, and then the flags have to go with it.
    for word in ["", "undefined"] {
        let mut unsaid = Table::new();
        unsaid.push("x-queue-type", Value::LongString(bytes::Bytes::from_static(word.as_bytes())));
        assert_eq!(declared(&topology, true, false, unsaid.clone()), QueueType::Quorum);
        let (vhost, actor) = (SLASH, Actor { user: b"guest", connection: 1, scopes: None });
        let exclusive = QueueDeclare {
            vhost,
            name: b"q",
            server_named: false,
            durable: true,
            exclusive: true,
            auto_delete: false,
            arguments: &unsaid,
        };
        let refused = topology.check_queue_declare(actor, &exclusive, |_| PartitionId(1)).unwrap_err();
        assert!(refused.text.contains("invalid property 'exclusive-owner'"), "{}", refused.text);
    }
    let copy = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!(copy.vhost_of(SLASH).unwrap().description, description);
    let long = VhostDescription { text: "x".repeat(VHOST_DESCRIPTION_BYTES_MAX + 1), ..VhostDescription::default() };
    assert!(topology.apply(&Command::DescribeVhost { vhost: SLASH, description: long }).outcome.is_err());
}

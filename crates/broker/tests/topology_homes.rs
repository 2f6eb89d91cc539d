//! What lives in the memory of one node of a cluster and is known to all.

use amqp::Table;
use broker::topology::{
    Actor, Binding, Checked, Command, CommandReply, DeclareQueue, DeleteQueue, Effect, ExchangeDeclare, Home, Kind,
    MACHINE_VERSION, Name, QueueDeclare, QueueDeclared, REPLY_PREFIX, Topology, VhostLimits,
};
use broker::{NodeNumber, PartitionId, VhostId};

const OWN: NodeNumber = NodeNumber(2);
const SLASH: VhostId = VhostId(0);

fn guest(connection: u64) -> Actor<'static> {
    Actor { user: b"guest", connection, scopes: None }
}

fn two() -> (Topology, Topology) {
    let (mut own, mut other) = (Topology::new(), Topology::new());
    own.set_own_home(Some(OWN));
    other.set_own_home(Some(NodeNumber(3)));
    (own, other)
}

fn declare(topology: &Topology, name: &str, connection: u64, exclusive: bool) -> Result<QueueDeclared, String> {
    let arguments = Table::new();
    let declare = QueueDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        server_named: false,
        durable: false,
        exclusive,
        auto_delete: false,
        arguments: &arguments,
    };
    let declared = topology.check_queue_declare(guest(connection), &declare, |placement| {
        assert!(placement.in_memory);
        PartitionId::in_memory(OWN, 1)
    });
    declared.map_err(|refusal| refusal.to_string())
}

/// Through its bytes, as a log carries it.
fn apply_to_both(command: &Command, (own, other): (&mut Topology, &mut Topology)) -> (CommandReply, Vec<Effect>) {
    let command = Command::decode(&command.encode()).expect("it was encoded");
    let (here, there) = (own.apply(&command), other.apply(&command));
    assert_eq!(here, there);
    assert_eq!(own.encode_snapshot(), other.encode_snapshot());
    (here.outcome.expect("it is lawful"), here.effects)
}

#[test]
fn an_exclusive_queue_is_known_to_all_bound_from_anywhere_and_gone_with_its_node() {
    let (mut own, mut other) = two();
    let Ok(QueueDeclared::Propose(command)) = declare(&own, "mine", 7, true) else {
        panic!("every node is to know it")
    };
    let (reply, _) = apply_to_both(&command, (&mut own, &mut other));
    let CommandReply::Queue { id, created: true } = reply else { panic!("{reply:?}") };
    assert_eq!((own.exclusive_queues(7).collect::<Vec<_>>(), id.is_local()), (vec![id], false));

    let locked = declare(&other, "mine", 8, true).expect_err("it is another connection's");
    assert!(locked.contains("405") || locked.contains("exclusive access"), "{locked}");

    let exchange = ExchangeDeclare {
        vhost: SLASH,
        name: b"news",
        kind: b"fanout",
        durable: false,
        auto_delete: true,
        internal: false,
        arguments: &Table::new(),
    };
    let Ok(Checked::Propose(command)) = other.check_exchange_declare(guest(8), &exchange) else {
        panic!("every node is to know it")
    };
    apply_to_both(&command, (&mut own, &mut other));
    let binding = Binding {
        vhost: SLASH,
        source: Name::from("news"),
        destination_kind: Kind::Queue,
        destination: Name::from("mine"),
        key: Name::from("k"),
        arguments: Table::new(),
    };
    let Ok(Checked::Propose(command)) = own.check_bind(guest(7), binding) else { panic!("it is no node's alone") };
    apply_to_both(&command, (&mut own, &mut other));

    let again = Topology::decode_snapshot(&own.encode_snapshot()).expect("it was encoded");
    assert_eq!(again.encode_snapshot(), own.encode_snapshot());
    assert_eq!(again.homes(), [OWN]);

    let home = Home { node: OWN, era: 0 };
    let (_, effects) = apply_to_both(&Command::EndHome(home), (&mut own, &mut other));
    assert_eq!(effects, [Effect::QueueDeleted { id, partition: PartitionId::in_memory(OWN, 1) }]);
    assert!(other.find_exchange(SLASH, b"news").is_none(), "an auto-delete exchange goes with its last binding");
    assert_eq!((own.era(OWN), own.homes()), (1, Vec::new()));
    let (_, effects) = apply_to_both(&Command::EndHome(home), (&mut own, &mut other));
    assert_eq!((effects, own.era(OWN)), (Vec::new(), 1), "that era has ended");
    assert_eq!(Topology::decode_snapshot(&own.encode_snapshot()).expect("it was encoded").era(OWN), 1);
}

#[test]
fn what_goes_with_a_node_is_no_growth_of_what_is_kept() {
    let (mut own, mut other) = two();
    let Ok(QueueDeclared::Propose(queue)) = declare(&own, "mine", 7, true) else { panic!("every node is to know it") };
    let exchange = |name: &[u8], durable| {
        let (kind, arguments) = (&b"fanout"[..], &Table::new());
        let declare =
            ExchangeDeclare { vhost: SLASH, name, kind, durable, auto_delete: false, internal: false, arguments };
        let Ok(Checked::Propose(command)) = other.check_exchange_declare(guest(8), &declare) else {
            panic!("every node is to know it")
        };
        command
    };
    let (transient, durable) = (exchange(b"news", false), exchange(b"kept", true));
    let bind = |destination_kind, destination: &str| {
        let (source, destination, key) = (Name::from("amq.direct"), Name::from(destination), Name::from("k"));
        Command::Bind(Binding { vhost: SLASH, source, destination_kind, destination, key, arguments: Table::new() })
    };
    let kept = Command::DeclareQueue(DeclareQueue {
        vhost: SLASH,
        name: Name::from("orders"),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments: Table::new(),
        partition: PartitionId(1),
        home: None,
    });
    for command in [&queue, &transient, &durable, &kept] {
        apply_to_both(command, (&mut own, &mut other));
    }
    for (command, is_growth) in [
        (queue, false),
        (transient, false),
        (durable, true),
        (kept, true),
        (bind(Kind::Queue, "mine"), false),
        (bind(Kind::Exchange, "news"), false),
        (bind(Kind::Queue, "orders"), true),
        (bind(Kind::Exchange, "kept"), true),
    ] {
        assert_eq!(command.is_growth(&own), is_growth, "{command:?}");
    }
}

#[test]
fn what_carries_replies_counts_towards_no_limit_once_all_nodes_know_that() {
    let (mut own, mut other) = two();
    let limits = VhostLimits { connections_max: None, queues_max: Some(2) };
    apply_to_both(&Command::SetVhostLimits { vhost: SLASH, limits }, (&mut own, &mut other));
    let reply_queue = |name: &str| {
        Command::DeclareQueue(DeclareQueue {
            vhost: SLASH,
            name: Name::from(format!("{REPLY_PREFIX}{name}").as_str()),
            durable: false,
            exclusive: Some(7),
            auto_delete: true,
            arguments: Table::new(),
            partition: PartitionId::in_memory(OWN, 1),
            home: Some(Home { node: OWN, era: 0 }),
        })
    };
    let mut both = |command: &Command| {
        let (here, there) = (own.apply(command), other.apply(command));
        assert_eq!(here, there);
        here.outcome
    };
    assert!(both(&reply_queue("1")).is_ok() && both(&reply_queue("2")).is_ok());
    let early = both(&reply_queue("3")).expect_err("a node of an earlier build refuses it too");
    assert!(early.to_string().contains("queue limit"), "{early}");
    both(&Command::RaiseVersion { version: MACHINE_VERSION }).expect("it is lawful");
    assert!(both(&reply_queue("3")).is_ok());
    for (name, is_taken) in [("one", true), ("two", true), ("three", false)] {
        let declared = declare(&own, name, 7, true);
        assert_eq!(declared.is_ok(), is_taken, "{name}: {declared:?}");
        let Ok(QueueDeclared::Propose(command)) = declared else { continue };
        apply_to_both(&command, (&mut own, &mut other));
    }
    let again = Topology::decode_snapshot(&own.encode_snapshot()).expect("it was encoded");
    assert!(declare(&again, "three", 7, true).is_err(), "a snapshot counts the same");
    let gone = own.find_queue(SLASH, b"one").expect("it was declared").id;
    apply_to_both(&Command::DeleteQueue(DeleteQueue { queue: gone, keep: Vec::new() }), (&mut own, &mut other));
    assert!(declare(&own, "three", 7, true).is_ok());
}

#[test]
fn a_declare_of_an_era_that_has_ended_makes_nothing() {
    let (mut own, _) = two();
    let Ok(QueueDeclared::Propose(late)) = declare(&own, "late", 7, false) else { panic!("every node is to know it") };
    own.apply(&Command::EndHome(Home { node: OWN, era: 0 }));
    assert!(own.apply(&late).outcome.is_err());
    assert!(own.find_queue(SLASH, b"late").is_none());
    let Ok(QueueDeclared::Propose(fresh)) = declare(&own, "late", 7, false) else { panic!("every node is to know it") };
    assert!(own.apply(&fresh).outcome.is_ok());
}

#[test]
fn a_node_that_is_alone_keeps_to_itself_what_it_has_in_memory() {
    let mut alone = Topology::new();
    let Ok(QueueDeclared::Local(command)) = declare(&alone, "mine", 7, true) else { panic!("nobody else is there") };
    alone.apply_local(&command).outcome.expect("it is lawful");
    assert_eq!(alone.encode_snapshot(), Topology::new().encode_snapshot());
}

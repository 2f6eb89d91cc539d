//! Policies in a topology: which queue they reach, when, and that members agree on it.
//!
//! Invariant: after every command each queue's rules are those of its arguments and the policies
//! that match it.
#![allow(clippy::unwrap_used)]

use amqp::{Table, Value};
use broker::ids::{PartitionId, VhostId};
use broker::topology::{
    Access, ApplyTo, Binding, Command, DeclareExchange, DeclareQueue, Effect, ExchangeType, GLOBAL_PARAMETER_BYTES_MAX,
    HashAlgorithm, Kind, Name, NoFacts, PasswordHash, Pattern, Permission, Policy, PutPolicy, RouteRequest, Topology,
    UserLimits, VhostLimits,
};

const SLASH: VhostId = VhostId(0);

fn definition(fields: &[(&'static str, Value)]) -> Table {
    let mut table = Table::new();
    fields.iter().for_each(|(name, value)| table.push(*name, value.clone()));
    table
}

fn put(name: &str, pattern: &str, priority: i64, fields: &[(&'static str, Value)]) -> Command {
    let policy = Policy {
        pattern: Pattern::new(pattern).unwrap(),
        apply_to: ApplyTo::Queues,
        priority,
        definition: definition(fields),
    };
    Command::PutPolicy(PutPolicy { vhost: SLASH, operator: false, name: Name::from(name), policy })
}

fn declare(topology: &mut Topology, name: &str) {
    let declare = DeclareQueue {
        vhost: SLASH,
        name: Name::from(name),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments: Table::new(),
        partition: PartitionId(1),
        home: None,
    };
    topology.apply(&Command::DeclareQueue(declare)).outcome.unwrap();
}

#[test]
fn commands_about_users_hosts_and_policies_are_read_back_as_they_were_written() {
    let (user, vhost) = (Name::from("ann"), SLASH);
    let password = |algorithm: HashAlgorithm| match algorithm.hash_bytes() {
        Some(length) => PasswordHash::from_bytes(algorithm, &vec![7; length]).unwrap(),
        None => PasswordHash::argon2id(b"secret", [7; 16]),
    };
    let mut commands: Vec<Command> = HashAlgorithm::ALL
        .into_iter()
        .map(|a| Command::PutUser { name: user.clone(), password: password(a), tags: vec![Name::from("management")] })
        .collect();
    let exchange = Name::from("amq.topic");
    let (write, read) = ("^{username}".to_owned(), String::new());
    commands.extend([
        Command::PutPermission { user: user.clone(), vhost, permission: Permission::nothing() },
        Command::PutTopicPermission { user: user.clone(), vhost, exchange: exchange.clone(), write, read },
        Command::SetUserLimits {
            user: user.clone(),
            limits: UserLimits { connections_max: Some(0), channels_max: None },
        },
        Command::SetVhostLimits { vhost, limits: VhostLimits { connections_max: None, queues_max: Some(u32::MAX) } },
        put("p", "^q", i64::MIN, &[("max-in-memory-length", Value::I64(5))]),
        put("p", r"^(?!amq\.)", 7, &[("max-in-memory-length", Value::I64(5))]),
    ]);
    let mut topology = Topology::new();
    topology.apply(&Command::RaiseVersion { version: 3 }).outcome.unwrap();
    for command in &commands {
        assert_eq!(&Command::decode(&command.encode()).unwrap(), command);
        topology.apply(command).outcome.unwrap();
    }
    let bytes = topology.encode_snapshot();
    let copy = Topology::decode_snapshot(&bytes).unwrap();
    assert_eq!(copy.encode_snapshot(), bytes);
    assert_eq!(copy.user(b"ann"), topology.user(b"ann"));
    assert_eq!(copy.vhost_of(SLASH), topology.vhost_of(SLASH));
    for command in [
        Command::ClearTopicPermission { user: user.clone(), vhost, exchange },
        Command::ClearPermission { user: user.clone(), vhost },
        Command::DeletePolicy { vhost, operator: false, name: Name::from("p") },
        Command::DeleteUser { name: user },
    ] {
        assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        topology.apply(&command).outcome.unwrap();
    }
    assert_eq!(
        topology.encode_snapshot()[5..],
        {
            let mut fresh = Topology::new();
            fresh.apply(&Command::RaiseVersion { version: 3 }).outcome.unwrap();
            let limits = VhostLimits { connections_max: None, queues_max: Some(u32::MAX) };
            fresh.apply(&Command::SetVhostLimits { vhost, limits }).outcome.unwrap();
            fresh.encode_snapshot()
        }[5..]
    );
}

#[test]
fn global_parameters_are_in_a_snapshot_that_is_as_before_without_them() {
    let mut topology = Topology::new();
    let before = topology.encode_snapshot();
    assert_eq!(before[4], 4, "earlier builds read it");
    let name = Name::from("cluster_name");
    let put = |value: &str| Command::PutGlobalParameter { name: name.clone(), value: value.to_owned() };
    for command in [put("\"a\""), put("{\"b\":1}")] {
        assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        topology.apply(&command).outcome.unwrap();
    }
    let bytes = topology.encode_snapshot();
    assert_eq!(bytes[4], 5);
    let copy = Topology::decode_snapshot(&bytes).unwrap();
    assert_eq!(copy.global_parameters().collect::<Vec<_>>(), [(&name, "{\"b\":1}")]);
    assert_eq!(copy.encode_snapshot(), bytes);
    assert!(topology.apply(&put(&"x".repeat(GLOBAL_PARAMETER_BYTES_MAX + 1))).outcome.is_err());
    let clear = Command::ClearGlobalParameter { name: name.clone() };
    assert_eq!(Command::decode(&clear.encode()).unwrap(), clear);
    topology.apply(&clear).outcome.unwrap();
    topology.apply(&clear).outcome.unwrap();
    assert_eq!(topology.global_parameter(&name), None);
    assert_eq!(topology.encode_snapshot(), before);
    // A snapshot of the later version without any is one that nobody writes.
    let mut empty = before.to_vec();
    empty[4] = 5;
    empty.push(0);
    assert!(Topology::decode_snapshot(&empty).is_err());
}

#[test]
fn what_the_first_version_wrote_is_still_read() {
    // PutUser and PutPermission as they were before rights had patterns: SHA-256 only, all names or
    // none.
    let mut user = vec![1, 2, 3, b'a', b'n', b'n', 1, 2, 3, 4];
    user.extend(&PasswordHash::new(b"pw", [1, 2, 3, 4]).to_bytes()[4..]);
    user.push(0);
    let permission = [1, 3, 3, b'a', b'n', b'n', 0, 0b101];
    let mut topology = Topology::new();
    for bytes in [&user[..], &permission] {
        topology.apply(&Command::decode(bytes).unwrap()).outcome.unwrap();
    }
    let ann = topology.user(b"ann").unwrap();
    assert!(ann.password.matches(b"pw"));
    let everything = Permission::everything();
    assert_eq!(ann.permissions[&SLASH], Permission { write: Pattern::nothing(), ..everything });
}

#[test]
fn a_name_in_a_topic_permission_may_be_anything_once_all_nodes_can_read_it() {
    let mut topology = Topology::new();
    let user = Name::from("a(");
    let password = PasswordHash::argon2id(b"secret", [7; 16]);
    let put = Command::PutTopicPermission {
        user: user.clone(),
        vhost: SLASH,
        exchange: Name::from("amq.topic"),
        write: "^{username}$".into(),
        read: String::new(),
    };
    topology.apply(&Command::RaiseVersion { version: 11 }).outcome.unwrap();
    topology.apply(&Command::PutUser { name: user, password, tags: Vec::new() }).outcome.unwrap();
    topology.apply(&put).outcome.unwrap_err();
    topology.apply(&Command::RaiseVersion { version: 12 }).outcome.unwrap();
    topology.apply(&put).outcome.unwrap();
    let read = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    let permission = read.user(b"a(").unwrap().topic_permissions.values().next().unwrap();
    assert!(permission.allows(Access::Write, b"a(") && !permission.allows(Access::Write, b"a"));
}

#[test]
fn hashes_of_argon2id_are_kept_once_all_nodes_can_read_them() {
    let mut topology = Topology::new();
    let password = PasswordHash::argon2id(b"secret", [7; 16]);
    let put = Command::PutUser { name: Name::from("ann"), password, tags: Vec::new() };
    let refused = topology.apply(&put).outcome.unwrap_err();
    assert!(refused.text.contains("before all nodes"), "{}", refused.text);
    assert!(topology.user(b"ann").is_none() && !topology.keeps_argon2id());
    topology.apply(&Command::RaiseVersion { version: 3 }).outcome.unwrap();
    topology.apply(&put).outcome.unwrap();
    let read = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert!(read.user(b"ann").unwrap().password.matches(b"secret"));
}

#[test]
fn a_definition_that_is_not_lawful_changes_nothing() {
    let mut topology = Topology::new();
    let before = topology.encode_snapshot();
    let refused = topology.apply(&put("p", "q", 0, &[("max-lenght", Value::I64(5))])).outcome.unwrap_err();
    assert_eq!(
        refused.text,
        "PRECONDITION_FAILED - policy 'p': max-lenght: is not a policy setting that RabbitMQ recognises"
    );
    assert_eq!(topology.encode_snapshot(), before);
}

#[test]
fn a_policy_gives_exchanges_an_alternate_where_their_declare_said_nothing() {
    let mut topology = Topology::new();
    ["by policy", "by declare"].iter().for_each(|queue| declare(&mut topology, queue));
    let exchange = |topology: &mut Topology, name: &str, fields: &[(&'static str, Value)]| {
        let declare = DeclareExchange {
            vhost: SLASH,
            name: Name::from(name),
            kind: ExchangeType::Direct,
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: definition(fields),
            is_shared: false,
        };
        topology.apply(&Command::DeclareExchange(declare)).outcome.unwrap();
    };
    let text = |word: &str| Value::LongString(bytes::Bytes::copy_from_slice(word.as_bytes()));
    let routed = |topology: &Topology, exchange: &str| {
        let mut out = Vec::new();
        let request = RouteRequest { vhost: SLASH, exchange: exchange.as_bytes(), keys: &[b"k"], facts: &NoFacts };
        topology.route(&request, &mut out).unwrap();
        out.iter().map(|target| topology.queue(target.queue).unwrap().name.to_string()).collect::<Vec<_>>()
    };
    for (fallback, queue) in [("fallback", "by policy"), ("other", "by declare")] {
        exchange(&mut topology, fallback, &[]);
        let binding = Binding {
            vhost: SLASH,
            source: Name::from(fallback),
            destination_kind: Kind::Queue,
            destination: Name::from(queue),
            key: Name::from("k"),
            arguments: Table::new(),
        };
        topology.apply(&Command::Bind(binding)).outcome.unwrap();
    }
    exchange(&mut topology, "x1", &[]);
    let policy = Policy {
        pattern: Pattern::new("^x").unwrap(),
        apply_to: ApplyTo::Exchanges,
        priority: 0,
        definition: definition(&[("alternate-exchange", text("fallback"))]),
    };
    let name = Name::from("ae");
    let put = PutPolicy { vhost: SLASH, operator: false, name: name.clone(), policy };
    topology.apply(&Command::PutPolicy(put)).outcome.unwrap();
    exchange(&mut topology, "x2", &[]);
    exchange(&mut topology, "x3", &[("alternate-exchange", text("other"))]);
    let copy = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    for topology in [&topology, &copy] {
        assert_eq!(routed(topology, "x1"), ["by policy"]);
        assert_eq!(routed(topology, "x2"), ["by policy"]);
        assert_eq!(routed(topology, "x3"), ["by declare"]);
    }
    topology.apply(&Command::DeletePolicy { vhost: SLASH, operator: false, name }).outcome.unwrap();
    assert_eq!(routed(&topology, "x1"), [""; 0]);
    assert_eq!(routed(&topology, "x3"), ["by declare"]);
}

#[test]
fn a_policy_reaches_the_queues_that_match_it_those_to_come_and_none_when_it_goes() {
    // The first key that this version honours and that a machine works by; see `policy.rs` for all.
    let keys: [(&'static str, Value); 2] = [("max-length", Value::I64(5)), ("message-ttl", Value::I64(5))];
    let mut topology = Topology::new();
    let honoured = keys.iter().find(|key| {
        let mut probe = Topology::new();
        probe.apply(&put("probe", "q", 0, &[(*key).clone()])).outcome.is_ok()
    });
    let Some(key) = honoured.cloned() else { return };
    declare(&mut topology, "q1");
    declare(&mut topology, "other");
    let id = topology.find_queue(SLASH, b"q1").unwrap().id;
    let partition = PartitionId(1);
    let applied = topology.apply(&put("p", "^q", 0, std::slice::from_ref(&key)));
    assert_eq!(applied.effects, [Effect::QueueRulesChanged { id, partition }]);
    declare(&mut topology, "q2");
    let rules = |topology: &Topology, name: &[u8]| topology.find_queue(SLASH, name).unwrap().rules.clone();
    assert!(!rules(&topology, b"q1").is_plain() && rules(&topology, b"other").is_plain());
    assert_eq!(rules(&topology, b"q1"), rules(&topology, b"q2"));
    let copy = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!(rules(&copy, b"q2"), rules(&topology, b"q2"));
    // A higher priority holds alone.
    topology.apply(&put("higher", "^q1$", 1, &[("max-in-memory-length", Value::I64(1))])).outcome.unwrap();
    assert!(rules(&topology, b"q1").is_plain() && !rules(&topology, b"q2").is_plain());
    let delete = Command::DeletePolicy { vhost: SLASH, operator: false, name: Name::from("p") };
    assert_eq!(topology.apply(&delete).effects.len(), 1);
    assert!(rules(&topology, b"q2").is_plain());
}

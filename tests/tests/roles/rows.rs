//! The rows of the table of roles: what is asked, and where our answer differs from RabbitMQ's on
//! purpose.
//!
//! Invariant: a row that changes something leaves it as the next row expects it, whether it was
//! allowed or not: `before` puts back, in an administrator's name, what the row takes away or
//! makes.

/// One request.
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    /// `{V}` is the virtual host, `{OTHER}` the one that it is not, `{U}` who asks, `{S}` somebody
    /// else, `{N}` the node, `{C}` guest's connection in the virtual host, `{M}` the asker's own.
    pub(crate) path: &'static str,
    pub(crate) body: &'static str,
    /// What an administrator asks for before; its answer does not matter.
    pub(crate) before: &'static [(&'static str, &'static str, &'static str)],
    /// Tells rows of one path apart.
    pub(crate) note: &'static str,
}

impl Ask {
    pub(crate) fn has_vhost(&self) -> bool {
        self.path.contains("{V}") || self.path.contains("{C}")
    }

    /// Who may not use the API is asked for a few paths of each kind.
    pub(crate) fn is_asked_by_none(&self) -> bool {
        ["/api/whoami", "/api/overview", "/api/queues", "/api/queues/{V}/q", "/api/users"].contains(&self.path)
    }
}

/// A lasting difference, with its reason.
pub(crate) struct Difference {
    pub(crate) is_it: fn(case: &str, theirs: &str, ours: &str) -> bool,
    pub(crate) why: &'static str,
}

const fn get(path: &'static str) -> Ask {
    Ask { method: "GET", path, body: "", before: &[], note: "" }
}

const fn put(path: &'static str, body: &'static str) -> Ask {
    Ask { method: "PUT", path, body, before: &[], note: "" }
}

type Before = &'static [(&'static str, &'static str, &'static str)];

const fn change(method: &'static str, path: &'static str, body: &'static str, before: Before) -> Ask {
    Ask { method, path, body, before, note: "" }
}

const fn noted(note: &'static str, ask: Ask) -> Ask {
    Ask { note, ..ask }
}

const RIGHTS: &str = r#"{"configure":".*","write":".*","read":".*"}"#;
const TOPIC: &str = r#"{"exchange":"amq.topic","write":".*","read":".*"}"#;
const POLICY: &str = r#"{"pattern":"^none$","definition":{"max-length":5}}"#;
const LIMIT: &str = r#"{"value":100}"#;
const USER: &str = r#"{"password":"pw","tags":""}"#;

#[rustfmt::skip]
pub(crate) const ROWS: &[Ask] = &[
    get("/api/whoami"),
    get("/api/overview"),
    get("/api/cluster-name"),
    get("/api/extensions"),
    get("/api/nodes"),
    get("/api/nodes/{N}"),
    get("/api/connections"),
    get("/api/connections/{C}"),
    get("/api/connections/{C}/channels"),
    get("/api/connections/{M}"),
    get("/api/connections/{M}/channels"),
    get("/api/connections/username/guest"),
    get("/api/connections/username/{U}"),
    get("/api/vhosts/{V}/connections"),
    get("/api/channels"),
    get("/api/channels/{C}%20(1)"),
    get("/api/vhosts/{V}/channels"),
    get("/api/consumers"),
    get("/api/consumers/{V}"),
    get("/api/exchanges"),
    get("/api/exchanges/{V}"),
    get("/api/exchanges/{V}/x"),
    get("/api/exchanges/{V}/x/bindings/source"),
    get("/api/exchanges/{V}/x/bindings/destination"),
    get("/api/exchanges/{V}/missing"),
    put("/api/exchanges/{V}/x", r#"{"type":"direct","durable":true}"#),
    change("PUT", "/api/exchanges/{V}/new", r#"{"type":"direct"}"#, &[("DELETE", "/api/exchanges/{V}/new", "")]),
    change("DELETE", "/api/exchanges/{V}/new", "", &[("PUT", "/api/exchanges/{V}/new", r#"{"type":"direct"}"#)]),
    get("/api/queues"),
    get("/api/queues/{V}"),
    get("/api/queues/{V}/q"),
    get("/api/queues/{V}/missing"),
    get("/api/queues/{V}/q/bindings"),
    put("/api/queues/{V}/q", r#"{"durable":true}"#),
    change("PUT", "/api/queues/{V}/new", r#"{"durable":true}"#, &[("DELETE", "/api/queues/{V}/new", "")]),
    change("DELETE", "/api/queues/{V}/new", "", &[("PUT", "/api/queues/{V}/new", r#"{"durable":true}"#)]),
    change("DELETE", "/api/queues/{V}/q/contents", "", &[]),
    get("/api/bindings"),
    get("/api/bindings/{V}"),
    get("/api/bindings/{V}/e/x/q/q"),
    get("/api/bindings/{V}/e/x/q/q/k"),
    change("POST", "/api/bindings/{V}/e/x/q/q", r#"{"routing_key":"new"}"#, &[]),
    change("DELETE", "/api/bindings/{V}/e/x/q/q/new", "", &[("POST", "/api/bindings/{V}/e/x/q/q", r#"{"routing_key":"new"}"#)]),
    get("/api/vhosts"),
    get("/api/vhosts/{V}"),
    get("/api/vhosts/missing"),
    get("/api/vhosts/{V}/permissions"),
    get("/api/vhosts/{V}/topic-permissions"),
    put("/api/vhosts/{V}", r#"{"description":"said"}"#),
    change("PUT", "/api/vhosts/{V}-new", "", &[("DELETE", "/api/vhosts/{V}-new", "")]),
    change("DELETE", "/api/vhosts/{V}-new", "", &[("PUT", "/api/vhosts/{V}-new", "")]),
    get("/api/users"),
    get("/api/users/without-permissions"),
    get("/api/users/{U}"),
    get("/api/users/{S}"),
    get("/api/users/{U}/permissions"),
    get("/api/users/{S}/permissions"),
    get("/api/users/{U}/topic-permissions"),
    get("/api/users/{S}/topic-permissions"),
    change("PUT", "/api/users/{S}-new", USER, &[("DELETE", "/api/users/{S}-new", "")]),
    change("DELETE", "/api/users/{S}-new", "", &[("PUT", "/api/users/{S}-new", USER)]),
    change("POST", "/api/users/bulk-delete", r#"{"users":["{S}-new"]}"#, &[("PUT", "/api/users/{S}-new", USER)]),
    get("/api/permissions"),
    get("/api/permissions/{V}/{U}"),
    get("/api/permissions/{V}/{S}"),
    put("/api/permissions/{V}/{S}", RIGHTS),
    change("DELETE", "/api/permissions/{V}/{S}", "", &[("PUT", "/api/permissions/{V}/{S}", RIGHTS)]),
    get("/api/topic-permissions"),
    change("GET", "/api/topic-permissions/{V}/{S}", "", &[("PUT", "/api/permissions/{V}/{S}", RIGHTS), ("PUT", "/api/topic-permissions/{V}/{S}", TOPIC)]),
    put("/api/topic-permissions/{V}/{S}", TOPIC),
    change("DELETE", "/api/topic-permissions/{V}/{S}", "", &[("PUT", "/api/topic-permissions/{V}/{S}", TOPIC)]),
    change("DELETE", "/api/topic-permissions/{V}/{S}/amq.topic", "", &[("PUT", "/api/topic-permissions/{V}/{S}", TOPIC)]),
    get("/api/policies"),
    get("/api/policies/{V}"),
    get("/api/policies/{V}/p"),
    put("/api/policies/{V}/p", POLICY),
    change("PUT", "/api/policies/{V}/new", POLICY, &[("DELETE", "/api/policies/{V}/new", "")]),
    change("DELETE", "/api/policies/{V}/new", "", &[("PUT", "/api/policies/{V}/new", POLICY)]),
    get("/api/operator-policies"),
    get("/api/operator-policies/{V}"),
    get("/api/operator-policies/{V}/o"),
    put("/api/operator-policies/{V}/o", POLICY),
    change("PUT", "/api/operator-policies/{V}/new", POLICY, &[("DELETE", "/api/operator-policies/{V}/new", "")]),
    change("DELETE", "/api/operator-policies/{V}/new", "", &[("PUT", "/api/operator-policies/{V}/new", POLICY)]),
    change("GET", "/api/vhost-limits", "", &[("PUT", "/api/vhost-limits/{V}/max-queues", LIMIT)]),
    change("GET", "/api/vhost-limits/{V}", "", &[("PUT", "/api/vhost-limits/{V}/max-queues", LIMIT)]),
    put("/api/vhost-limits/{V}/max-queues", LIMIT),
    change("DELETE", "/api/vhost-limits/{V}/max-connections", "", &[("PUT", "/api/vhost-limits/{V}/max-connections", LIMIT)]),
    get("/api/user-limits"),
    get("/api/user-limits/{U}"),
    get("/api/user-limits/{S}"),
    put("/api/user-limits/{S}/max-channels", LIMIT),
    change("DELETE", "/api/user-limits/{S}/max-connections", "", &[("PUT", "/api/user-limits/{S}/max-connections", LIMIT)]),
    get("/api/parameters"),
    get("/api/parameters/vhost-limits"),
    get("/api/parameters/vhost-limits/{V}"),
    get("/api/parameters/operator_policy/{V}"),
    get("/api/global-parameters"),
    get("/api/definitions"),
    get("/api/definitions/{V}"),
    change("POST", "/api/definitions", r#"{"queues":[]}"#, &[]),
    change("POST", "/api/definitions/{V}", r#"{"queues":[]}"#, &[]),
    noted(" that names another virtual host", change("POST", "/api/definitions/{V}", r#"{"queues":[{"name":"stray","vhost":"{OTHER}","durable":true,"auto_delete":false,"arguments":{}}]}"#, &[])),
    noted(" with users and rights", change("POST", "/api/definitions/{V}", r#"{"permissions":[{"user":"guest","vhost":"{V}","configure":".*","write":".*","read":".*"}]}"#, &[])),
    get("/api/aliveness-test/{V}"),
    get("/api/health/checks/alarms"),
    get("/api/health/checks/local-alarms"),
    get("/api/health/checks/port-listener/1"),
    get("/api/health/checks/protocol-listener/amqp"),
    get("/api/health/checks/virtual-hosts"),
    get("/api/health/checks/node-is-quorum-critical"),
    get("/api/health/checks/node-is-mirror-sync-critical"),
    get("/api/auth"),
    get("/api/auth/attempts/{N}"),
    get("/api/auth/attempts/{N}/source"),
    change("DELETE", "/api/auth/attempts/{N}", "", &[]),
    change("DELETE", "/api/auth/attempts/{N}/source", "", &[]),
    get("/api/nodes/{N}/memory"),
    get("/api/nodes/{N}/memory/relative"),
    get("/api/nodes/{N}/memory/ets"),
    get("/api/nodes/{N}/memory/ets/relative"),
    get("/api/nodes/{N}/memory/ets/management"),
    get("/api/nodes/{N}/memory/ets/management/relative"),
    change("POST", "/api/exchanges/{V}/x/publish", r#"{"routing_key":"none","properties":{},"payload":"p","payload_encoding":"string"}"#, &[]),
    change("POST", "/api/queues/{V}/q/get", r#"{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}"#, &[]),
    change("POST", "/api/queues/{V}/q/actions", r#"{"action":"none"}"#, &[]),
    change("POST", "/api/bindings/{V}/e/amq.topic/e/amq.fanout", r#"{"routing_key":"new"}"#, &[]),
    change("GET", "/api/bindings/{V}/e/amq.topic/e/amq.fanout", "", &[("POST", "/api/bindings/{V}/e/amq.topic/e/amq.fanout", r#"{"routing_key":"new"}"#)]),
    get("/api/bindings/{V}/e/amq.topic/e/amq.fanout/new"),
    change("DELETE", "/api/bindings/{V}/e/amq.topic/e/amq.fanout/new", "", &[("POST", "/api/bindings/{V}/e/amq.topic/e/amq.fanout", r#"{"routing_key":"new"}"#)]),
    change("POST", "/api/vhosts/{V}/start/{N}", "", &[]),
    change("GET", "/api/parameters/vhost-limits/{V}/limits", "", &[("PUT", "/api/vhost-limits/{V}/max-queues", LIMIT)]),
    change("PUT", "/api/parameters/vhost-limits/{V}/limits", r#"{"value":{"max-queues":100}}"#, &[("PUT", "/api/vhost-limits/{V}/max-queues", LIMIT)]),
    change("DELETE", "/api/parameters/vhost-limits/{V}/limits", "", &[("PUT", "/api/vhost-limits/{V}/max-queues", LIMIT)]),
    change("PUT", "/api/global-parameters/{S}", r#"{"value":1}"#, &[("DELETE", "/api/global-parameters/{S}", "")]),
    change("GET", "/api/global-parameters/{S}", "", &[("PUT", "/api/global-parameters/{S}", r#"{"value":1}"#)]),
    change("DELETE", "/api/global-parameters/{S}", "", &[("PUT", "/api/global-parameters/{S}", r#"{"value":1}"#)]),
    put("/api/cluster-name", r#"{"name":"judged"}"#),
    get("/api/all-configuration"),
    change("POST", "/api/all-configuration", r#"{"queues":[]}"#, &[]),
    get("/api/feature-flags"),
    put("/api/feature-flags/quorum_queue/enable", r#"{"name":"quorum_queue"}"#),
    change("POST", "/api/rebalance/queues", "", &[]),
    change("DELETE", "/api/reset", "", &[]),
    change("DELETE", "/api/reset/{N}", "", &[]),
    get("/api/healthchecks/node"),
    get("/api/healthchecks/node/{N}"),
    get("/api/health/checks/certificate-expiration/1/days"),
    change("DELETE", "/api/connections/none", "", &[]),
    change("DELETE", "/api/connections/username/{S}", "", &[]),
    change("DELETE", "/api/connections/username/{U}", "", &[]),
];

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        is_it: |case, theirs, _| theirs == "500" && case.contains("/api/connections/"),
        why: "RabbitMQ fails where somebody who is no administrator asks for a user's connections, or closes one that is gone",
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.ends_with("GET /api/vhosts/{V}") && theirs == "401" && ours == "200"
                || case.ends_with("GET /api/vhosts/missing") && theirs == "401" && ours == "404"
        },
        why: "RabbitMQ keeps one virtual host from those to whom it shows the same in the list of all",
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.starts_with("policymaker")
                && case.contains("/api/parameters/vhost-limits/{V}/limits")
                && theirs != "401"
                && ours == "401"
        },
        why: "limits of a virtual host are an administrator's, also where they are called parameters",
    },
];

/// Who is answered at a path of our own, or of a later release: everybody else is told 401.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Who may use the API at all.
    Everybody,
    /// Who may see what is in the virtual host.
    OfTheVirtualHost,
    /// Who may use the virtual host.
    UsesTheVirtualHost,
    /// `monitoring` and `administrator`.
    Monitors,
    Administrators,
    /// No user.
    Nobody,
}

const ON_NODE: &str = r#"{"node":"none@nowhere"}"#;

/// What RabbitMQ 3.10.8 has not.
#[rustfmt::skip]
pub(crate) const OTHERS: &[(Who, Ask)] = &[
    (Who::Everybody, get("/api/openapi.json")),
    (Who::Everybody, get("/api/version")),
    (Who::Everybody, get("/api/auth/hash_password/pw")),
    (Who::Everybody, get("/api/queues/detailed")),
    (Who::Everybody, get("/api/health/checks/below-node-connection-limit")),
    (Who::Everybody, get("/api/health/checks/ready-to-serve-clients")),
    (Who::Everybody, get("/api/health/checks/is-in-service")),
    (Who::Everybody, get("/api/health/checks/metadata-store/initialized")),
    (Who::Everybody, get("/api/health/checks/metadata-store/initialized/with-data")),
    (Who::Everybody, get("/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts")),
    (Who::Everybody, get("/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/a")),
    (Who::Everybody, get("/api/health/checks/quorum-queues-without-elected-leaders/vhost/{V}")),
    (Who::Everybody, get("/api/health/checks/quorum-queues-without-elected-leaders/vhost/{V}/pattern/a")),
    (Who::Everybody, get("/api/leveret/queues")),
    (Who::OfTheVirtualHost, get("/api/leveret/queues/{V}")),
    (Who::OfTheVirtualHost, get("/api/leveret/queues/{V}/q")),
    (Who::OfTheVirtualHost, get("/api/queues/quorum/{V}/q/status")),
    (Who::UsesTheVirtualHost, change("POST", "/api/leveret/queues/{V}/q/move", r#"{"to":"none","count":1}"#, &[])),
    (Who::Monitors, get("/api/leveret/cluster")),
    (Who::Monitors, get("/api/leveret/waiting")),
    (Who::Monitors, get("/api/leveret/latencies")),
    (Who::Monitors, get("/api/leveret/disk")),
    (Who::Administrators, get("/api/leveret/settings")),
    (Who::Administrators, get("/api/deprecated-features")),
    (Who::Administrators, get("/api/deprecated-features/used")),
    (Who::Administrators, put("/api/nodes/{N}/publishers/hold", "")),
    (Who::Administrators, change("DELETE", "/api/nodes/{N}/publishers/hold", "", &[])),
    (Who::Administrators, put("/api/nodes/{N}/maintenance", "")),
    (Who::Administrators, change("DELETE", "/api/nodes/{N}/maintenance", "", &[])),
    (Who::Administrators, change("POST", "/api/queues/quorum/{V}/q/replicas/add", ON_NODE, &[])),
    (Who::Administrators, change("DELETE", "/api/queues/quorum/{V}/q/replicas/delete", ON_NODE, &[])),
    (Who::Administrators, change("POST", "/api/queues/quorum/replicas/on/none/grow", "{}", &[])),
    (Who::Administrators, change("DELETE", "/api/queues/quorum/replicas/on/none/shrink", "", &[])),
    (Who::Administrators, change("DELETE", "/api/leveret/nodes/none", "", &[])),
    (Who::Administrators, get("/api/leveret/nodes/{N}/leave")),
    (Who::Administrators, change("POST", "/api/leveret/nodes/{N}/leave", "", &[])),
    (Who::Administrators, change("POST", "/api/leveret/nodes/{N}/give-away", "", &[])),
    (Who::Nobody, change("POST", "/api/leveret/stop", "", &[])),
];

/// Paths that say something about who asks and change nothing for others: a login on the page, which others tests
/// look at.
pub(crate) const ELSEWHERE: &[&str] = &["leveret/session"];

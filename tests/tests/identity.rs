//! What a broker says of itself, and whom it lets in who says nothing: settings.
#![allow(clippy::unwrap_used)]

use clients::{Broker, Client, Login, QueueDeclare, Value};

fn anonymous() -> Login {
    Login { mechanism: "ANONYMOUS".to_owned(), response: b"trace".to_vec(), ..Login::default() }
}

#[test]
fn anonymous_clients_are_let_in_only_where_that_is_set() {
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    assert_eq!(Client::login(broker.addr(), &anonymous()).map(|_| ()).unwrap_err().code, 503);
    let Some(broker) = Broker::own_or_skip(&["--auth-mechanisms", "PLAIN,ANONYMOUS"]) else { return };
    let mut client = Client::login(broker.addr(), &anonymous()).unwrap();
    let channel = client.channel();
    client.round_trip(channel).unwrap();
    assert_eq!(client.mechanisms, "PLAIN ANONYMOUS");
    let nobody = ["--auth-mechanisms", "PLAIN,ANONYMOUS", "--anonymous-login-user", "nobody"];
    let Some(broker) = Broker::own_or_skip(&nobody) else { return };
    assert_eq!(Client::login(broker.addr(), &anonymous()).map(|_| ()).unwrap_err().code, 403);
}

#[test]
fn a_challenge_is_a_login_only_where_that_is_set() {
    let Some(broker) = Broker::own_or_skip(&["--auth-mechanisms", "PLAIN,RABBIT-CR-DEMO"]) else { return };
    let login = |answer: &[u8]| Login {
        mechanism: "RABBIT-CR-DEMO".to_owned(),
        response: b"guest".to_vec(),
        challenge_response: Some(answer.to_vec()),
        ..Login::default()
    };
    let mut client = Client::login(broker.addr(), &login(b"My password is guest")).unwrap();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    assert_eq!(client.mechanisms, "PLAIN RABBIT-CR-DEMO");
    let refused = |broker: &Broker, answer: &[u8]| {
        Client::login(broker.addr(), &login(answer)).map(|_| ()).expect_err("the login is refused").code
    };
    assert_eq!(refused(&broker, b"My password is wrong"), 403);
    assert_eq!(refused(&broker, b"guest"), 502);
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    assert_eq!(refused(&broker, b"My password is guest"), 503, "it is off by default, as in RabbitMQ");
}

#[test]
fn messages_are_stamped_where_that_is_set() {
    let Some(broker) =
        Broker::own_or_skip(&["--stamp-time", "fill", "--stamp-node", "overwrite", "--node-name", "leveret@here"])
    else {
        return;
    };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    let properties = clients::Properties::with_headers(&[("x-routed-by", "me".into()), ("mine", "stays".into())]);
    client.publish(channel, &clients::Publish { key: "q", properties, body: b"x", ..Default::default() });
    let got = client.get(channel, "q", true).unwrap().unwrap();
    let time_ms = got.properties.header("timestamp_in_ms").unwrap().as_i64().unwrap();
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    assert!((now_ms - 600_000..=now_ms).contains(&time_ms), "{time_ms}");
    assert_eq!(got.properties.header("x-routed-by"), Some("leveret@here".into()));
    assert_eq!(got.properties.header("mine"), Some("stays".into()));
    assert!(got.properties.flags & (1 << 6) != 0, "the property `timestamp` is there too");
}

#[test]
fn capabilities_are_those_that_are_set() {
    let Some(broker) = Broker::own_or_skip(&["--capabilities", "basic.nack,connection.blocked"]) else { return };
    let client = broker.connect();
    let told = client.server.iter().find(|(name, _)| name == "capabilities").map(|(_, value)| value.clone());
    let wanted = ["basic.nack", "connection.blocked"].map(|name| (name.to_owned(), Value::Bool(true)));
    assert_eq!(told, Some(Value::Table(wanted.to_vec())));
}

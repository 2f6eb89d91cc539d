//! What a broker says of itself, and whom it lets in who says nothing: settings.
#![allow(clippy::unwrap_used)]

use clients::{Broker, Client, Login, Value};

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
fn capabilities_are_those_that_are_set() {
    let Some(broker) = Broker::own_or_skip(&["--capabilities", "basic.nack,connection.blocked"]) else { return };
    let client = broker.connect();
    let told = client.server.iter().find(|(name, _)| name == "capabilities").map(|(_, value)| value.clone());
    let wanted = ["basic.nack", "connection.blocked"].map(|name| (name.to_owned(), Value::Bool(true)));
    assert_eq!(told, Some(Value::Table(wanted.to_vec())));
}

//! Health checks over HTTP that look at more than one thing: the node as a whole, and when
//! certificates end.

use clients::Broker;
use clients::api::reason;
use clients::broker::{free_port, is_foreign};
use serde_json::json;

#[test]
fn the_checks_of_later_releases_pass_on_a_node_that_is_well() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let own = format!("healthchecks/node/{node}");
    for check in [
        "healthchecks/node",
        &own,
        "health/checks/certificate-expiration/1/months",
        "health/checks/below-node-connection-limit",
        "health/checks/ready-to-serve-clients",
        "health/checks/metadata-store/initialized",
        "health/checks/metadata-store/initialized/with-data",
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts",
    ] {
        assert_eq!(http.get(&format!("/api/{check}")).with(200), json!({"status": "ok"}), "{check}");
    }
    assert_eq!(http.get("/api/healthchecks/node/none@nowhere").status, 404);
    http.put(&format!("/api/nodes/{node}/publishers/hold"), "").with(204);
    assert_eq!(http.get("/api/healthchecks/node").with(200)["status"], "failed");
}

#[test]
fn a_certificate_that_ends_too_soon_is_told() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let ends = std::time::SystemTime::now() + std::time::Duration::from_secs(20 * 24 * 60 * 60);
    parameters.not_after = ends.into();
    let certificate = parameters.self_signed(&key).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate_path, key_path) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate_path, certificate.pem()).unwrap();
    std::fs::write(&key_path, key.serialize_pem()).unwrap();
    let (port, certificate, key) =
        (free_port().to_string(), certificate_path.to_str().unwrap(), key_path.to_str().unwrap());
    let arguments = ["--amqps", &port, "--tls-certificate", certificate, "--tls-key", key];
    let Some((_broker, http)) = Broker::managed(&arguments).filter(|_| !is_foreign()) else { return };
    let check = |rest: &str| http.get(&format!("/api/health/checks/certificate-expiration/{rest}"));
    assert_eq!(check("2/weeks").with(200), json!({"status": "ok"}));
    for soon in ["1/months", "3/weeks", "21/days", "1/years"] {
        let failed = check(soon).with(503);
        assert_eq!((&failed["status"], &failed["reason"]), (&json!("failed"), &json!("Certificates expiring")));
        let told = &failed["expired"][0];
        assert_eq!((&told["protocol"], &told["certfile"]), (&json!("amqp/ssl"), &json!(certificate)), "{soon}");
        assert!(told["certfile_expires_on"][0].as_str().is_some_and(|day| day.len() == "2000-01-01 00:00:00".len()));
    }
    let unit = "Time unit not recognised. Supported units: days, weeks, months, years.";
    assert_eq!(reason(&check("1/fortnights"), 400), unit);
    assert_eq!(reason(&check("x/days"), 400), "Invalid expiration value.");
}

#[test]
fn an_address_for_metrics_is_a_listener_like_others() {
    let address = free_port();
    let (metrics, listens) = (address.port(), address.to_string());
    let Some((_broker, http)) = Broker::managed(&["--prometheus", &listens]).filter(|_| !is_foreign()) else { return };
    let listeners = http.get("/api/overview?columns=listeners.port,listeners.protocol").with(200);
    let told = json!({ "port": metrics, "protocol": "http/prometheus" });
    assert!(listeners["listeners"].as_array().unwrap().contains(&told), "{listeners}");
    let check = |check: &str| http.get(&format!("/api/health/checks/{check}"));
    assert_eq!(check(&format!("port-listener/{metrics}")).with(200)["status"], "ok");
    for name in ["http%2Fprometheus", "prometheus", "http", "amqp"] {
        assert_eq!(check(&format!("protocol-listener/{name}")).with(200)["status"], "ok", "{name}");
    }
    let missing = check("protocol-listener/mqtt").with(503);
    assert_eq!(
        (&missing["reason"], &missing["protocols"]),
        (&json!("No active listener"), &json!(["amqp", "http", "http/prometheus"]))
    );
}

#[test]
fn the_node_says_that_it_is_well() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    for check in ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "protocol-listener/amqp"] {
        assert_eq!(http.get(&format!("/api/health/checks/{check}")).with(200)["status"], "ok", "{check}");
    }
    let port = broker.addr().port();
    assert_eq!(http.get(&format!("/api/health/checks/port-listener/{port}")).with(200)["status"], "ok");
    assert_eq!(http.get("/api/health/checks/port-listener/1").status, 503);
    assert_eq!(http.get("/api/aliveness-test/%2F").with(200)["status"], "ok");
    let overview = http.get("/api/overview").with(200);
    assert!(overview["object_totals"]["queues"].is_u64() && overview["rabbitmq_version"].is_string(), "{overview}");
    let node = overview["node"].as_str().unwrap();
    assert_eq!(http.get(&format!("/api/nodes/{node}")).with(200)["running"], true);
    assert_eq!(http.get("/api/nodes").with(200).as_array().unwrap().len(), 1);
}

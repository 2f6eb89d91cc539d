//! The management API over HTTPS: who is served, who is sent elsewhere, and the command line.

use clients::Broker;
use clients::broker::{binary, free_port, is_foreign};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A broker whose API is at an address with HTTPS and at no other, and the folder of its
/// certificates.
fn encrypted(more: &[&str]) -> (Broker, SocketAddr, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "localhost,127.0.0.1", &[]);
    let address = free_port();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key, shown) = (path("localhost.pem"), path("localhost.key"), address.to_string());
    let arguments = [
        "--management",
        "none",
        "--management-tls",
        &shown,
        "--management-tls-certificate",
        &certificate,
        "--management-tls-key",
        &key,
    ];
    let broker = Broker::own(&[&arguments[..], more].concat());
    (broker, address, folder)
}

fn make(folder: &Path, name: &str, more: &[&str]) {
    let mut command = Command::new(binary());
    let output = command.args(["cluster", "certificates", folder.to_str().unwrap(), name]).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn ctl(words: &[&str]) -> Output {
    Command::new(binary()).arg("ctl").args(words).env_remove("LEVERET_DATA_DIR").output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_command_line_asks_over_https_and_believes_who_it_is_told_to() {
    if is_foreign() {
        return;
    }
    let (broker, address, folder) = encrypted(&["--management-hsts-s", "60"]);
    let ca = folder.path().join("ca.pem");
    let url = format!("https://localhost:{}", address.port());
    let login = ["list_vhosts", "--url", &url, "--username", "guest", "--password", "guest", "-s"];
    let known = ctl(&[&login[..], &["--ssl-ca-cert-file", ca.to_str().unwrap()]].concat());
    assert_eq!(
        (known.status.code(), String::from_utf8_lossy(&known.stdout).trim()),
        (Some(0), "/"),
        "{}",
        said(&known)
    );
    let foreign = tempfile::tempdir().unwrap();
    make(foreign.path(), "localhost", &[]);
    let other = foreign.path().join("ca.pem");
    let unknown = ctl(&[&login[..], &["--ssl-ca-cert-file", other.to_str().unwrap()]].concat());
    assert_eq!(unknown.status.code(), Some(69), "{}", said(&unknown));
    assert!(said(&unknown).contains("--ssl-ca-cert-file"), "{}", said(&unknown));
    let anything = ctl(&[&login[..], &["--ssl-insecure"]].concat());
    assert_eq!(anything.status.code(), Some(0), "{}", said(&anything));
    // On the machine of the node it needs neither a password nor a file.
    let here = ctl(&["list_vhosts", "-s", "--data-dir", broker.data_folder().to_str().unwrap()]);
    assert_eq!((here.status.code(), String::from_utf8_lossy(&here.stdout).trim()), (Some(0), "/"), "{}", said(&here));
}

#[test]
fn a_request_without_encryption_is_sent_to_https_or_refused() {
    if is_foreign() {
        return;
    }
    let (_broker, address, _folder) = encrypted(&[]);
    let ask = |head: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let sent = ask(&format!("GET /api/overview HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert!(sent.starts_with("HTTP/1.1 301 ") && sent.contains(&format!("https://{address}/api/overview")), "{sent}");
    let refused = ask(&format!("GET / HTTP/1.1\r\nHost: {address}\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"));
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("speaks HTTPS"), "{refused}");
}

#[test]
fn new_certificates_are_read_and_wrong_ones_change_nothing() {
    if is_foreign() {
        return;
    }
    let (broker, address, folder) = encrypted(&[]);
    let ca = folder.path().join("ca.pem");
    let url = format!("https://localhost:{}", address.port());
    let ask = || {
        let login = ["list_vhosts", "--url", &url, "--username", "guest", "--password", "guest", "-s"];
        ctl(&[&login[..], &["--ssl-ca-cert-file", ca.to_str().unwrap()]].concat())
    };
    let until_told = |words: &str| {
        let due = Instant::now() + Duration::from_secs(20);
        while !broker.log().contains(words) {
            assert!(Instant::now() < due, "{words:?} is not told:\n{}", broker.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::fs::write(folder.path().join("localhost.pem"), "nothing").unwrap();
    broker.signal(rustix::process::Signal::HUP);
    until_told("certificates of the management API not changed");
    assert_eq!(ask().status.code(), Some(0), "those before stay in use");
    make(folder.path(), "n1.example", &[]);
    for end in ["pem", "key"] {
        std::fs::copy(folder.path().join(format!("n1.example.{end}")), folder.path().join(format!("localhost.{end}")))
            .unwrap();
    }
    broker.signal(rustix::process::Signal::HUP);
    until_told("certificates of the management API read again");
    let refused = ask();
    assert_eq!(refused.status.code(), Some(69), "the new one names another host: {}", said(&refused));
}

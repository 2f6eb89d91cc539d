//! `leveret cluster certificates DIR NAMES...`: an authority of the operator's own, and a certificate
//! of it for each node, with which nodes encrypt what they say to each other.
//!
//! ```text
//! DIR/ca.pem           the authority's certificate: for all nodes
//! DIR/ca.key           its key: for nobody but who makes further certificates
//! DIR/NAME.pem         a node's certificate
//! DIR/NAME.key         its key: for that node alone
//! ```
//!
//! Invariant: nothing that is there is written over unless that was asked for, and the authority
//! never is. Keys are readable by their owner alone from the moment they exist, and a file is there
//! as a whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::exit::{self, Exit};

/// How long an authority lasts.
const AUTHORITY_DAYS: i64 = 3650;
/// How long a node's certificate lasts, unless said.
const NODE_DAYS: &str = "730";
/// What the authority is called. Its certificate is not read to make others, so this never changes.
const AUTHORITY_NAME: &str = "Leveret cluster authority";
/// Clocks of two machines may differ by so much.
const CLOCK_SLACK: Duration = Duration::hours(1);
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o700;

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    folder: PathBuf,
    names: Vec<String>,
    days: i64,
    renews: bool,
}

pub(crate) fn command() -> Command {
    let folder = Arg::new("folder")
        .value_name("DIR")
        .required(true)
        .value_parser(ValueParser::path_buf())
        .help("The folder for them; made if it is missing. An authority that is in it is used again");
    let names = Arg::new("names").value_name("NAME").num_args(1..=64).required(true).help(
        "Hosts of nodes as cluster_peers names them, without their ports. NAME,NAME2 is one node with several names",
    );
    let days = Arg::new("days")
        .long("days")
        .value_name("DAYS")
        .default_value(NODE_DAYS)
        .value_parser(clap::value_parser!(i64).range(1..=AUTHORITY_DAYS))
        .help("How long the certificates of nodes last");
    let renew = Arg::new("renew")
        .long("renew")
        .action(ArgAction::SetTrue)
        .help("Write new certificates and keys over those that are there; the authority stays");
    Command::new("certificates")
        .about("Make certificates with which nodes encrypt what they say to each other")
        .after_help(AFTER_HELP)
        .args([folder, names, days, renew])
}

const AFTER_HELP: &str = "\
Examples:
  leveret cluster certificates certs n1.example n2.example n3.example
      certs/ca.pem and a certificate and key for each of three nodes.
  leveret cluster certificates certs localhost,127.0.0.1,::1
      One certificate for all nodes of one machine.
  leveret cluster certificates certs n4.example
      One more node; the authority that is there is used.
  leveret cluster certificates certs n1.example --renew
      Before the old one ends. Copy both files to the node and send it SIGHUP; links that are up stay.";

pub(crate) fn asked(mut matches: ArgMatches) -> Certificates {
    Certificates {
        folder: matches.remove_one("folder").expect("clap requires it"),
        names: matches.remove_many("names").expect("clap requires it").collect(),
        days: matches.remove_one("days").expect("it has a default"),
        renews: matches.get_flag("renew"),
    }
}

/// Makes them, and says what each file is for.
pub(crate) fn run(asked: &Certificates) -> Exit {
    match make(asked) {
        Ok(told) => exit::print(&told),
        Err(error) => {
            exit::say(&error);
            Exit::Failed
        }
    }
}

fn make(asked: &Certificates) -> Result<String, String> {
    let Certificates { folder, names, days, renews } = asked;
    let nodes: Vec<Vec<String>> = names.iter().map(|name| hosts(name)).collect::<Result<_, _>>()?;
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(|error| failed(folder, error))?;
    if !renews {
        for hosts in &nodes {
            let path = folder.join(format!("{}.pem", file_stem(hosts)));
            if path.exists() {
                return Err(format!("{} is there already; --renew writes a new one over it", path.display()));
            }
        }
    }
    let mut told = String::new();
    let now = OffsetDateTime::now_utc();
    let (issuer, is_new) = authority(folder, now)?;
    let path = folder.join("ca.pem");
    told += &match is_new {
        true => format!("{}  a new authority: for all nodes, as cluster_tls_ca\n", path.display()),
        false => format!("{}  the authority that was there, as cluster_tls_ca\n", path.display()),
    };
    for hosts in &nodes {
        let (stem, key) = (file_stem(hosts), new_key()?);
        let mut params = CertificateParams::new(hosts.clone()).map_err(|error| format!("{}: {error}", hosts[0]))?;
        params.distinguished_name = name(&hosts[0]);
        (params.not_before, params.not_after) = (now - CLOCK_SLACK, now + Duration::days(*days));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Of two nodes the one connects and the other accepts.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer).map_err(|error| format!("{}: {error}", hosts[0]))?;
        let (key_path, path) = (folder.join(format!("{stem}.key")), folder.join(format!("{stem}.pem")));
        write(&key_path, &key.serialize_pem(), KEY_MODE).map_err(|error| failed(&key_path, error))?;
        write(&path, &certificate.pem(), CERTIFICATE_MODE).map_err(|error| failed(&path, error))?;
        told += &format!("{}  for {}, as cluster_tls_certificate\n", path.display(), hosts.join(" and "));
        told += &format!("{}  its key, for that node alone, as cluster_tls_key\n", key_path.display());
    }
    told += &format!("keep {} where no node is: whoever has it can make nodes\n", folder.join("ca.key").display());
    Ok(told)
}

/// The names of one node. The first is its files'.
fn hosts(name: &str) -> Result<Vec<String>, String> {
    let hosts: Vec<String> = name.split(',').map(str::to_owned).collect();
    let is_wrong = |host: &&String| {
        let has_port = host.parse::<std::net::IpAddr>().is_err() && host.contains(':');
        let is_odd = |byte: u8| !byte.is_ascii_alphanumeric() && !b"-._:*".contains(&byte);
        host.is_empty() || host.len() > 253 || host.starts_with(['.', '-']) || has_port || host.bytes().any(is_odd)
    };
    match hosts.iter().find(is_wrong) {
        Some(host) => Err(format!("{host:?} is no host name and no IP address; ports are not part of a certificate")),
        None => Ok(hosts),
    }
}

fn file_stem(hosts: &[String]) -> String {
    match hosts[0].as_str() {
        // The authority's own files.
        "ca" => "node-ca".to_owned(),
        other => other.replace(':', "_").replace('*', "any"),
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn new_key() -> Result<KeyPair, String> {
    KeyPair::generate().map_err(|error| format!("cannot make a key: {error}"))
}

/// The authority in the folder; a new one if there is none.
fn authority(folder: &Path, now: OffsetDateTime) -> Result<(Issuer<'static, KeyPair>, bool), String> {
    let (path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
    let mut params = CertificateParams::default();
    params.distinguished_name = name(AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (now - CLOCK_SLACK, now + Duration::days(AUTHORITY_DAYS));
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    match (path.exists(), key_path.exists()) {
        (true, true) => {
            let text = fs::read_to_string(&key_path).map_err(|error| failed(&key_path, error))?;
            let key = KeyPair::from_pem(&text).map_err(|error| format!("{}: {error}", key_path.display()))?;
            is_of(&path, &key)?;
            Ok((Issuer::new(params, key), false))
        }
        (true, false) => Err(format!(
            "{} is there and {} is not: bring the key back, or name another folder for a new authority",
            path.display(),
            key_path.display()
        )),
        // A key alone is what is left of a run that died before it wrote the certificate.
        (false, _) => {
            let key = new_key()?;
            let certificate = params.self_signed(&key).map_err(|error| format!("{}: {error}", path.display()))?;
            write(&key_path, &key.serialize_pem(), KEY_MODE).map_err(|error| failed(&key_path, error))?;
            write(&path, &certificate.pem(), CERTIFICATE_MODE).map_err(|error| failed(&path, error))?;
            Ok((Issuer::new(params, key), true))
        }
    }
}

/// Whether a certificate is the one that an earlier run made with this key.
fn is_of(path: &Path, key: &KeyPair) -> Result<(), String> {
    use rcgen::PublicKeyData as _;
    let bytes = server::tls::first_certificate(path).map_err(|error| error.to_string())?;
    let is_in = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    match is_in(key.der_bytes()) && is_in(AUTHORITY_NAME.as_bytes()) {
        true => Ok(()),
        false => Err(format!(
            "{} is no authority that `leveret cluster certificates` made with the key beside it: name another folder, or make \
             certificates with the tools of that authority",
            path.display()
        )),
    }
}

/// Writes a file as a whole.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn asked(folder: &Path, names: &[&str], renews: bool) -> Certificates {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Certificates { folder: folder.to_owned(), names, days: 30, renews }
    }

    #[test]
    fn nothing_is_written_over_and_keys_are_their_owners() {
        let folder = tempfile::tempdir().expect("a folder");
        let certs = folder.path().join("certs");
        make(&asked(&certs, &["n1", "::1"], false)).expect("made");
        let read = |name: &str| fs::read_to_string(certs.join(name)).expect("it is there");
        let (ca, n1) = (read("ca.pem"), read("n1.pem"));
        for name in ["ca.key", "n1.key", "__1.key"] {
            let mode = certs.join(name).metadata().expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, KEY_MODE, "{name}");
        }
        let refused = make(&asked(&certs, &["n2", "n1"], false)).expect_err("one is there");
        assert!(refused.contains("--renew"), "{refused}");
        assert!(!certs.join("n2.pem").exists(), "nothing was begun");
        make(&asked(&certs, &["n1"], true)).expect("renewed");
        assert_eq!(read("ca.pem"), ca, "the authority stays");
        assert_ne!(read("n1.pem"), n1);
    }

    #[test]
    fn an_authority_without_its_key_or_of_others_makes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        make(&asked(folder.path(), &["n1"], false)).expect("made");
        let other = tempfile::tempdir().expect("a folder");
        make(&asked(other.path(), &["n1"], false)).expect("made");
        fs::copy(other.path().join("ca.key"), folder.path().join("ca.key")).expect("copied");
        let refused = make(&asked(folder.path(), &["n2"], false)).expect_err("another key");
        assert!(refused.contains("no authority"), "{refused}");
        fs::remove_file(folder.path().join("ca.key")).expect("removed");
        let refused = make(&asked(folder.path(), &["n2"], false)).expect_err("no key");
        assert!(refused.contains("bring the key back"), "{refused}");
    }

    #[test]
    fn a_name_is_a_host_and_nothing_else() {
        for name in ["", "n1:25672", "../n1", "a b", "n1,", "-x"] {
            assert!(hosts(name).is_err(), "{name:?}");
        }
        assert_eq!(hosts("n1,10.0.0.1,fe80::1").expect("three").len(), 3);
    }
}

//! Names in certificates as RabbitMQ writes them, so that users who log in by them are called here as there, and what is told of
//! the certificate that a client showed.
//!
//! Invariant: a name is one line of ASCII from which its parts can be had again: what could be mistaken is escaped (RFC 4514).

use session::report::PeerCertificate;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Encode, Tag, Tagged};
use x509_cert::name::Name;

/// What kinds of attributes are called. Others go by their numbers; the street (2.5.4.9) too, as there.
const KINDS: [(ObjectIdentifier, &str); 16] = [
    (ObjectIdentifier::new_unwrap("2.5.4.3"), "CN"),
    (ObjectIdentifier::new_unwrap("2.5.4.4"), "SN"),
    (ObjectIdentifier::new_unwrap("2.5.4.5"), "SERIALNUMBER"),
    (ObjectIdentifier::new_unwrap("2.5.4.6"), "C"),
    (ObjectIdentifier::new_unwrap("2.5.4.7"), "L"),
    (ObjectIdentifier::new_unwrap("2.5.4.8"), "ST"),
    (ObjectIdentifier::new_unwrap("2.5.4.10"), "O"),
    (ObjectIdentifier::new_unwrap("2.5.4.11"), "OU"),
    (ObjectIdentifier::new_unwrap("2.5.4.12"), "TITLE"),
    (ObjectIdentifier::new_unwrap("2.5.4.42"), "GIVENNAME"),
    (ObjectIdentifier::new_unwrap("2.5.4.43"), "INITIALS"),
    (ObjectIdentifier::new_unwrap("2.5.4.44"), "GENERATIONQUALIFIER"),
    (ObjectIdentifier::new_unwrap("2.5.4.65"), "PSEUDONYM"),
    (ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.1"), "UID"),
    (ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.25"), "DC"),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.1"), "EMAILADDRESS"),
];

/// A name, its last part first, as `CN=client,O=Example`.
pub(super) fn shown(name: &Name) -> String {
    let mut shown = String::new();
    for (at, part) in name.0.iter().rev().enumerate() {
        for (within, attribute) in part.0.iter().enumerate() {
            shown.push_str(match (at, within) {
                (0, 0) => "",
                (_, 0) => ",",
                _ => "+",
            });
            show(attribute, &mut shown);
        }
    }
    shown
}

fn show(attribute: &AttributeTypeAndValue, shown: &mut String) {
    match KINDS.iter().find(|(kind, _)| *kind == attribute.oid) {
        Some((_, called)) => shown.push_str(called),
        None => _ = write!(shown, "{}", attribute.oid),
    }
    shown.push('=');
    let bytes = attribute.value.value();
    match attribute.value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString | Tag::VisibleString => {
            escape(bytes, shown);
        }
        // Latin 1, as nearly everybody takes it.
        Tag::TeletexString => escape(bytes.iter().copied().map(char::from).collect::<String>().as_bytes(), shown),
        Tag::BmpString => {
            let units = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            let text: String = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
            escape(text.as_bytes(), shown);
        }
        _ => {
            shown.push('#');
            let bytes = attribute.value.to_der().unwrap_or_default();
            bytes.iter().for_each(|byte| _ = write!(shown, "{byte:02X}"));
        }
    }
}

fn escape(bytes: &[u8], shown: &mut String) {
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'#' if at == 0 => shown.push_str("\\#"),
            b' ' if at == 0 || at + 1 == bytes.len() => shown.push_str("\\ "),
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => shown.extend(['\\', char::from(*byte)]),
            ..b' ' | b'~'.. => _ = write!(shown, "\\{byte:02X}"),
            _ => shown.push(char::from(*byte)),
        }
    }
}

/// What is told of a certificate.
pub(super) fn described(certificate: &Certificate) -> PeerCertificate {
    let certificate = &certificate.tbs_certificate;
    let (begins, ends) =
        (certificate.validity.not_before.to_date_time(), certificate.validity.not_after.to_date_time());
    PeerCertificate {
        subject: shown(&certificate.subject).into(),
        issuer: shown(&certificate.issuer).into(),
        validity: format!("{begins} - {ends}").into(),
    }
}

/// So many are kept before it is looked which of them nobody has any more.
const KEPT_MIN: usize = 64;

/// What is told of the certificates of clients that are connected: once for all that show the same, as the many
/// connections of an application do.
#[derive(Debug, Default)]
pub(crate) struct PeerCertificates {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    all: HashSet<Arc<PeerCertificate>>,
    /// How many there were in use when it was looked last.
    in_use: usize,
}

impl PeerCertificates {
    /// The one that says the same, if there is one.
    pub(crate) fn shared(&self, certificate: PeerCertificate) -> Arc<PeerCertificate> {
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.all.get(&certificate) {
            return known.clone();
        }
        if kept.all.len() >= KEPT_MIN.max(2 * kept.in_use) {
            kept.all.retain(|certificate| Arc::strong_count(certificate) > 1);
            kept.in_use = kept.all.len();
        }
        let certificate = Arc::new(certificate);
        kept.all.insert(certificate.clone());
        certificate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{DnType, DnValue};
    use x509_cert::der::Decode as _;

    fn name(parts: &[(DnType, DnValue)]) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        parts.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), value.clone()));
        let certificate = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a certificate");
        shown(&Certificate::from_der(certificate.der()).expect("it is one").tbs_certificate.subject)
    }

    /// As RabbitMQ 3.10.8 writes the same names.
    #[test]
    fn names_are_written_as_rabbitmq_writes_them() {
        let text = |text: &str| DnValue::Utf8String(text.to_owned());
        let of = |numbers: &[u64]| DnType::CustomDnType(numbers.to_vec());
        let all = [
            (DnType::CountryName, text("DE")),
            (DnType::StateOrProvinceName, text("Some, State")),
            (DnType::OrganizationName, text("Müller & Co \"x\"")),
            (DnType::OrganizationalUnitName, text("a+b=c")),
            (DnType::CommonName, text("client #1")),
            (of(&[1, 2, 840, 113_549, 1, 9, 1]), text("a@b.c")),
            (of(&[0, 9, 2342, 19_200_300, 100, 1, 25]), text("example")),
            (of(&[2, 5, 4, 5]), text("77")),
            (of(&[0, 9, 2342, 19_200_300, 100, 1, 1]), text("u1")),
            (of(&[2, 5, 4, 4]), text("sn")),
            (of(&[2, 5, 4, 12]), text("ti")),
            (DnType::LocalityName, text("lo")),
            (of(&[2, 5, 4, 42]), text("gn")),
            (of(&[2, 5, 4, 43]), text("in")),
            (of(&[2, 5, 4, 65]), text("ps")),
            (of(&[2, 5, 4, 44]), text("gq")),
            (of(&[2, 5, 4, 46]), text("dq")),
            (of(&[2, 5, 4, 9]), text("st")),
        ];
        assert_eq!(
            name(&all),
            "2.5.4.9=st,2.5.4.46=dq,GENERATIONQUALIFIER=gq,PSEUDONYM=ps,INITIALS=in,GIVENNAME=gn,L=lo,TITLE=ti,SN=sn,UID=u1,\
             SERIALNUMBER=77,DC=example,EMAILADDRESS=a@b.c,CN=client #1,OU=a\\+b=c,O=M\\C3\\BCller & Co \\\"x\\\",ST=Some\\, State,C=DE"
        );
        for (value, expected) in [
            (text(" lead"), "CN=\\ lead"),
            (text("it "), "CN=it\\ "),
            (text("#1~"), "CN=\\#1\\7E"),
            (text("<b>;\\"), "CN=\\<b\\>\\;\\\\"),
            (text("a\n"), "CN=a\\0A"),
            (DnValue::PrintableString("prt".try_into().expect("printable")), "CN=prt"),
            (DnValue::TeletexString("tel".try_into().expect("teletex")), "CN=tel"),
            (DnValue::BmpString("bmö".try_into().expect("it has such characters")), "CN=bm\\C3\\B6"),
        ] {
            assert_eq!(name(&[(DnType::CommonName, value)]), expected);
        }
        assert_eq!(name(&[]), "");
    }

    #[test]
    fn what_many_connections_show_is_kept_once_and_goes_with_the_last_of_them() {
        let of = |number: usize| PeerCertificate {
            subject: format!("CN={number}").into(),
            issuer: "CN=ca".into(),
            validity: "2020-01-01T00:00:00Z - 2021-01-01T00:00:00Z".into(),
        };
        let certificates = PeerCertificates::default();
        let held = certificates.shared(of(0));
        assert!(Arc::ptr_eq(&held, &certificates.shared(of(0))));
        for number in 1..10_000 {
            certificates.shared(of(number));
        }
        assert!(certificates.kept.lock().expect("sound").all.len() <= KEPT_MIN);
        assert!(Arc::ptr_eq(&held, &certificates.shared(of(0))), "what is held is kept");
    }
}

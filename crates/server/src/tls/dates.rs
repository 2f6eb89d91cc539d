//! From when to when certificates count, and what is told of those that do not, or soon will not.
//!
//! Invariant: a certificate is shown whatever its dates say: the clock of this machine may be wrong, and who looks at it decides.

use super::pem::{PemFile, TlsError};
use super::subject;
use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// The end of a certificate is told from so long before it on, and when less than [`SOON_PART`] of its life is left: who
/// renews a certificate of six days by the hour is not to be told all the time.
const SOON: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const SOON_PART: u32 = 3;

/// Who looks at a certificate, and what they do about one that does not count.
pub(crate) const CLIENTS: &str = "clients that verify it refuse to connect by AMQPS";
pub(crate) const BROWSERS: &str = "browsers, `leveret ctl` and other clients that verify it refuse to connect by HTTPS";
pub(crate) const NODES: &str = "other nodes refuse to be linked with this one";

/// When the first of a chain ends.
pub(crate) fn end_of(file: &PemFile, chain: &[CertificateDer<'_>]) -> Result<SystemTime, TlsError> {
    let mut first = None;
    for certificate in chain {
        let read = Certificate::from_der(certificate).map_err(|error| unreadable(file, &error))?;
        let ends = read.tbs_certificate.validity.not_after.to_system_time();
        first = Some(first.map_or(ends, |first: SystemTime| first.min(ends)));
    }
    first.ok_or_else(|| file.wrong("there is no certificate in it"))
}

fn unreadable(file: &PemFile, error: &x509_cert::der::Error) -> TlsError {
    file.wrong(format!("one of its certificates cannot be used: {error}"))
}

/// Warns of each certificate out of `file` that does not count, or not for long. `refused`: what comes of that.
pub(crate) fn warn(file: &PemFile, chain: &[CertificateDer<'_>], refused: &str) {
    for sentence in sentences(file, chain, refused, SystemTime::now()) {
        tracing::warn!("{sentence}");
    }
}

fn sentences(file: &PemFile, chain: &[CertificateDer<'_>], refused: &str, now: SystemTime) -> Vec<String> {
    let read = chain.iter().filter_map(|certificate| Certificate::from_der(certificate).ok());
    read.filter_map(|certificate| sentence(file, &certificate, refused, now)).collect()
}

fn sentence(file: &PemFile, certificate: &Certificate, refused: &str, now: SystemTime) -> Option<String> {
    let validity = &certificate.tbs_certificate.validity;
    let (begins, ends) = (validity.not_before.to_system_time(), validity.not_after.to_system_time());
    let dates = format!("from {} to {}", validity.not_before.to_date_time(), validity.not_after.to_date_time());
    let of = format!("{file}: the certificate of {}", subject::shown(&certificate.tbs_certificate.subject));
    let life = ends.duration_since(begins).unwrap_or_default();
    match ends.duration_since(now) {
        Err(_) => Some(format!(
            "{of} has ended, it counted {dates}: {refused}. Put a new one there and send SIGHUP to this process"
        )),
        Ok(_) if begins > now => Some(format!(
            "{of} does not count yet, but {dates}: until then {refused}. Look whether this machine's clock is right, or put one there that \
             counts and send SIGHUP to this process"
        )),
        Ok(left) if left < SOON.min(life / SOON_PART) => Some(format!(
            "{of} ends in {}, it counts {dates}: from then on {refused}. Put a new one there and send SIGHUP to this process",
            span(left)
        )),
        Ok(_) => None,
    }
}

fn span(left: Duration) -> String {
    let hours = left.as_secs() / 3600;
    match hours {
        0 => "less than an hour".to_owned(),
        1..48 => format!("{hours} h"),
        _ => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    /// 2020-01-01T00:00:00Z.
    const BEGINS: u64 = 1_577_836_800;

    /// What is told so many seconds from the beginning of a certificate that lasts so many days.
    fn told(days: i64, at: i64) -> Option<String> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "b1");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = params.not_before + Duration::from_secs(days as u64 * DAY);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a certificate");
        let file = PemFile::new("tls_certificate", "b1.pem");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(BEGINS.saturating_add_signed(at));
        let told = sentences(&file, &[certificate.der().clone()], CLIENTS, now);
        assert!(told.len() <= 1, "{told:?}");
        told.into_iter().next()
    }

    #[test]
    fn a_certificate_that_does_not_count_is_told_with_its_dates_and_what_comes_of_it() {
        let (day, dates) = (DAY as i64, "from 2020-01-01T00:00:00Z to 2020-12-31T00:00:00Z");
        let early = told(365, -1).expect("it is told");
        assert!(early.starts_with("tls_certificate b1.pem: the certificate of CN=b1 does not count yet"), "{early}");
        let late = told(365, 366 * day).expect("it is told");
        assert!(late.starts_with("tls_certificate b1.pem: the certificate of CN=b1 has ended"), "{late}");
        for sentence in [early, late] {
            assert!(sentence.contains(dates) && sentence.contains(CLIENTS), "{sentence}");
        }
    }

    #[test]
    fn the_end_of_a_certificate_is_told_before_it_comes_and_not_long_before() {
        let day = DAY as i64;
        assert_eq!(told(365, 0), None);
        assert_eq!(told(365, 334 * day), None);
        let soon = told(365, 336 * day).expect("it is told");
        assert!(soon.contains("ends in 29 days") && soon.contains("to 2020-12-31T00:00:00Z"), "{soon}");
        // One for six days: two before its end.
        assert_eq!(told(6, 3 * day), None);
        assert!(told(6, 5 * day).expect("it is told").contains("ends in 24 h"));
    }
}

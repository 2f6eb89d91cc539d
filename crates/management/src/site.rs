//! Whether a change was asked for by a page of another site, in the browser of somebody who is
//! logged in.
//!
//! A browser sends the name and password that it knows for the API along with every request that
//! any page makes to it, and a page may make simple ones (a form, `fetch` without CORS) without
//! asking. Such a request needs no Content-Type that gives it away: `text/plain` carries JSON.
//! Clients that are no browsers send all kinds of Content-Type or none, so that cannot decide; what
//! browsers say about where a request comes from can, and a page cannot change it.
//!
//! Invariant: a request that says nothing about a site is a program's and is let through; one that
//! names another site changes nothing. No answer ever carries a header of CORS, so what needs a
//! preflight (PUT, DELETE, JSON) is not even sent.

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderName, ORIGIN, REFERER};

/// Says how the page that made a request is related to us. Pages cannot set or remove headers that
/// begin with `Sec-`.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the headers are those of a browser that shows a page of another site. `authority` is the
/// one in the request line, if there is one.
pub(crate) fn is_another(headers: &HeaderMap, authority: Option<&str>) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    // The surest sign where there is one: browsers send it to https and to this machine. A proxy
    // may have changed `Host`, and then `Origin` would say nothing.
    if let Some(site) = text(SEC_FETCH_SITE) {
        return !["same-origin", "none"].contains(&site);
    }
    let own = text(HOST).or(authority).unwrap_or_default();
    match (text(ORIGIN), text(REFERER)) {
        // `null` is a page that hides where it is from.
        (Some(origin), _) => !is_at(origin, own),
        (None, Some(referer)) => !is_at(referer, own),
        (None, None) => false,
    }
}

/// Whether an URL is at this host and port.
fn is_at(url: &str, own: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let plain = |text: &str| text.strip_suffix(port).unwrap_or(text).to_ascii_lowercase();
    !authority.is_empty() && plain(authority) == plain(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn refuses(headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, HeaderValue::from_static(value));
        }
        is_another(&map, None)
    }

    #[test]
    fn programs_say_nothing_of_a_site_and_are_let_through() {
        assert!(!refuses(&[]));
        assert!(!refuses(&[("host", "broker:15672"), ("content-type", "application/x-www-form-urlencoded")]));
    }

    #[test]
    fn a_page_of_another_site_is_known_by_any_of_its_headers() {
        let host = ("host", "broker:15672");
        for header in [
            ("sec-fetch-site", "cross-site"),
            // Another port of the same machine is another program's.
            ("sec-fetch-site", "same-site"),
            ("origin", "http://elsewhere.example"),
            ("origin", "http://broker:8080"),
            ("origin", "null"),
            ("origin", "file://"),
            ("referer", "http://elsewhere.example/broker:15672"),
            ("referer", "http://broker:15672.elsewhere.example/"),
            ("referer", "http://broker:15672@elsewhere.example/"),
        ] {
            assert!(refuses(&[host, header]), "{header:?}");
        }
        let told_twice = [host, ("sec-fetch-site", "cross-site"), ("origin", "http://broker:15672")];
        assert!(refuses(&told_twice));
    }

    #[test]
    fn a_page_at_the_same_address_is_let_through() {
        let host = ("host", "Broker:15672");
        for header in [
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
            ("origin", "http://broker:15672"),
            ("referer", "http://broker:15672/page?a=http://elsewhere"),
        ] {
            assert!(!refuses(&[host, header]), "{header:?}");
        }
        assert!(!refuses(&[("host", "broker"), ("origin", "https://broker:443")]));
        // Behind a proxy that names us otherwise than the browser does.
        assert!(!refuses(&[("host", "inner"), ("sec-fetch-site", "same-origin"), ("origin", "https://outer")]));
    }
}

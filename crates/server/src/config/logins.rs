//! Logins in addresses, `https://user:password@host/x`, as people are shown them.
//!
//! Invariant: whatever tells an address of somebody's settings tells it without its login.

/// What stands for a login.
const LOGIN: &str = "***";
/// What is before the login, if there is one.
const BEFORE: &str = "://";

/// An address without its login: `https://***@host/x`.
pub(crate) fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once(BEFORE) else { return url.to_owned() };
    match login_end(rest) {
        Some(end) => format!("{scheme}{BEFORE}{LOGIN}{}", &rest[end..]),
        None => url.to_owned(),
    }
}

/// A text without the logins of the addresses in it, of which none has a space.
pub(crate) fn masked_within(text: &str) -> String {
    text.split_inclusive(char::is_whitespace).map(masked).collect()
}

/// Where the `@` behind the login is. A password may hold what ends the part of an address where a login is; then no
/// number is where the port would be.
fn login_end(rest: &str) -> Option<usize> {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let may_be_login = authority.rsplit_once(':').is_some_and(|(_, port)| !is_port(port) && !port.ends_with(']'));
    rest.rfind('@').filter(|_| authority.contains('@') || may_be_login)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_login() {
        for (url, shown) in [
            ("https://u:SECRET@host:8443/x", "https://***@host:8443/x"),
            ("https://SECRET@host", "https://***@host"),
            ("https://u:SEC@RET@host/x?y", "https://***@host/x?y"),
            ("https://u:SEC/RET@host/x", "https://***@host/x"),
            ("https://u:SEC RET@host/x", "https://***@host/x"),
            ("https://host:8443/a@b", "https://host:8443/a@b"),
            ("https://[::1]/a@b", "https://[::1]/a@b"),
            ("http://host/x", "http://host/x"),
            ("no address", "no address"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }

    #[test]
    fn a_text_is_shown_without_the_logins_in_it() {
        let told = masked_within("[\"https://u:SECRET@a/x\", \"https://b\"] bad uri: http://u:SECRET@c\n");
        assert_eq!(told, "[\"https://***@a/x\", \"https://b\"] bad uri: http://***@c\n");
    }
}

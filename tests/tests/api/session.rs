//! Sessions of the page: a cookie, what it counts with and when it ends.

use clients::Broker;
use clients::broker::is_foreign;

use crate::page::{PAGE, browse, header, login};

#[test]
fn a_cookie_counts_with_the_pages_header_alone_and_until_the_logout() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    // The page asks for the password itself; a browser must not.
    let anonymous = browse(&http, "GET", "/api/whoami", PAGE);
    assert_eq!((anonymous.status, header(&anonymous, "www-authenticate")), (401, ""));
    assert_ne!(header(&browse(&http, "GET", "/api/whoami", ""), "www-authenticate"), "");
    let cookie = login(&http);
    let both = format!("{PAGE}{cookie}");
    assert_eq!(browse(&http, "GET", "/api/whoami", &both).with(200)["name"], "guest");
    assert_eq!(
        browse(&http, "GET", "/api/whoami", &cookie).status,
        401,
        "a page of another site sends only the cookie"
    );
    let elsewhere = format!("{both}Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(browse(&http, "DELETE", "/api/queues/%2F/q", &elsewhere).status, 403);
    let own = http.send("GET", "/api/whoami", &[("X-Leveret-Page", "1")], "");
    assert_eq!(own.status, 401, "a password that the browser remembers is not a session");
    let end = browse(&http, "DELETE", "/api/leveret/session", &both);
    assert!(end.status == 204 && header(&end, "set-cookie").contains("max-age=0"), "{end:?}");
    assert_eq!(browse(&http, "GET", "/api/whoami", &both).status, 401);
    let wrong = http.as_user("guest", "wrong").send("POST", "/api/leveret/session", &[("X-Leveret-Page", "1")], "");
    assert_eq!((wrong.status, header(&wrong, "set-cookie")), (401, ""));
}

#[test]
fn a_session_ends_with_its_user_and_with_the_password_and_has_the_rights_of_the_moment() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/users/ann", r#"{"password":"a","tags":"administrator"}"#).with(201);
    let ann = format!("{PAGE}{}", login(&http.as_user("ann", "a")));
    browse(&http, "GET", "/api/users", &ann).with(200);
    let hash = http.get("/api/users/ann").with(200)["password_hash"].clone();
    let same = format!(r#"{{"password_hash":{hash},"tags":"management"}}"#);
    http.put("/api/users/ann", &same).with(204);
    assert_eq!(browse(&http, "GET", "/api/users", &ann).status, 401, "the tag is gone");
    browse(&http, "GET", "/api/whoami", &ann).with(200);
    http.put("/api/users/ann", r#"{"password":"b","tags":"management"}"#).with(204);
    assert_eq!(browse(&http, "GET", "/api/whoami", &ann).status, 401, "the password is another");
    let ann = format!("{PAGE}{}", login(&http.as_user("ann", "b")));
    http.delete("/api/users/ann").with(204);
    assert_eq!(browse(&http, "GET", "/api/whoami", &ann).status, 401, "the user is gone");
}

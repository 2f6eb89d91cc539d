//! What a node is configured to be, and who may stop it. The operator's token is in `tests/ctl/token.rs`.

use clients::Broker;
use clients::broker::is_foreign;

#[test]
fn settings_are_told_to_administrators_with_who_set_them_and_stopping_needs_more_than_a_password() {
    let Some((_broker, http)) = Broker::managed(&["--heartbeat-s", "17"]).filter(|_| !is_foreign()) else { return };
    let told = http.get("/api/leveret/settings").with(200);
    let of = |name: &str| told.as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap();
    let [set, default] = ["heartbeat_s", "partitions"].map(of);
    assert_eq!(set["value"].to_string().trim_matches('"'), "17", "{set}");
    assert_ne!(set["origin"], default["origin"], "who said it: {set}, {default}");
    for (name, tags) in [("mon", "monitoring"), ("pol", "policymaker"), ("man", "management")] {
        http.put(&format!("/api/users/{name}"), &format!(r#"{{"password":"pw","tags":"{tags}"}}"#)).with(201);
        let theirs = http.as_user(name, "pw");
        assert_eq!([theirs.get("/api/leveret/settings").status, theirs.post("/api/leveret/stop", "").status], [401; 2]);
    }
    assert_eq!(http.post("/api/leveret/stop", "").status, 401, "an administrator's password is not the token");
    http.get("/api/whoami").with(200);
}

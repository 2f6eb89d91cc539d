//! Users, as rabbitmqctl adds, changes and lists them.

use crate::begin;
use clients::tools::run_with_input;

#[test]
fn users_are_added_changed_and_deleted_in_rabbitmqs_words() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    assert_eq!(tools.ctl("list_users").good(), "Listing users ...\nuser\ttags\nguest\t[administrator]\n");
    let added = tools.ctl("add_user ann secret").good();
    assert!(added.starts_with("Adding user \"ann\" ...\nDone. Don't forget to grant"), "{added}");
    let again = tools.ctl("add_user ann other");
    assert_eq!(again.out, "Adding user \"ann\" ...\n");
    assert_eq!(again.bad(70), "Error:\nUser \"ann\" already exists\n");
    assert_eq!(tools.ctl("authenticate_user ann secret").good(), "Authenticating user \"ann\" ...\nSuccess\n");
    let wrong = tools.ctl("authenticate_user ann wrong").bad(65);
    assert_eq!(wrong, "Error:\nError: failed to authenticate user \"ann\"\nuser 'ann' - invalid credentials\n");
    let tagged = tools.ctl("set_user_tags ann management policymaker").good();
    assert_eq!(tagged, "Setting tags for user \"ann\" to [management, policymaker] ...\n");
    // Tags leave the password as it is, and the password the tags.
    http.as_user("ann", "secret").get("/api/whoami").with(200);
    assert_eq!(tools.ctl("change_password ann new").good(), "Changing password for user \"ann\" ...\n");
    let whoami = http.as_user("ann", "new").get("/api/whoami").with(200);
    assert_eq!(whoami["tags"], serde_json::json!(["management", "policymaker"]));
    assert_eq!(tools.ctl("-q clear_password ann").good(), "");
    assert_eq!(tools.ctl("authenticate_user ann new").code, 65);
    assert_eq!(tools.ctl("-s list_users").good(), "ann\t[management, policymaker]\nguest\t[administrator]\n");
    assert_eq!(tools.ctl("delete_user ann").good(), "Deleting user \"ann\" ...\n");
    for verb in ["delete_user nobody", "change_password nobody x", "set_user_tags nobody x", "clear_password nobody"] {
        assert_eq!(tools.ctl(verb).bad(67), "Error:\nUser \"nobody\" does not exist\n", "{verb}");
    }
}

#[test]
fn a_password_may_come_on_standard_input_and_is_never_shown() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    let added = run_with_input(tools.folder(), "rabbitmqctl", &["add_user", "bob"], "from-stdin\n");
    added.good();
    http.put("/api/users/x", r#"{"tags":""}"#).with(201);
    assert_eq!(tools.ctl("-q authenticate_user bob from-stdin").good(), "Success\n");
    let none = tools.ctl("add_user carl").bad(65);
    assert!(none.contains("Password is not provided via argument or stdin"), "{none}");
    let wrong = tools.ctl("add_user dan sesame-opens too many");
    assert!(!wrong.err.contains("sesame-opens"), "{wrong:?}");
    wrong.bad(64);
    tools.ctl("add_user eve sesame-opens").good();
    assert!(!broker.log().contains("sesame-opens"));
}

#[test]
fn a_password_may_be_a_hash() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    let hash = http.get("/api/auth/hash_password/sesame").with(200)["ok"].as_str().unwrap().to_owned();
    tools.words("rabbitmqctl", &["add_user", "ann", &hash, "--pre-hashed-password"]).good();
    assert_eq!(tools.ctl("-q authenticate_user ann sesame").good(), "Success\n");
    let wrong = tools.ctl("add_user ben nothash --pre-hashed-password").bad(69);
    assert!(wrong.contains("password_hash: a hash in base64 is expected"), "{wrong}");
}

#[test]
fn limits_of_users_are_set_told_and_cleared() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let limits = r#"{"max-channels":200}"#;
    let set = tools.words("rabbitmqctl", &["set_user_limits", "guest", limits]).good();
    assert_eq!(set, format!("Setting user limits to \"{limits}\" for user \"guest\" ...\n"));
    assert_eq!(tools.ctl("list_user_limits").good(), format!("Listing limits for user \"guest\" ...\n{limits}\n"));
    let all = tools.ctl("list_user_limits --global").good();
    assert_eq!(all, format!("Listing limits for all users ...\nuser\tlimits\nguest\t{limits}\n"));
    tools.ctl("clear_user_limits guest all").good();
    assert_eq!(tools.ctl("-q list_user_limits --user guest").good(), "\n");
    tools.words("rabbitmqctl", &["set_user_limits", "guest", r#"{"max-nosuch":1}"#]).bad(69);
    tools.words("rabbitmqctl", &["set_user_limits", "guest", "{"]).bad(69);
    tools.words("rabbitmqctl", &["set_user_limits", "nobody", limits]).bad(67);
}

#[test]
fn nobody_is_added_who_is_called_as_the_operator_is() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let told = tools.words("rabbitmqctl", &["add_user", "(operator)", "pw"]).bad(69);
    assert!(told.contains("is what the audit log calls who runs the machine"), "{told}");
    assert_eq!(tools.ctl("-s list_users").good(), "guest\t[administrator]\n");
}

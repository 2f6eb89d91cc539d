//! Policies.

use crate::begin;

#[test]
fn policies_are_set_listed_and_cleared() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for (kind, all, shown) in
        [("policy", "policies", "policy"), ("operator_policy", "operator_policies", "operator policy")]
    {
        let definition = r#"{"max-length": 5}"#;
        let set = format!("set_{kind}");
        let words = [set.as_str(), "p1", "^a", definition, "--apply-to", "queues", "--priority", "3"];
        let what = if kind == "policy" { "policy" } else { "operator policy override" };
        let told = tools.words("rabbitmqctl", &words).good();
        let wanted = format!(
            "Setting {what} \"p1\" for pattern \"^a\" to \"{definition}\" with priority \"3\" for vhost \"/\" ...\n"
        );
        assert_eq!(told, wanted);
        let listed = tools.ctl(&format!("-q list_{all}")).good();
        let head = "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n";
        assert_eq!(listed, format!("{head}/\tp1\t^a\tqueues\t{{\"max-length\":5}}\t3\n"));
        let json = tools.ctl(&format!("list_{all} --formatter json")).good();
        let row = r#"{"vhost":"/","name":"p1","pattern":"^a","apply-to":"queues","definition":"{\"max-length\":5}","priority":3}"#;
        assert_eq!(json, format!("[\n{row}\n]\n"));
        let cleared = tools.ctl(&format!("clear_{kind} p1")).good();
        assert_eq!(cleared, format!("Clearing {shown} \"p1\" on vhost \"/\" ...\n"));
        assert_eq!(tools.ctl(&format!("clear_{kind} p1")).bad(69), "Error:\nParameter does not exist\n");
    }
}

#[test]
fn what_a_policy_cannot_be_is_refused() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let set = |definition: &str, more: &[&str]| {
        tools.words("rabbitmqctl", &[&["set_policy", "p", "^a", definition], more].concat())
    };
    for (definition, more) in [(r#"{"max-nosuch":5}"#, &[][..]), (r#"{"max-length":5}"#, &["--apply-to", "nosuch"])] {
        assert!(set(definition, more).bad(69).starts_with("Error:\nValidation failed\n\n"));
    }
    // RabbitMQ's tool says the first of these lines.
    assert_eq!(
        set(r#"{"max-lenght":5}"#, &[]).bad(69),
        "Error:\nValidation failed\n\n[{<<\"max-lenght\">>,5}] are not recognised policy settings\n\
         max-lenght: did you mean max-length?\n\n"
    );
    let component = tools.words("rabbitmqctl", &["set_parameter", "none", "p", "{}"]).bad(69);
    assert_eq!(component, "Error:\nValidation failed\n\ncomponent none not found\n\n");
    assert!(set("{", &[]).bad(69).starts_with("Error:\nJSON decoding error."));
    assert!(set("{}", &["--priority", "high"]).bad(64).contains("--priority : high"));
    assert_eq!(tools.ctl("list_policies -p nov").bad(65), "Virtual host 'nov' does not exist\n");
}

#[test]
fn a_policy_or_parameter_without_a_name_and_a_key_that_comes_twice_are_refused() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let limit = r#"{"max-length":1}"#;
    for (words, told) in [
        (&["set_policy", "", "a", limit][..], "the name of a policy cannot be an empty string"),
        (&["set_operator_policy", "", "a", limit], "the name of a policy cannot be an empty string"),
        (&["clear_policy", ""], "the name of a policy cannot be an empty string"),
        (&["clear_operator_policy", ""], "the name of a policy cannot be an empty string"),
        (&["set_parameter", "vhost-limits", "", "{}"], "the name of a parameter cannot be an empty string"),
        (&["set_parameter", "", "limits", "{}"], "the component cannot be an empty string"),
        (&["set_global_parameter", "", "{}"], "the name of a parameter cannot be an empty string"),
        (&["clear_global_parameter", ""], "the name of a parameter cannot be an empty string"),
    ] {
        assert!(tools.words("rabbitmqctl", words).bad(65).contains(told), "{words:?}");
    }
    for words in [
        &["set_policy", "p", "a", r#"{"expires":5,"expires":6}"#][..],
        &["set_operator_policy", "p", "a", r#"{"expires":5,"expires":6}"#],
        &["set_global_parameter", "g", r#"{"a":[{"expires":1,"expires":1}]}"#],
        &["set_user_limits", "guest", r#"{"expires":5,"expires":6}"#],
    ] {
        let told = tools.words("rabbitmqctl", words).bad(69);
        assert!(told.contains("the field \"expires\" comes twice"), "{words:?}: {told}");
    }
    let twice = r#"arguments={"expires":5,"expires":6}"#;
    let told = tools.words("rabbitmqadmin", &["declare", "queue", "name=q", twice]).bad(1);
    assert!(told.contains("arguments: the field \"expires\" comes twice"), "{told}");
}

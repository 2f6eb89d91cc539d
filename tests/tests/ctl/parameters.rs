//! Parameters, feature flags, and the cluster's name.

use crate::begin;

#[test]
fn parameters_of_the_cluster_are_set_listed_and_cleared() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    let set = tools.words("rabbitmqctl", &["set_global_parameter", "mine", r#"{"a":1}"#]).good();
    assert_eq!(set, "Setting global runtime parameter \"mine\" to \"{\"a\":1}\" ...\n");
    let listed = tools.ctl("-q list_global_parameters").good();
    assert!(listed.starts_with("name\tvalue\nmine\t{\"a\":1}\ninternal_cluster_id\t"), "{listed}");
    tools.ctl("clear_global_parameter mine").good();
    assert_eq!(tools.ctl("clear_global_parameter mine").bad(69), "Error:\nParameter does not exist\n");
    assert_eq!(tools.ctl("set_cluster_name here").good(), "Setting cluster name to here ...\n");
    assert_eq!(http.get("/api/cluster-name").with(200)["name"], "here");
}

#[test]
fn parameters_of_a_virtual_host_are_those_that_there_are() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let set = ["set_parameter", "vhost-limits", "limits", r#"{"max-queues":9}"#];
    let told = tools.words("rabbitmqctl", &set).good();
    assert!(told.starts_with("Setting runtime parameter \"limits\" for component \"vhost-limits\" to "), "{told}");
    let listed = tools.ctl("-q list_parameters").good();
    assert_eq!(listed, "component\tname\tvalue\nvhost-limits\tlimits\t{\"max-queues\":9}\n");
    tools.ctl("clear_parameter vhost-limits limits").good();
    tools.ctl("clear_parameter vhost-limits limits").bad(69);
    let later = tools.words("rabbitmqctl", &["set_parameter", "federation-upstream", "x", "{}"]).bad(69);
    assert!(later.contains("comes with a later version"), "{later}");
    tools.ctl("list_parameters -p nov").bad(65);
}

#[test]
fn feature_flags_are_listed_and_another_one_cannot_be_enabled() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let listed = tools.ctl("list_feature_flags").good();
    assert!(listed.starts_with("Listing feature flags ...\nname\tstate\n"), "{listed}");
    assert!(listed.contains("quorum_queue\tenabled\n"), "{listed}");
    assert_eq!(tools.ctl("enable_feature_flag all").good(), "Enabling all feature flags ...\n");
    tools.ctl("enable_feature_flag quorum_queue").good();
    assert!(tools.ctl("enable_feature_flag nosuch").bad(64).contains("not supported by node"));
    tools.ctl("list_deprecated_features --used").good();
}

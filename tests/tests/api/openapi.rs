//! The OpenAPI document against the handlers: each path takes the methods that it is said to take
//! and no others.

use std::collections::BTreeSet;

use clients::Broker;
use clients::broker::is_foreign;

#[test]
fn every_path_takes_the_methods_that_the_document_names() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let document = http.get("/api/openapi.json").with(200);
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 100, "{}", paths.len());
    for (path, operations) in paths {
        let named: BTreeSet<String> = operations.as_object().unwrap().keys().cloned().collect();
        let named: BTreeSet<String> = named.into_iter().filter(|name| name != "parameters").collect();
        // A method that no path has is answered with those that this one has.
        let asked = path.replace(['{', '}'], "");
        let refused = http.send("PATCH", &asked, &[], "");
        assert_eq!(refused.status, 405, "{path}: {refused:?}");
        let allowed = refused.head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let allowed: BTreeSet<String> = allowed.split(", ").map(str::to_owned).collect();
        assert_eq!(allowed, named, "{path}");
        let wanted = path.matches('{').count();
        assert_eq!(operations["parameters"].as_array().unwrap().len(), wanted, "{path}");
    }
}

//! Definitions out and in.

use crate::begin;
use clients::tools::run_with_input;
use std::os::unix::fs::PermissionsExt;

#[test]
fn definitions_go_round_by_file_and_by_standard_streams() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    http.put("/api/queues/%2F/kept", r#"{"durable":true}"#).with(201);
    let file = broker.data_folder().join("../definitions.json");
    let name = file.display().to_string();
    let told = tools.words("rabbitmqctl", &["export_definitions", &name]).good();
    assert_eq!(told, format!("Exporting definitions in JSON to a file at \"{name}\" ...\n"));
    // Hashes of passwords are in it.
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let printed = tools.ctl("export_definitions -").good();
    assert_eq!(printed, std::fs::read_to_string(&file).unwrap());
    http.delete("/api/queues/%2F/kept").with(204);
    let told = tools.words("rabbitmqctl", &["import_definitions", &name]).good();
    assert!(told.ends_with("Successfully imported definitions.\n"), "{told}");
    http.get("/api/queues/%2F/kept").with(200);
    http.delete("/api/queues/%2F/kept").with(204);
    run_with_input(tools.folder(), "rabbitmqctl", &["import_definitions", "-"], &printed).good();
    http.get("/api/queues/%2F/kept").with(200);
}

#[test]
fn what_cannot_be_read_or_written_changes_nothing() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let missing = tools.ctl("import_definitions /nonexistent").bad(65);
    assert!(missing.contains("Bad argument: File /nonexistent does not exist"), "{missing}");
    run_with_input(tools.folder(), "rabbitmqctl", &["import_definitions"], "{").bad(65);
    let missing = tools.ctl("export_definitions /nonexistent/file").bad(65);
    assert!(missing.contains("Bad argument: Directory /nonexistent does not exist"), "{missing}");
    assert!(tools.ctl("export_definitions - --format erlang").bad(64).contains("no format but json"));
    let wrong = run_with_input(tools.folder(), "rabbitmqctl", &["import_definitions"], r#"{"queues":5}"#);
    wrong.bad(69);
}

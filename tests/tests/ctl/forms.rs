//! Forms, quietness, wrong options, and watching.

use crate::begin;
use clients::tools::command;
use std::io::{BufRead, BufReader};
use std::time::Instant;

#[test]
fn the_forms_of_a_list_are_rabbitmqs() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    for (line, wanted) in [
        ("list_users", "Listing users ...\nuser\ttags\nguest\t[administrator]\n"),
        ("-q list_users", "user\ttags\nguest\t[administrator]\n"),
        ("-s list_users", "guest\t[administrator]\n"),
        ("list_users --no-table-headers", "Listing users ...\nguest\t[administrator]\n"),
        ("list_users --formatter json", "[\n{\"user\":\"guest\",\"tags\":[\"administrator\"]}\n]\n"),
        ("list_users --formatter=csv", "\"user\",\"tags\"\n\"guest\",\"[administrator]\"\n"),
        ("list_users --formatter erlang", "Listing users ...\n[[{user,<<\"guest\">>},{tags,[administrator]}]]\n"),
        (
            "-q list_users --formatter pretty_table",
            "┌───────┬───────────────┐\n│ user  │ tags          │\n├───────┼───────────────┤\n\
             │ guest │ administrator │\n└───────┴───────────────┘\n",
        ),
    ] {
        assert_eq!(tools.ctl(line).good(), wanted, "{line}");
    }
    assert!(tools.ctl("list_users --formatter nosuch").bad(64).contains("there are table, pretty_table"));
}

#[test]
fn what_a_program_reads_has_no_banner_and_an_answer() {
    let Some((_broker, _http, tools)) = begin(&["--node-name", "rabbit@box"]) else { return };
    let told = tools.ctl("add_vhost v --formatter json").good();
    assert_eq!(told, "{\"node\":\"rabbit@box\",\"result\":\"ok\"}\n");
    let told = tools.diagnostics("check_local_alarms --formatter json").good();
    let message = "\"message\":\"Node rabbit@box reported no local alarms\"";
    assert_eq!(told, format!("{{{message},\"node\":\"rabbit@box\",\"result\":\"ok\"}}\n"));
}

#[test]
fn wrong_words_end_with_64_and_the_usage() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let usage = "\nUsage\n\nrabbitmqctl [--node <node>] [--longnames] [--quiet] list_users [--no-table-headers] [--timeout <timeout>]\n";
    for (line, why) in [
        ("list_users --nosuch", "Invalid options for this command:\n--nosuch : "),
        ("list_users -t abc", "Invalid options for this command:\n-t : abc"),
        ("list_users extra", "too many arguments."),
    ] {
        let told = tools.ctl(line);
        assert_eq!(told.out, "", "{line}");
        let wanted = format!("Error (argument validation): {why}\nArguments given:\n\t{line}\n{usage}");
        assert_eq!(told.bad(64), wanted, "{line}");
    }
}

#[test]
fn a_watched_list_is_shown_again_until_its_reader_goes() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let words = ["-s", "--watch=1", "list_vhosts"];
    let mut child = command(tools.folder(), "rabbitmqctl", &words).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(lines.next().unwrap().unwrap(), "/");
    }
    assert!(begin.elapsed().as_secs() >= 2);
    drop(lines);
    // Nobody reads any more: it ends by itself, and quietly.
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

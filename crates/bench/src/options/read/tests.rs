//! Flags of PerfTest and our own, as they are read.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::words::words_of;

fn run(line: &str) -> Options {
    run_of(&words_of(line)).unwrap_or_else(|why| panic!("{line}: {why}"))
}

fn error(line: &str) -> String {
    parse(&words_of(line)).unwrap_err().to_string()
}

#[test]
fn the_articles_command_lines_run_as_they_stand() {
    let sizes = "--variable-size 10:900 --variable-size 100:900 --variable-size 1000:900 --variable-size 5000:900";
    let one = run(&format!(
        "--producers 2 --consumers 2 --confirm 3000 --multi-ack-every 3000 --qos 3000 {sizes} --auto-delete false \
         --flag persistent --queue cq"
    ));
    assert_eq!((one.producing.count, one.consuming.count, one.producing.confirm), (2, 2, Some(3000)));
    assert!(one.topology.durable && !one.topology.auto_delete && one.producing.rate.is_none());
    assert_eq!(one.producing.size.at(1000 * crate::clock::SECOND).0, 100.0);
    let two = run(&format!(
        "--rate 10000 --confirm 3000 --multi-ack-every 3000 --qos 3000 {sizes} --quorum-queue --queue qq"
    ));
    assert_eq!(two.topology.arguments.get("x-queue-type"), Some(&Value::LongString("quorum".into())));
    assert_eq!(two.producing.rate, Some(Steps::constant(10_000.0)));
    let three = run(&format!(
        "--producers 500 --consumers 500 --publishing-interval 0.1 --confirm 10 --multi-ack-every 100 --qos 100 {sizes} \
         --quorum-queue --queue-pattern qq-%d --queue-pattern-from 1 --queue-pattern-to 500"
    ));
    assert_eq!((three.topology.queues.len(), three.topology.queues[499].as_str()), (500, "qq-500"));
    assert_eq!(three.producing.rate, Some(Steps::constant(10.0)));
    let four = run(
        "--producers 2 --consumers 0 --confirm 3000 --pmessages 5000000 --queue-args x-max-in-memory-length=0 --quorum-queue --queue qq",
    );
    assert_eq!(four.topology.arguments.get("x-max-in-memory-length"), Some(&Value::I32(0)));
    let drain = run(
        "--producers 0 --consumers 2 --multi-ack-every 3000 --qos 3000 --exit-when empty --queue-args x-max-in-memory-length=0 --quorum-queue --queue qq",
    );
    assert_eq!(drain.exit_when, Some(ExitWhen::Empty));
}

#[test]
fn the_sizing_studys_command_line_runs_as_it_stands() {
    let line = "-H amqp://guest:guest@10.0.0.1:5672/%2f,amqp://guest:guest@10.0.0.2:5672/%2f -z 1800 -f persistent -q 1000 -c 1000 \
                -ct -1 -ad false --rate 50 --size 1024 --queue-pattern perf-test-%d --queue-pattern-from 1 --queue-pattern-to 100 \
                -qa auto-delete=false,durable=false,x-queue-type=quorum --producers 200 --consumers 200 --consumer-latency 10000 \
                --producer-random-start-delay 30";
    let options = run(line);
    assert_eq!((options.uris.len(), options.topology.arguments.len(), options.topology.queues.len()), (2, 3, 100));
    assert_eq!(options.consuming.work_us, Steps::constant(10_000.0));
}

#[test]
fn short_names_and_attached_values_are_perftests() {
    let options = run(
        "-x1 -y 2 -u throughput-test-1 -a -qq --rate=5 -z 30 -vl 10000:300 -vl 30000:60 -f persistent -f mandatory",
    );
    assert_eq!((options.producing.count, options.consuming.count, options.time_secs), (1, 2, Some(30)));
    assert!(options.consuming.auto_ack && options.producing.mandatory);
    assert_eq!(options.consuming.work_us.max(), 30_000.0);
    let unlimited = run("--rate -1 --consumer-rate -1");
    assert_eq!((unlimited.producing.rate, unlimited.consuming.rate), (None, None));
}

#[test]
fn what_is_unknown_or_wrong_is_named() {
    assert_eq!(error("--frobnicate 3"), "unknown option --frobnicate; leveret bench --help lists all");
    assert_eq!(error("--producer 3"), "unknown option --producer; did you mean --producers?");
    assert!(error("--stream-queue").contains("--stream-queue is refused: streams"));
    assert!(error("--rate").contains("--rate needs a value"));
    assert!(error("--qos 70000").contains("--qos 70000: a number from 0 to 65535"));
    assert!(error("--rate -2").contains("--rate -2: a number from 0 on"));
    assert!(error("--variable-rate 5").contains("VALUE:SECONDS"));
    assert!(error("--rate 1 --variable-rate 5:5").contains("contradict"));
    assert!(error("--queue-pattern q-%d").contains("--queue-pattern-to"));
    assert!(error("--broker-pid 4194305").contains("\"4194305\" is no process on this machine"));
    assert_eq!(run(&format!("--broker-pid {}", std::process::id())).broker_pids, [std::process::id()]);
    assert!(error("--auto-delete maybe").contains("true or false"));
    assert!(error("hello").contains("\"hello\" is not an option"));
    assert!(error("-x 0 -y 0").contains("nobody"));
    assert!(error("--rate 1 --rate 2").contains("twice"));
    assert!(error("--warmup 2 --time 2").contains("nothing would be measured"));
    assert!(error("--limit-memory 5X").contains("--limit-memory 5X"));
    assert!(error("--uri amqp://h --limit-cpu 1").contains("--uri and --limit-cpu contradict each other"));
    assert!(error("--uris amqp://h,,").contains("\"\" is not an AMQP URI"));
    assert!(error("--tls-ca /nonexistent").contains("--tls-ca is about TLS, and no URI begins with amqps://"));
    assert!(error("-h amqps://h --tls-ca /nonexistent").contains("--tls-ca /nonexistent: "));
    assert!(error("-h amqps://h --tls-key k").contains("--tls-key needs --tls-certificate"));
}

#[test]
fn properties_and_headers_part_by_their_names() {
    let options = run("--message-properties priority=5,x-tenant=7,headerless=yes");
    assert_eq!(options.producing.properties, [("priority".to_owned(), "5".to_owned())]);
    assert_eq!(options.producing.headers.get("x-tenant"), Some(&Value::I32(7)));
    assert_eq!(options.producing.headers.len(), 2);
}

#[test]
fn patterns_fill_in_with_width() {
    assert_eq!(filled("q-%d-x", 7).unwrap(), "q-7-x");
    assert_eq!(filled("q-%03d", 7).unwrap(), "q-007");
    assert_eq!(filled("q", 7), None);
}

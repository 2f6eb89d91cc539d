//! rabbitmqadmin: what version 3.10 in Python prints and ends with.

use crate::begin;
use clients::tools::run_with_input;

#[test]
fn things_are_declared_listed_and_deleted() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    let port = http.addr().port();
    let admin = |line: &str| tools.run("rabbitmqadmin", &format!("-P {port} {line}"));
    assert_eq!(admin("list queues").good(), "No items\n");
    assert_eq!(admin(r#"declare queue name=a/q durable=true arguments={"x-max-length":7}"#).good(), "queue declared\n");
    assert_eq!(http.get("/api/queues/%2F/a%2Fq").with(200)["arguments"]["x-max-length"], 7);
    let drawn =
        "+------+----------+\n| name | messages |\n+------+----------+\n| a/q  | 0        |\n+------+----------+\n";
    assert_eq!(admin("list queues").good(), drawn);
    assert_eq!(admin("-f tsv list queues name durable").good(), "name\tdurable\na/q\tTrue\n");
    assert_eq!(admin("-f kvp list queues name").good(), "name=\"a/q\"\n");
    assert_eq!(admin("-q -f bash list queues").good(), "a/q\n");
    for (line, told) in [
        ("declare exchange name=x type=topic", "exchange declared\n"),
        ("declare queue name=qq queue_type=quorum", "queue declared\n"),
        ("declare binding source=x destination=qq routing_key=a.b", "binding declared\n"),
        ("declare vhost name=v", "vhost declared\n"),
        ("declare user name=u password=p tags=management", "user declared\n"),
        ("declare permission vhost=v user=u configure=.* write=.* read=.*", "permission declared\n"),
        (r#"declare policy name=p pattern=^a definition={"max-length":9} apply-to=queues"#, "policy declared\n"),
        ("declare vhost_limit vhost=v name=max-queues value=5", "vhost_limit declared\n"),
        ("delete vhost_limit vhost=v name=max-queues", "vhost_limit deleted\n"),
        ("delete policy name=p", "policy deleted\n"),
        ("delete permission vhost=v user=u", "permission deleted\n"),
        ("delete user name=u", "user deleted\n"),
        ("delete vhost name=v", "vhost deleted\n"),
        ("delete binding source=x destination=qq destination_type=queue properties_key=a.b", "binding deleted\n"),
        ("delete exchange name=x", "exchange deleted\n"),
        ("purge queue name=qq", "queue purged\n"),
        ("delete queue name=qq", "queue deleted\n"),
    ] {
        assert_eq!(admin(line).good(), told, "{line}");
    }
    assert_eq!(admin("delete queue name=qq").bad(1), "*** Not found: /api/queues/%2F/qq\n\n");
}

#[test]
fn messages_go_in_and_out() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    let port = http.addr().port().to_string();
    let admin = |line: &str| tools.run("rabbitmqadmin", &format!("-P {port} {line}"));
    admin("declare queue name=q").good();
    assert_eq!(admin("publish routing_key=q payload=hello").good(), "Message published\n");
    assert_eq!(admin("publish routing_key=nowhere payload=x").good(), "Message published but NOT routed\n");
    let words = ["-P", &port, "publish", "routing_key=q"];
    run_with_input(tools.folder(), "rabbitmqadmin", &words, "from stdin").good();
    let got = admin("-f tsv get queue=q ackmode=ack_requeue_false").good();
    assert!(got.contains("\thello\t"), "{got}");
    let file = broker.data_folder().join("../payload");
    let words = ["-P", &port, "get", "queue=q", &format!("payload_file={}", file.display())];
    tools.words("rabbitmqadmin", &words).good();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "from stdin");
    admin("get queue=q count=2 payload_file=x").bad(1);
    admin("get queue=nosuch").bad(1);
}

#[test]
fn what_is_wrong_is_told_as_rabbitmqadmin_tells_it() {
    let Some((_broker, http, tools)) = begin(&[]) else { return };
    let port = http.addr().port();
    let admin = |line: &str| tools.run("rabbitmqadmin", &format!("-P {port} {line}"));
    for (line, why) in [
        ("nosuch", "Action nosuch not understood"),
        ("lst queues", "Action lst not understood; did you mean list?"),
        ("", "Action not specified"),
        ("list nosuch", "Don't know how to list nosuch"),
        ("declare nosuch name=x", "Type nosuch not recognised"),
        ("declare queue", "mandatory argument \"name\" is required"),
        ("declare queue name", "Argument \"name\" not in the name=value format"),
        ("declare queue name=x nosuch=1", "Argument \"nosuch\" is not recognised"),
    ] {
        assert_eq!(admin(line).bad(1), format!("\nERROR: {why}\n\nrabbitmqadmin --help for help\n\n"), "{line}");
    }
    assert_eq!(admin("-p wrong list queues").bad(1), "*** Access refused: /api/queues?columns=name,messages\n\n");
    assert!(admin("--nosuch").bad(2).contains("error: no such option: --nosuch"));
    assert!(admin("--bash-completion").bad(2).contains("leveret completions bash"));
    assert!(tools.run("rabbitmqadmin", "-P 1 list queues").bad(1).starts_with("*** Could not connect: "));
    assert!(admin("help").good().contains("declare queue name=... [auto_delete=..."));
    assert!(admin("--version").good().starts_with("rabbitmqadmin "));
}

#[test]
fn definitions_go_round_and_a_file_names_the_host() {
    let Some((broker, http, tools)) = begin(&[]) else { return };
    let folder = broker.data_folder();
    let conf = folder.join("../admin.conf");
    std::fs::write(&conf, format!("[here]\nhostname = 127.0.0.1\nport = {}\n", http.addr().port())).unwrap();
    let (conf, file) = (conf.display().to_string(), folder.join("../d.json").display().to_string());
    let admin = |words: &[&str]| tools.words("rabbitmqadmin", &[&["-c", &conf, "-N", "here"], words].concat());
    let told = admin(&["export", &file]).good();
    assert_eq!(told, format!("Exported definitions for 127.0.0.1 to \"{file}\"\n"));
    admin(&["import", &file]).good();
    admin(&["import", "/nonexistent"]).bad(1);
    tools.words("rabbitmqadmin", &["-c", &conf, "-N", "nosuch", "list", "queues"]).bad(2);
}

#[test]
fn options_before_the_word_are_taken_or_it_is_said_where_the_word_goes() {
    let Some((_broker, _http, tools)) = begin(&[]) else { return };
    let folder = tools.folder().to_owned();
    let leveret = |words: &[&str]| clients::tools::run_with_input("/", "leveret", words, "");
    let before = leveret(&["ctl", "--data-dir", &folder, "plugins", "-q", "list", "-m", "-e"]);
    let behind = leveret(&["ctl", "plugins", "--data-dir", &folder, "-q", "list", "-m", "-e"]);
    assert_eq!(before.clone().good(), behind.good());
    assert!(before.out.contains("rabbitmq_management"), "{before:?}");
    let told = leveret(&["ctl", "--data-dir", &folder, "admin", "list", "queues"]).bad(64);
    assert!(told.contains("leveret ctl admin [options]") && told.contains("--data-dir"), "{told}");
}

//! A node that leaves its cluster and is killed meanwhile: what is said at each moment. What answers is no node but
//! this test, which lives for as many questions as it wants.

use clients::broker::is_foreign;
use clients::tools::command;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command};

/// Ends with the test.
struct Node(Child);

impl Node {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Answers as a node that may leave, so many times; with the next question the node is killed. Gives that question, or
/// none where the command ended before.
fn serve(listener: TcpListener, answers: usize, node: &mut Node) -> Option<String> {
    for answered in 0.. {
        let mut socket = listener.accept().unwrap().0;
        let mut lines = BufReader::new(socket.try_clone().unwrap());
        let (mut asked, mut length) = (String::new(), 0);
        lines.read_line(&mut asked).unwrap();
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        lines.read_exact(&mut vec![0; length]).unwrap();
        if answered == answers {
            node.kill();
            return Some(asked);
        }
        let is_last = asked.starts_with("POST ") && asked.contains("/leave");
        let body = json!({ "name": "leveret@n3", "being_drained": false, "nodes": [], "partitions": [] }).to_string();
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all((head + &body).as_bytes()).unwrap();
        if is_last {
            node.kill();
            return None;
        }
    }
    None
}

#[test]
fn a_node_that_is_killed_while_it_leaves_may_have_left_whatever_was_asked_last() {
    if is_foreign() {
        return;
    }
    let mut moments = Vec::new();
    for answers in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut node = Node(Command::new("sleep").arg("600").spawn().unwrap());
        let url = format!("http://{}", listener.local_addr().unwrap());
        let told = json!({ "node": "leveret@n3", "pid": node.0.id(), "url": url, "token": "0" });
        std::fs::write(folder.path().join("operator.json"), told.to_string()).unwrap();
        let asks = command(folder.path().to_str().unwrap(), "leveret", &["ctl", "leave_cluster"]).spawn().unwrap();
        let asked = serve(listener, answers, &mut node);
        let ended = asks.wait_with_output().unwrap();
        let Some(asked) = asked else {
            assert_eq!(ended.status.code(), Some(0), "{ended:?}");
            break;
        };
        let why = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(69), "{asked}: {why}");
        assert!(why.contains("the leave may be half done. Ask another node"), "{asked}: {why}");
        moments.push(asked);
    }
    for wanted in [
        "GET /api/leveret/nodes",
        "PUT /api/nodes",
        "POST /api/leveret/nodes/leveret%40n3/give-away",
        "GET /api/leveret/cluster",
        "POST /api/leveret/nodes/leveret%40n3/leave",
    ] {
        assert!(moments.iter().any(|asked| asked.starts_with(wanted)), "{wanted}: {moments:?}");
    }
}

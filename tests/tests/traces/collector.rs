//! A collector on this machine: it takes what OTLP over HTTP brings in JSON, and may hang.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for spans.
const PATIENCE: Duration = Duration::from_secs(20);

/// A span that came.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    /// The operation's name.
    pub(crate) operation: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty without one.
    pub(crate) parent: String,
    /// The node that it is of.
    pub(crate) node: String,
    /// What it passed, in order.
    pub(crate) events: Vec<String>,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) value: Value,
}

impl Span {
    /// The text of an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.value["attributes"], name)
    }
}

fn attribute(attributes: &Value, name: &str) -> Option<String> {
    let found = attributes.as_array()?.iter().find(|attribute| attribute["key"] == name)?;
    let value = found["value"].as_object()?.values().next()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// See the module.
pub(crate) struct Collector {
    addr: SocketAddr,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    hangs: Arc<AtomicBool>,
}

impl Collector {
    pub(crate) fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let collector = Collector { addr, requests: Arc::default(), hangs: Arc::default() };
        let (requests, hangs) = (collector.requests.clone(), collector.hangs.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (requests, hangs) = (requests.clone(), hangs.clone());
                std::thread::spawn(move || serve(socket.unwrap(), &requests, &hangs));
            }
        });
        collector
    }

    /// What a broker is told.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/traces", self.addr)
    }

    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// From now on it takes requests and does not answer them, or answers again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Requests that came: their heads, and what they said.
    pub(crate) fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap().clone()
    }

    /// All spans that came.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut all = Vec::new();
        for (_, request) in self.requests() {
            for resource in request["resourceSpans"].as_array().unwrap() {
                let node = attribute(&resource["resource"]["attributes"], "service.instance.id").unwrap();
                for scope in resource["scopeSpans"].as_array().unwrap() {
                    all.extend(scope["spans"].as_array().unwrap().iter().map(|span| of(span, &node)));
                }
            }
        }
        all
    }

    /// The spans, once there are as many as wanted by this.
    pub(crate) fn until(&self, count: usize, is_wanted: impl Fn(&Span) -> bool) -> Vec<Span> {
        let begin = Instant::now();
        loop {
            let found: Vec<Span> = self.spans().into_iter().filter(|span| is_wanted(span)).collect();
            if found.len() >= count {
                assert_eq!(found.len(), count, "{found:#?}");
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{} of {count} spans came: {:#?}", found.len(), self.spans());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn of(span: &Value, node: &str) -> Span {
    let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| text(name).parse().unwrap();
    Span {
        name: text("name"),
        operation: attribute(&span["attributes"], "messaging.operation.name").unwrap(),
        trace: text("traceId"),
        id: text("spanId"),
        parent: text("parentSpanId"),
        node: node.to_owned(),
        events: span["events"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap().to_owned()).collect(),
        begin_ns: number("startTimeUnixNano"),
        end_ns: number("endTimeUnixNano"),
        value: span.clone(),
    }
}

/// Takes one request after the other.
fn serve(socket: TcpStream, requests: &Mutex<Vec<(String, Value)>>, hangs: &AtomicBool) {
    let mut reader = BufReader::new(socket);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            head.push_str(&line);
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        while hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        requests.lock().unwrap().push((head, serde_json::from_slice(&body).unwrap()));
        let answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        if reader.get_mut().write_all(answer).is_err() {
            return;
        }
    }
}

//! A test in Rust beside `replog cluster`, with what Rust has: `rustc --edition 2021 --test orders.rs && ./orders`.
//! KAFKA_TEST_URL: of a cluster that is there; without, one is started.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// It ends with its input, also when this process is killed.
struct Cluster {
    address: String,
    process: Option<Child>,
}

impl Cluster {
    fn start() -> Cluster {
        if let Ok(url) = std::env::var("KAFKA_TEST_URL") {
            return Cluster { address: url.replace("http://", ""), process: None };
        }
        let mut process = Command::new("replog")
            .args(["cluster", "--brokers", "3"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("pip install twisted-broker");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // `bootstrap` in the same line is for the client that is tested.
        let address = line.split("http://").nth(1).unwrap().split('"').next().unwrap().to_string();
        Cluster { address, process: Some(process) }
    }

    /// docs/openapi.json has all verbs.
    fn verb(&self, name: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "POST /v1/{name} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, found) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.lines().next().unwrap().contains(" 200 "), "{name}: {found}");
        found.to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.stdin.take());
            let _ = process.wait();
        }
    }
}

#[test]
fn orders_outlive_their_leader() {
    let cluster = Cluster::start();
    cluster.verb("produce", r#"{"topic": "rust-orders", "records": ["one book"]}"#);
    let node = cluster.verb("leader", r#"{"topic": "rust-orders", "partition": 0}"#);
    cluster.verb("kill", &format!(r#"{{"node": {node}}}"#));
    cluster.verb("advance", r#"{"by": "10s"}"#);
    let records = cluster.verb("records", r#"{"topic": "rust-orders", "at_least": 1}"#);
    assert!(records.contains(r#""value": "one book""#), "{records}");
    cluster.verb("restart", &format!(r#"{{"node": {node}}}"#));
}

//! Metrics of a running node, as Prometheus, its tools and another parser read them.

use crate::nodes::{Node, interface};
use crate::running::{Ending, Running, TIMEOUT};
use pollux_referee::{program_of, skip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What Prometheus 2 sends.
const ACCEPT: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
    version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// Reads OpenMetrics by the rules of python3-prometheus-client, and prints the names.
const READER: &str = "import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    print(family.name, family.type, family.unit, len(family.samples))
";

/// A port without a listener, of a loopback address that only one test of this process has:
/// others look for free ports, too.
fn free_port(test: u8) -> SocketAddr {
    let process = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, process[2] | 1, process[3], test);
    let listener = TcpListener::bind((address, 0)).expect("a free port");
    listener.local_addr().expect("it has one")
}

fn telemetry(address: SocketAddr) -> String {
    format!("[telemetry]\nopenmetrics = \"{address}\"\n")
}

/// Sends a request and reads the reply, once the node listens.
fn get(address: SocketAddr, path: &str, accept: &str) -> String {
    let begun = Instant::now();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n");
    loop {
        match reply(address, &request) {
            Ok(reply) => return reply,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::yield_now();
    }
}

/// One attempt: a listener that moves resets the connections that wait for it.
fn reply(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

fn metrics(address: SocketAddr, accept: &str) -> String {
    let reply = get(address, "/metrics", accept);
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.into()
}

/// Waits until there is no listener: the reply to a reload comes a little earlier.
fn until_closed(address: SocketAddr) {
    let begun = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begun.elapsed() < TIMEOUT, "{address} is open");
    }
}

/// The value of a sample.
fn value(body: &str, sample: &str) -> f64 {
    let found = body.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in {body}")).parse().expect("a number")
}

/// Runs a program with a text as its input: whether it succeeds, and what it prints.
fn read_by(program: &Path, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// The list of metrics that programs are promised, by name.
fn promised() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/schema/metrics.txt");
    let list = std::fs::read_to_string(path).expect("it is there");
    list.lines().map(|line| line.split(' ').next().expect("a name").into()).collect()
}

#[test]
fn a_node_offers_what_it_counts_in_both_formats() {
    let (fabric, port) = (Running::new("metrics", &["--topology", "single:2"]), free_port(1));
    let text = interface(&fabric, 1, "ib0", "10.0.0") + "mode = \"rc\"\n" + &telemetry(port);
    let node = Node::with(&fabric, 1, &text);
    let other = Node::start(&fabric, 2, "rc");
    [&node, &other].into_iter().for_each(Node::come_up);
    node.reach("10.0.0.2", "1000");

    // Workers publish their counters ten times a second; the first packets may go by datagram.
    let begun = Instant::now();
    let sent = "pollux_interface_transmit_bytes_total{interface=\"ib0\"}";
    let open = "pollux_connections{interface=\"ib0\",transport=\"RC\",state=\"open\"}";
    let body = loop {
        let body = metrics(port, "*/*");
        if value(&body, sent) >= 1028.0 && value(&body, open) >= 1.0 {
            break body;
        }
        assert!(begun.elapsed() < TIMEOUT, "{body}");
    };
    assert_eq!(value(&body, "pollux_interface_up{interface=\"ib0\"}"), 1.0);
    assert_eq!(value(&body, "pollux_interface_mtu_bytes{interface=\"ib0\"}"), 2044.0);
    assert_eq!(value(&body, open), 1.0);
    let echo = "pollux_icmp_sent_total{interface=\"ib0\",family=\"ipv4\",type=\"echo_reply\"}";
    assert_eq!(value(&body, echo), 0.0);
    assert!(value(&body, "pollux_sa_queries_total{interface=\"ib0\",result=\"answered\"}") > 0.0);
    let connected =
        "pollux_routes{domain=\"default\",family=\"ipv4\",origin=\"connected\",protocol=\"\"}";
    assert!(value(&body, connected) >= 1.0);
    assert!(value(&body, "pollux_worker_packets_total{worker=\"0\"}") > 0.0);

    // Every row of `pollux show drops` is there, zeros included.
    for row in node.show("drops").as_array().expect("rows") {
        let (of, why) = (row["of"].as_str().expect("text"), row["why"].as_str().expect("text"));
        let sample = match of {
            "refused" => format!("pollux_refused_total{{interface=\"ib0\",reason=\"{why}\"}}"),
            _ => format!("pollux_drops_total{{interface=\"ib0\",part=\"{of}\",reason=\"{why}\"}}"),
        };
        value(&body, &sample);
    }
    let is_sample = |line: &&str| !line.starts_with('#');
    let name = |line: &str| line.split(['{', ' ']).next().expect("a name").to_owned();
    let names: BTreeSet<_> = body.lines().filter(is_sample).map(name).collect();
    let missing: Vec<_> = promised().difference(&names).cloned().collect();
    assert!(missing.iter().all(|name| name.starts_with("pollux_netlink_")), "{missing:?}");
    assert!(names.is_subset(&promised()), "{names:?}");

    let openmetrics = metrics(port, ACCEPT);
    assert!(openmetrics.ends_with("\n# EOF\n"), "{openmetrics}");
    assert!(get(port, "/", "*/*").starts_with("HTTP/1.1 404 "));
    if let Some(promtool) = program_of("a_node_offers", "promtool", "--referees") {
        let (is_good, message) = read_by(&promtool, &["check", "metrics"], &body);
        assert!(is_good && message.is_empty(), "{message}");
    }
    // Debian's package is for Debian's interpreter, before which others may be in the path.
    let python = Path::new("/usr/bin/python3");
    if !python.is_file() || !read_by(python, &["-c", "import prometheus_client"], "").0 {
        return skip("a_node_offers", "/usr/bin/python3 has no prometheus_client");
    }
    let (is_good, message) = read_by(python, &["-c", READER], &openmetrics);
    assert!(is_good, "{message}");
    assert!(message.contains("pollux_worker_busy_seconds counter seconds 1"), "{message}");
}

#[test]
fn a_reload_moves_the_metrics_and_a_port_in_use_ends_nothing() {
    let fabric = Running::new("moved", &["--topology", "single:2"]);
    let [taken, free] = [free_port(2), free_port(3)];
    let used = TcpListener::bind(taken).expect("it is free");
    let ib0 = interface(&fabric, 1, "ib0", "10.0.0");
    let node = Node::with(&fabric, 1, &(ib0.clone() + &telemetry(taken)));
    node.come_up();
    let write = |text: &str| std::fs::write(fabric.path("node1.toml"), text).expect("it is ours");
    write(&(ib0.clone() + &telemetry(free)));
    let (is_done, message) = node.ask(&["reload"]);
    assert!(is_done && message == format!("telemetry: metrics at {free}\n"), "{message}");
    let body = metrics(free, "*/*");
    assert_eq!(value(&body, "pollux_config_reloads_total{result=\"success\"}"), 1.0);
    assert_eq!(value(&body, "pollux_interface_starts_total{interface=\"ib0\"}"), 1.0);
    write("[interface.ib0]\n");
    assert!(!node.ask(&["reload"]).0);
    let body = metrics(free, "*/*");
    assert_eq!(value(&body, "pollux_config_last_reload_success"), 0.0);
    assert_eq!(value(&body, "pollux_config_reloads_total{result=\"failure\"}"), 1.0);

    // A port that is free again is taken at the next attempt.
    write(&(ib0.clone() + &telemetry(taken)));
    assert!(node.ask(&["reload"]).0);
    until_closed(free);
    drop(used);
    metrics(taken, "*/*");
    write(&ib0);
    let (is_done, message) = node.ask(&["reload"]);
    assert!(is_done && message == "telemetry: no metrics\n", "{message}");
    until_closed(taken);
}

#[test]
fn prometheus_scrapes_a_node() {
    let test = "prometheus_scrapes_a_node";
    let Some(prometheus) = program_of(test, "prometheus", "--referees") else { return };
    let Some(promtool) = program_of(test, "promtool", "--referees") else { return };
    let fabric = Running::new("scraped", &["--topology", "single:2"]);
    let [port, web] = [free_port(4), free_port(5)];
    let node = Node::with(&fabric, 1, &(interface(&fabric, 1, "ib0", "10.0.0") + &telemetry(port)));
    node.come_up();
    let config = format!(
        "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n\
         - job_name: pollux\n  static_configs:\n  - targets: ['{port}']\n"
    );
    std::fs::write(fabric.path("prometheus.yml"), config).expect("it is ours");
    let child = Command::new(prometheus)
        .arg(format!("--config.file={}", fabric.path("prometheus.yml")))
        .arg(format!("--storage.tsdb.path={}", fabric.path("tsdb")))
        .arg(format!("--web.listen-address={web}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _prometheus = Ending(child.expect("it starts"));
    let server = format!("http://{web}");
    let until = |query: &str, ending: &str| {
        let begun = Instant::now();
        loop {
            let (_, message) = read_by(&promtool, &["query", "instant", &server, query], "");
            if message.lines().any(|line| line.contains(ending)) {
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "{query}: {message}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    until("up", "=> 1 @");
    until("pollux_interface_up", "interface=\"ib0\"");
    // Prometheus lists targets that it could not read.
    until("scrape_samples_scraped > 150", "job=\"pollux\"");
}

/// A panel with a name that no node has would stay empty without a word.
#[test]
fn the_dashboard_has_only_metrics_that_nodes_have() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("scripts/grafana/pollux.json"));
    let board: Value = serde_json::from_str(&text.expect("it is there")).expect("it is JSON");
    let panels = board["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let expressions = targets.map(|target| target["expr"].as_str().expect("an expression"));
    let variables = board["templating"]["list"].as_array().expect("variables").iter();
    let definitions = variables.filter_map(|one| one["definition"].as_str());
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let used: BTreeSet<_> = expressions
        .chain(definitions)
        .flat_map(|text| text.split(|letter| !is_of_name(letter)))
        .filter(|word| word.starts_with("pollux_"))
        .map(String::from)
        .collect();
    let unknown: Vec<_> = used.difference(&promised()).cloned().collect();
    assert!(unknown.is_empty() && used.len() > 20, "{unknown:?} of {used:?}");
}

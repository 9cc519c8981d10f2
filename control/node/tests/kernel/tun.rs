//! Interfaces at TUN devices: programs of two kernels reach each other through two nodes and a
//! fabric between these. The judges are those programs: ping, traceroute, tracepath, iperf3, and
//! tshark, which dissects what the kernel got.

use crate::namespace::Namespace;
use crate::nodes::{NodeInNamespace, until};
use pollux_node::fabric::Embedded;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::spawn;
use std::time::{Duration, Instant};

/// Two kernels, each with a TUN device of a node; the nodes are at one fabric.
///
/// ```text
///   192.168.1.2 --tun0-- 192.168.1.1, node, 10.0.0.1 --RC--+
///   192.168.2.2 --tun0-- 192.168.2.1, node, 10.0.0.2 ------+
/// ```
struct Kernels {
    first: NodeInNamespace,
    second: NodeInNamespace,
    _fabric: Embedded,
}

impl Kernels {
    /// `keys` are those of the TUN interface, of the first and of the second node.
    fn start(test: &str, keys: [&str; 2]) -> Option<Self> {
        let fabric = Embedded::start("single:2").expect("it starts");
        let start = |nth: usize| {
            let (other, port) = (3 - nth, fabric.port(&format!("host{nth}")));
            let config = format!(
                "[router]\n\
                 [interface.ib0]\ndevice = {port:?}\nmode = \"rc\"\n\
                 address = [\"10.0.0.{nth}/24\", \"fd00::{nth}/64\"]\n\
                 [interface.tun0]\nkind = \"tun\"\n\
                 address = [\"192.168.{nth}.1/24\", \"fd00:{nth}::1/64\"]\n\
                 kernel_address = [\"192.168.{nth}.2/24\", \"fd00:{nth}::2/64\"]\n{}\n\
                 [[route]]\nto = \"192.168.{other}.0/24\"\nvia = [\"10.0.0.{other}\"]\n\
                 [[route]]\nto = \"fd00:{other}::/64\"\nvia = [\"fd00::{other}\"]\n",
                keys[nth - 1]
            );
            let node = NodeInNamespace::start(test, &config)?;
            until("the device", || {
                let shown = node.namespace.json("address show");
                let text = Value::from(shown).to_string();
                let is_there =
                    text.contains(&format!("fd00:{nth}::2")) && text.contains("LOWER_UP");
                if is_there { Ok(()) } else { Err(text) }
            });
            node.namespace.ip(&format!("route add default via 192.168.{nth}.1 dev tun0"));
            node.namespace.ip(&format!("-6 route add default via fd00:{nth}::1 dev tun0"));
            Some(node)
        };
        let (first, second) = (start(1)?, start(2)?);
        let kernels = Self { first, second, _fabric: fabric };
        kernels.first.wait_for_ping("192.168.2.2", &[]);
        kernels.first.wait_for_ping("fd00:2::2", &[]);
        kernels.second.wait_for_ping("192.168.1.2", &[]);
        Some(kernels)
    }
}

/// The output of a program, whether it succeeded or not.
pub fn say(namespace: &Namespace, program: &str, arguments: &str) -> String {
    let output = namespace.command(program).args(arguments.split(' ')).output().expect("it runs");
    [output.stdout, output.stderr]
        .map(|message| String::from_utf8_lossy(&message).into_owned())
        .concat()
}

#[test]
fn long_packets_pass_unfragmented_in_fragments_or_not_at_all() {
    let Some(kernels) = Kernels::start("tun mtu", ["", "mtu = 1500"]) else { return };
    let Kernels { first, second, .. } = &kernels;
    let message = say(&first.namespace, "ping", "-c 1 -W 20 -M do -s 60000 10.0.0.2");
    assert!(message.contains("60008 bytes from 10.0.0.2"), "{message}");
    // The node at the narrow device sends its MTU, once for each destination.
    let message = say(&first.namespace, "ping", "-c 1 -W 20 -M do -s 3000 192.168.2.2");
    assert!(message.contains("From 10.0.0.2") && message.contains("mtu = 1500"), "{message}");
    let message = say(&first.namespace, "ping", "-c 1 -W 20 -M do -s 3000 fd00:2::2");
    assert!(
        message.contains("From fd00::2") && message.contains("Packet too big: mtu=1500"),
        "{message}"
    );
    let route = &first.namespace.json("route get 192.168.2.2")[0];
    assert_eq!(route["metrics"][0]["mtu"], 1500, "{route}");
    first.namespace.ip("route flush cache");
    // Where fragments are allowed, the node makes them: this kernel sends an unfragmented packet.
    let message = say(&first.namespace, "ping", "-c 1 -W 20 -M dont -s 3000 192.168.2.2");
    assert!(message.contains("3008 bytes from 192.168.2.2"), "{message}");
    let message = say(&second.namespace, "ping", "-c 1 -W 20 -s 1472 -M do 192.168.1.2");
    assert!(message.contains("1480 bytes from 192.168.1.2"), "{message}");
}

/// The source of the packet is unknown in the domain that it leaves by.
#[test]
fn errors_about_packets_into_another_domain_reach_the_sender() {
    let config = "[router]\n[domain.red]\n\
        [interface.tun0]\nkind = \"tun\"\ndomain = \"red\"\naddress = [\"192.168.1.1/24\"]\n\
        kernel_address = [\"192.168.1.2/24\"]\n\
        [interface.tun1]\nkind = \"tun\"\nmtu = 1500\naddress = [\"10.1.0.1/24\"]\n\
        [[route]]\ndomain = \"red\"\nto = \"198.18.0.0/16\"\nvia = [\"10.1.0.2\"]\n\
        next_domain = \"default\"\n";
    let Some(node) = NodeInNamespace::start("tun domains", config) else { return };
    node.wait_for_route("198.18.0.0/16", "static", &["10.1.0.2"]);
    until("a route of the kernel", || {
        let add = ["-n", node.namespace.name(), "route", "replace", "198.18.0.0/16", "via"];
        let mut ip = Command::new("ip");
        let done = ip.args(add).args(["192.168.1.1", "dev", "tun0"]).output().expect("ip runs");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(message) }
    });
    let message = say(&node.namespace, "ping", "-c 1 -W 20 -M do -s 3000 198.18.0.1");
    assert!(message.contains("From 192.168.1.1") && message.contains("mtu = 1500"), "{message}");
}

/// The addresses of nodes at the device and at the partition.
#[test]
fn connections_and_datagrams_to_nodes_are_refused_at_once() {
    let Some(kernels) = Kernels::start("tun refused", ["", ""]) else { return };
    kernels.first.namespace.join();
    for ip in ["192.168.1.1", "fd00:1::1", "10.0.0.2", "fd00::2"] {
        let to = (ip.parse::<IpAddr>().expect("an address"), 80);
        let refused = TcpStream::connect(to).expect_err("no node has a socket");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{ip}: {refused}");
        let any = if ip.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        socket.connect(to).expect("there is a route");
        socket.send(b"anybody?").expect("it goes");
        let refused = socket.recv(&mut [0; 9]).expect_err("nobody answers");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{ip}: {refused}");
    }
}

#[test]
fn programs_get_errors_for_routes_that_end() {
    let Some(kernels) = Kernels::start("tun errors", ["", ""]) else { return };
    let first = &kernels.first.namespace;
    let message = say(first, "ping", "-c 1 -W 20 172.31.0.1");
    assert!(
        message.contains("From 192.168.1.1") && message.contains("Net Unreachable"),
        "{message}"
    );
    let message = say(first, "ping", "-c 1 -W 20 fd99::1");
    assert!(message.contains("From fd00:1::1") && message.contains("No route"), "{message}");
    let message = say(first, "ping", "-c 1 -W 20 -t 1 192.168.2.2");
    assert!(
        message.contains("From 192.168.1.1") && message.contains("Time to live exceeded"),
        "{message}"
    );
    let message = say(first, "ping", "-c 1 -W 20 -t 2 fd00:2::2");
    assert!(message.contains("From fd00::2") && message.contains("Hop limit"), "{message}");
    if pollux_referee::program("traceroute", "traceroute").is_some() {
        let ways: [(&str, &[&str]); 5] = [
            ("192.168.2.2", &["192.168.1.1", "10.0.0.2", "192.168.2.2"]),
            ("-6 fd00:2::2", &["fd00:1::1", "fd00::2", "fd00:2::2"]),
            // Nodes have no sockets, and reply with an ICMP error.
            ("10.0.0.2", &["192.168.1.1", "10.0.0.2"]),
            ("-6 fd00::2", &["fd00:1::1", "fd00::2"]),
            ("192.168.1.1", &["192.168.1.1"]),
        ];
        for (to, way) in ways {
            let message = say(first, "traceroute", &format!("-n -q 1 -w 20 {to}"));
            let hops = message.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
            assert_eq!(hops.collect::<Vec<_>>(), way, "{message}");
        }
    }
    // Nor do nodes put fragments together, which is counted.
    let no_socket = || {
        let rows = kernels.second.drops().into_iter();
        let mut of_socket = rows.filter(|row| row.interface == "ib0" && row.why == "no_socket");
        of_socket.next().expect("a counter").count
    };
    let before = no_socket();
    let message = say(first, "ping", "-c 1 -W 1 -M dont -s 65507 10.0.0.2");
    assert!(message.contains("100% packet loss"), "{message}");
    assert_eq!(no_socket() - before, 2, "fragments of {message}");
    if pollux_referee::program("tracepath", "tracepath").is_some() {
        let message = say(first, "tracepath", "-n 192.168.2.2");
        for hop in ["192.168.1.1", "10.0.0.2", "192.168.2.2", "hops 3"] {
            assert!(message.contains(hop), "{message}");
        }
    }
}

/// A server of iperf3 in a namespace, for one test.
pub struct Server(Child);

impl Server {
    pub fn start(namespace: &Namespace) -> Self {
        let mut server = namespace.command("iperf3");
        server.args(["-s", "--forceflush"]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(server.spawn().expect("iperf3 runs"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The report of a client, which tries until the server is there.
pub fn iperf3(namespace: &Namespace, arguments: &str) -> Value {
    let mut report = Value::Null;
    until("a connection of iperf3", || {
        let message = say(namespace, "iperf3", &format!("-J {arguments}"));
        report = serde_json::from_str(&message).map_err(|error| format!("{error}: {message}"))?;
        match report["error"].as_str() {
            Some(error) if error.contains("onnect") => Err(error.into()),
            _ => Ok(()),
        }
    });
    assert!(report["error"].is_null(), "{}", report["error"]);
    report["end"].clone()
}

/// Bytes of a stream in each direction.
const STREAM_BYTES: usize = 32 << 20;

/// A pattern with another value at each offset.
fn pattern(at: usize) -> [u8; 8] {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Sends a stream and receives one at the same time. Fails if a byte is another.
fn exchange(stream: TcpStream) {
    let mut sender = stream.try_clone().expect("a socket");
    let sending = spawn(move || {
        let all: Vec<u8> = (0..STREAM_BYTES / 8).flat_map(pattern).collect();
        sender.write_all(&all).expect("it is sent");
        sender.shutdown(Shutdown::Write).expect("the end is sent");
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received).expect("it is received");
    assert_eq!(received.len(), STREAM_BYTES);
    let mut chunks = received.chunks_exact(8).enumerate();
    assert!(chunks.all(|(at, chunk)| chunk == pattern(at)), "bytes are as they were sent");
    sending.join().expect("it is sent");
}

/// Streams in both directions at once between the two kernels, of each family.
fn streams_are_complete(test: &str, keys: [&str; 2]) {
    let Some(kernels) = Kernels::start(test, keys) else { return };
    let namespaces = [&kernels.first, &kernels.second].map(|node| Arc::clone(&node.namespace));
    for address in ["192.168.2.2:5000", "[fd00:2::2]:5000"] {
        let [client, server] = namespaces.clone();
        let (ready, is_ready) = sync_channel(1);
        let serving = spawn(move || {
            server.join();
            let listener = TcpListener::bind(address).expect("a listener");
            ready.send(()).expect("the client waits");
            exchange(listener.accept().expect("a client").0);
        });
        let asking = spawn(move || {
            client.join();
            is_ready.recv().expect("a server");
            exchange(TcpStream::connect(address).expect("a connection"));
        });
        asking.join().expect("all is received");
        serving.join().expect("all is received");
    }
}

#[test]
fn iperf3_finds_no_error() {
    let test = "tun iperf3";
    if pollux_referee::program_of(test, "iperf3", "--peers").is_none() {
        return;
    }
    let Some(kernels) = Kernels::start(test, ["", "mtu = 9000"]) else { return };
    let (first, second) = (&kernels.first.namespace, &kernels.second.namespace);
    let _server = Server::start(second);
    for options in ["-c 192.168.2.2 -n 32M", "-c fd00:2::2 -n 32M -R", "-c 192.168.2.2 -n 32M -P 3"]
    {
        let end = iperf3(first, options);
        let received = end["sum_received"]["bytes"].as_u64();
        // Packets in flight when the client is done do not count.
        assert!(received >= Some(4 << 20), "{options}: {end}");
    }
    let end = iperf3(first, "-c 192.168.2.2 -u -b 20M -l 1200 -n 2M");
    assert_eq!(end["sum"]["lost_packets"], 0, "{end}");
}

#[test]
fn streams_of_long_packets_are_complete() {
    streams_are_complete("tun streams", ["", ""]);
}

/// The kernels make and take units of segments, which the nodes cut and merge.
#[test]
fn streams_of_units_are_complete() {
    streams_are_complete("tun units", ["mtu = 1500", "mtu = 1500"]);
}

#[test]
fn two_queues_carry_all_flows() {
    let keys = "mtu = 9000\nworkers = 2\n";
    streams_are_complete("tun queues", [keys, "mtu = 1500"]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tshark goes by the clock")]
fn the_kernel_gets_no_malformed_packet() {
    let test = "tun capture";
    if pollux_referee::program(test, "dumpcap").is_none()
        || pollux_referee::program_of(test, "iperf3", "--peers").is_none()
    {
        return;
    }
    let Some(kernels) = Kernels::start(test, ["mtu = 1500", "mtu = 1400"]) else { return };
    let (first, second) = (&kernels.first.namespace, &kernels.second.namespace);
    let file = std::env::temp_dir().join(format!("{}.pcap", second.name()));
    let mut capture = second.command("dumpcap");
    capture.args(["-q", "-i", "tun0", "-w"]).arg(&file).stderr(Stdio::null());
    let mut capture = capture.spawn().expect("dumpcap runs");
    until("a capture", || {
        say(first, "ping", "-c 1 -W 1 192.168.2.2");
        let bytes = std::fs::metadata(&file).map_or(0, |file| file.len());
        if bytes > 1000 { Ok(()) } else { Err(format!("{bytes} bytes")) }
    });
    let server = Server::start(second);
    iperf3(first, "-c 192.168.2.2 -n 4M");
    iperf3(first, "-c fd00:2::2 -n 4M -R");
    drop(server);
    say(first, "ping", "-c 2 -W 20 -M dont -s 3000 192.168.2.2");
    say(second, "ping", "-c 2 -W 20 -t 2 192.168.1.2");
    say(second, "ping", "-c 2 -W 20 fd99::1");
    let mut kill = Command::new("kill");
    kill.args(["-INT", &capture.id().to_string()]).status().expect("kill runs");
    let started = Instant::now();
    while capture.try_wait().expect("it is ours").is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "dumpcap does not end");
        std::thread::yield_now();
    }
    let found = |filter: &str| dissected(&file, filter);
    // The kernel leaves checksums of TCP to the device, so tshark cannot judge those it sends.
    assert_eq!(found("_ws.malformed or ip.checksum.status == 0 or icmp.checksum.status == 0"), "");
    assert_eq!(found("icmpv6.checksum.status == 0"), "");
    let units = found("ip.dst == 192.168.2.2 and tcp.len > 1400").lines().count();
    assert!(units > 10, "segments are merged");
    assert!(found("icmp or icmpv6").lines().count() > 4);
    let _ = std::fs::remove_file(&file);
}

/// The packets of a capture that a filter of tshark shows.
fn dissected(file: &Path, filter: &str) -> String {
    let mut tshark = Command::new("tshark");
    tshark.args(["-o", "ip.check_checksum:TRUE", "-Y", filter, "-r"]).arg(file);
    let output = tshark.output().expect("tshark runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

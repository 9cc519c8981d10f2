//! smoltcp's example programs at a fabric: with each other, and with sockets of ours.
#![expect(clippy::disallowed_methods, reason = "it starts programs")]

#[path = "programs/peers.rs"]
mod peers;

use pollux::{Mode, Node, pinned};
use pollux_node::fabric::Embedded;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ends a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Of a client, until its server listens.
const ATTEMPTS_MAX: usize = 3000;
/// Between two packets to a program that is not ready.
const PAUSE: Duration = Duration::from_millis(20);
const MODES: [(&str, Mode); 2] = [("ud", Mode::Ud), ("rc", Mode::Rc)];

/// A program, which ends with its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// Starts one at a host, which has its number as the last of its addresses.
    fn start(program: &str, fabric: &Embedded, (host, mode): (u32, &str), rest: &[&str]) -> Self {
        let port = fabric.port(&format!("host{host}"));
        let child = Command::new(program)
            .args(["--tun", &port, "--tap", &format!("{host},{mode}")])
            .args(rest)
            .env("RUST_LOG", "debug")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.expect("it starts"))
    }

    /// Waits for its end; returns what it printed.
    fn end(mut self) -> String {
        let mut output = String::new();
        self.0.stdout.take().expect("it is piped").read_to_string(&mut output).expect("text");
        let mut errors = self.0.stderr.take().expect("it is piped");
        errors.read_to_string(&mut output).expect("text");
        assert!(self.0.wait().expect("it was started").success(), "{output}");
        output
    }

    /// Waits until it prints a line with this text to a stream.
    fn until(stream: impl Read, text: &str) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(text)), "it ended without {text:?}");
    }
}

const SERVER: &str = env!("CARGO_BIN_EXE_server");
const CLIENT: &str = env!("CARGO_BIN_EXE_client");
const PING: &str = env!("CARGO_BIN_EXE_ping");
const HTTPCLIENT: &str = env!("CARGO_BIN_EXE_httpclient");
const MULTICAST: &str = env!("CARGO_BIN_EXE_multicast");

/// Sockets of ours at host 2.
fn ours(fabric: &Embedded, mode: Mode) -> pinned::Interface {
    let node = Node::open(&fabric.port("host2")).unwrap();
    let ib0 = node.interface("ib0").mode(mode).address("192.168.69.2/24").address("fdaa::2/64");
    ib0.up_pinned(pinned::Config::default()).unwrap()
}

#[test]
fn server_and_client_reach_each_other() {
    for (mode, address) in [("ud", "192.168.69.1"), ("rc", "fdaa::1")] {
        let fabric = Embedded::start("single:2").unwrap();
        let _server = Program::start(SERVER, &fabric, (1, mode), &[]);
        // Before the server listens, it resets connections.
        let is_answered = (0..ATTEMPTS_MAX).any(|_| {
            let client = Program::start(CLIENT, &fabric, (2, mode), &[address, "6969"]);
            client.end().contains("recv data: \"hello\\n\"")
        });
        assert!(is_answered, "{mode} {address}");
    }
}

#[test]
fn server_answers_sockets_of_ours() {
    for (name, mode) in MODES {
        let fabric = Embedded::start("single:2").unwrap();
        let _server = Program::start(SERVER, &fabric, (1, name), &[]);
        let ib0 = ours(&fabric, mode);
        ib0.ping("192.168.69.1".parse().unwrap(), 1000, LIMIT).unwrap();
        let mut streams = (0..ATTEMPTS_MAX).filter_map(|_| {
            // It handles all packets that are there before it listens.
            std::thread::sleep(PAUSE);
            ib0.tcp_connect("192.168.69.1:6970").ok()
        });
        let mut stream = streams.next().expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"stressed\n").unwrap();
        let mut line = String::new();
        BufReader::new(&mut stream).read_line(&mut line).unwrap();
        assert_eq!(line, "desserts\n");
        // It reads slowly, and takes all.
        let mut sink = ib0.tcp_connect("[fdaa::1]:6971").unwrap();
        sink.set_write_timeout(Some(LIMIT)).unwrap();
        sink.write_all(&vec![7; 1 << 20]).unwrap();
        sink.shutdown(Shutdown::Write).unwrap();
        let socket = ib0.udp_bind("192.168.69.2:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.send_to(b"abc", "192.168.69.1:6969").unwrap();
        let mut buffer = [0; 8];
        let (bytes, _) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"cba");
    }
}

#[test]
fn ping_reaches_an_interface_of_ours() {
    for ((name, mode), address) in MODES.into_iter().zip(["192.168.69.2", "fdaa::2"]) {
        let fabric = Embedded::start("single:2").unwrap();
        let _ours = ours(&fabric, mode);
        // One a second: its socket holds one answer.
        let output = Program::start(PING, &fabric, (1, name), &["-c", "2", address]).end();
        assert!(output.contains("2 packets transmitted, 2 received, 0% packet loss"), "{output}");
    }
}

#[test]
fn httpclient_reads_a_page_of_ours() {
    const BODY: &str = "a page";
    let fabric = Embedded::start("single:2").unwrap();
    let ib0 = ours(&fabric, Mode::Rc);
    let listener = ib0.tcp_listen("192.168.69.2:80", 4).unwrap();
    let url = "http://192.168.69.2/index.html";
    let client = Program::start(HTTPCLIENT, &fabric, (1, "rc"), &["192.168.69.2", url]);
    listener.set_timeout(Some(LIMIT)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut request = String::new();
    BufReader::new(&mut stream).read_line(&mut request).unwrap();
    assert!(request.starts_with("GET /index.html HTTP/1.1"), "{request}");
    let length = BODY.len();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{BODY}").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let output = client.end();
    assert!(output.contains(BODY), "{output}");
}

#[test]
fn multicast_receives_of_the_group_that_it_joined() {
    let group = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251));
    for (name, mode) in MODES {
        let fabric = Embedded::start("single:2").unwrap();
        let mut receiver = Program::start(MULTICAST, &fabric, (1, name), &[]);
        let ib0 = ours(&fabric, mode);
        let socket = ib0.udp_bind("192.168.69.2:5353").unwrap();
        let stdout = receiver.0.stdout.take().unwrap();
        let heard = std::thread::spawn(|| {
            Program::until(stdout, "mDNS traffic: 6 UDP bytes from 192.168.69.2:5353");
        });
        // Until it has joined, the group is nobody's.
        while !heard.is_finished() {
            let _ = socket.send_to(b"a name", (group, 5353));
            std::thread::sleep(PAUSE);
        }
        heard.join().unwrap();
    }
}

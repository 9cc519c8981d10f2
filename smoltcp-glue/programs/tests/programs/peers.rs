//! Connections to a program that is killed, stopped, or started anew.

use crate::{LIMIT, MODES, PAUSE, Program, SERVER, ours};
use pollux::pinned::{Interface, TcpStream};
use pollux::{Mode, Node};
use pollux_node::fabric::Embedded;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::thread::JoinHandle;
use std::time::Duration;

/// Answers lines reversed.
const ECHO: &str = "192.168.69.1:6970";
/// Reads, and sends nothing.
const SINK: &str = "192.168.69.1:6971";
/// Of a ping, which a stopped program does not answer.
const PING_MAX: Duration = Duration::from_secs(1);

/// Connects when the program listens.
fn connect(ib0: &Interface, to: &str) -> TcpStream {
    let mut attempts = std::iter::repeat_with(|| {
        std::thread::sleep(PAUSE);
        ib0.tcp_connect(to)
    });
    attempts.by_ref().take(LIMIT.div_duration_f32(PAUSE) as usize).find_map(Result::ok).unwrap()
}

fn ask(mut stream: &TcpStream, line: &str) -> io::Result<String> {
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}

/// A call that waits without a timeout of its own; the kind of error by which it ends.
fn waits(call: impl FnOnce() -> io::Result<()> + Send + 'static) -> JoinHandle<ErrorKind> {
    std::thread::spawn(|| call().expect_err("the peer is gone").kind())
}

/// All wait without a timeout. Without a sign of the death, the first would end by `TimedOut`,
/// after three minutes.
#[test]
fn calls_on_connections_to_a_killed_program_fail() {
    for (name, mode) in MODES {
        let fabric = Embedded::start("single:2").unwrap();
        let mut server = Program::start(SERVER, &fabric, (1, name), &[]);
        let ib0 = ours(&fabric, mode);
        let echo = connect(&ib0, ECHO);
        assert_eq!(ask(&echo, "stressed\n").unwrap(), "desserts\n");
        let sink = connect(&ib0, SINK);
        let reader = waits(move || (&echo).read_exact(&mut [0]));
        let writer = waits(move || {
            loop {
                (&sink).write_all(&[7; 4096])?;
                (&sink).flush()?;
            }
        });
        server.0.kill().unwrap();
        let [reader, writer] = [reader, writer].map(|call| call.join().unwrap());
        assert_eq!([reader, writer], [ErrorKind::ConnectionReset; 2], "{name}");
    }
}

#[test]
fn a_read_of_an_inline_application_fails_when_its_peer_is_killed() {
    let fabric = Embedded::start("single:2").unwrap();
    let mut server = Program::start(SERVER, &fabric, (1, "rc"), &[]);
    let node = Node::open(&fabric.port("host2")).unwrap();
    let ib0 = node.interface("ib0").mode(Mode::Rc).address("192.168.69.2/24").up().unwrap();
    let mut stream = loop {
        match ib0.tcp_connect(ECHO) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(PAUSE),
        }
    };
    server.0.kill().unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(error.to_string().contains("its port has left the subnet"), "{error}");
}

#[test]
fn connections_to_a_stopped_program_go_on_when_it_continues() {
    let fabric = Embedded::start("single:2").unwrap();
    let server = Program::start(SERVER, &fabric, (1, "rc"), &[]);
    let ib0 = ours(&fabric, Mode::Rc);
    let echo = connect(&ib0, ECHO);
    assert_eq!(ask(&echo, "stressed\n").unwrap(), "desserts\n");
    let pid = Pid::from_child(&server.0);
    kill_process(pid, Signal::STOP).unwrap();
    // Until its neighbors have given it up.
    let ping = || ib0.ping("192.168.69.1".parse().unwrap(), 56, PING_MAX);
    while ping().map_err(|error| error.kind()) != Err(ErrorKind::HostUnreachable) {}
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(ask(&echo, "drawer\n").unwrap(), "reward\n");
}

/// Its first life leaves no trace but in the connections of its peers.
#[test]
fn an_idle_connection_to_a_program_that_was_started_anew_is_reset() {
    for (name, mode) in MODES {
        let fabric = Embedded::start("single:2").unwrap();
        let mut server = Program::start(SERVER, &fabric, (1, name), &[]);
        let ib0 = ours(&fabric, mode);
        let echo = connect(&ib0, ECHO);
        let reader = waits(move || (&echo).read_exact(&mut [0]));
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        let _again = Program::start(SERVER, &fabric, (1, name), &[]);
        assert_eq!(reader.join().unwrap(), ErrorKind::ConnectionReset, "{name}");
        assert_eq!(ask(&connect(&ib0, ECHO), "stressed\n").unwrap(), "desserts\n");
    }
}

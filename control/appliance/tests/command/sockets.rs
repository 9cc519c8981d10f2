//! `pollux show sockets` of programs that use the library, inline and pinned.

use crate::running::{TIMEOUT, folder, output_of};
use crate::schema::Schema;
use pollux::pinned::Config;
use pollux::{Mode, Node, Setup};
use pollux_node::fabric::Embedded;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// An interface, and the path of its admin socket.
fn setup(fabric: &Embedded, host: u8, socket: &Path) -> Setup {
    let node = Node::open(&fabric.port(&format!("host{host}"))).expect("a device");
    let setup = node.interface("ib0").mode(Mode::Rc).timeout(TIMEOUT);
    setup.address(&format!("10.0.0.{host}/24")).admin_socket(socket)
}

fn show(socket: &Path, arguments: &[&str]) -> String {
    let socket = socket.to_str().expect("text");
    let (is_ok, output) =
        output_of(&[&["show", "sockets", "--socket", socket], arguments].concat());
    assert!(is_ok, "{output}");
    output
}

fn rows(socket: &Path) -> Vec<Value> {
    serde_json::from_str(&show(socket, &["--json"])).expect("rows")
}

/// The row of this local address and state, as soon as so many bytes wait there to be read.
fn row(socket: &Path, local: &str, state: Option<&str>, unread: u64) -> Value {
    let begun = Instant::now();
    loop {
        let is_it = |row: &Value| {
            let is_unread = row["receive_queue"].as_u64() == Some(unread);
            row["local"] == local && row["state"].as_str() == state && is_unread
        };
        let all = rows(socket);
        if let Some(row) = all.iter().find(|row| is_it(row)) {
            return row.clone();
        }
        assert!(begun.elapsed() < TIMEOUT, "no {local} {state:?} with {unread}: {all:?}");
    }
}

#[test]
fn a_program_shows_its_sockets() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let folder = folder("sockets");
    std::fs::create_dir_all(&folder).expect("a folder");
    let paths = ["inline", "pinned"].map(|name| folder.join(name));
    let [first, second] = &paths;
    let pinned = setup(&fabric, 2, second).up_pinned(Config { workers: 2, ..Config::default() });
    let pinned = pinned.expect("it comes up");
    let listener = pinned.tcp_listen("10.0.0.2:7", 4).expect("it is free");
    let udp = pinned.udp_bind("10.0.0.2:53").expect("it is free");
    let inline = setup(&fabric, 1, first).up().expect("it comes up");
    let mut client = inline.tcp_connect("10.0.0.2:7").expect("it listens");
    let (mut server, peer) = listener.accept().expect("it is connected");
    let [local, peer] = [client.local_addr().expect("it is bound"), peer].map(|it| it.to_string());
    client.write_all(b"hello").expect("it has space");

    let listening = row(second, "10.0.0.2:7", Some("LISTEN"), 0);
    assert_eq!((&listening["protocol"], listening["peer"].is_null()), (&"tcp".into(), true));
    let bound = row(second, "10.0.0.2:53", None, 0);
    assert_eq!((&bound["protocol"], &bound["interface"]), (&"udp".into(), &"ib0".into()));
    let connected = row(second, "10.0.0.2:7", Some("ESTABLISHED"), 5);
    assert_eq!(
        (&connected["peer"], &connected["tcp"]["bytes_received"]),
        (&peer.into(), &5.into())
    );

    // The application makes no calls meanwhile, and then is in one.
    let sent = row(first, &local, Some("ESTABLISHED"), 0);
    assert_eq!((&sent["peer"], &sent["tcp"]["bytes_sent"]), (&"10.0.0.2:7".into(), &5.into()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                row(first, &local, Some("ESTABLISHED"), 0);
            }
            server.write_all(b"world").expect("it is open");
        });
        client.set_read_timeout(Some(TIMEOUT)).expect("it is some");
        client.read_exact(&mut [0; 5]).expect("an answer");
    });

    let table = show(second, &["--interface", "ib0"]);
    let heading = ["protocol", "state", "receive_queue", "send_queue", "local", "peer"];
    assert!(table.lines().next().expect("a heading").split_whitespace().eq(heading), "{table}");
    // A listener and its parts at two workers, a connection and a UDP socket.
    assert_eq!(table.lines().count(), 1 + 2 + 1 + 1, "{table}");
    assert!(show(second, &["--verbose"]).contains("retransmissions=0"));
    let path = second.to_str().expect("text");
    let (is_ok, output) = output_of(&["show", "neighbors", "--socket", path]);
    assert!(!is_ok && output.contains("which has `pollux show sockets` only"), "{output}");
    paths.iter().for_each(|path| Schema::new().check("sockets", &rows(path).into()));
    drop((client, server, inline, listener, udp, pinned));
    assert!(!first.exists() && !second.exists());
    std::fs::remove_dir_all(folder).expect("it is ours");
}

#[test]
fn a_socket_that_cannot_be_opened_is_an_error_with_its_path() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let nowhere = Path::new("/nowhere/socket");
    let wrong = setup(&fabric, 1, nowhere).up().expect_err("there is no folder").to_string();
    assert!(wrong.starts_with("cannot listen at the socket /nowhere/socket: "), "{wrong}");
}

#[test]
fn more_sockets_than_one_request_returns_are_shown_once_each() {
    let fabric = Embedded::start("single:2").expect("it starts");
    let path = folder("many_sockets");
    let pinned = setup(&fabric, 1, &path).up_pinned(Config { workers: 2, ..Config::default() });
    let pinned = pinned.expect("it comes up");
    let bind = |_| pinned.udp_bind("10.0.0.1:0").expect("a port is free");
    let sockets: Vec<_> = (0..600).map(bind).collect();
    let local =
        |socket: &pollux::pinned::UdpSocket| socket.local_addr().expect("bound").to_string();
    let mut expected: Vec<_> = sockets.iter().map(local).collect();
    let shown = rows(&path);
    let mut shown: Vec<_> = shown.iter().map(|row| row["local"].as_str().expect("text")).collect();
    shown.sort_unstable();
    expected.sort_unstable();
    assert_eq!(shown, expected);
}

//! What applications see of their connections, inline and pinned, over a link that loses packets.

use crate::sockets::at;
use pollux::pinned::Config;
use pollux::{Mode, Node, Setup, TcpInfo, TcpState};
use pollux_node::admin::client::ask;
use pollux_node::admin::request::AdminRequest;
use pollux_node::fabric::Embedded;
use std::io::{Read, Write};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Of which a loss of 5 % takes about 50 packets.
const BYTES: usize = 2_000_000;

pub fn setup(fabric: &Embedded, host: u8) -> Setup {
    let node = Node::open(&fabric.port(&format!("host{host}"))).unwrap();
    let setup = node.interface("ib0").mode(Mode::Ud).timeout(TIMEOUT);
    setup.address(&format!("10.0.0.{host}/24"))
}

/// Sends all bytes and waits for their acknowledgment, without losses and with them.
fn send<S: Write>(fabric: &Embedded, mut stream: S, info: impl Fn(&S) -> TcpInfo) {
    let before = info(&stream);
    assert_eq!((before.state, before.bytes_sent), (TcpState::Established, 0));
    for rule in [None, Some("loss=5%")] {
        let add = |rule: &str| ask(&fabric.path(), &AdminRequest::AddFault(rule.into())).unwrap();
        let number = rule.map(add);
        let before = info(&stream);
        stream.write_all(&vec![7; BYTES]).unwrap();
        stream.flush().unwrap();
        let after = info(&stream);
        let acknowledged = after.bytes_acknowledged - before.bytes_acknowledged;
        assert_eq!((acknowledged, after.send_queue, after.bytes_in_flight), (BYTES as u64, 0, 0));
        let first = after.bytes_sent - after.bytes_retransmitted;
        assert_eq!(first, after.bytes_acknowledged);
        assert!(after.rtt > Some(Duration::ZERO) && after.rto > Duration::ZERO, "{after:?}");
        assert_eq!((after.path_mtu, after.mss > 0), (2044, true));
        if let Some(number) = number {
            assert!(after.retransmissions > before.retransmissions, "{after:?}");
            assert!(after.bytes_retransmitted > before.bytes_retransmitted, "{after:?}");
            assert!(after.congestion_window.is_some(), "{after:?}");
            let number = number.as_u64().unwrap() as u32;
            ask(&fabric.path(), &AdminRequest::RemoveFault(number)).unwrap();
        }
    }
}

/// Lets `send` connect to a peer that reads everything, and checks the counters of the peer.
fn receive(fabric: &Embedded, send: impl FnOnce()) {
    let peer = setup(fabric, 2).up_pinned(Config::default()).unwrap();
    let listener = peer.tcp_listen(at(2, 7), 1).unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let read = std::io::copy(&mut Read::by_ref(&mut stream), &mut std::io::sink()).unwrap();
            (read, stream.info().unwrap())
        });
        send();
        let (read, info) = received.join().unwrap();
        assert_eq!((read, info.bytes_received), (2 * BYTES as u64, 2 * BYTES as u64));
        assert_eq!((info.bytes_sent, info.receive_queue), (0, 0));
    });
}

#[test]
fn an_inline_connection_counts_what_it_wrote_and_retransmitted() {
    let fabric = Embedded::start("single:2").unwrap();
    receive(&fabric, || {
        let interface = setup(&fabric, 1).up().unwrap();
        let stream = interface.tcp_connect(at(2, 7)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        send(&fabric, stream, |stream| stream.info().unwrap());
    });
}

#[test]
fn a_pinned_connection_counts_what_it_wrote_and_retransmitted() {
    let fabric = Embedded::start("single:2").unwrap();
    receive(&fabric, || {
        let interface = setup(&fabric, 1).up_pinned(Config::default()).unwrap();
        let stream = interface.tcp_connect(at(2, 7)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        send(&fabric, stream, |stream| stream.info().unwrap());
    });
}

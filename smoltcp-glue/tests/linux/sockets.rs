//! Streams with checksums, datagrams and groups. The peer in the guest is socat.

use crate::testbed::{MODES, TIMEOUT, Testbed, at, wait_for};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};

/// Bytes of a stream.
const BYTES: usize = 8_000_000;

/// The bytes of the stream.
fn bytes() -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The CRC-32 and length, in the format of [`SUM`].
fn sum(bytes: &[u8]) -> String {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    };
    format!("{:08x} {}", !bytes.iter().fold(!0, step), bytes.len())
}

/// A shell function that prints both for a file in the guest.
const SUM: &str = "sum() { echo $(crc32 $1 | cut -c1-8) $(wc -c < $1); };";

/// A command that listens for a stream in the guest.
fn listen() -> String {
    let socat = "socat -u TCP4-LISTEN:81 CREATE:/tmp/received > /tmp/socat 2>&1 &";
    format!("{socat} {}", wait_for("tcp", 81))
}

/// A command that prints the sum of that stream after its end.
fn received_sum() -> String {
    format!("{SUM} over() {{ ! pidof socat; }}; wait_for 30 over; sum /tmp/received")
}

#[test]
fn streams_with_linux_have_equal_checksums() {
    for mode in MODES {
        let test = "streams_with_linux_have_equal_checksums";
        let Some(mut testbed) = Testbed::start(test, mode) else { return };
        let sent = bytes();

        // Linux connects, and prints the sum of its stream.
        let listener = testbed.interface.tcp_listen(at(1, 80), 1).expect("the port is free");
        listener.set_timeout(Some(TIMEOUT)).unwrap();
        let send = format!(
            "{SUM} head -c {BYTES} /dev/urandom > /tmp/sent; sum /tmp/sent;
             socat -u FILE:/tmp/sent TCP4:10.0.0.1:80"
        );
        let begun = testbed.begin(&send);
        let (mut stream, peer) = listener.accept().expect("Linux connects");
        assert_eq!(peer.ip(), at(2, 0).ip());
        let mut received = Vec::new();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.read_to_end(&mut received).expect("all of it arrives");
        drop(stream);
        assert_eq!(testbed.end(begun), sum(&received));
        assert_eq!(received.len(), BYTES);

        // Linux listens.
        testbed.linux(&listen());
        let mut stream = testbed.interface.tcp_connect(at(2, 81)).expect("Linux listens");
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&sent).expect("there is space in time");
        stream.shutdown(Shutdown::Write).expect("it is open");
        stream.flush().expect("Linux acknowledges it");
        assert_eq!(testbed.linux(&received_sum()), sum(&sent));
        assert_eq!(testbed.linux("counter port_rcv_errors"), "0");
    }
}

#[test]
fn datagrams_and_groups_work_with_linux() {
    let test = "datagrams_and_groups_work_with_linux";
    let Some(mut testbed) = Testbed::start(test, MODES[0]) else { return };
    let group: IpAddr = "239.1.2.3".parse().expect("an address");
    let groups_before = testbed.groups_of_linux();
    let socket = testbed.interface.udp_bind(at(1, 5000)).expect("the port is free");
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut buffer = vec![0; 65_536];

    // Linux echoes all datagrams; the longest needs connected mode.
    let echo = "socat -b65536 UDP4-RECVFROM:5001,fork EXEC:cat > /tmp/echo 2>&1 &";
    testbed.linux(&format!("{echo} {}", wait_for("udp", 5001)));
    for len in [1, 64, 2044 - 28, 20_000] {
        let payload = vec![len as u8; len];
        socket.send_to(&payload, at(2, 5001)).expect("there is space");
        let (received, from) = socket.recv_from(&mut buffer).expect("Linux answers");
        assert_eq!((&buffer[..received], from), (&payload[..], at(2, 5001)));
    }

    // No connection carries the longest there is: it goes in fragments, both ways.
    let longest: Vec<u8> = bytes()[..65_507].to_vec();
    let receive = "socat -u -b65536 UDP4-RECV:5003 CREATE:/tmp/long > /tmp/socat 2>&1 &";
    testbed.linux(&format!("{receive} {}", wait_for("udp", 5003)));
    socket.send_to(&longest, at(2, 5003)).expect("there is space");
    let arrived = "arrived() { [ $(wc -c < /tmp/long) = 65507 ]; }; wait_for 10 arrived";
    assert_eq!(testbed.linux(&format!("{SUM} {arrived}; sum /tmp/long")), sum(&longest));
    let begun = testbed.begin("socat -u -b65536 FILE:/tmp/long UDP4-SENDTO:10.0.0.1:5000");
    let (received, _) = socket.recv_from(&mut buffer).expect("Linux sends it back");
    assert!(buffer[..received] == longest, "{received} bytes");
    testbed.end(begun);

    // Linux joins the group.
    let join = "socat -u UDP4-RECV:5002,ip-add-membership=239.1.2.3:ib0 CREATE:/tmp/group";
    let begin = format!("{join} > /tmp/socat 2>&1 & echo $! > /tmp/member");
    testbed.linux(&format!("{begin}; {}", wait_for("udp", 5002)));
    testbed.until_groups(groups_before + 1);
    for _ in 0..5 {
        socket.send_to(b"to all\n", SocketAddr::new(group, 5002)).expect("there is space");
    }
    let all = "all() { [ $(wc -l < /tmp/group) = 5 ]; }";
    assert_eq!(testbed.linux(&format!("{all}; wait_for 10 all; sort -u /tmp/group")), "to all");
    // A group has no connection: these go in fragments.
    let long = [vec![b'-'; 4999], vec![b'\n']].concat();
    socket.send_to(&long, SocketAddr::new(group, 5002)).expect("there is space");
    let arrived = "arrived() { [ $(wc -c < /tmp/group) = 5035 ]; }; wait_for 10 arrived";
    assert_eq!(testbed.linux(&format!("{arrived}; tail -n 1 /tmp/group | tr -d -- -")), "");

    // So does Pollux.
    socket.join(group).expect("there is space");
    let send = "for i in 1 2 3 4 5; do echo from Linux; sleep 0.2; done |
        socat -u - UDP4-DATAGRAM:239.1.2.3:5000,ip-multicast-if=10.0.0.2";
    let begun = testbed.begin(send);
    let (received, from) = socket.recv_from(&mut buffer).expect("a datagram of Linux");
    assert!(buffer[..received].starts_with(b"from Linux\n"));
    assert_eq!(from.ip(), at(2, 0).ip());
    testbed.end(begun);

    // Linux leaves the group, and the subnet administrator learns of it.
    testbed.linux("kill $(cat /tmp/member)");
    testbed.until_groups(groups_before);
    assert_eq!(testbed.linux("counter port_rcv_errors"), "0");
}

/// Changes of Linux's link during a stream.
const CHANGES: usize = 6;

#[test]
fn a_stream_survives_changes_of_mode_and_link_state() {
    let test = "a_stream_survives_changes_of_mode_and_link_state";
    let Some(mut testbed) = Testbed::start(test, MODES[0]) else { return };
    let sent = bytes();
    testbed.linux(&listen());
    let mut stream = testbed.interface.tcp_connect(at(2, 81)).expect("Linux listens");
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    for (part, nth) in sent.chunks(BYTES / CHANGES + 1).zip(0..) {
        let change = match nth % 3 {
            0 => "echo datagram > /sys/class/net/ib0/mode",
            1 => "echo connected > /sys/class/net/ib0/mode",
            _ => "ip link set ib0 down; sleep 0.3; ip link set ib0 up; wait_carrier ib0",
        };
        let begun = testbed.begin(change);
        stream.write_all(part).expect("there is space in time");
        testbed.end(begun);
    }
    stream.shutdown(Shutdown::Write).expect("it is open");
    stream.flush().expect("Linux acknowledges it");
    assert_eq!(testbed.linux(&received_sum()), sum(&sent));
    assert_eq!(testbed.linux("counter port_rcv_errors"), "0");
}

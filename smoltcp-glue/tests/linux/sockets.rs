//! Streams with checksums, datagrams and groups. In the guest socat has the other end.

use crate::meeting::{MODES, Meeting, TIMEOUT, at, wait_for};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};

/// Bytes of a stream.
const BYTES: usize = 8_000_000;

/// A stream that is no other one's.
fn bytes() -> Vec<u8> {
    (0..BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Its CRC-32 and length, in the words of [`SUM`].
fn sum(bytes: &[u8]) -> String {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    };
    format!("{:08x} {}", !bytes.iter().fold(!0, step), bytes.len())
}

/// What tells them of a file in the guest.
const SUM: &str = "sum() { echo $(crc32 $1 | cut -c1-8) $(wc -c < $1); };";

/// Listens in the guest for one stream.
fn listen() -> String {
    let socat = "socat -u TCP4-LISTEN:81 CREATE:/tmp/came > /tmp/socat 2>&1 &";
    format!("{socat} {}", wait_for("tcp", 81))
}

/// The sum of that stream, once it is over.
fn heard() -> String {
    format!("{SUM} over() {{ ! pidof socat; }}; wait_for 30 over; sum /tmp/came")
}

#[test]
fn streams_go_both_ways_whole() {
    for mode in MODES {
        let test = "streams_go_both_ways_whole";
        let Some(mut meeting) = Meeting::arrange(test, mode) else { return };
        let ours = bytes();

        // We listen. What comes is what Linux has made, whose sum it tells.
        let listener = meeting.interface.tcp_listen(at(1, 80), 1).expect("the port is free");
        listener.set_timeout(Some(TIMEOUT));
        let send = format!(
            "{SUM} head -c {BYTES} /dev/urandom > /tmp/sent; sum /tmp/sent;
             socat -u FILE:/tmp/sent TCP4:10.0.0.1:80"
        );
        let begun = meeting.begin(&send);
        let (mut stream, peer) = listener.accept().expect("Linux comes");
        assert_eq!(peer.ip(), at(2, 0).ip());
        let mut came = Vec::new();
        stream.set_read_timeout(Some(TIMEOUT));
        stream.read_to_end(&mut came).expect("it comes whole");
        drop(stream);
        assert_eq!(meeting.end(begun), sum(&came));
        assert_eq!(came.len(), BYTES);

        // Linux listens.
        meeting.linux(&listen());
        let mut stream = meeting.interface.tcp_connect(at(2, 81)).expect("Linux listens");
        stream.set_write_timeout(Some(TIMEOUT));
        stream.write_all(&ours).expect("there is room in time");
        stream.shutdown(Shutdown::Write).expect("it is open");
        stream.flush().expect("Linux takes it");
        assert_eq!(meeting.linux(&heard()), sum(&ours));
        assert_eq!(meeting.linux("counter port_rcv_errors"), "0");
    }
}

#[test]
fn datagrams_and_groups_are_heard_on_both_sides() {
    let test = "datagrams_and_groups_are_heard_on_both_sides";
    let Some(mut meeting) = Meeting::arrange(test, MODES[0]) else { return };
    let group: IpAddr = "239.1.2.3".parse().expect("an address");
    let heard_before = meeting.groups_of_linux();
    let socket = meeting.interface.udp_bind(at(1, 5000)).expect("the port is free");
    socket.set_read_timeout(Some(TIMEOUT));
    let mut buffer = vec![0; 65_536];

    // Linux answers whatever comes to it; the longest needs a connection.
    let echo = "socat -b65536 UDP4-RECVFROM:5001,fork EXEC:cat > /tmp/echo 2>&1 &";
    meeting.linux(&format!("{echo} {}", wait_for("udp", 5001)));
    for len in [1, 64, 2044 - 28, 20_000] {
        let payload = vec![len as u8; len];
        socket.send_to(&payload, at(2, 5001)).expect("there is room");
        let (came, from) = socket.recv_from(&mut buffer).expect("Linux answers");
        assert_eq!((&buffer[..came], from), (&payload[..], at(2, 5001)));
    }

    // Linux hears the group, so its port is in it.
    let hear = "socat -u UDP4-RECV:5002,ip-add-membership=239.1.2.3:ib0 CREATE:/tmp/group";
    let begin = format!("{hear} > /tmp/socat 2>&1 & echo $! > /tmp/hears");
    meeting.linux(&format!("{begin}; {}", wait_for("udp", 5002)));
    meeting.until_groups(heard_before + 1);
    for _ in 0..5 {
        socket.send_to(b"to all\n", SocketAddr::new(group, 5002)).expect("there is room");
    }
    let all = "all() { [ $(wc -l < /tmp/group) = 5 ]; }";
    assert_eq!(meeting.linux(&format!("{all}; wait_for 10 all; sort -u /tmp/group")), "to all");

    // And so do we.
    socket.join(group).expect("there is room");
    let speak = "for i in 1 2 3 4 5; do echo from Linux; sleep 0.2; done |
        socat -u - UDP4-DATAGRAM:239.1.2.3:5000,ip-multicast-if=10.0.0.2";
    let begun = meeting.begin(speak);
    let (came, from) = socket.recv_from(&mut buffer).expect("Linux speaks");
    assert!(buffer[..came].starts_with(b"from Linux\n"));
    assert_eq!(from.ip(), at(2, 0).ip());
    meeting.end(begun);

    // It leaves, and the administrator hears of it.
    meeting.linux("kill $(cat /tmp/hears)");
    meeting.until_groups(heard_before);
    assert_eq!(meeting.linux("counter port_rcv_errors"), "0");
}

/// How often Linux's mode changes while a stream goes on.
const CHANGES: usize = 6;

#[test]
fn a_stream_survives_what_happens_to_the_link() {
    let test = "a_stream_survives_what_happens_to_the_link";
    let Some(mut meeting) = Meeting::arrange(test, MODES[0]) else { return };
    let ours = bytes();
    meeting.linux(&listen());
    let mut stream = meeting.interface.tcp_connect(at(2, 81)).expect("Linux listens");
    stream.set_write_timeout(Some(TIMEOUT));
    for (part, nth) in ours.chunks(BYTES / CHANGES + 1).zip(0..) {
        let trouble = match nth % 3 {
            0 => "echo datagram > /sys/class/net/ib0/mode",
            1 => "echo connected > /sys/class/net/ib0/mode",
            _ => "ip link set ib0 down; sleep 0.3; ip link set ib0 up; wait_carrier ib0",
        };
        let begun = meeting.begin(trouble);
        stream.write_all(part).expect("there is room in time");
        meeting.end(begun);
    }
    stream.shutdown(Shutdown::Write).expect("it is open");
    stream.flush().expect("Linux takes it");
    assert_eq!(meeting.linux(&heard()), sum(&ours));
    assert_eq!(meeting.linux("counter port_rcv_errors"), "0");
}

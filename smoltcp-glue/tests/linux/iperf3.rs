//! Linux's iperf3 and ours of `examples/iperf3`, each as client and as server, with streams and
//! with datagrams, both ways, over connections and by datagram: both have to count the same.
//!
//! A client of Linux says that a test is over before the server has read all, and a server of
//! Linux believes that. So ours as a client lets Linux read first, and ours as a server reads as
//! much as the client then says that it has sent.

use crate::client::Client;
use crate::meeting::{MODES, Meeting, at};
use crate::report::Report;
use crate::server::Server;
use crate::wire::{Amount, Count, PORT, Protocol, Test};
use serde_json::Value;

/// Bytes of a stream: whole blocks, since a client of Linux sends nothing else.
const BYTES: u64 = 1 << 20;
/// So few that a socket of Linux holds all, however late it is read.
const DATAGRAMS: u64 = 20;
/// Short enough for a link that has just lost its connection.
const DATAGRAM_LEN: usize = 1400;
const BITS_A_SECOND: u64 = 10_000_000;

#[test]
fn iperf3_of_linux_counts_the_same_over_connections() {
    count("iperf3_of_linux_counts_the_same_over_connections", 0);
}

#[test]
fn iperf3_of_linux_counts_the_same_by_datagram() {
    count("iperf3_of_linux_counts_the_same_by_datagram", 1);
}

/// Streams and datagrams, each way and each with either as the client.
fn count(name: &str, mode: usize) {
    let Some(mut meeting) = Meeting::arrange(name, MODES[mode]) else { return };
    let stream = Test { amount: Amount::Bytes(BYTES), ..Test::of(Protocol::Tcp) };
    let datagrams = Test {
        amount: Amount::Bytes(DATAGRAMS * DATAGRAM_LEN as u64),
        block: DATAGRAM_LEN,
        rate: Some(BITS_A_SECOND),
        ..Test::of(Protocol::Udp)
    };
    let server = Server::bind(&meeting.interface, at(1, PORT)).expect("the port is free");
    for test in [stream, datagrams] {
        for test in [test, Test { is_reverse: true, ..test }] {
            // A connection that breaks takes with it what is under way.
            assert!((0..3).any(|_| is_whole(&as_client(&mut meeting, test))), "{test:?}");
            assert!((0..3).any(|_| is_whole(&as_server(&mut meeting, &server, test))), "{test:?}");
        }
    }
    assert_eq!(meeting.linux("counter port_rcv_errors"), "0");
}

/// Ours is the client. Linux tells what it has counted, and in what words it has told us.
fn as_client(meeting: &mut Meeting, test: Test) -> Report {
    meeting.linux(&format!(
        "iperf3 -s -1 -4 -J > /tmp/said 2>&1 & echo $! > /tmp/iperf3;
         wait_for 30 grep -q ':{PORT:04X} 00000000:0000 0A' /proc/net/tcp"
    ));
    let control = meeting.interface.tcp_connect(at(2, PORT)).expect("Linux listens");
    let mut client = Client::start(&meeting.interface, control, test).expect("it agrees");
    client.transfer().expect("all goes");
    if !test.is_reverse {
        // What has come and was not read stands behind the colon.
        meeting.linux(&format!(
            "has_read() {{ ! grep -h ':{PORT:04X} 0100000A:.* 0[17] ' /proc/net/tcp /proc/net/udp |
                grep -v ':00000000 ..:'; }}; wait_for 30 has_read"
        ));
    }
    let report = client.finish().expect("it agrees");
    let output =
        meeting.linux("over() { ! kill -0 $(cat /tmp/iperf3); }; wait_for 30 over; cat /tmp/said");
    println!("{test:?}:\n{report}");
    match test.is_reverse {
        true => assert_eq!(said(&output, "sum_sent"), bytes_and_lost(report.sent), "{output}"),
        false => {
            let theirs = bytes_and_lost(report.received);
            assert_eq!(said(&output, "sum_received"), theirs, "{output}");
        }
    }
    report
}

/// Ours is the server. Linux tells what both have counted.
fn as_server(meeting: &mut Meeting, server: &Server, test: Test) -> Report {
    let Amount::Bytes(bytes) = test.amount else { unreachable!("no test here goes by time") };
    let udp = match test.protocol {
        Protocol::Udp => format!("-u -l {} -b {BITS_A_SECOND}", test.block),
        Protocol::Tcp => String::new(),
    };
    let reverse = if test.is_reverse { "-R" } else { "" };
    let begun = meeting.begin(&format!("iperf3 -c 10.0.0.1 -J -n {bytes} {udp} {reverse}"));
    let report = server.serve().expect("they agree");
    let output = meeting.end(begun);
    println!("{test:?}, of Linux:\n{report}");
    assert_eq!(report.test, test);
    assert_eq!(said(&output, "sum_sent").0, report.sent.bytes, "{output}");
    assert_eq!(said(&output, "sum_received"), bytes_and_lost(report.received), "{output}");
    report
}

/// What iperf3 in the guest says of bytes and lost datagrams, sent or received.
fn said(output: &str, key: &str) -> (u64, u64) {
    let json: Value = serde_json::from_str(output).expect("it speaks JSON");
    let number = |name: &str| json["end"][key][name].as_u64().unwrap_or_default();
    (number("bytes"), number("lost_packets"))
}

const fn bytes_and_lost(count: Count) -> (u64, u64) {
    (count.bytes, count.lost)
}

/// Whether all that was sent was received, or missed: nobody misses datagrams behind the last one.
fn is_whole(report: &Report) -> bool {
    let Report { test, sent, received } = *report;
    let what = format!("{test:?}: {report}");
    match test.protocol {
        Protocol::Tcp => {
            assert!(sent.bytes >= BYTES, "{what}");
            assert_eq!(sent.bytes, received.bytes, "{what}");
            true
        }
        Protocol::Udp => {
            let block = test.block as u64;
            assert!(sent.datagrams >= DATAGRAMS && received.bytes > 0, "{what}");
            assert_eq!(sent.bytes, sent.datagrams * block, "{what}");
            assert_eq!(received.datagrams, received.bytes / block + received.lost, "{what}");
            sent.datagrams == received.datagrams
        }
    }
}

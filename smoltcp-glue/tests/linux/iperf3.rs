//! iperf3 of Linux and `examples/iperf3`, each as client and as server, with streams and datagrams,
//! in both directions and in both modes: both programs have to report the same counts.
//!
//! A client of Linux ends a test before the server has read everything, and so does a server of
//! Linux. So our client waits until Linux has read, and our server reads as much as the client then
//! reports as sent.

use crate::client::Client;
use crate::report::Report;
use crate::server::Server;
use crate::testbed::{MODES, Testbed, at};
use crate::wire::{Amount, Count, PORT, Protocol, Test};
use serde_json::Value;

/// Bytes of a stream: a multiple of the block size of a Linux client.
const BYTES: u64 = 1 << 20;
/// So few that the receive buffer of a Linux socket holds all.
const DATAGRAMS: u64 = 20;
/// Fits a link in datagram mode, after the loss of its connection.
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

/// Streams and datagrams, in each direction and with each program as the client.
fn count(name: &str, mode: usize) {
    let Some(mut testbed) = Testbed::start(name, MODES[mode]) else { return };
    let stream = Test { amount: Amount::Bytes(BYTES), ..Test::of(Protocol::Tcp) };
    let datagrams = Test {
        amount: Amount::Bytes(DATAGRAMS * DATAGRAM_LEN as u64),
        block: DATAGRAM_LEN,
        rate: Some(BITS_A_SECOND),
        ..Test::of(Protocol::Udp)
    };
    let server = Server::bind(&testbed.interface, at(1, PORT)).expect("the port is free");
    for test in [stream, datagrams] {
        for test in [test, Test { is_reverse: true, ..test }] {
            // A connection that breaks loses the packets in flight.
            assert!((0..3).any(|_| is_complete(&as_client(&mut testbed, test))), "{test:?}");
            assert!(
                (0..3).any(|_| is_complete(&as_server(&mut testbed, &server, test))),
                "{test:?}"
            );
        }
    }
    assert_eq!(testbed.linux("counter port_rcv_errors"), "0");
}

/// Runs our client. Linux prints its own counts, and those that it has sent to the client.
fn as_client(testbed: &mut Testbed, test: Test) -> Report {
    testbed.linux(&format!(
        "iperf3 -s -1 -4 -J > /tmp/output 2>&1 & echo $! > /tmp/iperf3;
         wait_for 30 grep -q ':{PORT:04X} 00000000:0000 0A' /proc/net/tcp"
    ));
    let control = testbed.interface.tcp_connect(at(2, PORT)).expect("Linux listens");
    let mut client =
        Client::start(&testbed.interface, control, test).expect("the protocol succeeds");
    client.transfer().expect("all data are sent");
    if !test.is_reverse {
        // Unread bytes are the number behind the colon.
        testbed.linux(&format!(
            "has_read() {{ ! grep -h ':{PORT:04X} 0100000A:.* 0[17] ' /proc/net/tcp /proc/net/udp |
                grep -v ':00000000 ..:'; }}; wait_for 30 has_read"
        ));
    }
    let report = client.finish().expect("the protocol succeeds");
    let output = testbed
        .linux("over() { ! kill -0 $(cat /tmp/iperf3); }; wait_for 30 over; cat /tmp/output");
    println!("{test:?}:\n{report}");
    match test.is_reverse {
        true => assert_eq!(reported(&output, "sum_sent"), bytes_and_lost(report.sent), "{output}"),
        false => {
            let theirs = bytes_and_lost(report.received);
            assert_eq!(reported(&output, "sum_received"), theirs, "{output}");
        }
    }
    report
}

/// Runs our server. Linux prints the counts of both.
fn as_server(testbed: &mut Testbed, server: &Server, test: Test) -> Report {
    let Amount::Bytes(bytes) = test.amount else { unreachable!("no test here has a duration") };
    let udp = match test.protocol {
        Protocol::Udp => format!("-u -l {} -b {BITS_A_SECOND}", test.block),
        Protocol::Tcp => String::new(),
    };
    let reverse = if test.is_reverse { "-R" } else { "" };
    let begun = testbed.begin(&format!("iperf3 -c 10.0.0.1 -J -n {bytes} {udp} {reverse}"));
    let report = server.serve().expect("the protocol succeeds");
    let output = testbed.end(begun);
    println!("{test:?}, of Linux:\n{report}");
    assert_eq!(report.test, test);
    assert_eq!(reported(&output, "sum_sent").0, report.sent.bytes, "{output}");
    assert_eq!(reported(&output, "sum_received"), bytes_and_lost(report.received), "{output}");
    report
}

/// The bytes and lost datagrams, sent or received, in a report of iperf3.
fn reported(output: &str, key: &str) -> (u64, u64) {
    let json: Value = serde_json::from_str(output).expect("JSON");
    let number = |name: &str| json["end"][key][name].as_u64().unwrap_or_default();
    (number("bytes"), number("lost_packets"))
}

const fn bytes_and_lost(count: Count) -> (u64, u64) {
    (count.bytes, count.lost)
}

/// Whether all datagrams were received or counted as lost: losses after the last one are not
/// counted.
fn is_complete(report: &Report) -> bool {
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

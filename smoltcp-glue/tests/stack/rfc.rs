//! Clauses of TCP's RFCs about segments that a peer in order does not send: a test for each.

use crate::segment::{header_of, segment, sent_by};
use crate::world::{LinkFaults, World, at, ip};
use pollux::stack::{Stack, StackConfig, TcpError, TcpId};
use pollux_wire::ip::tcp::TcpHeader;
use std::net::SocketAddr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The first retransmission timeout of a SYN.
const SYN_RETRANSMISSION: Duration = Duration::from_millis(200);
/// The minimum interval between challenge ACKs of a connection (RFC 5961 7).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(200);
const WINDOW: u32 = 512 << 10;

/// A connection of the first host to the second, with addresses and sequence numbers.
struct Pair {
    world: World,
    ids: [TcpId; 2],
    /// Addresses of client and server.
    ends: (SocketAddr, SocketAddr),
    /// The next sequence numbers of client and server.
    next: (u32, u32),
}

fn connected() -> Pair {
    let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
    let ids = world.connected(80, false);
    let ends = world.hosts[0].tcp_addresses(ids[0]).expect("it is open");
    assert_eq!(world.hosts[0].tcp_send(ids[0], b"x"), Ok(Some(1)));
    let now = world.now;
    let packet = world.hosts[0].poll_transmit(now).expect("it has a byte to send").to_vec();
    let header = header_of(&packet);
    world.hosts[1].handle_packet(now, &packet);
    world.pass(SECOND);
    let next = (header.sequence_number.wrapping_add(1), header.acknowledgment_number);
    Pair { world, ids, ends, next }
}

/// The server closes first, so it has the TIME-WAIT state. `next` is before both FINs.
fn in_time_wait() -> Pair {
    let mut pair = connected();
    let [client, server] = pair.ids;
    assert_eq!(pair.world.hosts[1].tcp_recv(server, &mut [0; 9]), Ok(Some(1)));
    for (host, id) in [(1, server), (0, client)] {
        let now = pair.world.now;
        pair.world.hosts[host].tcp_close(now, id);
        pair.world.pass(Duration::from_millis(10));
    }
    pair
}

impl Pair {
    /// Passes a forged segment of the client to the server; returns headers of immediate answers.
    fn forge(&mut self, header: TcpHeader, payload: &[u8]) -> Vec<TcpHeader> {
        let packet = segment(self.ends, header, &[], payload);
        let now = self.world.now;
        self.world.hosts[1].handle_packet(now, &packet);
        sent_by(&mut self.world, 1)
    }

    /// A header that the client could send next.
    fn header(&self) -> TcpHeader {
        TcpHeader {
            sequence_number: self.next.0,
            acknowledgment_number: self.next.1,
            ack: true,
            window: 1000,
            ..TcpHeader::default()
        }
    }

    /// Asserts that the only answer is a challenge ACK.
    fn assert_challenge(&self, answers: &[TcpHeader], what: &str) {
        let [answer] = answers else { panic!("{what}: {answers:?}") };
        let flags = (answer.ack, answer.syn, answer.rst, answer.fin);
        assert_eq!(flags, (true, false, false, false), "{what}");
        let numbers = (answer.acknowledgment_number, answer.sequence_number);
        assert_eq!(numbers, self.next, "{what}");
    }

    fn server_end(&self) -> Option<TcpError> {
        self.world.end_of(1, self.ids[1])
    }
}

/// RFC 9293 3.10.7.4, RFC 5961 4.2.
#[test]
fn a_syn_in_a_synchronized_state_gets_a_challenge_ack() {
    for offset in [0, 1000, WINDOW - 100, 2 * WINDOW, 1 << 31, 0_u32.wrapping_sub(1)] {
        for ack in [false, true] {
            let mut pair = connected();
            let header = pair.header();
            let sequence_number = header.sequence_number.wrapping_add(offset);
            let syn = TcpHeader { sequence_number, syn: true, ack, ..header };
            let what = format!("offset {offset}, ack {ack}");
            let answers = pair.forge(syn, &[]);
            pair.assert_challenge(&answers, &what);
            assert_eq!(pair.server_end(), None, "{what}");
        }
    }
}

/// RFC 5961 7.
#[test]
fn challenge_acks_of_a_connection_are_limited_in_rate() {
    let mut pair = connected();
    let syn = TcpHeader { syn: true, ack: false, ..pair.header() };
    for _ in 0..3 {
        let answers: usize = (0..100).map(|_| pair.forge(syn, &[]).len()).sum();
        assert_eq!(answers, 1);
        pair.world.pass(CHALLENGE_INTERVAL);
    }
}

/// RFC 9293 3.5.1: the challenge ACK makes it reset the old connection; its next SYN is accepted.
#[test]
fn a_restarted_host_connects_from_the_same_port() {
    for (has_closed, unread) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let what = format!("closed {has_closed}, {unread} bytes unread");
        let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
        let listener = world.hosts[1].tcp_listen(at(1, 80), 100).expect("the port is free");
        let connect = |world: &mut World| {
            let now = world.now;
            world.hosts[0].tcp_connect(now, at(0, 50_000), at(1, 80)).expect("the port is free")
        };
        let client = connect(&mut world);
        world.pass(SECOND);
        let old = world.hosts[1].tcp_accept(listener).expect("it listens").expect("it is open");
        if unread > 0 {
            world.hosts[0].tcp_send(client, &vec![7; unread]).expect("it is open");
            world.pass(SECOND);
        }
        if has_closed {
            let now = world.now;
            world.hosts[0].tcp_close(now, client);
            world.pass(SECOND);
        }
        let mut restarted = Stack::new(StackConfig::default(), 77);
        restarted.set_addresses([ip(0, false)]);
        world.hosts[0] = restarted;
        let again = connect(&mut world);
        world.pass(SYN_RETRANSMISSION + Duration::from_millis(1));
        assert_eq!(world.hosts[0].tcp_is_open(again), Ok(true), "{what}");
        assert_eq!(world.end_of(1, old), Some(TcpError::Reset), "{what}");
    }
}

/// RFC 9293 3.10.7.4, RFC 5961 3.2.
#[test]
fn only_a_reset_with_the_next_number_ends_a_connection() {
    for is_read in [false, true] {
        for offset in [0, 1, 1000, WINDOW - 100, 2 * WINDOW, 1 << 31, 0_u32.wrapping_sub(1)] {
            let mut pair = connected();
            if is_read {
                let taken = pair.world.hosts[1].tcp_recv(pair.ids[1], &mut [0; 9]);
                assert_eq!(taken, Ok(Some(1)));
                pair.world.pass(SECOND);
            }
            let header = pair.header();
            let sequence_number = header.sequence_number.wrapping_add(offset);
            let reset = TcpHeader { sequence_number, rst: true, ack: false, ..header };
            let what = format!("offset {offset}, read {is_read}");
            let answers = pair.forge(reset, &[]);
            match offset {
                0 => assert_eq!((answers, pair.server_end()), (vec![], Some(TcpError::Reset))),
                _ if offset < WINDOW => pair.assert_challenge(&answers, &what),
                _ => assert_eq!(answers, [], "{what}"),
            }
            assert_eq!(pair.server_end().is_some(), offset == 0, "{what}");
        }
    }
}

/// RFC 9293 3.10.7.4: a FIN has a sequence number, too.
#[test]
fn a_reset_after_a_fin_has_the_number_after_it() {
    for (offset, end) in [(0, None), (1, Some(TcpError::Reset)), (2, None)] {
        let mut pair = connected();
        let now = pair.world.now;
        pair.world.hosts[0].tcp_shut_down(now, pair.ids[0]).expect("it is open");
        pair.world.pass(SECOND);
        let header = pair.header();
        let sequence_number = header.sequence_number.wrapping_add(offset);
        pair.forge(TcpHeader { sequence_number, rst: true, ack: false, ..header }, &[]);
        assert_eq!(pair.server_end(), end, "offset {offset}");
    }
}

/// RFC 9293 3.10.7.4: the acknowledgment of such a segment is ignored, its text is not.
#[test]
fn data_with_an_older_acknowledgment_are_accepted() {
    let mut pair = connected();
    let server = pair.ids[1];
    let (older, header) = (pair.next.1, pair.header());
    // What the server sends is acknowledged, so that the older number acknowledges nothing new.
    assert_eq!(pair.world.hosts[1].tcp_send(server, b"hello"), Ok(Some(5)));
    pair.world.pass(SECOND);
    assert_eq!(pair.world.hosts[1].tcp_unacknowledged(server), 0);
    let late = TcpHeader { acknowledgment_number: older, psh: true, window: 0, ..header };
    pair.forge(late, b"late");
    let mut buffer = [0; 9];
    assert_eq!(pair.world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(5)));
    assert_eq!(&buffer[..5], b"xlate");
    // Its window was older, too.
    assert_eq!(pair.world.hosts[1].tcp_send(server, b"more"), Ok(Some(4)));
    let sent = sent_by(&mut pair.world, 1);
    assert_eq!(sent.iter().map(|header| header.sequence_number).collect::<Vec<_>>(), [older + 5]);
    assert!(sent[0].psh, "{sent:?}");
}

/// RFC 5961 5.2: an acknowledgment older than the maximum window is forged.
#[test]
fn data_with_an_acknowledgment_outside_the_window_get_a_challenge_ack() {
    let mut pair = connected();
    let header = pair.header();
    let acknowledgment_number = header.acknowledgment_number.wrapping_sub(1 << 30);
    let answers = pair.forge(TcpHeader { acknowledgment_number, ..header }, b"guess");
    pair.assert_challenge(&answers, "text");
    assert_eq!(pair.world.hosts[1].tcp_recv(pair.ids[1], &mut [0; 9]), Ok(Some(1)));
}

/// RFC 9293 3.6.1: the number of the SYN decides. An old duplicate gets an acknowledgment.
#[test]
fn an_old_duplicate_syn_does_not_end_time_wait() {
    for (offset, is_new) in [(0_u32.wrapping_sub(1_000_000), false), (0, false), (2, true)] {
        let mut pair = in_time_wait();
        pair.world.hosts[1].tcp_listen(at(1, 80), 4).expect("the port is free");
        let (header, numbers) = (pair.header(), (pair.next.0 + 1, pair.next.1 + 1));
        pair.next = numbers;
        let sequence_number = header.sequence_number.wrapping_add(offset);
        let answers =
            pair.forge(TcpHeader { sequence_number, syn: true, ack: false, ..header }, &[]);
        match is_new {
            true => assert!(answers.len() == 1 && answers[0].syn && answers[0].ack, "{answers:?}"),
            false => pair.assert_challenge(&answers, &format!("offset {offset}")),
        }
    }
}

/// RFC 9293 3.10.7.4: a FIN that comes again is acknowledged, and the wait begins anew. RFC 1337: a
/// reset does not end it.
#[test]
fn time_wait_acknowledges_a_repeated_fin_and_survives_a_reset() {
    let mut pair = in_time_wait();
    let fin = TcpHeader {
        fin: true,
        acknowledgment_number: pair.next.1.wrapping_add(1),
        ..pair.header()
    };
    pair.next = (pair.next.0 + 1, pair.next.1 + 1);
    for round in 0..3 {
        let answers = pair.forge(fin, &[]);
        pair.assert_challenge(&answers, &format!("FIN {round}"));
        let reset = TcpHeader { rst: true, ..pair.header() };
        assert_eq!(pair.forge(reset, &[]), [], "no answer to a reset");
        assert_eq!(pair.forge(pair.header(), &[]), [], "nor to an acknowledgment");
        pair.world.pass(Duration::from_millis(1500));
    }
    assert_eq!(pair.world.hosts[1].tcp_len(), 1);
    pair.world.pass(SECOND);
    assert_eq!(pair.world.hosts[1].tcp_len(), 0);
    let answers = pair.forge(fin, &[]);
    assert!(matches!(answers[..], [TcpHeader { rst: true, .. }]), "it is forgotten: {answers:?}");
}

/// RFC 9293 3.10.7.4: the second SYN gets an acknowledgment, which makes the host reset the first
/// connection.
#[test]
fn a_restarted_host_replaces_its_half_open_connection() {
    let mut world = World::new(1, &StackConfig::default(), LinkFaults::default());
    world.hosts[1].tcp_listen(at(1, 80), 100).expect("the port is free");
    let now = world.now;
    world.hosts[0].tcp_connect(now, at(0, 50_000), at(1, 80)).expect("the port is free");
    let syn = world.hosts[0].poll_transmit(now).expect("a SYN").to_vec();
    world.hosts[1].handle_packet(now, &syn);
    assert_eq!(sent_by(&mut world, 1).len(), 1, "its answer is lost");
    let mut restarted = Stack::new(StackConfig::default(), 77);
    restarted.set_addresses([ip(0, false)]);
    world.hosts[0] = restarted;
    let now = world.now;
    let again = world.hosts[0].tcp_connect(now, at(0, 50_000), at(1, 80)).expect("it is free");
    world.pass(SYN_RETRANSMISSION + Duration::from_millis(1));
    assert_eq!(world.hosts[0].tcp_is_open(again), Ok(true));
}

//! Peers that are gone, and peers that have restarted.

use crate::world::{LinkFaults, World, ip};
use pollux::stack::{Stack, StackConfig, TcpError};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Connections of one host: more than the outbox has packets.
const MANY: usize = 1500;

fn world() -> World {
    World::new(1, &StackConfig::default(), LinkFaults::default())
}

#[test]
fn a_connection_to_a_peer_that_is_gone_ends_and_its_bytes_can_be_read() {
    let mut world = world();
    let [client, server] = world.connected(80, false);
    world.hosts[1].tcp_send(server, b"last words").expect("it is open");
    world.pass(SECOND);
    world.hosts[0].handle_peer_gone(ip(7, false));
    assert_eq!(world.end_of(0, client), None, "that was another one");
    world.hosts[0].handle_peer_gone(ip(1, false));
    let mut buffer = [0; 64];
    let read = world.hosts[0].tcp_recv(client, &mut buffer);
    assert_eq!((read, &buffer[..10]), (Ok(Some(10)), &b"last words"[..]));
    assert_eq!(world.hosts[0].tcp_recv(client, &mut buffer), Err(TcpError::PeerGone));
    assert_eq!(world.hosts[0].tcp_send(client, b"hello?"), Err(TcpError::PeerGone));
}

#[test]
fn idle_connections_to_a_peer_that_has_restarted_are_reset() {
    let mut world = world();
    let clients: Vec<_> = (0..MANY).map(|_| world.connected(80, false)[0]).collect();
    world.pass(SECOND);
    world.hosts[1] = Stack::new(StackConfig::default(), 7);
    world.hosts[1].set_addresses([ip(1, false)]);
    world.hosts[0].handle_peer_moved(ip(1, false));
    world.pass(SECOND);
    for client in clients {
        assert_eq!(world.end_of(0, client), Some(TcpError::Reset));
    }
}

#[test]
fn connections_to_a_peer_that_has_only_another_link_address_go_on() {
    let mut world = world();
    let [client, server] = world.connected(80, false);
    for _ in 0..20 {
        world.hosts[0].handle_peer_moved(ip(1, false));
        world.pass(SECOND);
    }
    world.hosts[0].tcp_send(client, b"hello").expect("it is open");
    world.pass(SECOND);
    let mut buffer = [0; 64];
    assert_eq!(world.hosts[1].tcp_recv(server, &mut buffer), Ok(Some(5)));
}

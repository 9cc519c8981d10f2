//! Datagram mode: up and down, resolution, groups.

use crate::world::{World, packet, v4, v6};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn everybody_resolves_everybody() {
    let mut world = World::up(1, 4);
    for from in 0..4u8 {
        for to in (0..4u8).filter(|to| *to != from) {
            let (one, other) = (usize::from(from), usize::from(to));
            let datagram = packet(v4(from + 1), v4(to + 1), b"four");
            assert!(world.reaches(one, other, &datagram, SECOND), "{from} to {to}");
            let datagram = packet(v6((from + 1).into()), v6((to + 1).into()), b"six");
            assert!(world.reaches(one, other, &datagram, SECOND), "{from} to {to} by IPv6");
        }
    }
}

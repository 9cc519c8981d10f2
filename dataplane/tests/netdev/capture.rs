//! Packets of netdevs, dissected by tshark.

use crate::pair::*;
use pollux_referee::tshark::{PacketRow, dissect};
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid};
use std::cell::RefCell;
use std::rc::Rc;

// req: cm-frame-header
#[test]
fn packets_of_all_transports_are_well_formed() {
    let mut pair = Pair::new(1, Setup::default());
    let seen: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let into = seen.clone();
    pair.world.set_tap(Box::new(move |_, _, bytes: &[u8]| into.borrow_mut().push(bytes.into())));
    let (rc, uc) = (pair.connect(QpType::Rc), pair.connect(QpType::Uc));
    let mgid: std::net::Ipv6Addr = "ff12:401b:ffff::ffff:ffff".parse().unwrap();
    let host = &mut pair.hosts[0];
    let group = host.group(Gid(mgid.octets()), Lid(0xc000));
    for route in [host.datagram(), group, host.connected(rc[0]), host.connected(uc[0])] {
        for (version, bytes) in [(4, 60), (6, 60), (4, 2044), (6, 2044)] {
            host.send(route, [packet(version, bytes, 1)]);
        }
    }
    pair.step_until_idle();
    pair.hosts[1].received.clear();
    pair.close();
    let seen = seen.take();
    let bytes: Vec<&[u8]> = seen.iter().map(Vec::as_slice).collect();
    let fields = ["ip.version", "ipv6.version", "infiniband.deth"];
    let Some(rows) = dissect("packets_of_all_transports_are_well_formed", &bytes, &fields) else {
        return;
    };
    let malformed: Vec<_> = rows.iter().filter(|row| !row.malformed.is_empty()).collect();
    assert_eq!(malformed.len(), 0);
    // tshark parses the IP packets of datagrams only: those to the peer and to the group.
    let is_ip = |row: &&PacketRow| row.values[0] == "4" || row.values[1] == "6";
    let datagrams = || rows.iter().filter(|row| !row.values[2].is_empty());
    assert_eq!((datagrams().count(), datagrams().filter(is_ip).count()), (8, 8));
}

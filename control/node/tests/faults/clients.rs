//! Clients of the admin socket that ask for much, or never end, while packets run.

use crate::pair::Pair;
use crate::running_node::pause;
use pollux_node::admin::CONNECTIONS_MAX;
use pollux_node::admin::rows::{InterfaceStatus, NeighborState, NeighborStatus};
use pollux_node::config::{Neighbor, NeighborLink};
use pollux_wire::ip::link_address::LinkAddress;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;

/// Neighbors of an interface, at most: those in the configuration, and the peer.
const NEIGHBORS_MAX: usize = 16_384;
/// Echo requests in a burst.
const REQUESTS: u16 = 500;
/// Complete listings while packets run.
const LISTINGS: usize = 4;

/// So many configured neighbors, all at one link address that no port has.
fn neighbors(count: usize) -> Vec<Neighbor> {
    let link = LinkAddress::parse(&[7; LinkAddress::LEN]);
    let first = u32::from(Ipv4Addr::new(10, 1, 0, 0));
    let ips = (first..).take(count).map(|ip| Ipv4Addr::from(ip).into());
    ips.map(|address| Neighbor { address, link: NeighborLink::Ipoib(link) }).collect()
}

/// Sends bursts of requests until it is over; each is answered, once and in order.
fn exchange_until(pair: &mut Pair, is_over: impl Fn() -> bool) {
    let mut bursts = 0;
    while bursts == 0 || !is_over() {
        pair.answered.clear();
        pair.send_paced(0, REQUESTS);
        pair.until("answered", |pair| pair.answered.len() >= usize::from(REQUESTS));
        assert_eq!(pair.answered, (0..REQUESTS).collect::<Vec<_>>(), "burst {bursts}");
        bursts += 1;
    }
}

/// Counts as over, also when a thread fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_full_table_of_neighbors_is_listed_again_and_again_and_no_packet_is_lost() {
    for mode in ["ud", "rc"] {
        let mut pair = Pair::with(&format!("table-{mode}"), mode, 1, neighbors(NEIGHBORS_MAX - 1));
        let (client, is_over) = (pair.node.client(), AtomicBool::new(false));
        scope(|scope| {
            scope.spawn(|| {
                let _end = End(&is_over);
                for _ in 0..LISTINGS {
                    let rows: Vec<NeighborStatus> = client.show(&mut pause).expect("it answers");
                    assert!(rows.windows(2).all(|two| two[0].address < two[1].address));
                    let learnt = rows.iter().filter(|row| row.state != NeighborState::Permanent);
                    assert_eq!((rows.len(), learnt.count()), (NEIGHBORS_MAX, 1), "{mode}");
                }
            });
            exchange_until(&mut pair, || is_over.load(Ordering::Relaxed));
        });
        for why in ["punts_dropped", "control_no_room", "no_room", "no_receive_buffer"] {
            assert_eq!(pair.dropped(why), 0, "{mode}: {why}");
        }
    }
}

#[test]
fn clients_that_never_read_or_never_finish_a_request_delay_no_other() {
    let mut pair = Pair::with("silent", "rc", 1, neighbors(NEIGHBORS_MAX - 1));
    // As many as there may be, and as many again that say half of what they want.
    let silent: Vec<_> =
        (0..CONNECTIONS_MAX / 2).map(|_| pair.node.silent("{\"show\":\"neighbors\"}\n")).collect();
    let halves: Vec<_> = (0..CONNECTIONS_MAX).map(|_| pair.node.silent("{\"show\":")).collect();
    let (client, is_over) = (pair.node.client(), AtomicBool::new(false));
    let answered = AtomicUsize::new(0);
    scope(|scope| {
        scope.spawn(|| {
            let _end = End(&is_over);
            for _ in 0..LISTINGS {
                let rows: Vec<InterfaceStatus> = client.show(&mut pause).expect("it answers");
                assert_eq!(&*rows[0].state, "up");
                let rows: Vec<NeighborStatus> = client.show(&mut pause).expect("it answers");
                assert_eq!(rows.len(), NEIGHBORS_MAX);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        exchange_until(&mut pair, || is_over.load(Ordering::Relaxed));
    });
    assert_eq!(answered.load(Ordering::Relaxed), LISTINGS);
    drop((silent, halves));
}

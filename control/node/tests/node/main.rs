//! Nodes that run: with each other, and with the Linux kernel's own IP over InfiniBand.
//!
//! `nodes` has ours alone, `workers` those with several workers, most in virtual time. Linux is met
//! at a [`meeting`], one guest for each test:
//!
//! | tests | what of Linux | subnet manager |
//! |---|---|---|
//! | [`datagrams`] | the core: resolution, echoes in both modes | ours; OpenSM here; OpenSM there |
//! | | partitions, addresses from announced prefixes | ours |
//! | [`connections`] | the side that connects, by which service ID, receive MTUs, no SRQ | ours |
//! | [`trouble`] | what goes and comes back, under traffic | ours |
//! | | the manager's death | OpenSM here, then there |
//! | [`alike`] | our packets beside Linux's own, field by field | ours |
//!
//! TCP and UDP with Linux are in the tests of the library (`smoltcp-glue/tests/linux`).

mod addresses;
mod alike;
mod connections;
mod datagrams;
mod device;
mod fabric;
mod guest;
mod host;
mod illness;
mod management;
mod meeting;
mod migration;
#[path = "../../../../dataplane/fabric/tests/common/net_world.rs"]
#[allow(dead_code, reason = "time is virtual")]
mod net_world;
mod nodes;
mod pauses;
mod requests;
#[expect(dead_code, reason = "tests of faults need the rest")]
mod running_node;
mod team;
mod trouble;
mod workers;

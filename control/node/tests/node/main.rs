//! Nodes that run: with each other, and with the Linux kernel's own IP over InfiniBand.
//!
//! `nodes` has ours alone. Linux is met at a [`meeting`], one guest for each test:
//!
//! | tests | what of Linux | subnet manager |
//! |---|---|---|
//! | [`datagrams`] | the core: ARP, neighbour discovery, echoes of every length in both modes | ours; OpenSM here; OpenSM in the guest |
//! | | partitions, addresses from announced prefixes | ours |
//! | [`connections`] | who asks whom, by which service ID, receive MTUs, receive queues of its own | ours |
//! | [`trouble`] | interfaces, links, modes and connections that go and come back under traffic | ours |
//! | | the manager's death | OpenSM here, then OpenSM in the guest |
//! | [`alike`] | our packets beside Linux's own, field by field | ours |
//!
//! TCP and UDP with Linux are in the tests of the library (`smoltcp-glue/tests/linux`).

mod alike;
mod connections;
mod datagrams;
mod fabric;
mod guest;
mod host;
mod meeting;
mod nodes;
mod trouble;

//! The control-plane protocols of IP over InfiniBand, as state machines without I/O (RFC 4391,
//! RFC 4755).
//!
//! Time and datagrams enter by `handle_*`; datagrams, events and actions leave by `poll_*`. No code
//! here reads a clock or blocks, and every table has a limit. The same code runs in real time and
//! in virtual time, where a seed replays a run.
//!
//! Reading order:
//!
//! 1. [`mad`]: management datagrams, transactions with retry and backoff, RMPP reception;
//! 2. [`sa`]: the SA client: SA queries for paths, multicast groups and notices;
//! 3. [`cm`]: the connection manager: listeners, the handshake, MRA, DREQ, alternate paths;
//! 4. [`neighbor`]: the neighbor cache, from IP address to link address;
//! 5. [`arp`] and [`nd`]: address resolution for IPv4 and IPv6, and duplicate address detection;
//! 6. [`address`]: our addresses, source address selection, and next hops;
//! 7. [`membership`]: IP multicast membership, IGMP and MLD;
//! 8. [`icmp`]: echo replies and ICMP errors; `no_listener`: the answer to a packet for a port
//!    without a socket;
//! 9. [`dhcp`]: the DHCP client;
//! 10. [`ipoib`]: the interface, which ties all of these together. It handles punted packets, joins
//!     the broadcast group with retries (broadcast join retry), and handles P_Key changes and
//!     client reregister;
//! 11. [`ipoib::connected`]: connected mode: service IDs, the tie-break between REQs that cross,
//!     MTU negotiation, alternate paths;
//! 12. [`plain`]: an interface on a link other than InfiniBand; [`ethernet`]: its neighbors on an
//!     Ethernet link;
//! 13. [`router`]: the kernel's routes, and the multicast groups of its programs;
//! 14. [`rdma_cm`]: the RDMA connection manager for other programs, by IP address and port.
//!
//! Shared modules: `effects` has the actions of an interface for its data path, [`beyond`] the
//! routes of the node, [`link`] link addresses, [`frame`] outgoing packets, `fragment` IPv4
//! fragmentation, `output` the output of a protocol, and [`bounded`] queues, rate limits and
//! backoff. [`thread_check`] asserts that no worker thread runs protocol code.
#![forbid(unsafe_code)]

pub mod address;
pub mod arp;
pub mod beyond;
pub mod bounded;
pub mod cm;
pub mod dhcp;
mod effects;
pub mod ethernet;
mod fragment;
pub mod frame;
pub mod icmp;
pub mod ipoib;
pub mod link;
pub mod mad;
pub mod membership;
pub mod nd;
pub mod neighbor;
mod no_listener;
mod output;
pub mod plain;
pub mod rdma_cm;
pub mod router;
pub mod sa;
pub mod thread_check;

//! The control-plane protocols of IP over InfiniBand, as state machines without I/O (RFC 4391,
//! RFC 4755).
//!
//! Time and datagrams go in by `handle_*`; datagrams, events and actions come out by `poll_*`. No
//! code here reads a clock or blocks, and every table has a limit. The same code runs in real time
//! and in virtual time, where a seed replays a run.
//!
//! Reading order:
//!
//! 1. [`mad`]: management datagrams, transactions with retry and backoff, RMPP reception;
//! 2. [`sa`]: the SA client: SA queries for paths, multicast groups and notices;
//! 3. [`cm`]: the connection manager: listeners, the handshake, MRA, DREQ, alternate paths;
//! 4. [`neighbor`]: the neighbor cache, from IP address to link address;
//! 5. [`arp`] and [`nd`]: address resolution for IPv4 and IPv6, and duplicate address detection;
//! 6. [`address`]: our addresses, source address selection, and routes to next hops;
//! 7. [`membership`]: IP multicast membership, IGMP and MLD;
//! 8. [`icmp`]: echo replies and ICMP errors; `no_listener`: what senders to ports without a socket
//!    get, of TCP a reset;
//! 9. [`dhcp`]: the DHCP client;
//! 10. [`ipoib`]: the interface, which ties all of them together. It takes punted packets, joins
//!     the broadcast group and joins it again (broadcast join retry), and handles P_Key changes and
//!     client reregister;
//! 11. [`ipoib::connected`]: connected mode: service IDs, the tie-break between REQs that cross,
//!     MTU negotiation, alternate paths;
//! 12. [`plain`]: an interface at a link that is not InfiniBand; [`ethernet`]: its neighbors, if it
//!     is one of Ethernet;
//! 13. [`router`]: the kernel's routes and the groups of its programs;
//! 14. [`rdma_cm`]: the connection manager of other people's programs, by IP address and port.
//!
//! `effects`, [`beyond`], [`link`], [`frame`], `fragment`, `output` and [`bounded`] are shared:
//! requests of interfaces to their node, its routes, link addresses, outgoing packets, fragments,
//! the output of a protocol, bounded queues with rate limits and backoff. [`thread_check`] asserts
//! that no worker thread runs any of it.
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

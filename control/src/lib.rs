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
//! 8. [`icmp`]: echo replies and ICMP errors;
//! 9. [`dhcp`]: the DHCP client;
//! 10. [`peer`]: connected mode: service IDs, the tie-break between REQs that cross, MTU
//!     negotiation, alternate paths;
//! 11. [`interface`]: ties all of them together. It takes punted packets, joins the broadcast group
//!     and joins it again (broadcast join retry), and handles P_Key changes and client reregister.
//!
//! [`frame`], [`bounded`] and [`drops`] are shared: outgoing packets, bounded queues and rate
//! limits, drop counters.
#![forbid(unsafe_code)]

pub mod address;
pub mod arp;
pub mod bounded;
pub mod cm;
pub mod dhcp;
pub mod drops;
pub mod frame;
pub mod icmp;
pub mod interface;
pub mod mad;
pub mod membership;
pub mod nd;
pub mod neighbor;
pub mod peer;
pub mod sa;

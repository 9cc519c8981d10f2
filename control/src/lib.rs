//! The slow protocols of IP over InfiniBand, as state machines without I/O (RFC 4391, RFC 4755).
//!
//! Moments and datagrams go in by `handle_*`, datagrams and events are pulled out by `poll_*`; no
//! clock is read, nothing blocks, and every table has a limit. So the same code runs on a machine's
//! clock and in virtual time, where a seed replays what happened.
//!
//! 1. [`mad`]: management datagrams, questions and their answers;
//! 2. [`sa`]: paths, groups and notices, which the subnet administrator knows of;
//! 3. [`cm`]: how connections are made, and how they end.
//!
//! IP's own part, from the link upwards: [`neighbor`] knows who has which link address, [`arp`]
//! and [`nd`] ask and answer for it, [`address`] says what is ours and where packets go next,
//! [`membership`] which groups are heard, [`dhcp`] gets addresses, [`icmp`] answers and complains.
//! All of them send [`frame::Frame`]s.
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

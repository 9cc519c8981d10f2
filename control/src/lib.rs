//! The slow protocols of IP over InfiniBand, as state machines without I/O (RFC 4391, RFC 4755).
//!
//! Moments and datagrams go in by `handle_*`, datagrams and events are pulled out by `poll_*`; no
//! clock is read, nothing blocks, and every table has a limit. So the same code runs on a machine's
//! clock and in virtual time, where a seed replays what happened.
//!
//! 1. [`mad`]: management datagrams, questions and their answers;
//! 2. [`sa`]: paths, groups and notices, which the subnet administrator knows of;
//! 3. [`cm`]: how connections are made, and how they end.
#![forbid(unsafe_code)]

pub mod cm;
pub mod mad;
pub mod sa;

//! A guide page for each kind of program.
//!
//! | program | page |
//! |---|---|
//! | uses sockets of `std::net` now | [`from_std`]: the corresponding calls, and the differences |
//! | does everything in one thread, and needs the lowest latency | [`inline`] |
//! | has several threads, or computes while peers wait | [`crate::pinned`] |
//! | is `async`: hyper, tonic, a Redis client | [`tasks`] |
//! | has its own IP stack: smoltcp | [`crate::smoltcp`] |
//! | is one of several processes, on one machine or on several | [`processes`] |

#[doc = include_str!("../guide/from_std.md")]
pub mod from_std {}

#[doc = include_str!("../guide/inline.md")]
pub mod inline {}

#[doc = include_str!("../guide/processes.md")]
pub mod processes {}

#[cfg_attr(feature = "tokio", doc = include_str!("../guide/tasks.md"))]
#[cfg_attr(not(feature = "tokio"), doc = "Tasks: this page is there with the feature `tokio`.")]
pub mod tasks {}

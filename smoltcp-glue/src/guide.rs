//! Pages for programs: from `std::net`, in one thread, in several, in tasks, in processes.
//!
//! | a program that | reads |
//! |---|---|
//! | has sockets of `std::net` | [`from_std`]: what to write instead, and what differs |
//! | does everything in one thread, and wants each microsecond | [`inline`] |
//! | has several threads, or computes while peers wait | [`crate::pinned`] |
//! | is `async`: hyper, tonic, a Redis client | [`tasks`] |
//! | has a stack of its own: smoltcp | [`crate::smoltcp`] |
//! | is one of several on a machine, or on several | [`processes`] |

#[doc = include_str!("../guide/from_std.md")]
pub mod from_std {}

#[doc = include_str!("../guide/inline.md")]
pub mod inline {}

#[doc = include_str!("../guide/processes.md")]
pub mod processes {}

#[cfg_attr(feature = "tokio", doc = include_str!("../guide/tasks.md"))]
#[cfg_attr(not(feature = "tokio"), doc = "Tasks: this page is there with the feature `tokio`.")]
pub mod tasks {}

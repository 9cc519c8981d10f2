//! Threads, clock and devices around the state machines of the other crates.
//!
//! So far: [`fabric`], a software fabric that runs in a thread, and answers questions.
#![forbid(unsafe_code)]

pub mod fabric;

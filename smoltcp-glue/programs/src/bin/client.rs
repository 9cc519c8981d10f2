//! smoltcp's example `client`: a TCP client that sends back what it receives, reversed.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/client.rs"));

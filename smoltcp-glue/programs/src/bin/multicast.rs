//! smoltcp's example `multicast`: an mDNS receiver.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/multicast.rs"));

//! smoltcp's example `multicast`: a receiver of mDNS.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/multicast.rs"));

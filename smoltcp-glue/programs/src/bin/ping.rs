//! smoltcp's example `ping`: ICMP echo.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/ping.rs"));

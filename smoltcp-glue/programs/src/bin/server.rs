//! smoltcp's example `server`: TCP and UDP servers at ports 6969 to 6972.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/server.rs"));

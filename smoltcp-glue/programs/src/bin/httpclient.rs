//! smoltcp's example `httpclient`: a client of HTTP.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/httpclient.rs"));

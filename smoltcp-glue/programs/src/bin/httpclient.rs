//! smoltcp's example `httpclient`: an HTTP client.
#![forbid(unsafe_code)]
#![allow(warnings, clippy::all, reason = "it is smoltcp's text")]

include!(concat!(env!("OUT_DIR"), "/httpclient.rs"));

//! An interface of IP over InfiniBand: its slow protocols tied together (RFC 4391, RFC 4755).

mod action;
mod config;

pub use action::{
    Action, By, ConnectionKey, ConnectionNews, DatagramWay, Delivery, From, Link, Outgoing,
    PeerKey, PortView, Received, Way,
};
pub use config::{GroupTerms, InterfaceConfig};

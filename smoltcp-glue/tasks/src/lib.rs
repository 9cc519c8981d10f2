//! What the programs of this crate share: two hosts of a software fabric in one process.
//!
//! Each program has an unchanged server and an unchanged client of the ecosystem, which talk over
//! InfiniBand because they are given the streams of `pollux::pinned`.
#![forbid(unsafe_code)]

use pollux::pinned::{Config, Interface};
use pollux::{Mode, Node, UpError};

/// An interface with an address, on a port of a fabric in this process. Replace `soft:` with
/// `mlx5_0:1` to use a hardware adapter.
pub async fn up(address: &str) -> Result<Interface, UpError> {
    let setup = Node::open("soft:")?.interface("ib0").address(address).mode(Mode::Rc);
    setup.up_pinned_async(Config::default()).await
}

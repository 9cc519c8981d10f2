//! The shared code of this crate's programs: opens a host of a software fabric in this process.
//!
//! Each program runs an unchanged server and an unchanged client of the tokio ecosystem. They talk
//! over InfiniBand because the program passes them streams of `pollux::pinned`.
#![forbid(unsafe_code)]

use pollux::pinned::{Config, Interface};
use pollux::{Mode, Node, UpError};

/// An interface with an address, on a port of a fabric in this process. Replace `soft:` with
/// `mlx5_0:1` to use a hardware adapter.
pub async fn up(address: &str) -> Result<Interface, UpError> {
    let setup = Node::open("soft:")?.interface("ib0").address(address).mode(Mode::Rc);
    setup.up_pinned_async(Config::default()).await
}

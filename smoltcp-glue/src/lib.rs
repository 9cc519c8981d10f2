//! Sockets in the application's own process, over InfiniBand.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::SocketAddr;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = pollux::Node::open("mlx5_0:1");
//! let ib0 = node.interface().address("10.0.0.1/24").mode(pollux::Mode::Rc).up()?;
//!
//! let udp = ib0.udp_bind("10.0.0.1:7000".parse::<SocketAddr>()?)?;
//! udp.send_to(b"hello", "10.0.0.2:7000".parse::<SocketAddr>()?)?;
//!
//! let mut tcp = ib0.tcp_connect("10.0.0.2:80".parse::<SocketAddr>()?)?;
//! tcp.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
//! let mut answer = Vec::new();
//! tcp.read_to_end(&mut answer)?;
//! # Ok(())
//! # }
//! ```
//!
//! 1. [`node`]: a device, and an interface of it; [`interface`]: how it is served;
//! 2. [`udp`], [`tcp`]: sockets in the manner of `std::net`; [`error`]: what can go wrong;
//! 3. [`stack`]: all of it that decides something, without I/O.
#![forbid(unsafe_code)]

pub mod error;
pub mod interface;
pub mod node;
pub mod stack;
pub mod tcp;
pub mod udp;

pub use error::UpError;
pub use interface::Interface;
pub use node::{Node, Setup};
pub use pollux_node::config::Mode;
pub use tcp::{TcpListener, TcpStream};
pub use udp::{UdpSlot, UdpSocket};

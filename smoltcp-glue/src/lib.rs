//! Sockets in the application's own process, over InfiniBand.
//!
//! A request and its response, between two hosts of a software fabric that is this process's own;
//! with `mlx5_0:1` in place of `soft:` it is an adapter in hardware:
//!
//! ```
//! use pollux::{Mode, Node};
//! use std::io::{self, Read, Write};
//! use std::sync::mpsc::{Sender, channel};
//!
//! const SERVER: &str = "10.0.0.1:7000";
//!
//! fn serve(ready: Sender<()>) -> io::Result<()> {
//!     let ib0 = Node::open("soft:")?.interface("ib0").address("10.0.0.1/24").mode(Mode::Rc).up()?;
//!     let listener = ib0.tcp_listen(SERVER, 128)?;
//!     ready.send(()).map_err(io::Error::other)?;
//!     let (mut stream, _) = listener.accept()?;
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request)?;
//!     stream.write_all(request.to_uppercase().as_bytes())
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (ready, is_ready) = channel();
//!     let serving = std::thread::spawn(move || serve(ready));
//!     let ib0 = Node::open("soft:")?.interface("ib0").address("10.0.0.2/24").mode(Mode::Rc).up()?;
//!     is_ready.recv()?;
//!     let mut stream = ib0.tcp_connect(SERVER)?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(std::net::Shutdown::Write)?;
//!     let mut response = String::new();
//!     stream.read_to_string(&mut response)?;
//!     assert_eq!(response, "HELLO");
//!     drop(stream);
//!     serving.join().expect("it does not panic")?;
//!     Ok(())
//! }
//! ```
//!
//! There are two ways to run. *Inline*, as above, the thread that makes an interface is its worker:
//! every call on a socket serves all of them, and whoever calls none for long calls
//! [`Interface::step`]. That is the quickest way there is, since nothing goes from thread to
//! thread: take it where one thread does all and waits for nothing else. *Pinned*
//! ([`Setup::up_pinned`]), the interface has a thread of its own, and its sockets go to any thread
//! and to tasks of any executor: take it where many threads have sockets, where an application is
//! busy with other things while peers wait, or where it is `async`.
//!
//! 1. [`node`]: a device, and an interface of it; [`interface`]: how it is served; [`host`]: what
//!    it is without a clock;
//! 2. [`udp`], [`tcp`]: sockets in the manner of `std::net`; [`error`]: what can go wrong;
//! 3. [`pinned`]: the same sockets for any thread, and several workers of one interface; `host_port`,
//!    `hand_off`: what each of them has of the interface, and gives to the others;
//! 4. [`stack`]: all of it that decides something, without I/O.
#![forbid(unsafe_code)]

pub mod error;
mod hand_off;
pub mod host;
mod host_port;
pub mod interface;
pub mod node;
pub mod pinned;
pub mod stack;
pub mod tcp;
pub mod udp;

pub use error::UpError;
pub use hand_off::HandOffCounts;
pub use host::Neighbor;
pub use host_port::HostPort;
pub use interface::Interface;
pub use node::{Node, Setup};
pub use pollux_node::config::Mode;
pub use tcp::{TcpListener, TcpStream};
pub use udp::{UdpSlot, UdpSocket};

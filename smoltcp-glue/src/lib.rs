//! UDP and TCP sockets over InfiniBand, served in the application's own process.
//!
//! The example exchanges a request and a response between two hosts on a software fabric inside
//! this process. Replace `soft:` with `mlx5_0:1` to use a hardware adapter:
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
//! There are two modes. *Inline*, as above, the thread that opens an interface is its worker: every
//! call on a socket serves all sockets of the interface. This mode has the lowest latency, because
//! no data crosses threads; use it where one thread does everything. *Pinned*
//! ([`Setup::up_pinned`]), the interface has worker threads, and its sockets can be used by any
//! thread and by tasks of any executor; use it where several threads hold sockets, where the
//! application computes while peers wait, or where it is `async`.
//!
//! In both modes the protocols of the link (neighbors, groups, connections) have a control thread
//! of their own. It also serves the sockets of an inline application that makes no calls, so that
//! no peer gives up.
//!
//! Sockets have the calls of `std::net`, with its types and its kinds of errors; an interface opens
//! them (`ib0.tcp_connect`, `ib0.tcp_listen`, `ib0.udp_bind`). [`guide::from_std`] has what else
//! differs from the kernel's, and all defaults; [`guide`] has a page for each kind of program.
//!
//! [`TcpStream::info`] returns what a connection has measured and counted, and
//! [`Interface::statistics`] what an interface has. A program whose interface has an admin socket
//! ([`Setup::admin_socket`]) shows its sockets to `pollux show sockets`.
//!
//! An interface is up once it has its addresses, which it probes first: one that another host has
//! is [`UpError::AddressInUse`], with the link address of that host. The addresses of a program
//! that has died are free at once.
//!
//! Connections to a peer whose process dies end by `ConnectionReset`, within five seconds if its
//! port leaves the subnet with it, as on the software fabric; else keep-alive ends them, or the
//! user timeout ([`stack::TcpConfig`]). Those to a peer that was started anew end at once. A peer
//! that is stopped, or computes, keeps its connections.
//!
//! | feature | has |
//! |---|---|
//! | `tokio` | tokio's traits on pinned connections ([`guide::tasks`]) |
//! | `futures-io` | those of the crate `futures-io` |
//! | `hca` | adapters in hardware; needs rdma-core's headers |
//!
//! 1. [`node`]: opens a device and an interface; [`interface`]: the inline driver; [`host`]: an
//!    interface with its sockets, without a clock;
//! 2. [`udp`], [`tcp`]: sockets with the API of `std::net`; `timeout`: how long their calls wait;
//!    `std_calls`: calls that they share with pinned ones; [`error`]: error types; [`statistics`]:
//!    what an interface has counted;
//! 3. `control_thread`: the thread of the protocols; `control_requests`: the requests of sockets to
//!    it; `clock`: the time of both; `yields`: whether a call that waits may yield its core;
//!    `stand_in`: serves the sockets of an absent application; `admin`: `pollux show sockets`;
//! 4. [`pinned`]: sockets for any thread, and several workers for one interface; `hand_off`:
//!    packets steered between workers; `promise`: a value of a thread for a task; `wake_count`: a
//!    waker of tests;
//! 5. [`smoltcp`]: an interface as a device of smoltcp, whose packets wait in `arrivals`;
//! 6. [`stack`]: the protocol logic, without I/O;
//! 7. [`guide`]: pages for programs, without code.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod arrivals;
mod clock;
mod control_requests;
mod control_thread;
pub mod error;
pub mod guide;
mod hand_off;
pub mod host;
pub mod interface;
pub mod node;
pub mod pinned;
mod promise;
pub mod smoltcp;
pub mod stack;
mod stand_in;
pub mod statistics;
mod std_calls;
pub mod tcp;
mod timeout;
pub mod udp;
#[cfg(test)]
mod wake_count;
mod yields;

pub use control_requests::NeighborRoute;
pub use error::UpError;
pub use hand_off::HandOffCounts;
pub use interface::Interface;
pub use node::{Node, Setup};
pub use pollux_node::Opened;
pub use pollux_node::config::Mode;
pub use pollux_wire::keys::PKey;
pub use stack::{TcpInfo, TcpState};
pub use statistics::InterfaceStatistics;
pub use tcp::{TcpListener, TcpStream};
pub use udp::{UdpSlot, UdpSocket};

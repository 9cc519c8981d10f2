//! A UDP exchange whose two ends run in one thread, which is the worker of both interfaces.

use crate::error::PerfError;
use pollux::{Interface, Mode, UdpSocket};
use pollux_node::fabric::Embedded;
use pollux_wire::address::Qpn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

pub const BYTES: usize = 64;
/// A datagram without a reply is sent again after this time.
const RESEND: Duration = Duration::from_millis(200);
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct DatagramEnds {
    near: UdpSocket,
    far: UdpSocket,
    to_far: SocketAddr,
    to_near: SocketAddr,
    interfaces: [Interface; 2],
}

impl DatagramEnds {
    /// Opens interfaces at two hosts of a fabric, and exchanges datagrams to resolve the neighbors.
    pub fn open(fabric: &Embedded, [near, far]: [u8; 2]) -> Result<Self, PerfError> {
        let up = |host: u8| {
            let setup = pollux::Node::open(&fabric.port(&format!("host{host}")))?;
            let setup = setup.interface("ib0").mode(Mode::Ud).timeout(TIMEOUT);
            setup.address(&format!("{}/24", at(host).ip())).up()
        };
        let interfaces = [up(near)?, up(far)?];
        let (to_near, to_far) = (at(near), at(far));
        let near = interfaces[0].udp_bind(to_near)?;
        let far = interfaces[1].udp_bind(to_far)?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        let ends = Self { near, far, to_far, to_near, interfaces };
        ends.exchange_for(RESEND, &mut 0)?;
        Ok(ends)
    }

    /// The queue pair number of the far interface, which is part of the service ID for connections
    /// to it.
    pub fn far_qpn(&self) -> Result<Qpn, PerfError> {
        let neighbors = self.interfaces[0].neighbors();
        let route = neighbors.iter().find(|route| route.addresses.contains(&self.to_far.ip()));
        let none = || PerfError::Local(format!("{} is no neighbor", self.to_far.ip()));
        Ok(route.ok_or_else(none)?.link.qpn)
    }

    /// Exchanges datagrams for a duration. Returns the number of round trips; adds the number of
    /// datagrams that were sent again to `lost`.
    #[expect(clippy::disallowed_methods, reason = "it runs for a given duration")]
    pub fn exchange_for(&self, duration: Duration, lost: &mut u64) -> Result<u64, PerfError> {
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < duration {
            self.round(lost)?;
            count += 1;
        }
        Ok(count)
    }

    /// Exchanges one datagram in each direction. Adds to `lost` each time that it sends again.
    #[expect(clippy::disallowed_methods, reason = "a lost datagram is sent again")]
    pub fn round(&self, lost: &mut u64) -> Result<(), PerfError> {
        let mut bytes = [7; BYTES];
        let begun = Instant::now();
        let mut sent = None::<Instant>;
        loop {
            if sent.is_none_or(|sent| sent.elapsed() > RESEND) {
                *lost += u64::from(sent.is_some());
                // A send that fails is like a lost datagram: it is repeated.
                let _ = self.near.send_to(&bytes, self.to_far);
                sent = Some(Instant::now());
            }
            if is_received(self.far.recv_from(&mut bytes))? {
                self.far.send_to(&bytes, self.to_near)?;
            }
            if is_received(self.near.recv_from(&mut bytes))? {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                return Err(PerfError::OtherEnd("no reply to any datagram".into()));
            }
        }
    }
}

fn is_received(result: io::Result<(usize, SocketAddr)>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

const fn at(host: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 92, 0, host)), 7000)
}

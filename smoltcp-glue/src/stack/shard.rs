//! The shard of an interface's flows that belongs to this stack.
//!
//! With several workers, each worker has its own stack. A stack chooses ephemeral ports such that
//! flow steering delivers their packets to its worker.

use super::tcp::TcpId;
use super::{BindError, Stack, UdpId};
use pollux_dataplane::flow::{FlowSteering, PRIMARY_WORKER};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// RFC 6335 6.
const EPHEMERAL_PORTS: RangeInclusive<u16> = 49_152..=65_535;

/// The flows of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowShard {
    /// The flow steering of the interface.
    pub steering: FlowSteering,
    /// The index of this stack's worker.
    pub worker: u8,
}

impl FlowShard {
    /// All flows, for a single worker.
    pub const ALL: Self = Self { steering: FlowSteering::SINGLE, worker: PRIMARY_WORKER };

    pub(super) fn has_port(self, port: u16) -> bool {
        self == Self::ALL || self.steering.port(port) == self.worker
    }

    /// Maps a number to one that no other worker returns for any number.
    pub(super) const fn own_number(self, number: u32) -> u32 {
        let bits = self.steering.workers().next_power_of_two().ilog2();
        number << bits | self.worker as u32
    }

    fn has_connection(self, local: SocketAddr, remote: SocketAddr) -> bool {
        // A connection to itself is refused.
        local != remote && self.steering.connection(local, remote) == self.worker
    }
}

impl Stack {
    /// Sets the shard, before any socket is opened.
    pub const fn set_shard(&mut self, shard: FlowShard) {
        self.shard = shard;
    }

    /// The shard of this stack.
    pub const fn shard(&self) -> FlowShard {
        self.shard
    }

    pub(super) fn tcp_connect_in_shard(
        &mut self,
        now: Time,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Result<TcpId, BindError> {
        let first = ephemeral_ports(&mut self.rng);
        let locals = first.map(|port| SocketAddr::new(local.ip(), port));
        let mut locals = locals.filter(|local| self.shard.has_connection(*local, remote));
        let mut near = locals.clone().take(LOOKED_AT_MAX);
        let local = near
            .find(|local| self.tcp.is_free(*local, remote))
            .or_else(|| locals.find(|local| self.tcp.is_reusable(*local, remote)));
        self.tcp.connect(now, (local.ok_or(BindError::Full)?, remote), &self.mtus)
    }

    /// Sets the port of an address to a free port: no socket listens on it.
    pub(crate) fn tcp_free_port(&mut self, local: SocketAddr) -> Result<SocketAddr, BindError> {
        let mut locals =
            ephemeral_ports(&mut self.rng).map(|port| SocketAddr::new(local.ip(), port));
        locals.find(|local| self.tcp.has_no_listener(*local)).ok_or(BindError::Full)
    }

    pub(super) fn udp_bind_in_shard(
        &mut self,
        mut local: SocketAddr,
        shares: bool,
    ) -> Result<UdpId, BindError> {
        for port in ephemeral_ports(&mut self.rng) {
            local.set_port(port);
            if !self.shard.has_port(port) {
                continue;
            }
            // Also for a shared bind, port 0 picks a port that no other socket has.
            if self.udp.is_free(local) {
                return self.udp.bind(local, shares);
            }
        }
        Err(BindError::Full)
    }
}

/// Number of ports that are tried before one with a connection in TIME-WAIT is reused: a program
/// that connects often has no others.
const LOOKED_AT_MAX: usize = 256;

fn ephemeral_ports(rng: &mut SeededRng) -> impl Iterator<Item = u16> + Clone + use<> {
    let first = rng.below(EPHEMERAL_PORTS.len() as u64) as usize;
    EPHEMERAL_PORTS.skip(first).chain(EPHEMERAL_PORTS.take(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::StackConfig;
    use std::net::IpAddr;

    #[test]
    fn ephemeral_ports_steer_flows_to_their_own_worker() {
        let (own, peer) = (IpAddr::from([10, 0, 0, 1]), SocketAddr::from(([10, 0, 0, 2], 80)));
        for worker in 0..3 {
            let mut stack = Stack::new(StackConfig::default(), 7);
            stack.set_addresses([own]);
            let steering = FlowSteering::among(3);
            stack.set_shard(FlowShard { steering, worker });
            let any = SocketAddr::new(own, 0);
            for _ in 0..100 {
                let id = stack.tcp_connect(Time::START, any, peer).expect("a port is free");
                let (local, remote) = stack.tcp_addresses(id).expect("it is there");
                assert_eq!(steering.connection(remote, local), worker);
                let id = stack.udp_bind(any).expect("a port is free");
                let port = stack.udp_local(id).expect("it is there").port();
                assert_eq!(steering.port(port), worker);
            }
        }
    }

    #[test]
    fn ports_of_a_shard_run_out() {
        let own = IpAddr::from([10, 0, 0, 1]);
        let mut stack = Stack::new(StackConfig::default(), 7);
        stack.set_addresses([own]);
        stack.set_shard(FlowShard { steering: FlowSteering::among(2), worker: 1 });
        let any = SocketAddr::new(own, 0);
        let bound = std::iter::from_fn(|| stack.udp_bind(any).ok()).count();
        assert!((7000..9400).contains(&bound), "{bound} of {}", EPHEMERAL_PORTS.len());
        assert_eq!(stack.udp_bind(any), Err(BindError::Full));
    }
}

//! The settings of a subnet manager: its priority among managers, and the policy of the subnet.

use crate::partitions::Partitions;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::mad::smp::{MKey, SmKey};
use pollux_wire::units::TimeCode;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct SmConfig {
    /// The manager with the highest priority is the master. Among equals, it is the manager with
    /// the lowest GUID.
    pub priority: u8,
    /// The SM_Key. Trusted managers and trusted clients of the administrator send it.
    pub sm_key: SmKey,
    /// The M_Key that protects ports; 0 for none. A requester without it can read everything except
    /// the key, and can set nothing.
    pub m_key: MKey,
    /// The M_Key lease period: the time after a Set with a wrong key in which a port still hides
    /// its key (IBA 14.2.4). With 0, it hides the key forever, and a later manager with another key
    /// cannot take over. While the master runs, its answer to the trap of such a Set ends the
    /// lease.
    pub m_key_lease_seconds: u16,
    pub prefix: u64,
    /// Every port of an adapter or router gets 2^lmc LIDs.
    pub lmc: u8,
    /// LIDs of an earlier run, by port GUID. They take precedence over the LIDs that ports have.
    pub lids: BTreeMap<Guid, Lid>,
    pub partitions: Partitions,
    /// Whether switches enforce partitions, in addition to adapters.
    pub switches_enforce_partitions: bool,
    /// The packet lifetime of paths and groups. Senders compute their timeouts from it.
    pub packet_life_time: TimeCode,
    /// The SubnetTimeout of ports. A node sends at most one trap in this time, so a short time
    /// makes the manager learn of changes early.
    pub subnet_timeout: TimeCode,
    pub window_mads: usize,
    pub response_time: Duration,
    pub tries: u8,
    /// The interval of light sweeps.
    pub sweep_interval: Duration,
    /// The minimum interval of heavy sweeps, even if traps request more.
    pub sweep_gap: Duration,
    /// The polling interval of a standby manager.
    pub poll_interval: Duration,
    /// Polls without an answer after which the master counts as dead.
    pub polls_missed_max: u32,
}

impl Default for SmConfig {
    fn default() -> Self {
        Self {
            priority: 0,
            sm_key: SmKey(1),
            m_key: MKey(0),
            m_key_lease_seconds: 30,
            prefix: Gid::DEFAULT_PREFIX,
            lmc: 0,
            lids: BTreeMap::new(),
            partitions: Partitions::default(),
            switches_enforce_partitions: true,
            packet_life_time: TimeCode(18),
            subnet_timeout: TimeCode(12),
            window_mads: 64,
            response_time: Duration::from_millis(200),
            tries: 3,
            sweep_interval: Duration::from_secs(10),
            sweep_gap: Duration::from_millis(20),
            poll_interval: Duration::from_secs(10),
            polls_missed_max: 4,
        }
    }
}

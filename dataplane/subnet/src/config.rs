//! The settings of a subnet manager: its priority among managers, and the policy of the subnet.

use crate::partitions::Partitions;
use pollux_wire::address::{Gid, Guid, Lid};
use pollux_wire::mad::smp::{MKey, SmKey};
use pollux_wire::units::TimeCode;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct SmConfig {
    /// The manager with the highest is the master; of several, the one with the lowest GUID.
    pub priority: u8,
    /// The SM_Key: shown by trusted managers and trusted clients of the administrator.
    pub sm_key: SmKey,
    /// The M_Key that protects ports; 0 for none. A requester without it can read everything but
    /// the key, and set nothing.
    pub m_key: MKey,
    /// The M_Key lease period: how long a port hides its key after a Set with a wrong key (IBA
    /// 14.2.4); 0 for ever. A manager that takes over with another key than its predecessor's needs
    /// a lease. While the master runs, its answer to the trap of such a Set ends the lease.
    pub m_key_lease_seconds: u16,
    pub prefix: u64,
    /// Every adapter's port gets 2^lmc addresses.
    pub lmc: u8,
    /// LIDs of an earlier run, by port. They take precedence over the LIDs of the ports.
    pub lids: BTreeMap<Guid, Lid>,
    pub partitions: Partitions,
    /// Whether switches enforce partitions, beside adapters.
    pub switches_enforce_partitions: bool,
    /// Of paths and groups: senders wait for several times this long before they give up.
    pub packet_life_time: TimeCode,
    /// A node sends no more than one trap in this time, so a port that returns soon waits for it.
    pub subnet_timeout: TimeCode,
    pub window_mads: usize,
    pub response_time: Duration,
    pub tries: u8,
    /// The interval of light sweeps.
    pub sweep_interval: Duration,
    /// The least interval of heavy sweeps, even if traps request more.
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

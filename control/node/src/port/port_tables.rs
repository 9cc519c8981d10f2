//! Indexes in the tables of a port, by which MADs name partitions and GIDs.

use pollux_verbs::Device;
use pollux_wire::address::Gid;
use pollux_wire::keys::PKey;

/// The index of a partition in the P_Key table; an entry with full membership is preferred. If the
/// table does not have the default partition yet, its index is 0, which the SA accepts.
pub(super) fn pkey_index(device: &dyn Device, port: u8, p_key: PKey) -> Option<u16> {
    let partition = p_key.partition();
    let entries = device.port(port).map_or(0, |port| port.pkeys);
    let known = (0..entries).filter_map(|at| Some((at, device.pkey(port, at).ok()?)));
    let same = known.filter(|(_, known)| known.partition() == partition);
    let best = same.min_by_key(|(_, known)| !known.is_full()).map(|(at, _)| at);
    best.or((partition == PKey::DEFAULT.partition()).then_some(0))
}

/// The index of an own GID in the GID table; 0 if it is not there any more.
pub(super) fn sgid_index(device: &dyn Device, port: u8, gid: Gid) -> u8 {
    let gids = device.port(port).map_or(0, |port| port.gids);
    (0..gids).find(|index| device.gid(port, *index) == Ok(gid)).unwrap_or(0)
}
